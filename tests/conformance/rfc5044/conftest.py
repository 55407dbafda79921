"""Fixtures shared by the MPA tests of this RFC."""

from unit.mpa.mpa_harness import World, world_fixture

world = world_fixture(World)
