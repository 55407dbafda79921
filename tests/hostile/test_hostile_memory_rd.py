"""Registered memory that is removed, on RD: one request fails, and no peer is disconnected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness.rd_harness import RDEnd
from harness.rd_stranger import scripted_peer
from harness.verbs_harness import ALL_ACCESS, Rig, wait_until
from hostile.vanishing import PAGE, RemovableMemory

from siwarp.inspect import Opcode, Queue, Terminate
from siwarp.verbs import (
    MR,
    ErrorOrigin,
    QPAttr,
    QPState,
    RecvWR,
    SendWR,
    WCStatus,
    WROpcode,
)

GONE = ("unmapped", "protected", "truncated")
PROT, FLUSHED = WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR
SEND, WRITE, READ = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ
ADD = WROpcode.ATOMIC_FETCH_AND_ADD
SIZE = 1 << 21


class RdTrio:
    """Three connected RD queue pairs; of the first queue pair's memory only one page remains."""

    def __init__(self, rig: Rig, how: str) -> None:
        self.a, self.b, self.c = (RDEnd(rig, SIZE) for _ in range(3))
        self.memory = RemovableMemory(SIZE, how)
        self.gone: MR = rig.reg_mr(self.memory.buffer, ALL_ACCESS)
        self.memory.remove_pages(PAGE)
        for one in (self.b, self.c):
            self.check_message_arrives(self.a, one)
            self.check_message_arrives(one, self.a)

    def check_message_arrives(self, one: RDEnd, other: RDEnd, wr_id: int = 50) -> None:
        """Assert that a message from one queue pair arrives at the other."""
        other.post_receive(wr_id, 64, SIZE - 64)
        one.send(other, b"still there", 51, offset=SIZE - 64)
        assert one.poll_sends()[0].ok
        assert [(w.wr_id, w.byte_len) for w in other.poll_receives()] == [(wr_id, 11)]

    def check_all_messages_arrive(self) -> None:
        for one, other in ((self.a, self.b), (self.b, self.a), (self.a, self.c), (self.c, self.a)):
            self.check_message_arrives(one, other)


@pytest.fixture(params=GONE)
def connected_rd_trio(request: pytest.FixtureRequest) -> Iterator[RdTrio]:
    rig = Rig()
    made = RdTrio(rig, request.param)
    yield made
    rig.close()
    made.memory.close()


def post_request(
    one: RDEnd, to: RDEnd, wr_id: int, opcode: WROpcode, *sg: Any, **more: Any
) -> None:
    one.qp.post_send(SendWR(wr_id, opcode, sg=list(sg), ah=one.address_handle(to), **more))


def return_to_rts(one: RDEnd) -> None:
    wait_until(lambda: one.qp.qp_state == QPState.SQE)
    one.qp.modify(QPAttr(qp_state=QPState.RTS))


# ---- sources of this end's messages


@pytest.mark.parametrize("opcode", [SEND, WRITE], ids=["send", "write"])
def test_an_rd_message_from_removed_memory_fails_and_is_not_transmitted(
    connected_rd_trio: RdTrio, opcode: WROpcode
) -> None:
    a, b = connected_rd_trio.a, connected_rd_trio.b
    b.post_receive(7, 64)
    remote = None if opcode == SEND else b.into.remote()
    post_request(a, b, 1, opcode, connected_rd_trio.gone.sge(PAGE, 100_000), remote=remote)
    post_request(a, b, 2, SEND, a.out.sge(0, 4))
    assert [(w.wr_id, w.status) for w in a.poll_sends(2)] == [(1, PROT), (2, FLUSHED)]
    return_to_rts(a)
    a.send(b, b"fine", 3)
    assert a.poll_sends()[0].ok
    assert [(w.wr_id, w.byte_len) for w in b.poll_receives()] == [(7, 4)]
    connected_rd_trio.check_all_messages_arrive()


@pytest.mark.parametrize("whole", [100_000, SIZE // 2], ids=["at once", "by and by"])
def test_an_rd_message_from_partly_removed_memory_is_aborted_and_its_peer_is_kept(
    connected_rd_trio: RdTrio, whole: int
) -> None:
    """Earlier messages complete; the partly filled receive is used for the next message."""
    a, b = connected_rd_trio.a, connected_rd_trio.b
    b.post_receive(7, 64)
    b.post_receive(8)
    post_request(a, b, 1, SEND, a.out.sge(SIZE - 64, 10))
    post_request(a, b, 2, SEND, a.out.sge(0, whole), connected_rd_trio.gone.sge(0, SIZE // 4))
    post_request(a, b, 3, SEND, a.out.sge(0, 10))
    first, torn, last = a.poll_sends(3)
    assert first.wr_id == 1 and first.status in (WCStatus.SUCCESS, FLUSHED)
    assert [(w.wr_id, w.status) for w in (torn, last)] == [(2, PROT), (3, FLUSHED)]
    return_to_rts(a)
    connected_rd_trio.check_message_arrives(a, connected_rd_trio.c)
    a.send(b, b"fine", 4, offset=SIZE - 32)
    assert a.poll_sends()[0].ok
    assert [(w.wr_id, w.status, w.byte_len) for w in b.poll_receives(2)] == [
        (7, WCStatus.SUCCESS, 10),
        (8, WCStatus.SUCCESS, 4),
    ]
    connected_rd_trio.check_all_messages_arrive()


@pytest.mark.parametrize("opcode", [READ, ADD], ids=["read", "atomic"])
def test_a_read_or_atomic_of_removed_memory_fails_with_a_remote_operation_error(
    connected_rd_trio: RdTrio, opcode: WROpcode
) -> None:
    a, b = connected_rd_trio.a, connected_rd_trio.b
    length = 8 if opcode == ADD else 100_000
    post_request(
        b, a, 1, opcode, b.out.sge(0, length), remote=connected_rd_trio.gone.remote(PAGE, length)
    )
    (wc,) = b.poll_sends()
    assert (wc.wr_id, wc.status) == (1, WCStatus.REM_OP_ERR)
    assert (a.qp.qp_state, b.qp.qp_state) == (QPState.RTS, QPState.RTS)
    b.post_rdma(a, opcode, 8, 2)
    assert b.poll_sends()[0].ok
    connected_rd_trio.check_all_messages_arrive()


@pytest.mark.clause("DGRAM-RDV-8")
def test_the_error_message_about_a_read_of_removed_memory_quotes_the_request(
    connected_rd_trio: RdTrio,
) -> None:
    with scripted_peer(connected_rd_trio.a) as s:
        there = connected_rd_trio.gone.remote(PAGE, 8)
        bad = s.build_read_request(8, 0, src_stag=there.rkey, src_to=there.addr)
        s.send_and_wait(bad)
        head, octets = s.receive_segment()
        told = Terminate(octets)
        assert (head.opcode, head.qn) == (Opcode.TERMINATE, Queue.TERMINATE)
        assert (told.layer, told.etype) == (0, 0)
        assert (told.m, told.d, told.r, told.ddp_seg_len) == (1, 1, 1, len(bad))
        assert octets[6:] == bad


# ---- destinations of incoming messages


@pytest.mark.parametrize("size", [1, 5000, 300_000])
def test_an_rd_receive_into_removed_memory_fails_and_the_next_receive_completes(
    connected_rd_trio: RdTrio, size: int
) -> None:
    a, b = connected_rd_trio.a, connected_rd_trio.b
    a.qp.post_recv(RecvWR(7, sg=[connected_rd_trio.gone.sge(PAGE, SIZE // 2)]))
    a.post_receive(8)
    b.send(a, bytes(size), 1)
    b.send(a, b"fine", 2, offset=SIZE - 32)
    got = [(w.wr_id, w.status) for w in a.poll_receives(2)]
    assert got == [(7, PROT), (8, WCStatus.SUCCESS)]
    first, second = b.poll_sends(2)
    # The receiver acknowledges the message before it finds the error, or it reports the error; in
    # either case the sender is informed.
    assert first.status in (WCStatus.SUCCESS, WCStatus.REM_OP_ERR) and second.ok
    if first.ok:
        assert wait_until(b.qp.errors)[0].origin == ErrorOrigin.REPORTED
    connected_rd_trio.check_all_messages_arrive()


def test_an_rd_write_to_removed_memory_is_reported_to_the_sender(connected_rd_trio: RdTrio) -> None:
    a, b = connected_rd_trio.a, connected_rd_trio.b
    post_request(
        b, a, 1, WRITE, b.out.sge(0, 100_000), remote=connected_rd_trio.gone.remote(PAGE, 100_000)
    )
    (wc,) = b.poll_sends()
    if wc.ok:  # the complete message was acknowledged before the report arrived
        assert wait_until(b.qp.errors)[0].origin == ErrorOrigin.REPORTED
    else:
        assert wc.status == WCStatus.REM_OP_ERR
    assert wait_until(a.qp.errors)[0].origin == ErrorOrigin.FOUND
    connected_rd_trio.check_all_messages_arrive()


@pytest.mark.parametrize("opcode", [READ, ADD], ids=["read", "atomic"])
def test_a_response_into_removed_memory_fails_and_later_responses_arrive(
    connected_rd_trio: RdTrio, opcode: WROpcode
) -> None:
    a, b = connected_rd_trio.a, connected_rd_trio.b
    b.into.view[:8] = bytes(8)
    length = 8 if opcode == ADD else 100_000
    for turn in range(3):
        there = b.into.remote(64, length)
        post_request(a, b, 1, opcode, connected_rd_trio.gone.sge(PAGE, length), remote=there)
        a.post_rdma(b, opcode, 8, 2, compare_add=1)
        assert [(w.wr_id, w.status) for w in a.poll_sends(2)] == [
            (1, PROT),
            (2, WCStatus.SUCCESS),
        ], turn
    assert a.qp.qp_state == QPState.RTS
    connected_rd_trio.check_all_messages_arrive()
