"""RD's congestion controllers, called with chosen times: windows, rates, round-trip estimates."""

from __future__ import annotations

from typing import Any

import pytest
from _siwarp_layers import ffi, lib

MS, SECOND, MSS = 10**6, 10**9, 1400


@pytest.fixture(params=["bbr", "cubic"])
def congestion_control(request) -> Any:
    made = ffi.new("struct siw_rd_cc *")
    lib.siw_setting_set(b"rd_cc", {"bbr": 1, "cubic": 2}[request.param])
    lib.siw_rd_cc_init(made, MSS, False)
    lib.siw_setting_set(b"rd_cc", 0)
    return made


def report_acknowledged_datagram(cc: Any, now: int, rtt: int) -> None:
    """Report one datagram to the controller as sent and, a round trip later, as acknowledged."""
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_note_sent(cc, now - rtt, MSS, 0, sent)
    ack.now, ack.rtt, ack.full = now, rtt, True
    lib.siw_rd_cc_note_delivered(cc, ack, sent, MSS, now - rtt)
    lib.siw_rd_cc_add_rtt_sample(cc, rtt)
    lib.siw_rd_cc_handle_ack(cc, ack)


@pytest.mark.parametrize("rtt", [7, 3 * MS, 50 * MS, SECOND])
def test_srtt_equals_a_constant_round_trip_time(congestion_control, rtt):
    for _ in range(200):
        lib.siw_rd_cc_add_rtt_sample(congestion_control, rtt)
        assert congestion_control.srtt == rtt
    assert congestion_control.rttvar < 4  # nanoseconds
    assert congestion_control.rto == min(max(rtt + 4 * congestion_control.rttvar, 20 * MS), SECOND)


@pytest.mark.parametrize("rtt", [40 * MS, 180 * MS])
def test_a_round_trip_sample_has_weight_1_8_in_srtt_and_1_4_in_rttvar(congestion_control, rtt):
    lib.siw_rd_cc_add_rtt_sample(congestion_control, 100 * MS)
    assert (congestion_control.srtt, congestion_control.rttvar) == (100 * MS, 50 * MS)
    lib.siw_rd_cc_add_rtt_sample(congestion_control, rtt)
    # RFC 6298 section 2.3: RTTVAR is computed with the previous SRTT.
    assert congestion_control.rttvar == 50 * MS * 3 // 4 + abs(rtt - 100 * MS) // 4
    assert congestion_control.srtt == 100 * MS * 7 // 8 + rtt // 8


def test_the_sending_rate_recovers_soon_after_a_process_was_suspended_for_minutes(
    congestion_control,
):
    now = 1000 * SECOND
    for _ in range(20):
        now += 20 * MS
        report_acknowledged_datagram(congestion_control, now, 20 * MS)
    before = congestion_control.rate
    now += 600 * SECOND  # 600 s in which the process is suspended, with a datagram in flight
    report_acknowledged_datagram(congestion_control, now, 600 * SECOND)
    # Even the lowest rate is two datagrams per second, and a few round trips restore the rate.
    assert congestion_control.rate >= 2 * MSS
    assert congestion_control.rto <= SECOND
    for _ in range(40):
        now += 20 * MS
        report_acknowledged_datagram(congestion_control, now, 20 * MS)
    assert congestion_control.rate >= before // 2


@pytest.mark.parametrize("congestion_control", ["cubic"], indirect=True)
@pytest.mark.parametrize("later", [10 * SECOND, 86400 * SECOND, 3650 * 86400 * SECOND])
def test_the_cubic_window_grows_by_at_most_the_delivered_octets_long_after_a_loss(
    congestion_control, later
):
    now = 5 * SECOND
    for _ in range(4):
        report_acknowledged_datagram(congestion_control, now, 20 * MS)
    before = congestion_control.cwnd
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_note_sent(congestion_control, now, MSS, 0, sent)
    ack.now = now + 20 * MS
    lib.siw_rd_cc_note_lost(congestion_control, ack, sent, MSS, now)
    window = congestion_control.cwnd
    assert window == before * 7 // 10
    # The loss of a datagram sent before a reduction has the same cause and reduces nothing again.
    lib.siw_rd_cc_note_lost(congestion_control, ack, sent, MSS, now)
    assert congestion_control.cwnd == window
    report_acknowledged_datagram(congestion_control, now + later, 20 * MS)
    assert window < congestion_control.cwnd <= window + MSS


@pytest.mark.clause("DGRAM-CC-8")
@pytest.mark.parametrize("congestion_control", ["cubic"], indirect=True)
def test_a_ce_mark_reduces_the_cubic_window_by_15_percent(congestion_control):
    report_acknowledged_datagram(congestion_control, SECOND, 20 * MS)
    before = congestion_control.cwnd
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_note_sent(congestion_control, 2 * SECOND, MSS, 0, sent)
    ack.now, ack.ce = 2 * SECOND + 20 * MS, 1
    lib.siw_rd_cc_note_delivered(congestion_control, ack, sent, MSS, 2 * SECOND)
    lib.siw_rd_cc_handle_ack(congestion_control, ack)
    assert congestion_control.cwnd == before * 85 // 100  # RFC 8511


@pytest.mark.clause("DGRAM-CC-2")
def test_the_burst_limit_shrinks_with_losses_and_grows_with_delivered_datagrams(congestion_control):
    now = SECOND
    for _ in range(200):
        now += 20 * MS
        report_acknowledged_datagram(congestion_control, now, 20 * MS)
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    before = congestion_control.burst
    for _ in range(20):
        lib.siw_rd_cc_note_sent(congestion_control, now, MSS, 0, sent)
        ack.now = now + 20 * MS
        lib.siw_rd_cc_note_lost(congestion_control, ack, sent, MSS, now)
    assert congestion_control.burst < before
    report_acknowledged_datagram(congestion_control, now + 40 * MS, 20 * MS)
    assert MSS <= congestion_control.burst <= 2 * MSS
    assert MSS <= congestion_control.quantum <= congestion_control.burst


@pytest.mark.parametrize("congestion_control", ["bbr"], indirect=True)
def test_bbr_measures_no_rate_before_a_round_trip_time_is_known(congestion_control):
    """An ACK directly after a retransmission may be for the first copy of the datagram."""
    first_pace = congestion_control.rate
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_note_sent(congestion_control, SECOND, MSS, 0, sent)
    ack.now = SECOND + MS // 20
    lib.siw_rd_cc_note_delivered(congestion_control, ack, sent, MSS, SECOND)
    lib.siw_rd_cc_handle_ack(congestion_control, ack)
    assert list(congestion_control.bbr.max_bw) == [0, 0]
    assert (congestion_control.bbr.state, congestion_control.rate) == (
        0,
        first_pace,
    )  # state 0 is BBR's Startup
    report_acknowledged_datagram(congestion_control, 2 * SECOND, 50 * MS)
    assert max(congestion_control.bbr.max_bw) > 0
    assert congestion_control.rate < first_pace / 10  # the initial rate assumes 1 ms RTT


@pytest.mark.parametrize("congestion_control", ["bbr"], indirect=True)
@pytest.mark.parametrize(("rtt", "least"), [(2 * MS, 2), (50 * MS, 4)])
def test_the_minimum_window_of_bbr_is_2_datagrams_at_short_round_trip_times_and_else_4(
    congestion_control, rtt, least
):
    report_acknowledged_datagram(congestion_control, SECOND, rtt)
    lib.siw_rd_cc_handle_timeout(congestion_control, 2 * SECOND)
    report_acknowledged_datagram(congestion_control, 2 * SECOND + rtt, rtt)
    assert congestion_control.cwnd >= least * MSS
    for i in range(200):  # a datagram is lost in each round, which lowers BBR's bounds
        now = 3 * SECOND + i * rtt
        sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
        lib.siw_rd_cc_note_sent(congestion_control, now, MSS, MSS, sent)
        ack.now = now + rtt
        lib.siw_rd_cc_note_lost(congestion_control, ack, sent, MSS, now)
        report_acknowledged_datagram(congestion_control, now + 2 * rtt, rtt)
    assert congestion_control.cwnd == least * MSS


@pytest.mark.clause("DGRAM-CC-10")
def test_after_a_retransmission_time_out_the_window_is_two_datagrams(congestion_control):
    report_acknowledged_datagram(congestion_control, SECOND, 20 * MS)
    assert congestion_control.cwnd > 2 * MSS
    lib.siw_rd_cc_handle_timeout(congestion_control, 2 * SECOND)
    assert congestion_control.cwnd == 2 * MSS


@pytest.mark.clause("DGRAM-CC-2")
def test_sending_is_paced_from_the_first_datagram_on(congestion_control):
    assert congestion_control.rate
    assert lib.siw_rd_cc_pacing_delay(congestion_control, MSS) == pytest.approx(
        MSS * SECOND / congestion_control.rate, rel=0.01
    )
    report_acknowledged_datagram(congestion_control, SECOND, 20 * MS)
    assert 0 < congestion_control.rate < 10 * 4 * MSS * 50


def test_a_path_within_the_host_is_not_paced_and_has_a_large_minimum_window(congestion_control):
    report_acknowledged_datagram(congestion_control, SECOND, 20 * MS)
    assert congestion_control.rate
    lib.siw_rd_cc_set_path_mss(congestion_control, 65507, True)
    assert lib.siw_rd_cc_pacing_delay(congestion_control, 65507) == 0
    lib.siw_rd_cc_handle_timeout(congestion_control, 2 * SECOND)
    assert congestion_control.cwnd >= 128 << 10


def test_the_congestion_control_state_of_a_peer_is_at_most_400_octets():
    assert ffi.sizeof("struct siw_rd_cc") <= 400
