"""How an RC queue pair that connects by rdma_cm detects whether its peer is siwarp.

The peer is siwarp, a plain socket that implements only the RFCs, or a socket that pretends to be
siwarp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness.verbs_harness import temporary_settings
from sim.rc_harness import (
    MS,
    NAP,
    PORT,
    SECOND,
    SEND,
    WRITE,
    End,
    accept_connection,
    connect_by_cm,
    expect_counter_increase,
    start_connecting,
    start_listener,
)

from siwarp.cm import CMID, CMEventType, ConnParam
from siwarp.inspect import FPDU, DDPTagged, DeliveryCount, MPAReply, MPARequest, Opcode, Requester
from siwarp.sim import TCPSocket, World
from siwarp.verbs import (
    Error,
    Persona,
    QPAttr,
    RecvWR,
    SendFlag,
    SendWR,
    WCFlag,
    WCStatus,
    WROpcode,
)

#: Values in the flags octet of MPA's start-up frames: 4 in a Request and 2 in a Reply announce a
#: siwarp peer; 1, in both frames, announces delivery counts.
REQUEST, REPLY, COUNTS = 4, 2, 1
IMM = 0x01C2_83FE
PERSONAS = [Persona.IWARP, Persona.ROCE]
UNEXPECTED = (0, 2, 6)
FLUSHED = WCStatus.WR_FLUSH_ERR


def post_send_with_immediate(end: End, data: bytes = b"with it", wr_id: int = 1) -> None:
    end.mr.write(data, len(data))
    sge = end.mr.sge(0, len(data))
    flags = SendFlag.SIGNALED
    wr = SendWR(wr_id, WROpcode.SEND_WITH_IMM, sg=[sge], send_flags=flags, imm_data=IMM)
    end.qp.post_send(wr)


def create_unconnected_pair(world: World, one: Persona, other: Persona) -> tuple[End, End]:
    world.faults("delay=1ms")
    return End(world, "10.0.0.1", persona=one), End(world, "10.0.0.2", persona=other)


@dataclass
class PlainPeer:
    """A peer that implements MPA over a plain socket, at the other end of a connection."""

    sock: TCPSocket
    frame: Any
    buffer: bytes = field(default=b"")

    def send_segments(self, *segments: bytes) -> None:
        self.sock.sendall(b"".join(bytes(FPDU(ulpdu=s)) for s in segments))

    def receive_exactly(self, n: int) -> bytes:
        while len(self.buffer) < n:
            part = self.sock.recv(65536)
            assert part, "the stream ended"
            self.buffer += part
        found, self.buffer = self.buffer[:n], self.buffer[n:]
        return found

    def receive_segment(self) -> Any:
        """Return the next DDP segment of the stream."""
        head = self.receive_exactly(2)
        length = int.from_bytes(head, "big")
        return FPDU(head + self.receive_exactly(length + -(2 + length) % 4 + 4)).ulpdu


def receive_startup_frame(sock: TCPSocket, of: type) -> Any:
    """Return the next MPA start-up frame of the stream."""
    octets = b""
    while len(octets) < 20 or len(octets) < 20 + int.from_bytes(octets[18:20], "big"):
        octets += sock.recv(1)
    return of(octets)


def connect_to_plain_listener(
    world: World, end: End, res: Callable[[int], int], **reply: Any
) -> tuple[PlainPeer, int]:
    """Connect to a plain listener; return its end and the reserved bits of the Request."""
    listener = world.tcp_listen("10.0.0.9", PORT)
    end.id = CMID(end.channel)
    end.id.bind_qp(end.qp)
    end.id.connect(("10.0.0.9", PORT))
    sock, _ = listener.accept()
    request = receive_startup_frame(sock, MPARequest)
    sock.sendall(bytes(MPAReply(rev=2, s=1, ird=4, ord=4, res=res(request.res), **reply)))
    assert end.next_event().type == CMEventType.ESTABLISHED
    return PlainPeer(sock, request), int(request.res)


def connect_plain_client(world: World, end: End, res: int) -> PlainPeer:
    """Connect a plain client whose MPA Request has the reserved bits ``res``."""
    start_listener(end)
    sock = world.tcp_connect("10.0.0.9", (end.address, PORT))
    sock.sendall(bytes(MPARequest(rev=2, s=1, ird=4, ord=4, res=res)))
    event = end.next_event()
    end.id = event.id
    end.id.bind_qp(end.qp)
    end.id.accept()
    assert end.next_event().type == CMEventType.ESTABLISHED
    return PlainPeer(sock, receive_startup_frame(sock, MPAReply))


@pytest.fixture
def roce_end(world: World) -> Iterator[End]:
    world.faults("delay=1ms")
    yield End(world, "10.0.0.1", persona=Persona.ROCE)


# ---- siwarp with siwarp


@pytest.mark.parametrize("one", PERSONAS)
@pytest.mark.parametrize("other", PERSONAS)
@pytest.mark.parametrize("rev", [1, 2])
def test_siwarp_peers_exchange_sends_with_immediate_without_a_setting(
    world: World, one: Persona, other: Persona, rev: int
) -> None:
    a, b = create_unconnected_pair(world, one, other)
    start_listener(b)
    start_connecting(a, b, ConnParam(rev=rev))
    accept_connection(a, b)
    world.run_for(1)
    for end in (a, b):
        assert end.qp.query()[1].private_messages
        end.post_receive(7, 1024, 64)
    post_send_with_immediate(a)
    (got,) = b.wait_for_receives()
    assert (got.wr_id, got.imm_data, got.wc_flags) == (7, IMM, WCFlag.WITH_IMM)
    assert b.mr.read(got.byte_len, 1024) == b"with it"
    post_send_with_immediate(b)
    assert a.wait_for_receives()[0].imm_data == IMM
    assert a.wait_for_sends()[0].ok and b.wait_for_sends()[0].ok


def test_siwarp_peers_with_delivery_counts_send_no_confirming_reads(world: World) -> None:
    a, b = create_unconnected_pair(world, Persona.ROCE, Persona.ROCE)
    connect_by_cm(a, b)
    with expect_counter_increase("confirm_reads", 0), expect_counter_increase("confirm_none", 0):
        for i in range(10):
            b.post_receive(i)
            a.post(SEND if i % 2 else WRITE, i, length=8, remote=b.mr.remote(0, 8))
            assert a.wait_for_sends()[0].wr_id == i


def test_the_sender_limits_how_long_its_sends_wait_for_a_receive(world: World) -> None:
    a, b = create_unconnected_pair(world, Persona.ROCE, Persona.ROCE)
    connect_by_cm(a, b)
    a.qp.modify(QPAttr(rnr_retry=3))
    b.qp.modify(QPAttr(rnr_retry=7, min_rnr_timer=26))  # the RNR timer 26 is 81.92 ms
    began = world.now_ns
    a.post(SEND, 1, length=8)
    assert a.wait_for_sends()[0].status == WCStatus.RNR_RETRY_EXC_ERR
    took = world.now_ns - began
    assert 2 * MS + 3 * 81_920_000 <= took < 2 * MS + 3 * 81_920_000 + NAP


def test_the_rnr_retry_count_of_an_accepting_receiver_overrides_that_of_the_sender(
    world: World,
) -> None:
    """Check that the rnr_retry_count of rdma_cm applies to the Sends of the peer."""
    a, b = create_unconnected_pair(world, Persona.ROCE, Persona.ROCE)
    start_listener(b)
    start_connecting(a, b)
    request = b.next_event()
    b.id = request.id
    b.id.bind_qp(b.qp)
    b.id.accept(ConnParam(rnr_retry=2))
    assert a.next_event().type == b.next_event().type == CMEventType.ESTABLISHED
    b.qp.modify(QPAttr(min_rnr_timer=26))
    began = world.now_ns
    a.post(SEND, 1, length=8)
    assert a.wait_for_sends()[0].status == WCStatus.RNR_RETRY_EXC_ERR
    assert 2 * 81_920_000 <= world.now_ns - began < 4 * MS + 2 * 81_920_000 + NAP


@pytest.mark.parametrize("off", ["client", "server", "both"])
def test_private_messages_are_off_if_the_announcement_is_off_at_either_end(
    world: World, off: str
) -> None:
    a, b = create_unconnected_pair(world, Persona.IWARP, Persona.IWARP)
    start_listener(b)
    with temporary_settings(mpa_announce=int(off == "server")):
        start_connecting(a, b)
    with temporary_settings(mpa_announce=int(off == "client")):
        accept_connection(a, b)
    for end in (a, b):
        with pytest.raises(Error, match="private_messages"):
            post_send_with_immediate(end)
    b.post_receive(1, 0, 64)
    a.send(b"goes on")
    assert b.wait_for_receives()[0].ok and a.wait_for_sends()[0].ok


@pytest.mark.parametrize("without", ["client", "server"])
def test_delivery_counts_need_both_ends_and_immediate_data_does_not_need_counts(
    world: World, without: str
) -> None:
    a, b = create_unconnected_pair(world, Persona.ROCE, Persona.ROCE)
    start_listener(b)
    with temporary_settings(delivery_counts=int(without == "server")):
        start_connecting(a, b)
    with temporary_settings(delivery_counts=int(without == "client")):
        accept_connection(a, b)
        world.run_for(1)
    with expect_counter_increase("confirm_reads", 1):
        b.post_receive(1, 0, 64)
        post_send_with_immediate(a)
        assert b.wait_for_receives()[0].imm_data == IMM and a.wait_for_sends()[0].ok


# ---- a peer that implements only the RFCs


@pytest.mark.parametrize("echo", [False, True], ids=["zero", "the Request's bits repeated"])
def test_a_listener_that_implements_only_the_rfcs_is_not_recognized_as_siwarp(
    world: World, roce_end: End, echo: bool
) -> None:
    """Check a Reply that repeats the reserved bits of the Request, as a Reply of Linux siw does."""
    peer, told = connect_to_plain_listener(world, roce_end, lambda res: res if echo else 0)
    assert told == REQUEST | COUNTS
    assert not roce_end.qp.query()[1].private_messages
    with pytest.raises(Error, match="private_messages"):
        post_send_with_immediate(roce_end)
    roce_end.send(b"asks by a Read")
    assert peer.receive_segment().opcode == Opcode.SEND
    assert peer.receive_segment().opcode == Opcode.RDMA_READ_REQUEST


@pytest.mark.parametrize("res", [res for res in range(16) if res & 0xE != REQUEST])
def test_a_client_that_implements_only_the_rfcs_receives_a_reply_without_announcement(
    world: World, roce_end: End, res: int
) -> None:
    peer = connect_plain_client(world, roce_end, res)
    assert (peer.frame.res, peer.frame.r) == (0, 0)
    with pytest.raises(Error, match="private_messages"):
        post_send_with_immediate(roce_end)


@pytest.mark.parametrize("res", [res for res in range(16) if res & 0xE != REPLY])
def test_only_the_announcement_bits_of_a_reply_identify_siwarp(
    world: World, roce_end: End, res: int
) -> None:
    connect_to_plain_listener(world, roce_end, lambda _: res)
    with pytest.raises(Error, match="private_messages"):
        post_send_with_immediate(roce_end)


def test_a_request_contains_no_announcement_if_the_setting_is_off(
    world: World, roce_end: End
) -> None:
    with temporary_settings(mpa_announce=0):
        _, told = connect_to_plain_listener(world, roce_end, lambda _: REPLY | COUNTS)
    assert told == 0
    with pytest.raises(Error, match="private_messages"):
        post_send_with_immediate(roce_end)


# ---- a peer that falsely announces itself as siwarp


def check_error_when_peer_closes(end: End, peer: PlainPeer, opcodes: tuple[int, ...]) -> None:
    """Check that the peer receives the opcodes, and that the request fails when the peer closes."""
    for opcode in opcodes:
        assert peer.receive_segment().opcode == opcode
    peer.sock.close()
    (wc,) = end.wait_for_sends()
    assert wc.status in (FLUSHED, WCStatus.RETRY_EXC_ERR)
    assert end.next_event().type == CMEventType.DISCONNECTED


def test_a_false_announcement_by_a_peer_that_closes_fails_the_request(
    world: World, roce_end: End
) -> None:
    peer, _ = connect_to_plain_listener(world, roce_end, lambda _: REPLY | COUNTS)
    post_send_with_immediate(roce_end)
    check_error_when_peer_closes(roce_end, peer, (Opcode.PRIVATE, Opcode.PRIVATE))


@pytest.mark.parametrize("counts", [0, COUNTS])
@pytest.mark.parametrize("initiator", [False, True])
@pytest.mark.parametrize(
    ("segment", "allowed"),
    [
        # a delivery count for a Send that was never posted
        (bytes(DeliveryCount(sends=1, writes=0)), False),
        (bytes(DeliveryCount(sends=0, writes=0)), False),
        (bytes(Requester(flags=1, rnr_retry=8)), False),
        # a valid requester message, which is allowed if delivery counts were agreed
        (bytes(Requester(flags=1, rnr_retry=7)), True),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=9 << 24)), False),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=5 << 24)) + b"payload", False),
    ],
)
def test_an_invalid_private_message_ends_the_connection_by_a_terminate_message(
    world: World, roce_end: End, counts: int, initiator: bool, segment: bytes, allowed: bool
) -> None:
    if initiator:
        peer, _ = connect_to_plain_listener(world, roce_end, lambda _: REPLY | counts)
    else:
        peer = connect_plain_client(world, roce_end, REQUEST | counts)
        assert peer.frame.res == REPLY | counts
    roce_end.qp.post_recv(RecvWR(3))
    peer.send_segments(segment)
    if allowed and counts:
        world.run_for(10)
        assert not roce_end.rcq.poll(1)
        return
    told = peer.receive_segment()
    assert told.opcode == Opcode.TERMINATE
    assert roce_end.wait_for_receives()[0].status == FLUSHED
    assert roce_end.next_event().type == CMEventType.DISCONNECTED


def test_a_peer_that_announces_delivery_counts_but_sends_none_is_waited_for(
    world: World, roce_end: End
) -> None:
    peer, _ = connect_to_plain_listener(world, roce_end, lambda _: REPLY | COUNTS)
    roce_end.send(b"anybody?")
    world.run_for(3600)
    assert not roce_end.cq.poll(1)
    peer.sock.close()
    assert roce_end.wait_for_sends()[0].status in (FLUSHED, WCStatus.RETRY_EXC_ERR)
    assert world.now_ns < 3610 * SECOND
