"""Fixtures of the tests of mem/."""

from unit.ddp.ddp_harness import DdpWorld
from unit.mpa.mpa_harness import world_fixture

world = world_fixture(DdpWorld)
