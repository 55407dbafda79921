"""Fixtures shared by the RDMAP tests of RFC 5040."""

from unit.mpa.mpa_harness import world_fixture
from unit.rdmap.rdmap_harness import RdmapWorld

world = world_fixture(RdmapWorld)
