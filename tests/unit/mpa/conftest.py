"""What the tests of mpa/ share."""

from unit.mpa.mpa_harness import World, fixture

w = fixture(World)
