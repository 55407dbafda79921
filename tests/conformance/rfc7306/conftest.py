"""Fixtures shared by the RDMAP tests of this RFC."""

from unit.mpa.mpa_harness import fixture
from unit.rdmap.rdmap_harness import RdmapWorld

w = fixture(RdmapWorld)
