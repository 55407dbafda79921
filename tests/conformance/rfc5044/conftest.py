"""What the MPA tests of this RFC share."""

from unit.mpa.mpa_harness import World, fixture

w = fixture(World)
