"""Batches of Read Requests and of their responses."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.rc_harness import READ, SEND, ListenerAndConnector
from harness.verbs_harness import LIMIT, poll, temporary_settings
from harness.wire_peer import (
    ScriptedRCPeer,
    build_read_request,
    build_read_response,
    build_send,
    recv_exactly,
)

from siwarp.inspect import FPDU, DDPTagged, MPAReply, Opcode, ReadRequest
from siwarp.verbs import RemoteBuffer

REQUESTS = 3
#: Octets of a response: four times what the buffers of the simulated TCP hold at both ends.
LENGTH = 2 << 20
#: Minimum length of a Read that may wait (SIW_LONG_READ in qp/qp_impl.h).
LONG_READ = 16 << 10
#: Octets of the pad and the CRC that follow a ULPDU.
TRAILER = 4


@pytest.fixture(autouse=True)
def use_automatic_batching() -> Iterator[None]:
    """Batch posts in dense traffic only, the default, whatever the environment sets."""
    with temporary_settings(batching=0):
        yield


def receive_placed_octets(peer: ScriptedRCPeer, total: int) -> dict[int, bytes]:
    """Receive tagged segments with ``total`` octets of payload; return the payloads by offset."""
    placed: dict[int, bytes] = {}
    while sum(map(len, placed.values())) < total:
        length = recv_exactly(peer.sock, 2)
        octets = int.from_bytes(length, "big")
        fpdu = FPDU(length + recv_exactly(peer.sock, octets + -(octets + 2) % 4 + TRAILER))
        assert fpdu.crc == fpdu.crc_expected()
        assert isinstance(fpdu.ulpdu, DDPTagged)
        placed[fpdu.ulpdu.to] = bytes(fpdu.ulpdu.payload)
    return placed


def test_a_peer_that_reads_late_gets_all_responses_to_requests_that_arrived_together(
    connector: ListenerAndConnector,
) -> None:
    peer = ScriptedRCPeer.connect_to_siwarp(connector, size=LENGTH)
    data = bytes(i % 251 for i in range(LENGTH))
    peer.end.mem.write(data)
    remote = peer.end.mem.remote(0, LENGTH)
    peer.send_segments(
        *(
            build_read_request(LENGTH, remote.rkey, remote.addr, msn=i + 1, sink_to=i * LENGTH)
            for i in range(REQUESTS)
        )
    )
    # The peer does not read until siwarp has found the buffers full, and has received the Send.
    peer.end.post_receive(0, 0, 0)
    peer.send_segments(build_send())
    assert poll(peer.end.rcq)[0].ok
    placed = receive_placed_octets(peer, REQUESTS * LENGTH)
    assert b"".join(octets for _, octets in sorted(placed.items())) == data * REQUESTS
    assert list(placed) == sorted(placed)
    peer.close()


# ---- Reads that replace completed Reads

READS = 8


class ReadRequester:
    """A queue pair that keeps READS Reads outstanding, and a scripted peer that answers them."""

    def __init__(self, connector: ListenerAndConnector, length: int) -> None:
        reply = MPAReply(rev=2, s=1, ird=2 * READS, ord=2 * READS)
        self.peer = ScriptedRCPeer.accept_from_siwarp(connector, reply, size=length)
        self.end, self.length = self.peer.end, length
        self.requests: list[ReadRequest] = []
        for _ in range(READS):
            self.post()
        while len(self.requests) < READS:
            self.receive_request()

    def post(self) -> None:
        self.end.post(READ, length=self.length, remote=RemoteBuffer(0, self.length, 0x77))

    def receive_request(self) -> None:
        ulpdu = self.peer.receive_fpdu().ulpdu
        assert ulpdu.opcode == Opcode.RDMA_READ_REQUEST
        self.requests.append(ulpdu[ReadRequest])

    def answer_a_read(self) -> None:
        """Answer the oldest Read, and wait until it has completed."""
        sink = self.requests.pop(0)
        response = build_read_response(sink.sink_stag, sink.sink_to) / bytes(self.length)
        self.peer.send_segments(response)
        assert poll(self.end.scq)[0].ok

    def answer_read_and_post_another(self) -> None:
        self.answer_a_read()
        self.post()

    def has_request_arrived(self) -> bool:
        """Return whether a request that was sent has arrived at the peer."""
        self.peer.sock.settimeout(0)
        try:
            self.receive_request()
        except (BlockingIOError, TimeoutError):
            return False
        finally:
            self.peer.sock.settimeout(LIMIT)
        return True


def test_long_reads_that_replace_completed_ones_are_requested_together(
    connector: ListenerAndConnector,
) -> None:
    reader = ReadRequester(connector, LONG_READ)
    for _ in range(READS // 2):
        reader.answer_a_read()
    for _ in range(READS // 2):
        assert not reader.has_request_arrived()
        reader.post()
    reader.end.scq.poll()
    for _ in range(READS // 2):
        reader.receive_request()
    reader.peer.close()


def test_a_read_that_waits_is_requested_when_no_response_arrives(
    connector: ListenerAndConnector,
) -> None:
    reader = ReadRequester(connector, LONG_READ)
    reader.answer_read_and_post_another()
    assert not reader.has_request_arrived()
    net.sleep(0.001)
    reader.end.scq.poll()
    reader.receive_request()
    reader.peer.close()


def test_a_read_that_waits_is_requested_when_the_program_arms_its_queue(
    connector: ListenerAndConnector,
) -> None:
    reader = ReadRequester(connector, LONG_READ)
    reader.answer_read_and_post_another()
    assert not reader.has_request_arrived()
    reader.end.scq.req_notify()
    assert reader.has_request_arrived()
    reader.peer.close()


def test_a_send_behind_a_read_that_waits_sends_both(connector: ListenerAndConnector) -> None:
    reader = ReadRequester(connector, LONG_READ)
    reader.answer_read_and_post_another()
    assert not reader.has_request_arrived()
    reader.end.post(SEND, 9)
    reader.receive_request()
    assert reader.peer.receive_fpdu().ulpdu.opcode == Opcode.SEND
    reader.peer.close()


def test_a_short_read_and_a_lone_read_are_requested_when_they_are_posted(
    connector: ListenerAndConnector,
) -> None:
    reader = ReadRequester(connector, LONG_READ - 1)
    reader.answer_read_and_post_another()
    assert reader.has_request_arrived()
    reader.peer.close()
    lone = ReadRequester(connector, LONG_READ)
    for _ in range(READS - 1):
        lone.answer_a_read()
    lone.answer_read_and_post_another()
    assert lone.has_request_arrived()
    lone.peer.close()


def test_a_read_that_waits_is_requested_before_the_connection_is_closed(
    connector: ListenerAndConnector,
) -> None:
    reader = ReadRequester(connector, LONG_READ)
    reader.answer_read_and_post_another()
    assert not reader.has_request_arrived()
    reader.end.id.disconnect()
    reader.receive_request()
    assert reader.peer.receive_to_end().rest == b""
    reader.peer.close()
