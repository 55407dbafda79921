"""Reliable datagrams over a network that loses, duplicates, reorders, damages and delays them."""

from __future__ import annotations

import random

import net
import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import Counters
from unit.rd.rd_kit import poll_until, send_all_segments


def set_fault_plan(text: str | None) -> None:
    """Set the fault plan of the host's link to itself."""
    net.current_simulated_world().link(net.HERE, net.HERE, text)


def make_random_segments(n: int, seed: int, most: int) -> list[bytes]:
    rng = random.Random(seed)
    return [b"%08d" % i + rng.randbytes(rng.choice([0, 7, 100, most])) for i in range(n)]


@pytest.mark.clause("DGRAM-RD-12")
@pytest.mark.parametrize("seed", [1, 2])
def test_segments_arrive_intact_and_in_order_despite_loss_duplication_and_damage(
    make_endpoint, seed
):
    a, b = make_endpoint(), make_endpoint()
    set_fault_plan(f"loss=10%, dup=5%, reorder=2%, corrupt=0.1%, seed={seed}")
    to_b, to_a = a.get_or_create_peer(b.local_addr), b.get_or_create_peer(a.local_addr)
    there, back = (
        make_random_segments(1500, seed, 3000),
        make_random_segments(300, seed + 100, 3000),
    )
    for data in back[:200]:
        assert b.send(to_a, data) in (0, 1)
    sent_back = lib.siw_rd_segments_ever_queued(to_a, lib.SIW_RD_REQUESTS)
    send_all_segments(a, to_b, there, a, b, seconds=60)
    poll_until(
        lambda: lib.siw_rd_total_accepted_segments(to_a, lib.SIW_RD_REQUESTS) == sent_back, a, b
    )
    assert b.received_data() == there
    assert a.received_data() == back[:sent_back]
    assert sent_back > 50
    assert not a.event_count("gone") and not a.event_count("restarted")


@pytest.mark.clause("DGRAM-RD-12")
def test_large_segments_arrive_despite_bursts_of_loss(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    set_fault_plan("loss=2%, burst=3, delay=0.2ms, jitter=0.1ms")
    peer = a.get_or_create_peer(b.local_addr)
    data = make_random_segments(300, 5, 60000)
    counters = Counters()
    send_all_segments(a, peer, data, a, b)
    assert b.received_data() == data
    assert counters["rd_retransmits"] >= 1


@pytest.mark.clause("DGRAM-RD-12")
def test_an_interruption_shorter_than_the_peer_timeout_loses_no_segment(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    send_all_segments(a, peer, [b"before"], a, b)
    set_fault_plan("blackout=300ms@0s")
    send_all_segments(a, peer, [b"during"] * 50, a, b)
    assert b.received_data() == [b"before"] + [b"during"] * 50
    assert not a.event_count("gone")


LONG_ROUND_TRIPS_S = [0.4, 0.6, 1.5]


@pytest.mark.clause("DGRAM-RD-36")
@pytest.mark.parametrize("rtt", LONG_ROUND_TRIPS_S)
def test_endpoints_connect_over_a_long_round_trip_in_one_incarnation(make_endpoint, rtt):
    a, b = make_endpoint(), make_endpoint()
    set_fault_plan(f"tx:delay={rtt * 500:.0f}ms")
    peer = a.get_or_create_peer(b.local_addr)
    counters = Counters()
    began = net.now()
    assert a.send(peer, b"far") == 1
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 1, a, b)
    took = net.now() - began
    # Three round trips are necessary: HELLO and CHALLENGE, ECHO and ACK, DATA and ACK.
    assert 3 * rtt <= took < 3 * rtt + 0.001
    send_all_segments(a, peer, [b"and on"] * 3, a, b)
    assert b.received_data() == [b"far"] + [b"and on"] * 3
    assert (
        b.event_count("new") == 1
        and not b.event_count("restarted")
        and not a.event_count("restarted")
    )
    assert counters["rd_gone"] == 0


@pytest.mark.clause("DGRAM-RD-27", "DGRAM-RD-36")
@pytest.mark.parametrize("rtt", LONG_ROUND_TRIPS_S)
def test_endpoints_that_connect_to_each_other_simultaneously_share_one_incarnation(
    make_endpoint, rtt
):
    a, b = make_endpoint(), make_endpoint()
    set_fault_plan(f"tx:delay={rtt * 500:.0f}ms")
    to_b, to_a = a.get_or_create_peer(b.local_addr), b.get_or_create_peer(a.local_addr)
    assert a.send(to_b, b"from a") == b.send(to_a, b"from b") == 1
    poll_until(
        lambda: (
            lib.siw_rd_total_accepted_segments(to_b, lib.SIW_RD_REQUESTS)
            == lib.siw_rd_total_accepted_segments(to_a, lib.SIW_RD_REQUESTS)
            == 1
        ),
        a,
        b,
    )
    assert (a.received_data(), b.received_data()) == ([b"from b"], [b"from a"])
    assert not a.event_count("restarted") and not b.event_count("restarted")


@pytest.mark.clause("DGRAM-RD-22", "DGRAM-RD-24")
def test_a_silent_peer_is_gone_after_the_peer_timeout_and_other_peers_are_unaffected(make_endpoint):
    limit = 1.0
    a, b, c = make_endpoint(peer_timeout_ns=int(limit * 1e9)), make_endpoint(), make_endpoint()
    to_b, to_c = a.get_or_create_peer(b.local_addr), a.get_or_create_peer(c.local_addr)
    send_all_segments(a, to_b, [b"x"], a, b, c)
    send_all_segments(a, to_c, [b"x"], a, b, c)
    assert a.send(to_b, b"nobody hears it") == 1
    began = net.now()
    sent = 0

    def send_to_live_peer() -> None:
        nonlocal sent
        sent += lib.siw_rd_total_accepted_segments(
            to_c, lib.SIW_RD_REQUESTS
        ) == lib.siw_rd_segments_ever_queued(to_c, lib.SIW_RD_REQUESTS) and a.send(to_c, b"y")

    # Endpoint `b` is no longer serviced, as if its process had died.
    poll_until(lambda: a.event_count("gone"), a, c, also=send_to_live_peer)
    took = net.now() - began
    assert 0.8 * limit <= took <= 1.2 * limit
    assert lib.siw_rd_segments_ever_queued(to_b, lib.SIW_RD_REQUESTS) == 0
    send_all_segments(a, to_c, [b"z"], a, c)
    assert sent > 10 and next(d for d in c.got.values())[-1] == b"z"


@pytest.mark.clause("DGRAM-RD-22")
def test_an_endpoint_that_was_paused_probes_a_silent_peer_before_it_reports_the_peer_gone(
    make_endpoint,
):
    a, b = make_endpoint(peer_timeout_ns=1_000_000_000), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    send_all_segments(a, peer, [b"x"], a, b)
    set_fault_plan("loss=100%")
    assert a.send(peer, b"y") == 1
    lib.siw_rd_flush(peer, ffi.new("uint64_t *"))
    set_fault_plan(None)
    net.sleep(1.35)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 2, a, b)
    assert b.received_data() == [b"x", b"y"] and not a.event_count("gone")


@pytest.mark.clause("DGRAM-RD-22")
def test_a_silent_peer_from_which_a_response_is_expected_is_reported_gone(make_endpoint):
    a, b = make_endpoint(peer_timeout_ns=300_000_000), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    send_all_segments(a, peer, [b"x"], a, b)
    lib.siw_rd_set_response_expected(peer, True)
    for _ in range(30):
        poll_until(lambda: True, a, b)
    assert not a.event_count("gone")
    poll_until(lambda: a.event_count("gone"), a)


@pytest.mark.clause("DGRAM-RD-23")
def test_a_peer_from_which_nothing_is_expected_may_be_silent(make_endpoint):
    a, b = make_endpoint(peer_timeout_ns=150_000_000), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    send_all_segments(a, peer, [b"x"], a, b)
    stop = net.now() + 0.4
    poll_until(lambda: net.now() > stop, a)
    assert not a.event_count("gone")
    send_all_segments(a, peer, [b"y"], a, b)
    assert b.received_data() == [b"x", b"y"]
