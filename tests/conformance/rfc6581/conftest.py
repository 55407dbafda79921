"""Fixtures shared by the MPA tests of this RFC."""

from unit.mpa.mpa_harness import World, fixture

w = fixture(World)
