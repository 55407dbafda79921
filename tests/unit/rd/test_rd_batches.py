"""Reliable datagrams that are sent and received in batches."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import temporary_setting
from unit.rd.rd_kit import Endpoint, ScapyRdPeer, poll_until, send_all_segments

from siwarp.inspect.rd import CRC_LEN, RDDatagram, RDType, make_ack_body

UDP_SEGMENT, UDP_GRO = 103, 104
DENSE, SPARSE = 32, 64


@pytest.fixture
def endpoint_with_duplicated_socket(
    make_endpoint,
) -> Iterator[tuple[Endpoint, ScapyRdPeer, socket.socket]]:
    """Provide an endpoint, a connected peer, and a duplicate of the endpoint's socket."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    e = make_endpoint(fd=sock.dup().detach())
    s = ScapyRdPeer(e)
    s.connect()
    yield e, s, sock
    s.close()
    sock.close()


def connect_peer_that_reads_batches(
    make_endpoint: Callable[[], Endpoint],
) -> tuple[Endpoint, ScapyRdPeer, Any]:
    """Return an endpoint, a connected peer with UDP_GRO, and the endpoint's pointer to the peer."""
    e = make_endpoint()
    s = ScapyRdPeer(e)
    s.connect()
    s.discard_datagrams_until_silent()
    s.sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    return e, s, e.get_or_create_peer(s.address)


def receive_coalesced_batches(sock: socket.socket) -> list[tuple[bytes, int]]:
    """Read all datagrams and coalesced batches of a socket; return octets and datagram lengths."""
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


def send_datagrams_as_batch(s: ScapyRdPeer, bodies: list[bytes], first: int) -> None:
    octets = b"".join(
        bytes(s.build_datagram(RDType.DATA, psn=s.epoch + first + i, body=body))
        for i, body in enumerate(bodies)
    )
    size = len(s.build_datagram(RDType.DATA, body=bodies[0]))
    control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))]
    assert s.sock.sendmsg([octets], control, 0, s.dest) == len(octets)


def udp_gro_is_enabled(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.IPPROTO_UDP, UDP_GRO))


def test_short_segments_after_a_segment_in_flight_are_sent_as_one_batch(make_endpoint):
    e, s, peer = connect_peer_that_reads_batches(make_endpoint)
    sent = [bytes([i]) * 100 for i in range(41)] + [b"the last one may be shorter"]
    for segment in sent:
        assert e.send(peer, segment) == 1
    assert len(receive_coalesced_batches(s.sock)) == 1
    assert lib.siw_rd_flush(peer, ffi.new("uint64_t *")) == 1
    ((octets, size),) = receive_coalesced_batches(s.sock)
    datagrams = split_datagrams(octets, size)
    assert [d.body for d in datagrams] == sent[1:]
    assert all(d.crc == d.crc_expected() for d in datagrams)
    assert [d.psn for d in datagrams] == [datagrams[0].psn + i for i in range(len(datagrams))]
    s.close()


def test_a_short_segment_that_others_follow_is_sent_with_them(make_endpoint):
    e, s, peer = connect_peer_that_reads_batches(make_endpoint)
    sent = [bytes([i]) * 4096 for i in range(15)]
    for segment in sent:
        assert e.send(peer, segment, more=True) == 1
    assert receive_coalesced_batches(s.sock) == []
    assert lib.siw_rd_flush(peer, ffi.new("uint64_t *")) == 1
    ((octets, size),) = receive_coalesced_batches(s.sock)
    datagrams = split_datagrams(octets, size)
    assert [d.body for d in datagrams] == sent
    assert all(d.crc == d.crc_expected() for d in datagrams)
    s.close()


def test_a_long_segment_that_others_follow_is_sent_at_once(make_endpoint):
    """A long segment cannot join a batch, so nothing is gained if it waits."""
    e = make_endpoint()
    s = ScapyRdPeer(e)
    s.connect()
    s.discard_datagrams_until_silent()
    assert e.send(e.get_or_create_peer(s.address), bytes(40_000), more=True) == 1
    assert s.receive_datagram(RDType.DATA).body == bytes(40_000)
    s.close()


def test_a_long_segment_has_a_correct_crc_at_each_transmission(make_endpoint):
    """The CRC of the segment is computed once; the header, with the acknowledgement, changes."""
    e = make_endpoint()
    s = ScapyRdPeer(e)
    s.connect()
    s.discard_datagrams_until_silent()
    peer = e.get_or_create_peer(s.address)
    sent = [bytes([i]) * n for i, n in enumerate((3000, 40_000, 3000, 2048, 5000, 5000))]
    for segment in sent:
        assert e.send(peer, b"head", segment) == 1
    assert lib.siw_rd_flush(peer, ffi.new("uint64_t *")) == 1
    # receive_datagram checks the CRC.
    found = [s.receive_datagram(RDType.DATA) for _ in sent]
    assert [d.body for d in found] == [b"head" + segment for segment in sent]
    s.send_datagram(RDType.DATA, body=b"changes the acknowledgement in the header")
    first = found[0].psn
    arrived = [first + i for i in range(1, len(sent))]
    s.send_datagram(RDType.ACK, acknowledged=first, body=make_ack_body(first, arrived))
    assert found[0].acknowledged == s.epoch
    again = s.receive_datagram(RDType.DATA)
    while again.acknowledged == s.epoch:  # a timeout came before the peer's segment
        again = s.receive_datagram(RDType.DATA)
    assert again.acknowledged == s.epoch + 1
    assert (again.psn, again.body) == (first, b"head" + sent[0])
    s.close()


def test_a_longer_segment_begins_another_batch(make_endpoint):
    e, s, peer = connect_peer_that_reads_batches(make_endpoint)
    lengths = [10, 200, 200, 300, 300, 300]
    for n in lengths:
        assert e.send(peer, bytes(n)) == 1
    assert lib.siw_rd_flush(peer, ffi.new("uint64_t *")) == 1
    found = [
        [len(d.body) for d in split_datagrams(*piece)]
        for piece in receive_coalesced_batches(s.sock)
    ]
    assert found == [[10], [200, 200], [300, 300, 300]]
    s.close()


def test_a_batch_is_no_longer_than_the_peers_credit(make_endpoint):
    e = make_endpoint()
    s = ScapyRdPeer(e)
    s.connect()
    s.send_datagram(RDType.ACK, credit=5)
    s.discard_datagrams_until_silent()
    s.sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    peer = e.get_or_create_peer(s.address)
    for _ in range(10):
        assert e.send(peer, bytes(100)) == 1
    assert lib.siw_rd_flush(peer, ffi.new("uint64_t *")) == 0
    assert [len(split_datagrams(*piece)) for piece in receive_coalesced_batches(s.sock)] == [1, 4]
    s.close()


def test_dense_short_datagrams_enable_udp_gro_and_received_batches_are_split(
    endpoint_with_duplicated_socket,
):
    e, s, sock = endpoint_with_duplicated_socket
    sent = [b"%d" % i for i in range(DENSE)]
    assert not udp_gro_is_enabled(sock)
    for i, body in enumerate(sent):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=body)
    poll_until(lambda: e.received_data() == sent, e)
    assert udp_gro_is_enabled(sock)
    more = [bytes([i]) * 50 for i in range(40)] + [b"short"]
    send_datagrams_as_batch(s, more, len(sent))
    poll_until(lambda: e.received_data() == sent + more, e)
    ack = s.receive_datagram(RDType.ACK)
    while ack.acknowledged != s.epoch + len(sent) + len(more):
        ack = s.receive_datagram(RDType.ACK)


def test_a_corrupted_datagram_in_a_received_batch_does_not_affect_the_others(
    endpoint_with_duplicated_socket,
):
    e, s, sock = endpoint_with_duplicated_socket
    for i in range(DENSE):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"%d" % i)
    poll_until(lambda: len(e.received_data()) == DENSE, e)
    assert udp_gro_is_enabled(sock)
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


def test_a_batch_with_a_long_datagram_received_out_of_order_is_delivered_in_order(
    endpoint_with_duplicated_socket,
):
    e, s, sock = endpoint_with_duplicated_socket
    for i in range(DENSE):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"%d" % i)
    poll_until(lambda: len(e.received_data()) == DENSE, e)
    assert udp_gro_is_enabled(sock)
    more = [b"\x11" * 40_000, b"\x22" * 1000]
    send_datagrams_as_batch(s, more, DENSE + 1)
    s.send_datagram(RDType.DATA, psn=s.epoch + DENSE, body=b"late")
    poll_until(lambda: e.received_data()[DENSE:] == [b"late", *more], e)


def test_udp_gro_is_disabled_when_few_datagrams_arrive(endpoint_with_duplicated_socket):
    e, s, sock = endpoint_with_duplicated_socket
    for i in range(DENSE):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"x")
    poll_until(lambda: len(e.received_data()) == DENSE, e)
    for i in range(SPARSE + 2):
        assert udp_gro_is_enabled(sock) or i >= SPARSE
        s.send_datagram(RDType.DATA, psn=s.epoch + DENSE + i, body=b"x")
        poll_until(lambda i=i: len(e.received_data()) == DENSE + i + 1, e)
        e.poll_once()
    assert not udp_gro_is_enabled(sock)


def test_closing_an_endpoint_disables_udp_gro_on_an_adopted_socket():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    e = Endpoint(fd=sock.dup().detach())
    s = ScapyRdPeer(e)
    s.connect()
    for i in range(DENSE):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"x")
    poll_until(lambda: len(e.received_data()) == DENSE, e)
    assert udp_gro_is_enabled(sock)
    e.close()
    assert not udp_gro_is_enabled(sock)
    s.close()
    sock.close()


def test_a_fault_plan_installed_during_batched_traffic_loses_no_segment(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    sent = [b"%d" % i for i in range(3000)]
    send_all_segments(a, peer, sent[:1000], a, b)
    assert lib.siw_faults_install_plan(b"loss=5%,reorder=5%") == 0
    try:
        send_all_segments(a, peer, sent[1000:2000], a, b)
    finally:
        lib.siw_faults_install_plan(b"")
    send_all_segments(a, peer, sent[2000:], a, b)
    assert b.received_data() == sent


def test_a_large_flow_in_datagrams_of_ethernet_size_arrives_whole(make_endpoint):
    sent = [bytes([i % 251]) * 1432 for i in range(2000)]
    with temporary_setting("rd_max_datagram", 1472):
        a, b = make_endpoint(), make_endpoint()
        peer = a.get_or_create_peer(b.local_addr)
        send_all_segments(a, peer, sent[:1], a, b)
        assert lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) == 1432
        send_all_segments(a, peer, sent[1:], a, b)
    assert b.received_data() == sent
