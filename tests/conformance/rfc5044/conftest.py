"""Fixtures shared by the MPA tests of RFC 5044."""

from unit.mpa.mpa_harness import World, world_fixture

world = world_fixture(World)
