"""Fixtures shared by the MPA tests of RFC 5044."""

from unit.mpa.mpa_harness import MpaPoller, make_poller_fixture

layer_poller = make_poller_fixture(MpaPoller)
