"""Responses of an RC queue pair to Read Requests that arrive together, or with other messages."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.rc_harness import ListenerAndConnector
from harness.verbs_harness import octet_pattern, poll
from harness.wire_peer import ScriptedRCPeer, build_read_request, build_send, build_write
from scapy.layers.inet import TCP
from scapy.utils import PcapNgReader

from siwarp.inspect import DDPTagged, Opcode, split_stream
from siwarp.verbs import capture

LENGTH = 1000
#: Number of Read Requests that arrive together; the start-up frames negotiate an IRD of at least
#: four.
REQUESTS = 3


def connect_peer(connector: ListenerAndConnector, size: int = 1 << 16) -> ScriptedRCPeer:
    """Return a peer of a queue pair whose region has the octets of octet_pattern()."""
    peer = ScriptedRCPeer.connect_to_siwarp(connector, size=size)
    peer.end.mem.write(octet_pattern(size))
    return peer


def frame_request(peer: ScriptedRCPeer, msn: int, length: int = LENGTH) -> bytes:
    """Return the FPDU of Read Request ``msn`` for ``length`` octets at ``length * (msn - 1)``."""
    remote = peer.end.mem.remote(length * (msn - 1), length)
    return peer.frame_segment(build_read_request(length, remote.rkey, remote.addr, msn=msn))


def build_request_fpdus(peer: ScriptedRCPeer) -> bytes:
    return b"".join(frame_request(peer, msn) for msn in range(1, REQUESTS + 1))


def receive_response(peer: ScriptedRCPeer) -> bytes:
    """Return the data of the next message of siwarp, which is a Read Response of one segment."""
    ulpdu = peer.receive_fpdu().ulpdu
    assert isinstance(ulpdu, DDPTagged)
    assert (ulpdu.opcode, ulpdu.l) == (Opcode.RDMA_READ_RESPONSE, 1)
    return bytes(ulpdu.payload)


def expected_response(msn: int) -> bytes:
    return octet_pattern(1 << 16)[LENGTH * (msn - 1) : LENGTH * msn]


def payloads_sent_to(peer: ScriptedRCPeer, file: Path) -> list[bytes]:
    """Return the payload of each call that siwarp sent with, as the capture recorded it."""
    with PcapNgReader(str(file)) as packets:
        tcp = [packet[TCP] for packet in packets if TCP in packet]
    port = peer.sock.getpeername()[1]
    return [bytes(t.payload) for t in tcp if t.sport == port and len(t.payload)]


def test_responses_to_read_requests_that_arrive_together_leave_together(
    connector: ListenerAndConnector, tmp_path: Path
) -> None:
    peer = connect_peer(connector)
    with capture(tmp_path / "it.pcapng"):
        peer.sock.sendall(build_request_fpdus(peer))
        for msn in range(1, REQUESTS + 1):
            assert receive_response(peer) == expected_response(msn)
    (payload,) = payloads_sent_to(peer, tmp_path / "it.pcapng")
    assert len(split_stream(payload).fpdus) == REQUESTS
    peer.close()


def test_a_response_does_not_wait_for_a_request_that_has_arrived_partly(
    connector: ListenerAndConnector,
) -> None:
    peer = connect_peer(connector)
    first, second = frame_request(peer, 1), frame_request(peer, 2)
    peer.sock.sendall(first + second[:-1])
    assert receive_response(peer) == expected_response(1)
    peer.sock.sendall(second[-1:])
    assert receive_response(peer) == expected_response(2)
    peer.close()


def test_a_write_after_read_requests_does_not_change_what_they_read(
    connector: ListenerAndConnector,
) -> None:
    peer = connect_peer(connector)
    requests = build_request_fpdus(peer)
    target = peer.end.mem.remote(0, REQUESTS * LENGTH)
    write = peer.frame_segment(build_write(target.rkey, target.addr) / bytes(REQUESTS * LENGTH))
    peer.sock.sendall(requests + write)
    for msn in range(1, REQUESTS + 1):
        assert receive_response(peer) == expected_response(msn)
    peer.close()


def test_a_send_after_read_requests_completes_after_their_responses_are_sent(
    connector: ListenerAndConnector, tmp_path: Path
) -> None:
    peer = connect_peer(connector)
    peer.end.post_receive(5)
    requests = build_request_fpdus(peer)
    with capture(tmp_path / "it.pcapng"):
        peer.sock.sendall(requests + peer.frame_segment(build_send() / b"after"))
        (wc,) = poll(peer.end.rcq)
        assert (wc.wr_id, wc.check().byte_len) == (5, 5)
    (payload,) = payloads_sent_to(peer, tmp_path / "it.pcapng")
    assert len(split_stream(payload).fpdus) == REQUESTS
    peer.close()


@pytest.mark.clause("RFC5040-5.4-08")
def test_requests_before_an_invalid_request_get_their_responses_before_the_terminate(
    connector: ListenerAndConnector,
) -> None:
    peer = connect_peer(connector)
    remote = peer.end.mem.remote()
    invalid = build_read_request(8, remote.rkey ^ 1, remote.addr, msn=REQUESTS + 1)
    peer.sock.sendall(build_request_fpdus(peer) + peer.frame_segment(invalid))
    for msn in range(1, REQUESTS + 1):
        assert receive_response(peer) == expected_response(msn)
    assert peer.receive_terminate().layer == 0
    peer.close()


def shut_down_sending(peer: ScriptedRCPeer) -> None:
    peer.sock.shutdown(socket.SHUT_WR)


def disconnect_queue_pair(peer: ScriptedRCPeer) -> None:
    peer.end.id.disconnect()


@pytest.mark.parametrize("end", [shut_down_sending, disconnect_queue_pair])
def test_requests_that_arrive_together_are_answered_although_the_connection_ends(
    connector: ListenerAndConnector, end: Callable[[ScriptedRCPeer], None]
) -> None:
    peer = connect_peer(connector)
    peer.sock.sendall(build_request_fpdus(peer))
    end(peer)
    fpdus = peer.receive_to_end().fpdus
    assert [bytes(f.ulpdu.payload) for f in fpdus] == [
        expected_response(msn) for msn in range(1, REQUESTS + 1)
    ]
    peer.close()
