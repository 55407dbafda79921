"""Fixtures of the tests of mpa/."""

from unit.mpa.mpa_harness import MpaPort, port_fixture

world = port_fixture(MpaPort)
