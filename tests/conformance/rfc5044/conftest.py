"""Fixtures shared by the MPA tests of RFC 5044."""

from unit.mpa.mpa_harness import MpaPort, port_fixture

world = port_fixture(MpaPort)
