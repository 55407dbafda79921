"""Reliable datagrams that are sent and received in batches."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import temporary_setting
from unit.rd.rd_kit import Endpoint, Stranger, poll_until, send_all_segments

from siwarp.inspect.rd import CRC_LEN, RDDatagram, RDType

UDP_SEGMENT, UDP_GRO = 103, 104
DENSE, SPARSE = 32, 64


@pytest.fixture
def observed_endpoint(make_endpoint) -> Iterator[tuple[Endpoint, Stranger, socket.socket]]:
    """Provide an endpoint on a socket that the test can also read, and a connected peer."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    e = make_endpoint(fd=sock.dup().detach())
    s = Stranger(e)
    s.connect()
    yield e, s, sock
    s.close()
    sock.close()


def read_batches(sock: socket.socket) -> list[tuple[bytes, int]]:
    """Return what is in a socket: octets, and the length of each datagram in a coalesced batch."""
    found = []
    while True:
        try:
            octets, control, _, _ = sock.recvmsg(65536, 64)
        except BlockingIOError:
            return found
        size = [struct.unpack("=i", data)[0] for level, kind, data in control if kind == UDP_GRO]
        found.append((octets, size[0] if size else len(octets)))


def split_datagrams(octets: bytes, size: int) -> list[RDDatagram]:
    return [RDDatagram(octets[at : at + size]) for at in range(0, len(octets), size)]


def send_batch(s: Stranger, bodies: list[bytes], first: int) -> None:
    octets = b"".join(
        bytes(s.build_datagram(RDType.DATA, psn=s.epoch + first + i, body=body))
        for i, body in enumerate(bodies)
    )
    size = len(s.build_datagram(RDType.DATA, body=bodies[0]))
    control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))]
    assert s.sock.sendmsg([octets], control, 0, s.dest) == len(octets)


def coalescing_is_requested(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.IPPROTO_UDP, UDP_GRO))


def test_short_segments_behind_one_that_is_on_its_way_go_down_as_one_batch(make_endpoint):
    e = make_endpoint()
    s = Stranger(e)
    s.connect()
    s.drain()
    s.sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    peer = e.get_peer(s.address)
    sent = [bytes([i]) * 100 for i in range(41)] + [b"the last one may be shorter"]
    for segment in sent:
        assert e.send(peer, segment) == 1
    assert len(read_batches(s.sock)) == 1
    assert lib.siw_rd_flush(peer, ffi.new("uint64_t *")) == 1
    ((octets, size),) = read_batches(s.sock)
    datagrams = split_datagrams(octets, size)
    assert [d.body for d in datagrams] == sent[1:]
    assert all(d.crc == d.crc_expected() for d in datagrams)
    assert [d.psn for d in datagrams] == [datagrams[0].psn + i for i in range(len(datagrams))]
    s.close()


def test_one_that_is_longer_begins_another_batch(make_endpoint):
    e = make_endpoint()
    s = Stranger(e)
    s.connect()
    s.drain()
    s.sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    peer = e.get_peer(s.address)
    lengths = [10, 200, 200, 300, 300, 300]
    for n in lengths:
        assert e.send(peer, bytes(n)) == 1
    assert lib.siw_rd_flush(peer, ffi.new("uint64_t *")) == 1
    found = [[len(d.body) for d in split_datagrams(*piece)] for piece in read_batches(s.sock)]
    assert found == [[10], [200, 200], [300, 300, 300]]
    s.close()


def test_a_batch_is_no_longer_than_the_peers_credit(make_endpoint):
    e = make_endpoint()
    s = Stranger(e)
    s.connect()
    s.send_datagram(RDType.ACK, credit=5)
    s.drain()
    s.sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    peer = e.get_peer(s.address)
    for _ in range(10):
        assert e.send(peer, bytes(100)) == 1
    assert lib.siw_rd_flush(peer, ffi.new("uint64_t *")) == 0
    assert [len(split_datagrams(*piece)) for piece in read_batches(s.sock)] == [1, 4]
    s.close()


def test_while_many_short_ones_come_batches_are_asked_for_and_taken_apart(observed_endpoint):
    e, s, sock = observed_endpoint
    sent = [b"%d" % i for i in range(DENSE)]
    assert not coalescing_is_requested(sock)
    for i, body in enumerate(sent):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=body)
    poll_until(lambda: e.received_data() == sent, e)
    assert coalescing_is_requested(sock)
    more = [bytes([i]) * 50 for i in range(40)] + [b"short"]
    send_batch(s, more, len(sent))
    poll_until(lambda: e.received_data() == sent + more, e)
    ack = s.receive_datagram(RDType.ACK)
    while ack.acknowledged != s.epoch + len(sent) + len(more):
        ack = s.receive_datagram(RDType.ACK)


def test_of_a_batch_with_a_damaged_datagram_the_others_count(observed_endpoint):
    e, s, sock = observed_endpoint
    for i in range(DENSE):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"%d" % i)
    poll_until(lambda: len(e.received_data()) == DENSE, e)
    assert coalescing_is_requested(sock)
    built = [
        bytes(s.build_datagram(RDType.DATA, psn=s.epoch + DENSE + i, body=b"abcd"))
        for i in range(9)
    ]
    bad = built[4][:-CRC_LEN] + bytes(CRC_LEN)
    control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", len(bad)))]
    s.sock.sendmsg([*built[:4], bad, *built[5:]], control, 0, s.dest)
    poll_until(lambda: len(e.received_data()) == DENSE + 4, e)
    s.sock.sendto(built[4], s.dest)
    poll_until(lambda: len(e.received_data()) == DENSE + 9, e)


def test_a_long_one_of_a_batch_that_comes_before_its_turn_does_not_take_the_next_along(
    observed_endpoint,
):
    e, s, sock = observed_endpoint
    for i in range(DENSE):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"%d" % i)
    poll_until(lambda: len(e.received_data()) == DENSE, e)
    assert coalescing_is_requested(sock)
    more = [b"\x11" * 40_000, b"\x22" * 1000]
    send_batch(s, more, DENSE + 1)
    s.send_datagram(RDType.DATA, psn=s.epoch + DENSE, body=b"late")
    poll_until(lambda: e.received_data()[DENSE:] == [b"late", *more], e)


def test_when_hardly_anything_comes_batches_are_not_asked_for_any_more(observed_endpoint):
    e, s, sock = observed_endpoint
    for i in range(DENSE):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"x")
    poll_until(lambda: len(e.received_data()) == DENSE, e)
    for i in range(SPARSE + 2):
        assert coalescing_is_requested(sock) or i >= SPARSE
        s.send_datagram(RDType.DATA, psn=s.epoch + DENSE + i, body=b"x")
        poll_until(lambda i=i: len(e.received_data()) == DENSE + i + 1, e)
        e.poll_once()
    assert not coalescing_is_requested(sock)


def test_a_socket_that_was_ours_before_gives_no_batches_after_the_endpoint_is_closed():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    e = Endpoint(fd=sock.dup().detach())
    s = Stranger(e)
    s.connect()
    for i in range(DENSE):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"x")
    poll_until(lambda: len(e.received_data()) == DENSE, e)
    assert coalescing_is_requested(sock)
    e.close()
    assert not coalescing_is_requested(sock)
    s.close()
    sock.close()


def test_a_plan_of_faults_that_begins_amid_batches_costs_no_segment(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    peer = a.get_peer(b.local_addr)
    sent = [b"%d" % i for i in range(3000)]
    send_all_segments(a, peer, sent[:1000], a, b)
    assert lib.siw_faults_install(b"loss=5%,reorder=5%") == 0
    try:
        send_all_segments(a, peer, sent[1000:2000], a, b)
    finally:
        lib.siw_faults_install(b"")
    send_all_segments(a, peer, sent[2000:], a, b)
    assert b.received_data() == sent


def test_with_datagrams_of_an_ethernets_length_a_large_flow_arrives_whole(make_endpoint):
    sent = [bytes([i % 251]) * 1432 for i in range(2000)]
    with temporary_setting("rd_max_datagram", 1472):
        a, b = make_endpoint(), make_endpoint()
        peer = a.get_peer(b.local_addr)
        send_all_segments(a, peer, sent[:1], a, b)
        assert lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) == 1432
        send_all_segments(a, peer, sent[1:], a, b)
    assert b.received_data() == sent
