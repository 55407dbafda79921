"""Fixtures shared by the DDP tests of RFC 5041."""

from unit.ddp.ddp_harness import DdpPort
from unit.mpa.mpa_harness import port_fixture

world = port_fixture(DdpPort)
