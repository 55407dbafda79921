"""Fixtures of the tests of ddp/."""

from unit.ddp.ddp_harness import DdpPort
from unit.mpa.mpa_harness import port_fixture

world = port_fixture(DdpPort)
