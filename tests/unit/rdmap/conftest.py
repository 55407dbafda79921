"""Fixtures of the tests of rdmap/."""

from unit.mpa.mpa_harness import fixture
from unit.rdmap.rdmap_harness import RdmapWorld

w = fixture(RdmapWorld)
