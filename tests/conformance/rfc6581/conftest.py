"""Fixtures shared by the MPA tests of RFC 6581."""

from unit.mpa.mpa_harness import MpaPort, make_port_fixture

layer_port = make_port_fixture(MpaPort)
