"""Fixtures of the tests of mpa/."""

from unit.mpa.mpa_harness import World, world_fixture

world = world_fixture(World)
