"""Reliable datagrams between endpoints of the C code: handshake, order, acknowledgement."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import addr, setting, until
from unit.rd.rd_kit import Endpoint, pump, run


@pytest.mark.parametrize("where", ["127.0.0.1", "::1"])
def test_a_segment_to_an_unknown_peer_meets_it_and_arrives(end, where):
    a, b = end(where), end(where, ird=9)
    peer = a.peer(b.local)
    assert lib.siw_rd_peer_ird(peer) == 0
    assert a.send(peer, b"head", b"pay", b"load") == 1
    run(lambda: lib.siw_rd_accepted(peer, lib.SIW_RD_REQUESTS) == 1, a, b)
    assert b.data() == [b"headpayload"]
    assert b.news == [("new", next(iter(b.got)))]
    assert lib.siw_rd_peer_ird(peer) == 9
    assert a.told("acked") >= 1


@pytest.mark.clause("DGRAM-RD-12")
def test_segments_of_all_lengths_arrive_in_order_and_are_accepted(end):
    a, b = end(), end()
    peer = a.peer(b.local)
    # the peer's credit is not known yet
    assert lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) == 1024
    pump(a, peer, [b"first"], a, b)
    longest = lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS)
    assert longest > 60000  # loopback carries datagrams of more than 60,000 octets
    sizes = [0, 1, 63, 1024, 1025, 5000, longest] * 30
    segments = [os.urandom(n) for n in sizes]
    pump(a, peer, segments, a, b)
    assert b.data() == [b"first", *segments]
    assert lib.siw_rd_framed(peer, lib.SIW_RD_REQUESTS) == len(segments) + 1


@pytest.mark.clause("DGRAM-RD-27")
def test_simultaneous_handshakes_and_data_in_both_directions(end):
    a, b = end(), end()
    to_b, to_a = a.peer(b.local), b.peer(a.local)
    for i in range(200):
        assert a.send(to_b, b"a%d" % i) == 1
        assert b.send(to_a, b"b%d" % i) == 1
    run(
        lambda: (
            lib.siw_rd_accepted(to_b, lib.SIW_RD_REQUESTS) == 200
            and lib.siw_rd_accepted(to_a, lib.SIW_RD_REQUESTS) == 200
        ),
        a,
        b,
    )
    assert b.data() == [b"a%d" % i for i in range(200)]
    assert a.data() == [b"b%d" % i for i in range(200)]
    assert a.told("restarted") == b.told("restarted") == 0


@pytest.mark.clause("DGRAM-RD-13")
def test_a_held_peer_keeps_its_order_and_others_go_on(end):
    a, b, c = end(), end(), end()
    to_b, other = a.peer(b.local), c.peer(b.local)
    held: list[bytes] = []
    b.judge = lambda _who, data: "hold" if data.startswith(b"a") and not held else "take"
    for i in range(50):
        assert a.send(to_b, b"a%d" % i) == 1
        assert c.send(other, b"c%d" % i) == 1
    run(lambda: lib.siw_rd_accepted(other, lib.SIW_RD_REQUESTS) == 50, a, b, c)
    assert lib.siw_rd_accepted(to_b, lib.SIW_RD_REQUESTS) == 0
    assert list(b.got.values()) == [[b"c%d" % i for i in range(50)]]
    held.append(b"")
    lib.siw_rd_resume(b.peer(a.local), lib.SIW_RD_REQUESTS)
    run(lambda: lib.siw_rd_accepted(to_b, lib.SIW_RD_REQUESTS) == 50, a, b, c)
    assert [b"a%d" % i for i in range(50)] in b.got.values()


@pytest.mark.clause("DGRAM-RD-24", "DGRAM-INST-3")
def test_a_peer_that_closes_is_gone_and_one_that_comes_again_is_new(end):
    a, b = end(), Endpoint()
    peer = a.peer(b.local)
    port = b.local
    pump(a, peer, [b"x"] * 10, a, b)
    b.close()
    run(lambda: a.told("gone"), a)
    assert lib.siw_rd_framed(peer, lib.SIW_RD_REQUESTS) == 0
    again = Endpoint("127.0.0.1", socket.ntohs(port.port_be))
    try:
        assert a.send(peer, b"for the one before") > 0
        run(lambda: a.told("replaced"), a, again)
        pump(a, peer, [b"y"] * 10, a, again)
        assert again.data() == [b"y"] * 10
    finally:
        again.close()


def tx_nowhere(peer):
    """Send a peer a segment from unmapped memory."""
    iov = ffi.new("struct iovec[]", 1)
    iov[0].iov_base, iov[0].iov_len = ffi.cast("void *", 4096), 100
    lib.siw_guard_install()
    try:
        return lib.siw_rd_tx(peer, lib.SIW_RD_REQUESTS, b"h", 1, iov, 1)
    finally:
        lib.siw_guard_remove()


def test_memory_that_is_not_there_is_an_error_and_nothing_is_sent(end):
    a, b = end(), end()
    peer = a.peer(b.local)
    assert tx_nowhere(peer) == -errno.EFAULT
    assert lib.siw_rd_framed(peer, lib.SIW_RD_REQUESTS) == 0
    pump(a, peer, [b"after"], a, b)
    assert b.data() == [b"after"]


def test_a_peer_whose_only_segment_could_not_be_read_makes_room_for_another(end):
    with setting("rd_idle_ms", 20):
        a = end(max_peers=1)
    peer = a.peer(addr("127.0.0.1", 1))
    assert tx_nowhere(peer) == -errno.EFAULT
    lib.siw_rd_set_upper(peer, ffi.NULL)

    def other():
        try:
            return a.peer(addr("127.0.0.1", 2))
        except OSError as e:
            assert e.errno == errno.ENOBUFS
            return None

    until(other)
    assert lib.siw_rd_n_peers(a.c) == 1
