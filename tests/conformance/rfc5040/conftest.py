"""Fixtures shared by the RDMAP tests of RFC 5040."""

from unit.mpa.mpa_harness import port_fixture
from unit.rdmap.rdmap_harness import RdmapPort

world = port_fixture(RdmapPort)
