"""Fixtures of the tests of mem/."""

from unit.ddp.ddp_harness import DdpPoller
from unit.mpa.mpa_harness import make_poller_fixture

layer_poller = make_poller_fixture(DdpPoller)
