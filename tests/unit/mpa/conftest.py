"""Fixtures of the tests of mpa/."""

from unit.mpa.mpa_harness import MpaPoller, make_poller_fixture

layer_poller = make_poller_fixture(MpaPoller)
