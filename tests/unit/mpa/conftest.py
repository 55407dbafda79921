"""Fixtures of the tests of mpa/."""

from unit.mpa.mpa_harness import MpaPort, make_port_fixture

layer_port = make_port_fixture(MpaPort)
