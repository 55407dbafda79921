"""Reliable datagrams between endpoints of the C code: handshake, order, acknowledgement."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import siw_addr, temporary_setting, wait_until
from unit.rd.rd_kit import Endpoint, poll_until, send_all_segments


@pytest.mark.parametrize("where", ["127.0.0.1", "::1"])
def test_a_segment_to_an_unknown_peer_starts_the_handshake_and_arrives(make_endpoint, where):
    a, b = make_endpoint(where), make_endpoint(where, ird=9)
    peer = a.get_or_create_peer(b.local_addr)
    assert lib.siw_rd_peer_ird(peer) == 0
    assert a.send(peer, b"head", b"pay", b"load") == 1
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 1, a, b)
    assert b.received_data() == [b"headpayload"]
    assert b.news == [("new", next(iter(b.got)))]
    assert lib.siw_rd_peer_ird(peer) == 9
    assert a.event_count("acked") >= 1


@pytest.mark.clause("DGRAM-RD-12")
def test_rd_segments_of_all_lengths_arrive_in_order_and_are_accepted(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    # before the peer's credit is known, segments have at most 1,024 octets
    assert lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) == 1024
    send_all_segments(a, peer, [b"first"], a, b)
    longest = lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS)
    assert longest > 60000  # loopback carries datagrams of more than 60,000 octets
    sizes = [0, 1, 63, 1024, 1025, 5000, longest] * 30
    segments = [os.urandom(n) for n in sizes]
    send_all_segments(a, peer, segments, a, b)
    assert b.received_data() == [b"first", *segments]
    assert lib.siw_rd_segments_ever_queued(peer, lib.SIW_RD_REQUESTS) == len(segments) + 1


@pytest.mark.clause("DGRAM-RD-27")
def test_simultaneous_handshakes_succeed_and_data_arrives_in_both_directions(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    to_b, to_a = a.get_or_create_peer(b.local_addr), b.get_or_create_peer(a.local_addr)
    for i in range(200):
        assert a.send(to_b, b"a%d" % i) == 1
        assert b.send(to_a, b"b%d" % i) == 1
    poll_until(
        lambda: (
            lib.siw_rd_total_accepted_segments(to_b, lib.SIW_RD_REQUESTS) == 200
            and lib.siw_rd_total_accepted_segments(to_a, lib.SIW_RD_REQUESTS) == 200
        ),
        a,
        b,
    )
    assert b.received_data() == [b"a%d" % i for i in range(200)]
    assert a.received_data() == [b"b%d" % i for i in range(200)]
    assert a.event_count("restarted") == b.event_count("restarted") == 0


@pytest.mark.clause("DGRAM-RD-13")
def test_a_paused_peer_delays_no_other_peer_and_keeps_its_order(make_endpoint):
    a, b, c = make_endpoint(), make_endpoint(), make_endpoint()
    to_b, other = a.get_or_create_peer(b.local_addr), c.get_or_create_peer(b.local_addr)
    held: list[bytes] = []
    b.judge = lambda _who, data: "hold" if data.startswith(b"a") and not held else "take"
    for i in range(50):
        assert a.send(to_b, b"a%d" % i) == 1
        assert c.send(other, b"c%d" % i) == 1
    poll_until(
        lambda: lib.siw_rd_total_accepted_segments(other, lib.SIW_RD_REQUESTS) == 50, a, b, c
    )
    assert lib.siw_rd_total_accepted_segments(to_b, lib.SIW_RD_REQUESTS) == 0
    assert list(b.got.values()) == [[b"c%d" % i for i in range(50)]]
    held.append(b"")
    lib.siw_rd_resume_delivery(b.get_or_create_peer(a.local_addr), lib.SIW_RD_REQUESTS)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(to_b, lib.SIW_RD_REQUESTS) == 50, a, b, c)
    assert [b"a%d" % i for i in range(50)] in b.got.values()


@pytest.mark.clause("DGRAM-RD-24", "DGRAM-INST-3")
def test_a_closed_peer_is_reported_gone_and_a_new_endpoint_at_its_address_replaced(make_endpoint):
    a, b = make_endpoint(), Endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    port = b.local_addr
    send_all_segments(a, peer, [b"x"] * 10, a, b)
    b.close()
    poll_until(lambda: a.event_count("gone"), a)
    assert lib.siw_rd_segments_ever_queued(peer, lib.SIW_RD_REQUESTS) == 0
    again = Endpoint("127.0.0.1", socket.ntohs(port.port_be))
    try:
        assert a.send(peer, b"for the one before") > 0
        poll_until(lambda: a.event_count("replaced"), a, again)
        send_all_segments(a, peer, [b"y"] * 10, a, again)
        assert again.received_data() == [b"y"] * 10
    finally:
        again.close()


def send_from_unmapped_memory(peer):
    """Send a peer a segment from unmapped memory; return the result of siw_rd_tx."""
    iov = ffi.new("struct iovec[]", 1)
    iov[0].iov_base, iov[0].iov_len = ffi.cast("void *", 4096), 100
    lib.siw_guard_install_handlers()
    try:
        return lib.siw_rd_tx(peer, lib.SIW_RD_REQUESTS, b"h", 1, iov, 1, False)
    finally:
        lib.siw_guard_remove_handlers()


def test_sending_from_unmapped_memory_fails_and_sends_nothing(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    assert send_from_unmapped_memory(peer) == -errno.EFAULT
    assert lib.siw_rd_segments_ever_queued(peer, lib.SIW_RD_REQUESTS) == 0
    send_all_segments(a, peer, [b"after"], a, b)
    assert b.received_data() == [b"after"]


def test_a_peer_record_whose_only_segment_was_in_unmapped_memory_is_released(make_endpoint):
    with temporary_setting("rd_idle_ms", 20):
        a = make_endpoint(max_peers=1)
    peer = a.get_or_create_peer(siw_addr("127.0.0.1", 1))
    assert send_from_unmapped_memory(peer) == -errno.EFAULT
    lib.siw_rd_set_upper_layer_object(peer, ffi.NULL)

    def try_to_get_another_peer():
        try:
            return a.get_or_create_peer(siw_addr("127.0.0.1", 2))
        except OSError as e:
            assert e.errno == errno.ENOBUFS
            return None

    wait_until(try_to_get_another_peer)
    assert lib.siw_rd_peer_count(a.c) == 1
