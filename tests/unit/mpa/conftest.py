"""Fixtures of the tests of mpa/."""

from unit.mpa.mpa_harness import World, fixture

w = fixture(World)
