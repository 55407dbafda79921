"""RC queue pairs with a connection manager detect whether their peer is siwarp.

The other end is siwarp, a plain socket that implements only the RFCs, or a socket that pretends to
be siwarp.
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
    accept,
    connect,
    counted,
    dial,
    listen,
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

#: Bits of the flags octet: 4 in a Request, 2 in a Reply, and 1 in either for delivery counts.
REQUEST, REPLY, COUNTS = 4, 2, 1
IMM = 0x01C2_83FE
PERSONAS = [Persona.IWARP, Persona.ROCE]
UNEXPECTED = (0, 2, 6)
FLUSHED = WCStatus.WR_FLUSH_ERR


def send_imm(end: End, data: bytes = b"with it", wr_id: int = 1) -> None:
    end.mr.write(data, len(data))
    sge = end.mr.sge(0, len(data))
    flags = SendFlag.SIGNALED
    wr = SendWR(wr_id, WROpcode.SEND_WITH_IMM, sg=[sge], send_flags=flags, imm_data=IMM)
    end.qp.post_send(wr)


def pair(world: World, one: Persona, other: Persona) -> tuple[End, End]:
    world.faults("delay=1ms")
    return End(world, "10.0.0.1", persona=one), End(world, "10.0.0.2", persona=other)


@dataclass
class Plain:
    """A peer that is a plain socket, at the other end of a connection."""

    sock: TCPSocket
    frame: Any
    buffer: bytes = field(default=b"")

    def put(self, *segments: bytes) -> None:
        self.sock.sendall(b"".join(bytes(FPDU(ulpdu=s)) for s in segments))

    def exactly(self, n: int) -> bytes:
        while len(self.buffer) < n:
            part = self.sock.recv(65536)
            assert part, "the stream ended"
            self.buffer += part
        found, self.buffer = self.buffer[:n], self.buffer[n:]
        return found

    def pull(self) -> Any:
        """Return the next segment."""
        head = self.exactly(2)
        length = int.from_bytes(head, "big")
        return FPDU(head + self.exactly(length + -(2 + length) % 4 + 4)).ulpdu


def frame_of(sock: TCPSocket, of: type) -> Any:
    """Return the next start-up frame, in whatever pieces it arrives."""
    octets = b""
    while len(octets) < 20 or len(octets) < 20 + int.from_bytes(octets[18:20], "big"):
        octets += sock.recv(1)
    return of(octets)


def answering(world: World, end: End, res: Callable[[int], int], **reply: Any) -> tuple[Plain, int]:
    """Connect to a plain listener whose Reply has reserved bits; return it, and the Request's."""
    listener = world.tcp_listen("10.0.0.9", PORT)
    end.id = CMID(end.channel)
    end.id.bind_qp(end.qp)
    end.id.connect(("10.0.0.9", PORT))
    sock, _ = listener.accept()
    request = frame_of(sock, MPARequest)
    sock.sendall(bytes(MPAReply(rev=2, s=1, ird=4, ord=4, res=res(request.res), **reply)))
    assert end.event().type == CMEventType.ESTABLISHED
    return Plain(sock, request), int(request.res)


def asking(world: World, end: End, res: int) -> Plain:
    """Connect a plain client whose Request has these reserved bits."""
    listen(end)
    sock = world.tcp_connect("10.0.0.9", (end.address, PORT))
    sock.sendall(bytes(MPARequest(rev=2, s=1, ird=4, ord=4, res=res)))
    event = end.event()
    end.id = event.id
    end.id.bind_qp(end.qp)
    end.id.accept()
    assert end.event().type == CMEventType.ESTABLISHED
    return Plain(sock, frame_of(sock, MPAReply))


@pytest.fixture
def roce(world: World) -> Iterator[End]:
    world.faults("delay=1ms")
    yield End(world, "10.0.0.1", persona=Persona.ROCE)


# ---- siwarp with siwarp


@pytest.mark.parametrize("one", PERSONAS)
@pytest.mark.parametrize("other", PERSONAS)
@pytest.mark.parametrize("rev", [1, 2])
def test_between_siwarps_immediate_goes_both_ways_without_a_setting(
    world: World, one: Persona, other: Persona, rev: int
) -> None:
    a, b = pair(world, one, other)
    listen(b)
    dial(a, b, ConnParam(rev=rev))
    accept(a, b)
    world.run_for(1)
    for end in (a, b):
        assert end.qp.query()[1].private_messages
        end.post_receive(7, 1024, 64)
    send_imm(a)
    (got,) = b.wait_for_receives()
    assert (got.wr_id, got.imm_data, got.wc_flags) == (7, IMM, WCFlag.WITH_IMM)
    assert b.mr.read(got.byte_len, 1024) == b"with it"
    send_imm(b)
    assert a.wait_for_receives()[0].imm_data == IMM
    assert a.wait_for_sends()[0].ok and b.wait_for_sends()[0].ok


def test_between_siwarps_the_peer_is_never_asked_by_a_read(world: World) -> None:
    a, b = pair(world, Persona.ROCE, Persona.ROCE)
    connect(a, b)
    with counted("confirm_reads", 0), counted("confirm_none", 0):
        for i in range(10):
            b.post_receive(i)
            a.post(SEND if i % 2 else WRITE, i, length=8, remote=b.mr.remote(0, 8))
            assert a.wait_for_sends()[0].wr_id == i


def test_between_siwarps_the_sender_says_how_long_its_sends_wait(world: World) -> None:
    a, b = pair(world, Persona.ROCE, Persona.ROCE)
    connect(a, b)
    a.qp.modify(QPAttr(rnr_retry=3))
    b.qp.modify(QPAttr(rnr_retry=7, min_rnr_timer=26))  # the RNR timer 26 is 81.92 ms
    began = world.now_ns
    a.post(SEND, 1, length=8)
    assert a.wait_for_sends()[0].status == WCStatus.RNR_RETRY_EXC_ERR
    took = world.now_ns - began
    assert 2 * MS + 3 * 81_920_000 <= took < 2 * MS + 3 * 81_920_000 + NAP


def test_a_receiver_s_own_word_at_connection_time_comes_first(world: World) -> None:
    """The rnr_retry_count of rdma_cm applies to the Sends of the peer."""
    a, b = pair(world, Persona.ROCE, Persona.ROCE)
    listen(b)
    dial(a, b)
    request = b.event()
    b.id = request.id
    b.id.bind_qp(b.qp)
    b.id.accept(ConnParam(rnr_retry=2))
    assert a.event().type == b.event().type == CMEventType.ESTABLISHED
    b.qp.modify(QPAttr(min_rnr_timer=26))
    began = world.now_ns
    a.post(SEND, 1, length=8)
    assert a.wait_for_sends()[0].status == WCStatus.RNR_RETRY_EXC_ERR
    assert 2 * 81_920_000 <= world.now_ns - began < 4 * MS + 2 * 81_920_000 + NAP


@pytest.mark.parametrize("off", ["client", "server", "both"])
def test_with_the_setting_off_at_either_end_both_do_as_with_anybody(world: World, off: str) -> None:
    a, b = pair(world, Persona.IWARP, Persona.IWARP)
    listen(b)
    with temporary_settings(mpa_announce=int(off == "server")):
        dial(a, b)
    with temporary_settings(mpa_announce=int(off == "client")):
        accept(a, b)
    for end in (a, b):
        with pytest.raises(Error, match="private_messages"):
            send_imm(end)
    b.post_receive(1, 0, 64)
    a.send(b"goes on")
    assert b.wait_for_receives()[0].ok and a.wait_for_sends()[0].ok


@pytest.mark.parametrize("without", ["client", "server"])
def test_counts_need_both_and_immediate_does_not_need_counts(world: World, without: str) -> None:
    a, b = pair(world, Persona.ROCE, Persona.ROCE)
    listen(b)
    with temporary_settings(delivery_counts=int(without == "server")):
        dial(a, b)
    with temporary_settings(delivery_counts=int(without == "client")):
        accept(a, b)
        world.run_for(1)
    with counted("confirm_reads", 1):
        b.post_receive(1, 0, 64)
        send_imm(a)
        assert b.wait_for_receives()[0].imm_data == IMM and a.wait_for_sends()[0].ok


# ---- a peer that implements only the RFCs


@pytest.mark.parametrize("echo", [False, True], ids=["zero", "the Request's bits repeated"])
def test_a_listener_of_the_rfcs_alone_is_not_taken_for_siwarp(
    world: World, roce: End, echo: bool
) -> None:
    """Linux siw builds its Reply in the buffer of the Request, so unknown bits are returned."""
    peer, told = answering(world, roce, lambda res: res if echo else 0)
    assert told == REQUEST | COUNTS
    assert not roce.qp.query()[1].private_messages
    with pytest.raises(Error, match="private_messages"):
        send_imm(roce)
    roce.send(b"asks by a Read")
    assert peer.pull().opcode == Opcode.SEND
    assert peer.pull().opcode == Opcode.RDMA_READ_REQUEST


@pytest.mark.parametrize("res", [res for res in range(16) if res & 0xE != REQUEST])
def test_a_client_of_the_rfcs_alone_sees_a_reply_as_they_have_it(
    world: World, roce: End, res: int
) -> None:
    peer = asking(world, roce, res)
    assert (peer.frame.res, peer.frame.r) == (0, 0)
    with pytest.raises(Error, match="private_messages"):
        send_imm(roce)


@pytest.mark.parametrize("res", [res for res in range(16) if res & 0xE != REPLY])
def test_only_the_bits_of_a_reply_announce_a_listener(world: World, roce: End, res: int) -> None:
    answering(world, roce, lambda _: res)
    with pytest.raises(Error, match="private_messages"):
        send_imm(roce)


def test_with_the_setting_off_a_request_is_as_the_rfcs_have_it(world: World, roce: End) -> None:
    with temporary_settings(mpa_announce=0):
        _, told = answering(world, roce, lambda _: REPLY | COUNTS)
    assert told == 0
    with pytest.raises(Error, match="private_messages"):
        send_imm(roce)


# ---- a peer that falsely announces itself as siwarp


def ends_cleanly(end: End, peer: Plain, opcodes: tuple[int, ...]) -> None:
    """The peer receives these messages and closes; the request completes in error."""
    for opcode in opcodes:
        assert peer.pull().opcode == opcode
    peer.sock.close()
    (wc,) = end.wait_for_sends()
    assert wc.status in (FLUSHED, WCStatus.RETRY_EXC_ERR)
    assert end.event().type == CMEventType.DISCONNECTED


def test_a_liar_that_leaves_at_the_first_private_message_is_an_error_of_the_request(
    world: World, roce: End
) -> None:
    peer, _ = answering(world, roce, lambda _: REPLY | COUNTS)
    send_imm(roce)
    ends_cleanly(roce, peer, (Opcode.PRIVATE, Opcode.PRIVATE))


@pytest.mark.parametrize("counts", [0, COUNTS])
@pytest.mark.parametrize("initiator", [False, True])
@pytest.mark.parametrize(
    ("segment", "allowed"),
    [
        # a delivery count for a Send that was never posted
        (bytes(DeliveryCount(sends=1, writes=0)), False),
        (bytes(DeliveryCount(sends=0, writes=0)), False),
        (bytes(Requester(flags=1, rnr_retry=8)), False),
        # this segment is allowed if delivery counts were agreed
        (bytes(Requester(flags=1, rnr_retry=7)), True),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=9 << 24)), False),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=5 << 24)) + b"payload", False),
    ],
)
def test_what_a_liar_may_not_say_ends_the_connection_by_a_terminate(
    world: World, roce: End, counts: int, initiator: bool, segment: bytes, allowed: bool
) -> None:
    if initiator:
        peer, _ = answering(world, roce, lambda _: REPLY | counts)
    else:
        peer = asking(world, roce, REQUEST | counts)
        assert peer.frame.res == REPLY | counts
    roce.qp.post_recv(RecvWR(3))
    peer.put(segment)
    if allowed and counts:
        world.run_for(10)
        assert not roce.rcq.poll(1)
        return
    told = peer.pull()
    assert told.opcode == Opcode.TERMINATE
    assert roce.wait_for_receives()[0].status == FLUSHED
    assert roce.event().type == CMEventType.DISCONNECTED


def test_a_liar_that_never_counts_is_waited_for_as_any_silent_peer(world: World, roce: End) -> None:
    peer, _ = answering(world, roce, lambda _: REPLY | COUNTS)
    roce.send(b"anybody?")
    world.run_for(3600)
    assert not roce.cq.poll(1)
    peer.sock.close()
    assert roce.wait_for_sends()[0].status in (FLUSHED, WCStatus.RETRY_EXC_ERR)
    assert world.now_ns < 3610 * SECOND
