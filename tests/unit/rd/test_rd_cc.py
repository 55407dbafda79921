"""The window of reliable datagrams as values: what a clock that jumps may not do to it."""

from __future__ import annotations

from typing import Any

import pytest
from _siwarp_layers import ffi, lib

MS, SECOND, MSS = 10**6, 10**9, 1400


@pytest.fixture
def cc() -> Any:
    made = ffi.new("struct siw_rd_cc *")
    lib.siw_rd_cc_init(made, MSS)
    return made


@pytest.mark.parametrize("rtt", [7, 3 * MS, 50 * MS, SECOND])
def test_a_round_trip_that_never_changes_is_what_srtt_says(cc, rtt):
    for _ in range(200):
        lib.siw_rd_cc_rtt(cc, rtt)
        assert cc.srtt == rtt
    assert cc.rttvar < 4  # nanoseconds
    assert cc.rto == min(max(rtt + 4 * cc.rttvar, 20 * MS), SECOND)


@pytest.mark.parametrize("rtt", [40 * MS, 180 * MS])
def test_a_round_trip_counts_an_eighth_and_how_far_it_is_off_a_quarter(cc, rtt):
    lib.siw_rd_cc_rtt(cc, 100 * MS)
    assert (cc.srtt, cc.rttvar) == (100 * MS, 50 * MS)
    lib.siw_rd_cc_rtt(cc, rtt)
    # RFC 6298 section 2.3: RTTVAR by the SRTT before it.
    assert cc.rttvar == 50 * MS * 3 // 4 + abs(rtt - 100 * MS) // 4
    assert cc.srtt == 100 * MS * 7 // 8 + rtt // 8


def test_a_process_that_stood_still_for_minutes_is_soon_at_its_pace_again(cc):
    for _ in range(20):
        lib.siw_rd_cc_rtt(cc, 20 * MS)
    before = lib.siw_rd_cc_pace(cc)
    lib.siw_rd_cc_rtt(cc, 600 * SECOND)  # stopped, with something outstanding
    # Even the slowest pace has two datagrams a second, and a few round trips mend it.
    assert lib.siw_rd_cc_pace(cc) >= 2 * MSS
    assert cc.rto <= SECOND
    for _ in range(40):
        lib.siw_rd_cc_rtt(cc, 20 * MS)
    assert lib.siw_rd_cc_pace(cc) >= before // 2


@pytest.mark.parametrize("later", [10 * SECOND, 86400 * SECOND, 3650 * 86400 * SECOND])
def test_the_window_grows_by_what_is_delivered_however_long_ago_the_last_loss_was(cc, later):
    now = 5 * SECOND
    for _ in range(4):
        lib.siw_rd_cc_rtt(cc, 20 * MS)
    cc.noise = 65536  # so that a loss counts
    lib.siw_rd_cc_loss(cc, now, MSS, MSS)
    window = cc.cwnd
    assert window < 10 * MSS
    lib.siw_rd_cc_ack(cc, now + later, 2 * MSS, 2 * MSS, MSS, True)
    assert window < cc.cwnd <= window + 2 * MSS
