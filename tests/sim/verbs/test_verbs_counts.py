"""Delivery counts: requests complete when the siwarp peer reports that it has received them."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from harness.peer_harness import PlainPeer, connected_plain_peer
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    counter_value,
    poll,
    temporary_settings,
    wait_until,
)

from siwarp.inspect import DDPTagged, DDPUntagged, DeliveryCount, Opcode, Queue, Requester
from siwarp.verbs import (
    EventType,
    Persona,
    QPAttr,
    QPState,
    RemoteBuffer,
    SendFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)

FLUSHED = WCStatus.WR_FLUSH_ERR
PEER_MEMORY = RemoteBuffer(0x1000, 1 << 20, 0x123456)
ROCE: dict[str, Any] = {"persona": Persona.ROCE, "private_messages": True}
IWARP: dict[str, Any] = {"persona": Persona.IWARP, "private_messages": True}
#: Layer, type and code of Terminate messages about an invalid private message.
UNEXPECTED, UNSPECIFIED = (0, 2, 6), (0, 2, 0xFF)


def build_delivery_count_message(sends: int, writes: int) -> bytes:
    return bytes(DeliveryCount(sends=sends, writes=writes))


def build_requester_with_delivery_counts(rnr_retry: int = 7, **fields: Any) -> bytes:
    return bytes(Requester(rnr_retry=rnr_retry, **fields))


def receive_delivery_count(peer: PlainPeer) -> tuple[int, int]:
    """Receive the next segment, which must be a delivery count, and return its two counts."""
    said = DeliveryCount(peer.receive_segment_octets())
    assert (said.opcode, said.subcode, said.zero, said.l) == (Opcode.PRIVATE, 4, 0, 1)
    return said.sends, said.writes


def receive_terminate_codes(peer: PlainPeer) -> tuple[int, int, int]:
    found = peer.receive_terminate()
    return found.layer, found.etype, found.code


# ---- the sender of requests


@pytest.mark.parametrize("ird", [0, 4])
@pytest.mark.parametrize("opcode", [SEND, WRITE], ids=["send", "write"])
def test_a_request_completes_by_a_delivery_count_and_no_read_is_sent(
    connector: ListenerAndConnector, opcode: WROpcode, ird: int
) -> None:
    with (
        assert_counter_grows("confirm_reads", 0),
        assert_counter_grows("confirm_none", 0),
        assert_counter_grows("delivery_counts_rx", 2),
        connected_plain_peer(connector, ird=ird, **ROCE) as (a, peer),
    ):
        a.post(opcode, 5, length=100, remote=PEER_MEMORY)
        # One write to the socket carries both the request for counts and the message.
        first = Requester(peer.receive_segment_octets())
        assert (first.subcode, first.flags, first.rnr_retry) == (5, "wants_counts", 7)
        assert (first.unused, first.zero, first.rv, first.dv) == (0, 0, 1, 1)
        assert peer.receive_segment()[0].opcode == (
            Opcode.SEND if opcode == SEND else Opcode.RDMA_WRITE
        )
        assert_no_completion(a.scq)
        assert peer.is_silent()
        is_send = opcode == SEND
        peer.send_segments(build_delivery_count_message(int(is_send), int(not is_send)))
        assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(5, WCStatus.SUCCESS)]
        # The request for counts is sent only once.
        a.post(opcode, 6, length=100, remote=PEER_MEMORY)
        assert peer.receive_segment()[0].opcode != Opcode.PRIVATE
        peer.send_segments(build_delivery_count_message(2 * is_send, 2 * (not is_send)))
        assert poll(a.scq)[0].ok


def test_a_delivery_count_completes_exactly_the_counted_requests(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        for i in range(6):
            a.post(SEND if i % 2 else WRITE, i, length=8, remote=PEER_MEMORY)
        assert len(peer.receive_until_silent()) == 7
        peer.send_segments(build_delivery_count_message(1, 2))
        assert [w.wr_id for w in poll(a.scq, 3)] == [0, 1, 2]
        assert_no_completion(a.scq)
        # A Write after a Send that still waits for its receive completes after the Send.
        peer.send_segments(build_delivery_count_message(1, 3))
        assert_no_completion(a.scq)
        peer.send_segments(build_delivery_count_message(3, 3))
        assert [w.wr_id for w in poll(a.scq, 3)] == [3, 4, 5]


def test_a_write_with_immediate_completes_when_its_write_and_its_message_are_counted(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        for i in range(2):
            a.post(WROpcode.RDMA_WRITE_WITH_IMM, i, length=8, remote=PEER_MEMORY)
        a.post(WRITE, 2, length=8, remote=PEER_MEMORY)
        assert len(peer.receive_until_silent()) == 6
        peer.send_segments(build_delivery_count_message(0, 3))
        assert_no_completion(a.scq)
        peer.send_segments(build_delivery_count_message(1, 3))
        assert [w.wr_id for w in poll(a.scq)] == [0]
        assert_no_completion(a.scq)
        peer.send_segments(build_delivery_count_message(2, 3))
        assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]


def test_send_with_immediate_needs_no_announcement_if_private_messages_are_agreed(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(private_messages=True)
    assert a.qp.query()[1].private_messages
    b.post_receive()
    a.post(WROpcode.SEND_WITH_IMM, 1, length=8)
    assert poll(a.scq)[0].ok and poll(b.rcq)[0].ok


def test_a_read_among_counted_requests_completes_in_order(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        a.post(WRITE, 0, length=8, remote=PEER_MEMORY)
        a.post(READ, 1, offset=64, length=8, remote=PEER_MEMORY)
        a.post(SEND, 2, length=8)
        assert peer.receive_segment()[0].opcode == Opcode.PRIVATE
        request = peer.receive_read_request()
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        peer.send_segments(build_delivery_count_message(1, 0))
        assert_no_completion(a.scq)
        # A Read Response does not confirm the preceding Write, which may still be refused.
        peer.send_segments(peer.build_read_response(request, b"response"))
        assert_no_completion(a.scq)
        peer.send_segments(build_delivery_count_message(1, 1))
        assert [w.wr_id for w in poll(a.scq, 3)] == [0, 1, 2]


def test_delivery_counts_complete_fenced_requests_in_a_send_queue_of_one(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, max_send_wr=1, **ROCE) as (a, peer):
        slots = a.qp.cap.max_send_wr
        for i in range(3 * slots):
            opcode = (WRITE, SEND, READ)[i % 3]
            fence = SendFlag.FENCE if i % 2 else 0
            a.post(opcode, i, length=8, remote=PEER_MEMORY, flags=SendFlag.SIGNALED | fence)
            if i == 0:
                peer.receive_segment()
            if opcode == READ:
                peer.send_segments(peer.build_read_response(peer.receive_read_request(), bytes(8)))
            else:
                peer.receive_segment()
                peer.send_segments(
                    build_delivery_count_message(
                        (i + 2) // 3 if opcode == SEND else (i + 1) // 3, i // 3 + 1
                    )
                )
            assert [w.wr_id for w in poll(a.scq)] == [i]


def test_unsignaled_requests_free_their_send_queue_slots_when_they_are_counted(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, max_send_wr=16, **ROCE) as (a, peer):
        for turn in range(1, 4):
            for i in range(15):
                a.post(WRITE, i, length=8, remote=PEER_MEMORY, flags=0)
            a.post(WRITE, turn, length=8, remote=PEER_MEMORY)
            peer.receive_until_silent()
            peer.send_segments(build_delivery_count_message(0, 16 * turn))
            assert [w.wr_id for w in poll(a.scq)] == [turn]


def test_a_send_queue_in_sqd_is_drained_when_its_last_request_is_counted(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        a.post(SEND, 1, length=8, flags=0)
        a.post(WRITE, 2, length=8, remote=PEER_MEMORY, flags=0)
        assert len(peer.receive_until_silent()) == 3
        a.qp.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
        assert a.qp.query()[0].sq_draining
        peer.send_segments(build_delivery_count_message(0, 1))
        assert_no_completion(a.scq)
        assert a.qp.query()[0].sq_draining
        peer.send_segments(build_delivery_count_message(1, 1))
        wait_until(lambda: a.scq.poll(1) == [] and not a.qp.query()[0].sq_draining)
        event = a.rig.ctx.get_async_event(5.0)
        assert event is not None and event.event_type == EventType.SQ_DRAINED


def test_uncounted_requests_are_flushed_when_the_peer_closes(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        for i in range(3):
            a.post(WRITE, i, length=8, remote=PEER_MEMORY)
        peer.receive_until_silent()
        peer.send_segments(build_delivery_count_message(0, 1))
        peer.sock.close()
        assert [w.status for w in poll(a.scq, 3)] == [WCStatus.SUCCESS, FLUSHED, FLUSHED]


def test_a_terminate_after_a_delivery_count_fails_the_request_that_it_quotes(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        for i in range(3):
            a.post(SEND, i, length=64)
        sends = [s for s in peer.receive_until_silent() if s[1] & 0xF == Opcode.SEND]
        peer.send_segments(
            build_delivery_count_message(1, 0), peer.build_terminate(1, 2, 2, quoted=sends[1])
        )
        refused = WCStatus.RNR_RETRY_EXC_ERR
        assert [w.status for w in poll(a.scq, 3)] == [WCStatus.SUCCESS, refused, FLUSHED]


# ---- a peer that sends false counts


@pytest.mark.parametrize(
    "said",
    [
        [(2, 3)],  # a delivery count of more Writes than were sent
        [(3, 2)],
        [(1 << 31, 0)],
        [(0, 1 << 31)],
        [(0, 0)],  # a delivery count that confirms no new request
        [(1, 1), (1, 1)],
        [(2, 1), (1, 1)],  # a count of Sends that is lower than the previous one
        [(1, 2), (2, 1)],
        [(2, 2), (0, 0)],
        [(2, 2), (0xFFFFFFFF, 0xFFFFFFFF)],
    ],
)
def test_an_impossible_delivery_count_ends_the_connection(
    connector: ListenerAndConnector, said: list[tuple[int, int]]
) -> None:
    with connected_plain_peer(connector, gone=True, **ROCE) as (a, peer):
        for i in range(4):
            a.post(SEND if i % 2 else WRITE, i, length=8, remote=PEER_MEMORY)
        assert len(peer.receive_until_silent()) == 5
        peer.send_segments(*(build_delivery_count_message(*one) for one in said))
        assert receive_terminate_codes(peer) == UNSPECIFIED
        statuses = [w.status for w in poll(a.scq, 4)]
        # If the peer sends two delivery counts, the first one is credible, and the requests that it
        # covers complete before the connection ends.
        sends, writes = said[0] if len(said) > 1 else (0, 0)
        believed = min(2 * writes, 2 * sends + 1)
        assert statuses == [WCStatus.SUCCESS] * believed + [FLUSHED] * (4 - believed)
        a.wait_for_error_state()


def test_a_delivery_count_of_a_write_that_is_still_being_sent_ends_the_connection(
    connector: ListenerAndConnector,
) -> None:
    size = 64 << 20
    with connected_plain_peer(connector, size=size, gone=True, **ROCE) as (a, peer):
        there = RemoteBuffer(0, size, PEER_MEMORY.rkey)
        a.post(WRITE, 1, length=size, remote=there)
        peer.receive_segment_octets()  # the rest of the Write fills the socket
        peer.send_segments(build_delivery_count_message(0, 1))
        assert poll(a.scq)[0].status == FLUSHED
        a.wait_for_error_state()


def test_a_repeated_delivery_count_ends_the_connection(connector: ListenerAndConnector) -> None:
    with (
        connected_plain_peer(connector, gone=True, **ROCE) as (a, peer),
        assert_counter_grows("delivery_counts_rx", 2),
    ):
        a.post(SEND, 1, length=8)
        peer.receive_until_silent()
        peer.send_segments(*[build_delivery_count_message(1, 0)] * 5000)
        assert poll(a.scq)[0].ok
        assert receive_terminate_codes(peer) == UNSPECIFIED


def test_unrequested_delivery_counts_end_the_connection(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector, gone=True, **IWARP) as (a, peer):
        a.post(SEND, 1, length=8)
        assert poll(a.scq)[0].ok
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        peer.send_segments(build_delivery_count_message(1, 0))
        assert receive_terminate_codes(peer) == UNSPECIFIED


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE])
@pytest.mark.parametrize(
    "said",
    [build_delivery_count_message(1, 0), build_requester_with_delivery_counts()],
    ids=["count", "wants"],
)
def test_delivery_count_messages_of_a_peer_that_is_not_known_as_siwarp_are_refused(
    connector: ListenerAndConnector, persona: int, said: bytes
) -> None:
    with connected_plain_peer(connector, gone=True, persona=persona) as (a, peer):
        # A request for counts is refused even after a Send, which with persona roce requests counts
        # by a Read. Counts after such a Read are tested in test_verbs_counts_asked.
        if said == build_requester_with_delivery_counts():
            a.post(SEND, 1, length=8)
            peer.receive_until_silent()
        peer.send_segments(said)
        assert receive_terminate_codes(peer) == UNEXPECTED


def test_an_end_with_delivery_counts_disabled_refuses_a_count(
    connector: ListenerAndConnector,
) -> None:
    with (
        temporary_settings(delivery_counts=0),
        connected_plain_peer(connector, gone=True, **ROCE) as (a, peer),
    ):
        a.post(SEND, 1, length=8)
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        assert peer.receive_segment()[0].opcode == Opcode.RDMA_READ_REQUEST
        peer.send_segments(build_delivery_count_message(1, 0))
        assert receive_terminate_codes(peer) == UNEXPECTED


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (build_delivery_count_message(1, 0) + b"x", UNSPECIFIED),
        (build_delivery_count_message(1, 0) + bytes(1000), UNSPECIFIED),
        (bytes(DeliveryCount(sends=1, l=0)), UNSPECIFIED),
        (build_requester_with_delivery_counts() + b"x", UNSPECIFIED),
        (build_requester_with_delivery_counts(8), UNSPECIFIED),
        (build_requester_with_delivery_counts(255), UNSPECIFIED),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=0)), UNEXPECTED),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=1 << 24)), UNEXPECTED),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=3 << 24)) + bytes(20), UNEXPECTED),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=6 << 24)), UNEXPECTED),
        (bytes(DDPTagged(opcode=Opcode.PRIVATE, stag=0xFF << 24)), UNEXPECTED),
    ],
)
def test_a_malformed_delivery_count_message_ends_the_connection(
    connector: ListenerAndConnector, said: bytes, error: tuple[int, int, int]
) -> None:
    with connected_plain_peer(connector, gone=True, **ROCE) as (a, peer):
        a.post(SEND, 1, length=8)
        peer.receive_until_silent()
        peer.send_segments(said)
        assert receive_terminate_codes(peer) == error
        assert poll(a.scq)[0].status == FLUSHED


def test_unused_fields_of_delivery_count_messages_are_ignored(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        a.post(SEND, 1, length=8)
        peer.receive_until_silent()
        peer.send_segments(bytes(DeliveryCount(sends=1, zero=0xABCDEF)))
        peer.send_segments(bytes(Requester(zero=1, unused=0xFFFF, flags=0xFF)))
        assert poll(a.scq)[0].ok


def test_a_delivery_count_split_at_any_octet_is_accepted(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        whole = len(peer.frame_segment(build_delivery_count_message(1, 0)))
        for cut in range(1, whole):
            a.post(SEND, cut, length=8)
            peer.receive_until_silent()
            octets = peer.frame_segment(build_delivery_count_message(cut, 0))
            peer.sock.sendall(octets[:cut])
            assert_no_completion(a.scq)
            peer.sock.sendall(octets[cut:])
            assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(cut, WCStatus.SUCCESS)]


@pytest.mark.parametrize("octet", range(14))
def test_a_delivery_count_with_a_changed_octet_completes_no_request_wrongly(
    connector: ListenerAndConnector, octet: int
) -> None:
    with connected_plain_peer(connector, gone=True, **ROCE) as (a, peer):
        for i in range(2):
            a.post(SEND, i, length=8)
        peer.receive_until_silent()
        said = bytearray(build_delivery_count_message(1, 0))
        said[octet] ^= 0x82
        peer.send_segments(bytes(said))
        unused = octet in (3, 4, 5)
        statuses = [w.status for w in poll(a.scq, 1 if unused else 2)]
        assert statuses == ([WCStatus.SUCCESS] if unused else [FLUSHED, FLUSHED])
        if unused:  # only in this case the connection has not been ended by an invalid segment
            peer.send_segments(build_delivery_count_message(1, 0))
        assert receive_terminate_codes(peer)[0] in (0, 1, 2)


# ---- the receiver of requests


def test_a_receiver_sends_delivery_counts_while_they_are_requested(
    connector: ListenerAndConnector,
) -> None:
    with (
        connected_plain_peer(connector, **IWARP) as (a, peer),
        assert_counter_grows("delivery_counts_tx", 3),
    ):
        for i in range(4):
            a.post_receive(i, length=100)
        peer.send_segments(
            peer.build_send(b"one"), peer.build_write(b"two", a.mem.rkey, a.mem.addr)
        )
        assert poll(a.rcq)[0].wr_id == 0
        assert_no_completion(a.rcq)
        assert peer.is_silent()
        peer.send_segments(build_requester_with_delivery_counts())
        wait_until(lambda: a.rcq.poll(1) == [] and counter_value("delivery_counts_tx"))
        assert receive_delivery_count(peer) == (1, 1)
        peer.send_segments(peer.build_write(b"two", a.mem.rkey, a.mem.addr))
        assert_no_completion(a.rcq)
        assert receive_delivery_count(peer) == (1, 2)
        peer.send_segments(peer.build_send(b"three"))
        assert poll(a.rcq)[0].wr_id == 1
        assert_no_completion(a.rcq)
        assert receive_delivery_count(peer) == (2, 2)
        peer.send_segments(build_requester_with_delivery_counts(flags=0))
        peer.send_segments(peer.build_send(b"four"))
        assert poll(a.rcq)[0].wr_id == 2
        assert_no_completion(a.rcq)
        assert peer.is_silent()


def test_a_delivery_count_precedes_a_reply_and_a_read_response(
    connector: ListenerAndConnector,
) -> None:
    with (
        connected_plain_peer(connector, **IWARP) as (a, peer),
        assert_counter_grows("delivery_counts_tx", 2),
    ):
        a.post_receive(0, length=100)
        peer.send_segments(build_requester_with_delivery_counts(), peer.build_send(b"ask"))
        assert poll(a.rcq)[0].ok
        a.post(SEND, 1, length=8)
        octets = peer.sock.recv(65536)
        assert len(octets) == (2 + 14 + 4) + (2 + 18 + 8 + 4), (
            "the reply was not sent in one write with the delivery count"
        )
        assert octets[3] & 0xF == Opcode.PRIVATE and octets[4] == 4
        write = peer.build_write(b"two", a.mem.rkey, a.mem.addr + 1000)
        peer.send_segments(write, peer.build_read_request(3, a.mem.rkey, a.mem.addr + 1000))
        wait_until(lambda: a.rcq.poll(1) == [] and counter_value("delivery_counts_tx") >= 2)
        assert receive_delivery_count(peer) == (1, 1)
        head, rest = peer.receive_segment()
        assert (head.opcode, rest) == (Opcode.RDMA_READ_RESPONSE, b"two")


@contextlib.contextmanager
def endpoint_with_unpolled_send_completion() -> Iterator[tuple[End, PlainPeer]]:
    """Yield an end without a progress thread, and its peer. The end has not yet polled the
    completion of its Send.
    """
    with temporary_settings(progress_thread=0):
        rig = Rig()
    with (
        connected_plain_peer(ListenerAndConnector(rig), gone=True, **ROCE) as (a, peer),
        assert_counter_grows("delivery_counts_tx", 1),
    ):
        a.post_receive(0, length=100)
        a.post(SEND, 1, length=8)
        peer.send_segments(
            build_requester_with_delivery_counts(),
            build_delivery_count_message(1, 0),
            peer.build_send(b"answer"),
        )
        assert poll(a.rcq)[0].ok
        assert len(peer.receive_until_silent()) == 2
        yield a, peer
    rig.close()


def test_a_delivery_count_is_not_sent_alone_while_an_earlier_completion_is_unpolled() -> None:
    """Check that the count is sent with the next message if the receive CQ is polled first."""
    with endpoint_with_unpolled_send_completion() as (a, peer):
        assert a.rcq.poll(16) == []
        assert peer.is_silent()
        assert [w.wr_id for w in a.scq.poll(16)] == [1]
        assert peer.is_silent()
        a.post(SEND, 2, length=8)
        assert [s[1] & 0xF for s in peer.receive_until_silent()] == [Opcode.PRIVATE, Opcode.SEND]


def test_a_delivery_count_is_sent_alone_after_several_polls_of_another_queue() -> None:
    with endpoint_with_unpolled_send_completion() as (a, peer):
        for _ in range(16):
            assert a.rcq.poll(16) == []
        assert receive_delivery_count(peer) == (1, 0)


def test_a_send_without_a_receive_is_not_counted_but_a_later_write_is(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        write = peer.build_write(b"there", a.mem.rkey, a.mem.addr)
        peer.send_segments(build_requester_with_delivery_counts(), peer.build_send(b"early"), write)
        assert_no_completion(a.rcq)
        assert receive_delivery_count(peer) == (0, 1)
        assert_no_completion(a.rcq)
        assert peer.is_silent()
        a.post_receive(4, offset=100, length=100)
        assert poll(a.rcq)[0].wr_id == 4
        assert_no_completion(a.rcq)
        assert receive_delivery_count(peer) == (1, 1)


def test_a_refused_send_is_never_counted(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector, gone=True, **IWARP) as (a, peer):
        a.post_receive(1, length=4)
        a.post_receive(2, length=4)
        peer.send_segments(
            build_requester_with_delivery_counts(),
            peer.build_send(b"good"),
            peer.build_send(b"too long"),
        )
        poll(a.rcq, 2)
        segments = [peer.receive_segment_octets()]
        while segments[-1][1] & 0xF != Opcode.TERMINATE:
            segments.append(peer.receive_segment_octets())
        counts = [struct.unpack(">II", s[6:14]) for s in segments[:-1]]
        assert counts in ([], [(1, 0)])


def test_a_one_way_flow_is_counted_every_64_kib_and_at_pauses(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **IWARP) as (a, peer):
        octets, total = bytes(1024), 512
        one = peer.build_write(octets, a.mem.rkey, a.mem.addr)
        before = counter_value("delivery_counts_tx")
        peer.send_segments(build_requester_with_delivery_counts())
        for _ in range(8):
            peer.send_segments(*[one] * (total // 8))
            assert_no_completion(a.rcq)
        counts = [struct.unpack(">II", s[6:14]) for s in peer.receive_until_silent()]
        assert counts[-1] == (0, total)
        assert counts == sorted(set(counts))
        # The expected rate is at least one count per 128 KiB, and far fewer counts than messages.
        assert 4 <= len(counts) <= total // 4
        assert counter_value("delivery_counts_tx") - before == len(counts)


def test_a_flow_without_a_pause_is_counted_every_64_kib() -> None:
    """Check a flow without pauses: all data is in the sockets before the first poll."""
    octets, total = 1024, 256
    with temporary_settings(progress_thread=0):
        rig = Rig()
    with connected_plain_peer(ListenerAndConnector(rig), gone=True, **IWARP) as (a, peer):
        one = peer.build_write(bytes(octets), a.mem.rkey, a.mem.addr)
        peer.send_segments(build_requester_with_delivery_counts(), *[one] * total)
        assert_no_completion(a.rcq)
        counts = [struct.unpack(">II", s[6:14])[1] for s in peer.receive_until_silent()]
    rig.close()
    assert counts[-1] == total
    # A count is sent at the end of the round that exceeds 64 KiB, and a round processes at most
    # 64 KiB.
    steps = [b - a for a, b in itertools.pairwise([0, *counts])]
    assert max(steps) * octets <= 2 << 16, counts


# ---- siwarp at both ends


@pytest.mark.parametrize("other", [Persona.IWARP, Persona.ROCE])
def test_an_end_of_persona_iwarp_receives_no_delivery_counts(
    two_device_connector: ListenerAndConnector, other: Persona
) -> None:
    a = two_device_connector.begin_connect(size=64, **ROCE)
    b = End(
        two_device_connector.passive,
        two_device_connector.next_connection_request().id,
        two_device_connector.p_channel,
        size=64,
        persona=other,
        private_messages=True,
    )
    b.id.accept()
    a.next_cm_event(), b.next_cm_event()
    b.post_receive(1)
    a.post(SEND, 1, length=8)  # the initiator has to send first
    assert poll(a.scq)[0].ok
    a.post_receive(3)
    before = counter_value("delivery_counts_rx")
    b.post(SEND, 4, length=8)
    assert poll(b.scq)[0].ok
    assert poll(a.rcq)[0].ok
    assert (counter_value("delivery_counts_rx") > before) == (other == Persona.ROCE)


def test_two_ends_of_persona_iwarp_send_no_delivery_counts(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(**IWARP)
    with (
        assert_counter_grows("delivery_counts_tx", 0),
        assert_counter_grows("delivery_counts_rx", 0),
    ):
        for i in range(10):
            b.post_receive(i)
            a.post(SEND, i, length=8)
            assert poll(a.scq)[0].ok and poll(b.rcq)[0].ok
        assert_no_completion(b.rcq)


def test_the_completion_of_a_send_precedes_the_receive_of_its_answer(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(**ROCE)
    for i in range(300):
        a.post_receive(i, offset=4096, length=64)
        b.post_receive(i, offset=4096, length=64)
        a.post(SEND, i, length=64)
        assert poll(b.rcq)[0].wr_id == i
        b.post(SEND, i, length=64)
        assert poll(a.rcq)[0].wr_id == i
        # The completion is already in the queue, so no progress round is needed or made.
        done = a.scq.poll(4)
        assert [(w.wr_id, w.opcode) for w in done] == [(i, WCOpcode.SEND)]
        assert poll(b.scq)[0].wr_id == i


def test_a_long_write_does_not_delay_a_delivery_count_in_the_same_direction_forever(
    two_device_connector: ListenerAndConnector,
) -> None:
    size = 32 << 20
    a, b = two_device_connector.connect(size=size, **ROCE)
    b.post(WRITE, 7, length=size, remote=a.mem.remote(0, size))
    b.post_receive(1, length=64)
    a.post(SEND, 1, length=64)
    assert poll(b.rcq)[0].ok
    assert poll(a.scq)[0].ok
    assert poll(b.scq)[0].wr_id == 7


# ---- RNR retries


@pytest.mark.parametrize("own", [0, 7])
def test_the_sender_determines_how_long_its_send_waits_for_a_receive(
    connector: ListenerAndConnector, own: int
) -> None:
    with (
        connected_plain_peer(connector, gone=True, **ROCE) as (a, peer),
        assert_counter_grows("rnr_expired", 1),
    ):
        a.qp.modify(QPAttr(rnr_retry=own, min_rnr_timer=29))  # the RNR timer 29 is 245.76 ms
        peer.send_segments(build_requester_with_delivery_counts(2), peer.build_send(b"early"))
        assert peer.is_silent(0.1)
        wait_until(lambda: a.rcq.poll(1) or not peer.is_silent(0))
        assert receive_terminate_codes(peer) == (1, 2, 2)


def test_the_rnr_retry_of_a_receiver_does_not_limit_a_sender_without_limit(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        a.qp.modify(QPAttr(rnr_retry=1, min_rnr_timer=1))
        peer.send_segments(build_requester_with_delivery_counts(7), peer.build_send(b"early"))
        assert_no_completion(a.rcq)
        assert peer.is_silent(0.2)
        a.post_receive(5, length=64)
        assert poll(a.rcq)[0].wr_id == 5


def test_a_sender_can_change_its_rnr_retry_while_its_send_waits(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, gone=True, **ROCE) as (a, peer):
        a.qp.modify(QPAttr(min_rnr_timer=1))
        peer.send_segments(build_requester_with_delivery_counts(7), peer.build_send(b"early"))
        assert_no_completion(a.rcq)
        assert peer.is_silent(0.1)
        peer.send_segments(build_requester_with_delivery_counts(0))
        wait_until(lambda: a.rcq.poll(1) or not peer.is_silent(0))
        assert receive_terminate_codes(peer) == (1, 2, 2)


def test_a_changed_rnr_retry_is_sent_to_the_receiver(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        a.qp.modify(QPAttr(rnr_retry=3))
        a.post(SEND, 1, length=8)
        assert Requester(peer.receive_segment_octets()).rnr_retry == 3
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        a.qp.modify(QPAttr(rnr_retry=5))
        a.post(SEND, 2, length=8)
        again = Requester(peer.receive_segment_octets())
        assert (again.rnr_retry, again.flags) == (5, "wants_counts")
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        peer.send_segments(build_delivery_count_message(2, 0))
        poll(a.scq, 2)


def test_a_read_request_that_a_terminate_quotes_by_number_is_not_mistaken_for_a_send(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, **ROCE) as (a, peer):
        a.post(WRITE, 1, length=8, remote=PEER_MEMORY)
        a.post(READ, 2, length=8, remote=PEER_MEMORY)
        peer.receive_until_silent()
        head = DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=Queue.READ_REQUEST, msn=1)
        peer.send_segments(
            build_delivery_count_message(0, 1),
            peer.build_terminate(0, 1, 1, quoted=bytes(head) + bytes(28)),
        )
        assert [w.status for w in poll(a.scq, 2)] == [0, WCStatus.REM_ACCESS_ERR]
