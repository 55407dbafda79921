"""RD's congestion window as values: a clock that jumps must not break it."""

from __future__ import annotations

from typing import Any

import pytest
from _siwarp_layers import ffi, lib

MS, SECOND, MSS = 10**6, 10**9, 1400


@pytest.fixture(params=["bbr", "cubic"])
def cc(request) -> Any:
    made = ffi.new("struct siw_rd_cc *")
    lib.siw_setting_set(b"rd_cc", {"bbr": 1, "cubic": 2}[request.param])
    lib.siw_rd_cc_init(made, MSS, False)
    lib.siw_setting_set(b"rd_cc", 0)
    return made


def deliver(cc: Any, now: int, rtt: int) -> None:
    """Send and acknowledge one datagram."""
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_sent(cc, now - rtt, MSS, 0, sent)
    ack.now, ack.rtt, ack.full = now, rtt, True
    lib.siw_rd_cc_delivered(cc, ack, sent, MSS, now - rtt)
    lib.siw_rd_cc_rtt(cc, rtt)
    lib.siw_rd_cc_acked(cc, ack)


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
    # RFC 6298 section 2.3: RTTVAR is computed with the previous SRTT.
    assert cc.rttvar == 50 * MS * 3 // 4 + abs(rtt - 100 * MS) // 4
    assert cc.srtt == 100 * MS * 7 // 8 + rtt // 8


def test_a_process_that_stood_still_for_minutes_is_soon_at_its_pace_again(cc):
    now = 1000 * SECOND
    for _ in range(20):
        now += 20 * MS
        deliver(cc, now, 20 * MS)
    before = cc.rate
    now += 600 * SECOND  # 600 s in which the process is suspended, with a datagram in flight
    deliver(cc, now, 600 * SECOND)
    # Even the lowest pace sends two datagrams a second, and a few round trips restore the rate.
    assert cc.rate >= 2 * MSS
    assert cc.rto <= SECOND
    for _ in range(40):
        now += 20 * MS
        deliver(cc, now, 20 * MS)
    assert cc.rate >= before // 2


@pytest.mark.parametrize("cc", ["cubic"], indirect=True)
@pytest.mark.parametrize("later", [10 * SECOND, 86400 * SECOND, 3650 * 86400 * SECOND])
def test_the_window_grows_by_what_is_delivered_however_long_ago_the_last_loss_was(cc, later):
    now = 5 * SECOND
    for _ in range(4):
        deliver(cc, now, 20 * MS)
    before = cc.cwnd
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_sent(cc, now, MSS, 0, sent)
    ack.now = now + 20 * MS
    lib.siw_rd_cc_lost(cc, ack, sent, MSS, now)
    window = cc.cwnd
    assert window == before * 7 // 10
    # Datagrams sent before the reduction were lost for the same reason, so they cause no other one.
    lib.siw_rd_cc_lost(cc, ack, sent, MSS, now)
    assert cc.cwnd == window
    deliver(cc, now + later, 20 * MS)
    assert window < cc.cwnd <= window + MSS


@pytest.mark.clause("DGRAM-CC-8")
@pytest.mark.parametrize("cc", ["cubic"], indirect=True)
def test_a_mark_takes_less_from_the_window_than_a_loss(cc):
    deliver(cc, SECOND, 20 * MS)
    before = cc.cwnd
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_sent(cc, 2 * SECOND, MSS, 0, sent)
    ack.now, ack.ce = 2 * SECOND + 20 * MS, 1
    lib.siw_rd_cc_delivered(cc, ack, sent, MSS, 2 * SECOND)
    lib.siw_rd_cc_acked(cc, ack)
    assert cc.cwnd == before * 85 // 100  # RFC 8511


@pytest.mark.clause("DGRAM-CC-2")
def test_a_burst_shrinks_with_losses_and_grows_with_what_is_delivered(cc):
    now = SECOND
    for _ in range(200):
        now += 20 * MS
        deliver(cc, now, 20 * MS)
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    before = cc.burst
    for _ in range(20):
        lib.siw_rd_cc_sent(cc, now, MSS, 0, sent)
        ack.now = now + 20 * MS
        lib.siw_rd_cc_lost(cc, ack, sent, MSS, now)
    assert cc.burst < before
    deliver(cc, now + 40 * MS, 20 * MS)
    assert MSS <= cc.burst <= 2 * MSS
    assert MSS <= cc.quantum <= cc.burst


@pytest.mark.parametrize("cc", ["bbr"], indirect=True)
def test_before_a_round_trip_is_known_no_rate_is_measured(cc):
    """A retransmitted datagram may be acknowledged at once, because its first copy arrived."""
    first_pace = cc.rate
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_sent(cc, SECOND, MSS, 0, sent)
    ack.now = SECOND + MS // 20
    lib.siw_rd_cc_delivered(cc, ack, sent, MSS, SECOND)
    lib.siw_rd_cc_acked(cc, ack)
    assert list(cc.bbr.max_bw) == [0, 0]
    assert (cc.bbr.state, cc.rate) == (0, first_pace)  # state 0 is BBR's Startup
    deliver(cc, 2 * SECOND, 50 * MS)
    assert max(cc.bbr.max_bw) > 0
    assert cc.rate < first_pace / 10  # the first pace assumed a round trip of 1 ms


@pytest.mark.parametrize("cc", ["bbr"], indirect=True)
@pytest.mark.parametrize(("rtt", "least"), [(2 * MS, 2), (50 * MS, 4)])
def test_the_least_window_is_two_datagrams_where_four_are_a_high_rate(cc, rtt, least):
    deliver(cc, SECOND, rtt)
    lib.siw_rd_cc_timeout(cc, 2 * SECOND)
    deliver(cc, 2 * SECOND + rtt, rtt)
    assert cc.cwnd >= least * MSS
    for i in range(200):  # every datagram is lost, and lowers the bounds
        now = 3 * SECOND + i * rtt
        sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
        lib.siw_rd_cc_sent(cc, now, MSS, MSS, sent)
        ack.now = now + rtt
        lib.siw_rd_cc_lost(cc, ack, sent, MSS, now)
        deliver(cc, now + 2 * rtt, rtt)
    assert cc.cwnd == least * MSS


@pytest.mark.clause("DGRAM-CC-10")
def test_after_a_time_out_the_window_is_two_datagrams(cc):
    deliver(cc, SECOND, 20 * MS)
    assert cc.cwnd > 2 * MSS
    lib.siw_rd_cc_timeout(cc, 2 * SECOND)
    assert cc.cwnd == 2 * MSS


@pytest.mark.clause("DGRAM-CC-2")
def test_from_the_first_datagram_on_there_is_a_pace(cc):
    assert cc.rate
    assert lib.siw_rd_cc_wait(cc, MSS) == pytest.approx(MSS * SECOND / cc.rate, rel=0.01)
    deliver(cc, SECOND, 20 * MS)
    assert 0 < cc.rate < 10 * 4 * MSS * 50


def test_a_path_within_the_host_has_no_pace_and_a_large_least_window(cc):
    deliver(cc, SECOND, 20 * MS)
    assert cc.rate
    lib.siw_rd_cc_path(cc, 65507, True)
    assert lib.siw_rd_cc_wait(cc, 65507) == 0
    lib.siw_rd_cc_timeout(cc, 2 * SECOND)
    assert cc.cwnd >= 128 << 10


def test_a_state_for_each_peer_is_small():
    assert ffi.sizeof("struct siw_rd_cc") <= 400
