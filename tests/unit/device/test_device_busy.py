"""Closing an object that is in use fails with EBUSY and names the objects that use it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, Wire, plain_connect
from harness.verbs_harness import ALL_ACCESS, Rig, poll

from siwarp.inspect import FPDU, DDPTagged, MPARequest, Opcode
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    CompChannel,
    Context,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    SrqAttr,
    StateError,
    WCStatus,
)

BIG = 32 << 20


def busy(close: Callable[[], None], *named: object) -> None:
    """Assert that closing fails with EBUSY and that the message names these objects."""
    with pytest.raises(StateError) as caught:
        close()
    assert caught.value.errno == errno.EBUSY
    for one in named:
        assert repr(one) in str(caught.value)


def test_each_object_is_busy_until_the_last_that_stands_on_it_is_closed() -> None:
    ctx = Context()
    channel = CompChannel(ctx)
    pd, cq = PD(ctx), CQ(ctx, channel=channel)
    srq, mr, ah = SRQ(pd, SrqAttr(4)), MR(pd, bytearray(64)), AH(pd, ("127.0.0.1", 9))
    qp = QP(pd, QPInitAttr(QPType.UD, scq=cq, srq=srq))
    busy(pd.close, qp, srq, mr, ah)
    busy(cq.close, qp)
    busy(srq.close, qp)
    busy(channel.close, cq)
    busy(ctx.close, channel, pd, cq)
    qp.close()
    for last in (srq, mr, ah):
        busy(pd.close, last)
        last.close()
    pd.close()
    busy(ctx.close, channel, cq)
    cq.close()
    busy(ctx.close, channel)
    channel.close()
    ctx.close()


# ---- memory


class Silent:
    """A peer that connects, sends a first message, and then neither reads nor answers."""

    def __init__(self, wire: Wire) -> None:
        self.socket = plain_connect(wire.address)
        self.socket.sendall(bytes(MPARequest(rev=2, s=1, ird=4, ord=4)))
        self.end = End(wire.passive, wire.next_request().id, wire.p_channel, size=64)
        self.end.id.accept()
        assert self.end.next_cm_event()
        hello = FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE))
        self.socket.sendall(bytes(hello))
        self.end.post_receive()

    def post(self, mr: MR, opcode: int) -> None:
        sg = [mr.sge()]
        remote = None if opcode == SEND else RemoteBuffer(0x1000, mr.length, 0x1234)
        self.end.qp.post_send(SendWR(5, opcode, sg=sg, remote=remote))


@pytest.fixture
def silent(two_device_wire: Wire) -> Iterator[Silent]:
    made = Silent(two_device_wire)
    with made.socket:
        yield made


@pytest.mark.parametrize("opcode", [SEND, WRITE, READ], ids=["send", "write", "read"])
def test_memory_is_busy_while_a_request_of_ours_is_on_its_way_there_or_from_there(
    silent: Silent, opcode: int
) -> None:
    rig, qp = silent.end.rig, silent.end.qp
    memory = bytearray(BIG)
    mr = rig.reg_mr(memory, ALL_ACCESS)
    silent.post(mr, opcode)
    busy(mr.close, qp)
    assert not mr.closed
    with pytest.raises(BufferError):
        memory.append(0)
    qp.modify(QPAttr(qp_state=QPState.ERR))
    silent.socket.close()  # closes with unread input, so the connection is reset
    (wc,) = poll(silent.end.scq)
    assert (wc.wr_id, wc.status) == (5, WCStatus.WR_FLUSH_ERR)
    mr.close()
    memory.append(0)


def test_memory_is_free_as_soon_as_tcp_has_what_was_sent_from_it(silent: Silent) -> None:
    mr = silent.end.rig.reg_mr(4096)
    silent.post(mr, SEND)
    # the Send has been passed to TCP, but the peer has not acknowledged it
    assert poll(silent.end.scq)[0].ok
    silent.post(mr, SEND)
    mr.close()
    assert silent.end.qp.qp_state == QPState.RTS


def test_an_idle_queue_pair_is_checked_again_after_a_post(silent: Silent) -> None:
    rig, qp = silent.end.rig, silent.end.qp
    mr = rig.reg_mr(BIG)
    for _ in range(3):
        silent.post(rig.reg_mr(64), SEND)
        assert poll(silent.end.scq)[0].ok
        rig.reg_mr(
            64
        ).close()  # closing a region checks the queue pair, which has nothing in flight
    silent.post(mr, SEND)
    busy(mr.close, qp)
    busy(mr.close, qp)  # closing checks a queue pair with work in flight each time


def fastest(rig: Rig) -> float:
    """Return the shortest time that deregistering a region takes, in seconds."""
    found = []
    for _ in range(100):
        mr = rig.reg_mr(64)
        began = time.perf_counter()
        mr.close()
        found.append(time.perf_counter() - began)
    return min(found)


def test_deregistering_does_not_check_idle_queue_pairs(rig: Rig) -> None:
    alone = fastest(rig)
    idle = [rig.create_qp(qp_type=QPType.RC) for _ in range(2000)]
    assert fastest(rig) <= 3 * alone + 5e-6  # would take 0.1 ms if each queue pair were checked
    assert not any(qp.closed for qp in idle)


def test_a_posted_receive_does_not_keep_its_memory(rig: Rig) -> None:
    qp = rig.create_ud_qp()
    mr, out = rig.reg_mr(64), rig.reg_mr(64)
    qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    mr.close()
    qp.post_send(SendWR(2, sg=[out.sge(0, 4)], ah=rig.create_ah(qp), send_flags=0))
    (wc,) = poll(qp.rcq)
    assert (wc.wr_id, wc.status) == (1, WCStatus.LOC_PROT_ERR)


def test_a_with_block_closes_memory_that_a_stream_still_sends_from(two_device_wire: Wire) -> None:
    silent = Silent(two_device_wire)
    pd = silent.end.rig.pd
    # the region is created after the queue pair, so it is destroyed first
    mr = MR(pd, BIG, ALL_ACCESS)
    silent.post(mr, WRITE)
    busy(mr.close, silent.end.qp)
    silent.end.id.close()
    silent.socket.close()
    pd._close_with_children()
    assert mr.closed and silent.end.qp.closed and pd.closed


# ---- address handles


def test_an_address_handle_is_busy_while_a_send_to_it_is_held(rig: Rig) -> None:
    qp, to = rig.create_ud_qp(), rig.create_ud_qp()
    mr = rig.reg_mr(64)
    to.post_recv(RecvWR(1, sg=[mr.sge(32)]))
    ah, other = rig.create_ah(to), rig.create_ah(to)
    qp.modify(QPAttr(qp_state=QPState.SQD))
    qp.post_send(SendWR(2, sg=[mr.sge(0, 4)], ah=ah))
    busy(ah.close, qp)
    busy(mr.close, qp)
    other.close()
    qp.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(qp.scq)[0].wr_id == 2
    assert poll(to.rcq)[0].wr_id == 1
    ah.close()
    mr.close()


def test_an_address_handle_may_go_right_behind_the_posts_that_use_it(rig: Rig) -> None:
    qp, to = rig.create_ud_qp(), rig.create_ud_qp()
    mr = rig.reg_mr(64)
    to.post_recv([RecvWR(i, sg=[mr.sge(32)]) for i in range(64)])
    for i in range(64):
        # Posts without a poll between them are held back to be batched unless something flushes
        # them.
        with rig.create_ah(to) as ah:
            qp.post_send(SendWR(i, sg=[mr.sge(0, 4)], ah=ah))
    assert [wc.wr_id for wc in poll(to.rcq, 64)] == list(range(64))
    assert len(poll(qp.scq, 64)) == 64
