"""Fixtures of the tests of rdmap/."""

from unit.mpa.mpa_harness import make_port_fixture
from unit.rdmap.rdmap_harness import RdmapPort

layer_port = make_port_fixture(RdmapPort)
