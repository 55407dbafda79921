"""Fixtures shared by the RDMAP tests of RFC 7306."""

from unit.mpa.mpa_harness import make_poller_fixture
from unit.rdmap.rdmap_harness import RdmapPoller

layer_poller = make_poller_fixture(RdmapPoller)
