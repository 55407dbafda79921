"""Fixtures shared by the DDP tests of RFC 5041."""

from unit.ddp.ddp_harness import DdpWorld
from unit.mpa.mpa_harness import world_fixture

world = world_fixture(DdpWorld)
