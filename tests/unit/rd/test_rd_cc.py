"""RD's congestion controllers, called with chosen times: windows, rates, round-trip estimates."""

from __future__ import annotations

from typing import Any

import pytest
from _siwarp_layers import ffi, lib

MS, SECOND, MSS = 10**6, 10**9, 1400


@pytest.fixture(params=["bbr", "cubic"])
def rd_congestion_controller(request) -> Any:
    made = ffi.new("struct siw_rd_cc *")
    lib.siw_setting_set(b"rd_cc", {"bbr": 1, "cubic": 2}[request.param])
    lib.siw_rd_cc_init(made, MSS, False)
    lib.siw_setting_set(b"rd_cc", 0)
    return made


def report_datagram_to_cc(cc: Any, now: int, rtt: int) -> None:
    """Report one datagram to the controller as sent and, a round trip later, as acknowledged."""
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_note_sent(cc, now - rtt, MSS, 0, sent)
    ack.now, ack.rtt, ack.full = now, rtt, True
    lib.siw_rd_cc_note_delivered(cc, ack, sent, MSS, now - rtt)
    lib.siw_rd_cc_add_rtt_sample(cc, rtt)
    lib.siw_rd_cc_handle_ack(cc, ack)


@pytest.mark.parametrize("rtt", [7, 3 * MS, 50 * MS, SECOND])
def test_srtt_equals_a_constant_round_trip_time(rd_congestion_controller, rtt):
    for _ in range(200):
        lib.siw_rd_cc_add_rtt_sample(rd_congestion_controller, rtt)
        assert rd_congestion_controller.srtt == rtt
    assert rd_congestion_controller.rttvar < 4  # nanoseconds
    assert rd_congestion_controller.rto == min(
        max(rtt + 4 * rd_congestion_controller.rttvar, 20 * MS), SECOND
    )


@pytest.mark.parametrize("rtt", [40 * MS, 180 * MS])
def test_a_round_trip_sample_has_weight_1_8_in_srtt_and_1_4_in_rttvar(
    rd_congestion_controller, rtt
):
    lib.siw_rd_cc_add_rtt_sample(rd_congestion_controller, 100 * MS)
    assert (rd_congestion_controller.srtt, rd_congestion_controller.rttvar) == (100 * MS, 50 * MS)
    lib.siw_rd_cc_add_rtt_sample(rd_congestion_controller, rtt)
    # RFC 6298 section 2.3: RTTVAR is computed with the previous SRTT.
    assert rd_congestion_controller.rttvar == 50 * MS * 3 // 4 + abs(rtt - 100 * MS) // 4
    assert rd_congestion_controller.srtt == 100 * MS * 7 // 8 + rtt // 8


def test_the_sending_rate_recovers_soon_after_a_process_was_suspended_for_minutes(
    rd_congestion_controller,
):
    now = 1000 * SECOND
    for _ in range(20):
        now += 20 * MS
        report_datagram_to_cc(rd_congestion_controller, now, 20 * MS)
    before = rd_congestion_controller.rate
    now += 600 * SECOND  # 600 s in which the process is suspended, with a datagram in flight
    report_datagram_to_cc(rd_congestion_controller, now, 600 * SECOND)
    # Even the lowest rate is two datagrams per second, and a few round trips restore the rate.
    assert rd_congestion_controller.rate >= 2 * MSS
    assert rd_congestion_controller.rto <= SECOND
    for _ in range(40):
        now += 20 * MS
        report_datagram_to_cc(rd_congestion_controller, now, 20 * MS)
    assert rd_congestion_controller.rate >= before // 2


@pytest.mark.parametrize("rd_congestion_controller", ["cubic"], indirect=True)
@pytest.mark.parametrize("later", [10 * SECOND, 86400 * SECOND, 3650 * 86400 * SECOND])
def test_the_cubic_window_grows_by_at_most_the_delivered_octets_long_after_a_loss(
    rd_congestion_controller, later
):
    now = 5 * SECOND
    for _ in range(4):
        report_datagram_to_cc(rd_congestion_controller, now, 20 * MS)
    before = rd_congestion_controller.cwnd
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_note_sent(rd_congestion_controller, now, MSS, 0, sent)
    ack.now = now + 20 * MS
    lib.siw_rd_cc_note_lost(rd_congestion_controller, ack, sent, MSS, now)
    window = rd_congestion_controller.cwnd
    assert window == before * 7 // 10
    # The loss of a datagram sent before a reduction has the same cause and reduces nothing again.
    lib.siw_rd_cc_note_lost(rd_congestion_controller, ack, sent, MSS, now)
    assert rd_congestion_controller.cwnd == window
    report_datagram_to_cc(rd_congestion_controller, now + later, 20 * MS)
    assert window < rd_congestion_controller.cwnd <= window + MSS


@pytest.mark.clause("DGRAM-CC-8")
@pytest.mark.parametrize("rd_congestion_controller", ["cubic"], indirect=True)
def test_a_ce_mark_reduces_the_cubic_window_by_15_percent(rd_congestion_controller):
    report_datagram_to_cc(rd_congestion_controller, SECOND, 20 * MS)
    before = rd_congestion_controller.cwnd
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_note_sent(rd_congestion_controller, 2 * SECOND, MSS, 0, sent)
    ack.now, ack.ce = 2 * SECOND + 20 * MS, 1
    lib.siw_rd_cc_note_delivered(rd_congestion_controller, ack, sent, MSS, 2 * SECOND)
    lib.siw_rd_cc_handle_ack(rd_congestion_controller, ack)
    assert rd_congestion_controller.cwnd == before * 85 // 100  # RFC 8511


@pytest.mark.clause("DGRAM-CC-2")
def test_the_burst_limit_shrinks_with_losses_and_grows_with_delivered_datagrams(
    rd_congestion_controller,
):
    now = SECOND
    for _ in range(200):
        now += 20 * MS
        report_datagram_to_cc(rd_congestion_controller, now, 20 * MS)
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    before = rd_congestion_controller.burst
    for _ in range(20):
        lib.siw_rd_cc_note_sent(rd_congestion_controller, now, MSS, 0, sent)
        ack.now = now + 20 * MS
        lib.siw_rd_cc_note_lost(rd_congestion_controller, ack, sent, MSS, now)
    assert rd_congestion_controller.burst < before
    report_datagram_to_cc(rd_congestion_controller, now + 40 * MS, 20 * MS)
    assert MSS <= rd_congestion_controller.burst <= 2 * MSS
    assert MSS <= rd_congestion_controller.quantum <= rd_congestion_controller.burst


@pytest.mark.parametrize("rd_congestion_controller", ["bbr"], indirect=True)
def test_bbr_measures_no_rate_before_a_round_trip_time_is_known(rd_congestion_controller):
    """An ACK directly after a retransmission may be for the first copy of the datagram."""
    first_pace = rd_congestion_controller.rate
    sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
    lib.siw_rd_cc_note_sent(rd_congestion_controller, SECOND, MSS, 0, sent)
    ack.now = SECOND + MS // 20
    lib.siw_rd_cc_note_delivered(rd_congestion_controller, ack, sent, MSS, SECOND)
    lib.siw_rd_cc_handle_ack(rd_congestion_controller, ack)
    assert list(rd_congestion_controller.bbr.max_bw) == [0, 0]
    assert (rd_congestion_controller.bbr.state, rd_congestion_controller.rate) == (
        0,
        first_pace,
    )  # state 0 is BBR's Startup
    report_datagram_to_cc(rd_congestion_controller, 2 * SECOND, 50 * MS)
    assert max(rd_congestion_controller.bbr.max_bw) > 0
    assert rd_congestion_controller.rate < first_pace / 10  # the initial rate assumes 1 ms RTT


@pytest.mark.parametrize("rd_congestion_controller", ["bbr"], indirect=True)
@pytest.mark.parametrize(("rtt", "least"), [(2 * MS, 2), (50 * MS, 4)])
def test_the_minimum_window_of_bbr_is_2_datagrams_at_short_round_trip_times_and_else_4(
    rd_congestion_controller, rtt, least
):
    report_datagram_to_cc(rd_congestion_controller, SECOND, rtt)
    lib.siw_rd_cc_handle_timeout(rd_congestion_controller, 2 * SECOND)
    report_datagram_to_cc(rd_congestion_controller, 2 * SECOND + rtt, rtt)
    assert rd_congestion_controller.cwnd >= least * MSS
    for i in range(200):  # a datagram is lost in each round, which lowers BBR's bounds
        now = 3 * SECOND + i * rtt
        sent, ack = ffi.new("struct siw_rd_sent *"), ffi.new("struct siw_rd_cc_ack *")
        lib.siw_rd_cc_note_sent(rd_congestion_controller, now, MSS, MSS, sent)
        ack.now = now + rtt
        lib.siw_rd_cc_note_lost(rd_congestion_controller, ack, sent, MSS, now)
        report_datagram_to_cc(rd_congestion_controller, now + 2 * rtt, rtt)
    assert rd_congestion_controller.cwnd == least * MSS


@pytest.mark.clause("DGRAM-CC-10")
def test_after_a_retransmission_time_out_the_window_is_two_datagrams(rd_congestion_controller):
    report_datagram_to_cc(rd_congestion_controller, SECOND, 20 * MS)
    assert rd_congestion_controller.cwnd > 2 * MSS
    lib.siw_rd_cc_handle_timeout(rd_congestion_controller, 2 * SECOND)
    assert rd_congestion_controller.cwnd == 2 * MSS


@pytest.mark.clause("DGRAM-CC-2")
def test_sending_is_paced_from_the_first_datagram_on(rd_congestion_controller):
    assert rd_congestion_controller.rate
    assert lib.siw_rd_cc_pacing_delay(rd_congestion_controller, MSS) == pytest.approx(
        MSS * SECOND / rd_congestion_controller.rate, rel=0.01
    )
    report_datagram_to_cc(rd_congestion_controller, SECOND, 20 * MS)
    assert 0 < rd_congestion_controller.rate < 10 * 4 * MSS * 50


def test_a_path_within_the_host_is_not_paced_and_has_a_large_minimum_window(
    rd_congestion_controller,
):
    report_datagram_to_cc(rd_congestion_controller, SECOND, 20 * MS)
    assert rd_congestion_controller.rate
    lib.siw_rd_cc_set_path_mss(rd_congestion_controller, 65507, True)
    assert lib.siw_rd_cc_pacing_delay(rd_congestion_controller, 65507) == 0
    lib.siw_rd_cc_handle_timeout(rd_congestion_controller, 2 * SECOND)
    assert rd_congestion_controller.cwnd >= 128 << 10


def test_the_congestion_control_state_of_a_peer_is_at_most_400_octets():
    assert ffi.sizeof("struct siw_rd_cc") <= 400
