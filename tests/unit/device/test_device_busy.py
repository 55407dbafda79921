"""Closing an object that is in use fails with EBUSY and names the objects that use it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector, connect_plain_socket
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


def assert_busy(close: Callable[[], None], *named: object) -> None:
    """Assert that ``close`` fails with EBUSY and that the message names the objects ``named``."""
    with pytest.raises(StateError) as caught:
        close()
    assert caught.value.errno == errno.EBUSY
    for one in named:
        assert repr(one) in str(caught.value)


def test_an_object_is_busy_until_the_last_object_that_depends_on_it_is_closed() -> None:
    ctx = Context()
    channel = CompChannel(ctx)
    pd, cq = PD(ctx), CQ(ctx, channel=channel)
    srq, mr, ah = SRQ(pd, SrqAttr(4)), MR(pd, bytearray(64)), AH(pd, ("127.0.0.1", 9))
    qp = QP(pd, QPInitAttr(QPType.UD, scq=cq, srq=srq))
    assert_busy(pd.close, qp, srq, mr, ah)
    assert_busy(cq.close, qp)
    assert_busy(srq.close, qp)
    assert_busy(channel.close, cq)
    assert_busy(ctx.close, channel, pd, cq)
    qp.close()
    for last in (srq, mr, ah):
        assert_busy(pd.close, last)
        last.close()
    pd.close()
    assert_busy(ctx.close, channel, cq)
    cq.close()
    assert_busy(ctx.close, channel)
    channel.close()
    ctx.close()


# ---- memory


class SilentPeer:
    """A peer that connects, sends a first message, and then neither reads nor answers."""

    def __init__(self, connector: ListenerAndConnector) -> None:
        self.socket = connect_plain_socket(connector.address)
        self.socket.sendall(bytes(MPARequest(rev=2, s=1, ird=4, ord=4)))
        self.end = End(
            connector.passive, connector.next_connection_request().id, connector.p_channel, size=64
        )
        self.end.id.accept()
        assert self.end.next_cm_event()
        hello = FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE))
        self.socket.sendall(bytes(hello))
        self.end.post_receive()

    def post_to_peer(self, mr: MR, opcode: int) -> None:
        sg = [mr.sge()]
        remote = None if opcode == SEND else RemoteBuffer(0x1000, mr.length, 0x1234)
        self.end.qp.post_send(SendWR(5, opcode, sg=sg, remote=remote))


@pytest.fixture
def silent_peer(two_device_connector: ListenerAndConnector) -> Iterator[SilentPeer]:
    made = SilentPeer(two_device_connector)
    with made.socket:
        yield made


@pytest.mark.parametrize("opcode", [SEND, WRITE, READ], ids=["send", "write", "read"])
def test_a_memory_region_is_busy_while_a_posted_request_reads_or_writes_it(
    silent_peer: SilentPeer, opcode: int
) -> None:
    rig, qp = silent_peer.end.rig, silent_peer.end.qp
    memory = bytearray(BIG)
    mr = rig.reg_mr(memory, ALL_ACCESS)
    silent_peer.post_to_peer(mr, opcode)
    assert_busy(mr.close, qp)
    assert not mr.closed
    with pytest.raises(BufferError):
        memory.append(0)
    qp.modify(QPAttr(qp_state=QPState.ERR))
    # Closing the socket with unread input resets the connection.
    silent_peer.socket.close()
    (wc,) = poll(silent_peer.end.scq)
    assert (wc.wr_id, wc.status) == (5, WCStatus.WR_FLUSH_ERR)
    mr.close()
    memory.append(0)


def test_a_memory_region_can_be_closed_once_tcp_has_accepted_the_data(
    silent_peer: SilentPeer,
) -> None:
    mr = silent_peer.end.rig.reg_mr(4096)
    silent_peer.post_to_peer(mr, SEND)
    # TCP has accepted the Send, but the peer has not acknowledged the Send.
    assert poll(silent_peer.end.scq)[0].ok
    silent_peer.post_to_peer(mr, SEND)
    mr.close()
    assert silent_peer.end.qp.qp_state == QPState.RTS


def test_closing_a_region_checks_a_queue_pair_again_after_a_post(silent_peer: SilentPeer) -> None:
    rig, qp = silent_peer.end.rig, silent_peer.end.qp
    mr = rig.reg_mr(BIG)
    for _ in range(3):
        silent_peer.post_to_peer(rig.reg_mr(64), SEND)
        assert poll(silent_peer.end.scq)[0].ok
        # Closing a region checks the queue pair, which has nothing in flight.
        rig.reg_mr(64).close()
    silent_peer.post_to_peer(mr, SEND)
    assert_busy(mr.close, qp)
    # Each close of a region checks the queue pair, which has work in flight.
    assert_busy(mr.close, qp)


def shortest_deregistration_time(rig: Rig) -> float:
    """Return the shortest time that deregistering a region takes, in seconds."""
    found = []
    for _ in range(100):
        mr = rig.reg_mr(64)
        began = time.perf_counter()
        mr.close()
        found.append(time.perf_counter() - began)
    return min(found)


def test_deregistering_does_not_check_idle_queue_pairs(rig: Rig) -> None:
    alone = shortest_deregistration_time(rig)
    idle = [rig.create_qp(qp_type=QPType.RC) for _ in range(2000)]
    # A check of each of the 2000 queue pairs would take 0.1 ms.
    assert shortest_deregistration_time(rig) <= 3 * alone + 5e-6
    assert not any(qp.closed for qp in idle)


def test_a_posted_receive_does_not_make_its_memory_region_busy(rig: Rig) -> None:
    qp = rig.create_ud_qp()
    mr, out = rig.reg_mr(64), rig.reg_mr(64)
    qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    mr.close()
    qp.post_send(SendWR(2, sg=[out.sge(0, 4)], ah=rig.create_ah(qp), send_flags=0))
    (wc,) = poll(qp.rcq)
    assert (wc.wr_id, wc.status) == (1, WCStatus.LOC_PROT_ERR)


def test_leaving_a_with_block_closes_a_region_that_a_connection_still_sends_from(
    two_device_connector: ListenerAndConnector,
) -> None:
    silent_peer = SilentPeer(two_device_connector)
    pd = silent_peer.end.rig.pd
    # The region was created after the queue pair, so the region is destroyed first.
    mr = MR(pd, BIG, ALL_ACCESS)
    silent_peer.post_to_peer(mr, WRITE)
    assert_busy(mr.close, silent_peer.end.qp)
    silent_peer.end.id.close()
    silent_peer.socket.close()
    pd._close_with_children()
    assert mr.closed and silent_peer.end.qp.closed and pd.closed


# ---- address handles


def test_an_address_handle_is_busy_while_a_queue_pair_in_sqd_holds_a_send_to_it(rig: Rig) -> None:
    qp, to = rig.create_ud_qp(), rig.create_ud_qp()
    mr = rig.reg_mr(64)
    to.post_recv(RecvWR(1, sg=[mr.sge(32)]))
    ah, other = rig.create_ah(to), rig.create_ah(to)
    qp.modify(QPAttr(qp_state=QPState.SQD))
    qp.post_send(SendWR(2, sg=[mr.sge(0, 4)], ah=ah))
    assert_busy(ah.close, qp)
    assert_busy(mr.close, qp)
    other.close()
    qp.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(qp.scq)[0].wr_id == 2
    assert poll(to.rcq)[0].wr_id == 1
    ah.close()
    mr.close()


def test_an_address_handle_may_be_closed_right_after_the_posts_that_use_it(rig: Rig) -> None:
    qp, to = rig.create_ud_qp(), rig.create_ud_qp()
    mr = rig.reg_mr(64)
    to.post_recv([RecvWR(i, sg=[mr.sge(32)]) for i in range(64)])
    for i in range(64):
        # siwarp holds back posts without a poll between them in order to batch them.
        with rig.create_ah(to) as ah:
            qp.post_send(SendWR(i, sg=[mr.sge(0, 4)], ah=ah))
    assert [wc.wr_id for wc in poll(to.rcq, 64)] == list(range(64))
    assert len(poll(qp.scq, 64)) == 64
