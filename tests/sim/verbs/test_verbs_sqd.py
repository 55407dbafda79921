"""SQD and SQE: a send queue that is drained, and a send queue stopped because of a local error."""

from __future__ import annotations

import errno
from typing import Any

import net
import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector, create_plain_listener
from harness.sqd_harness import next_drained_qp
from harness.verbs_harness import (
    Pair,
    Rig,
    assert_counter_grows,
    assert_no_completion,
    errno_raised_by,
    octet_pattern,
    poll,
)

from siwarp.cm import CMID, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import MPAReply
from siwarp.verbs import (
    SGE,
    Persona,
    QPAttr,
    QPState,
    RecvWR,
    SendFlag,
    SendWR,
    WCStatus,
)

RTS, SQD, SQE, ERR, RESET = (
    QPState.RTS,
    QPState.SQD,
    QPState.SQE,
    QPState.ERR,
    QPState.RESET,
)


# ---- SQD, UD


def test_a_ud_send_queue_in_sqd_holds_posted_requests_and_sends_them_afterwards(pair: Pair) -> None:
    for i in range(6):
        pair.post_receive(wr_id=i)
    pair.send(b"before", wr_id=1)
    pair.a.modify(QPAttr(qp_state=SQD))
    pair.send(b"befor", wr_id=2)
    pair.a.post_send([SendWR(i, sg=[pair.out.sge(0, 5)], ah=pair.to_b) for i in (3, 4)])
    assert poll(pair.scq)[0].wr_id == 1
    assert poll(pair.rcq)[0].byte_len == 6
    assert_no_completion(pair.scq)
    assert pair.rcq.poll(1) == []
    pair.a.modify(QPAttr(qp_state=RTS))
    assert [w.wr_id for w in poll(pair.scq, 3)] == [2, 3, 4]
    assert [w.byte_len for w in poll(pair.rcq, 3)] == [5, 5, 5]


def test_an_idle_ud_send_queue_is_drained_immediately_and_raises_the_requested_event(
    rig: Rig, pair: Pair
) -> None:
    pair.a.modify(QPAttr(qp_state=SQD))
    assert rig.ctx.get_async_event(0) is None
    assert pair.a.query()[0].sq_draining is False
    pair.a.modify(QPAttr(qp_state=RTS))
    pair.a.modify(QPAttr(qp_state=SQD, en_sqd_async_notify=True))
    assert next_drained_qp(rig) is pair.a
    assert pair.a.query()[0].en_sqd_async_notify is True
    pair.send(b"held")  # posting a request that waits causes no second event
    pair.a.modify(QPAttr(qp_state=RTS))
    poll(pair.scq)
    assert rig.ctx.get_async_event(0) is None


def test_batched_sends_are_transmitted_before_the_send_queue_is_drained(rig: Rig) -> None:
    pair = Pair(rig)
    for i in range(5):
        pair.post_receive(wr_id=i)
    pair.scq.poll(1)
    for i in range(5):
        pair.send(b"x", wr_id=i)
    pair.a.modify(QPAttr(qp_state=SQD))
    assert [w.wr_id for w in poll(pair.scq, 5)] == [0, 1, 2, 3, 4]
    assert len(poll(pair.rcq, 5)) == 5


def test_a_queue_pair_in_sqd_continues_to_receive(rig: Rig, pair: Pair) -> None:
    pair.b.modify(QPAttr(qp_state=SQD))
    pair.post_receive()
    pair.send(b"hello")
    assert poll(pair.rcq)[0].byte_len == 5
    pair.b.modify(QPAttr(qkey=7))  # an attribute that may be changed in SQD
    pair.post_receive(wr_id=2)
    with assert_counter_grows("drop_qkey", 1):
        pair.send(b"hello")
        poll(pair.scq, 2)
        assert_no_completion(pair.rcq)


def test_a_ud_send_queue_in_sqd_holds_as_many_requests_as_it_has_slots(rig: Rig) -> None:
    pair = Pair(rig, max_send_wr=4)
    pair.a.modify(QPAttr(qp_state=SQD))
    for i in range(4):
        pair.send(b"x", wr_id=i)
    assert errno_raised_by(pair.send, b"x") == errno.ENOMEM
    pair.a.modify(QPAttr(qp_state=RTS))
    assert len(poll(pair.scq, 4)) == 4


@pytest.mark.parametrize("target", [ERR, RESET], ids=lambda s: s.name)
def test_requests_held_in_sqd_are_flushed_in_err_and_discarded_in_reset(
    pair: Pair, target: QPState
) -> None:
    pair.a.modify(QPAttr(qp_state=SQD))
    for i in range(3):
        pair.send(b"x", wr_id=i)
    pair.a.modify(QPAttr(qp_state=target))
    if target == ERR:
        found = [(w.wr_id, w.status) for w in poll(pair.scq, 3)]
        assert found == [(i, WCStatus.WR_FLUSH_ERR) for i in range(3)]
    assert_no_completion(pair.scq)
    assert_no_completion(pair.rcq)


# ---- SQD, RC


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE], ids=lambda p: p.name)
def test_unsignaled_requests_are_also_drained_in_sqd(
    two_device_connector: ListenerAndConnector, persona: Persona
) -> None:
    a, b = two_device_connector.connect(persona=persona)
    for i in range(3):
        a.post(WRITE, i, length=8, remote=b.mem.remote(0, 8), flags=SendFlag(0))
    a.qp.modify(QPAttr(qp_state=SQD, en_sqd_async_notify=True))
    assert next_drained_qp(a.rig) is a.qp
    assert a.qp.query()[0].sq_draining is False
    assert_no_completion(a.scq)


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE], ids=lambda p: p.name)
def test_an_rc_send_queue_in_sqd_completes_started_requests_and_holds_later_requests(
    two_device_connector: ListenerAndConnector, persona: Persona
) -> None:
    a, b = two_device_connector.connect(size=1 << 22, persona=persona)
    b.mem.view[:] = octet_pattern(1 << 22, 5)
    for i in range(4):
        b.post_receive(wr_id=i, length=64)
    a.post(READ, 1, length=1 << 22, remote=b.mem.remote())
    a.qp.modify(QPAttr(qp_state=SQD, en_sqd_async_notify=True))
    a.post(SEND, 2, offset=0, length=8)
    a.post(WRITE, 3, length=8, remote=b.mem.remote(0, 8))
    assert next_drained_qp(a.rig) is a.qp
    assert a.qp.query()[0].sq_draining is False
    assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(1, WCStatus.SUCCESS)]
    assert_no_completion(a.scq)
    assert b.rcq.poll(1) == []
    a.qp.modify(QPAttr(qp_state=RTS))
    assert [w.wr_id for w in poll(a.scq, 2)] == [2, 3]
    assert poll(b.rcq)[0].wr_id == 0


def test_an_rc_queue_pair_in_sqd_receives_and_answers_reads_of_the_peer(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    # On this connection the responder must not send before the initiator has sent.
    a.post(WRITE, 0, remote=b.mem.remote())
    a.qp.modify(QPAttr(qp_state=SQD))
    a.post_receive(wr_id=7, length=64)
    a.mem.write(octet_pattern(4096, 9))
    b.post(READ, 1, length=4096, remote=a.mem.remote())
    b.post(SEND, 2)  # a zero-length Send, because the Read Response is placed in the same memory
    assert [w.wr_id for w in poll(b.scq, 2)] == [1, 2]
    assert poll(a.rcq)[0].wr_id == 7
    assert b.mem.read(4096) == octet_pattern(4096, 9)


@pytest.mark.parametrize("who", ["this end", "the peer"])
def test_requests_held_in_sqd_are_flushed_when_the_connection_ends(
    two_device_connector: ListenerAndConnector, who: str
) -> None:
    a, b = two_device_connector.connect()
    a.qp.modify(QPAttr(qp_state=SQD))
    for i in range(3):
        a.post(SEND, i)
    (a if who == "this end" else b).id.disconnect()
    a.wait_for_error_state()
    assert [(w.wr_id, w.status) for w in poll(a.scq, 3)] == [
        (i, WCStatus.WR_FLUSH_ERR) for i in range(3)
    ]


def read_and_discard_octets(peer: Any, octets: int) -> None:
    while octets > 0:
        part = len(peer.recv(1 << 20))
        assert part
        octets -= part


def test_a_send_queue_is_draining_until_the_peer_reads_the_octets(rig: Rig) -> None:
    """Check draining with a plain TCP peer that reads only at a chosen time."""
    channel = CMEventChannel(rig.ctx)
    size = 1 << 24  # the size is more octets than both sockets hold
    with create_plain_listener() as listener:
        a = End(rig, CMID(channel), channel, size=size)
        a.id.connect(listener.getsockname(), ConnParam(rev=1))
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(10)
            assert peer.recv(1000)
            peer.sendall(bytes(MPAReply(rev=1)))
            assert a.next_cm_event().type == CMEventType.ESTABLISHED
            a.post(SEND, 1, length=size)
            a.post(SEND, 2)
            a.qp.modify(QPAttr(qp_state=SQD, en_sqd_async_notify=True))
            assert a.qp.query()[0].sq_draining is True
            assert rig.ctx.get_async_event(0.05) is None
            reader = net.current_simulated_world().spawn(read_and_discard_octets, peer, size)
            assert next_drained_qp(rig) is a.qp
            net.current_simulated_world().run_until(reader.done, within=1)
            assert a.qp.query()[0].sq_draining is False
            assert [w.wr_id for w in poll(a.scq)] == [1]
            assert_no_completion(a.scq)


def test_reset_in_sqd_discards_held_requests(two_device_connector: ListenerAndConnector) -> None:
    a, _b = two_device_connector.connect()
    a.qp.modify(QPAttr(qp_state=SQD))
    a.post(SEND, 1)
    a.qp.modify(QPAttr(qp_state=RESET))
    assert_no_completion(a.scq)


def test_max_rd_atomic_can_be_lowered_and_raised_in_sqd(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    agreed = a.qp.query()[0].max_rd_atomic
    assert agreed and agreed > 1
    # The attribute max_rd_atomic cannot be changed in RTS.
    assert errno_raised_by(a.qp.modify, QPAttr(max_rd_atomic=1)) == errno.EINVAL
    a.qp.modify(QPAttr(qp_state=SQD))
    for value in (0, agreed + 1):
        assert errno_raised_by(a.qp.modify, QPAttr(max_rd_atomic=value)) == errno.EINVAL
    assert errno_raised_by(a.qp.modify, QPAttr(max_dest_rd_atomic=1)) == errno.EINVAL
    for value in (1, agreed):
        a.qp.modify(QPAttr(qp_state=SQD, max_rd_atomic=value))
        assert a.qp.query()[0].max_rd_atomic == value
        a.qp.modify(QPAttr(qp_state=RTS))
        for i in range(20):
            a.post(READ, i, offset=64 * i, length=64, remote=b.mem.remote(64 * i, 64))
        assert [w.wr_id for w in poll(a.scq, 20)] == list(range(20))
        a.qp.modify(QPAttr(qp_state=SQD))


def test_a_state_transition_is_refused_if_cur_qp_state_differs(pair: Pair) -> None:
    attr = QPAttr(qp_state=RTS, cur_qp_state=SQD)
    assert errno_raised_by(pair.a.modify, attr) == errno.EINVAL
    pair.a.modify(QPAttr(qp_state=SQD))
    pair.a.modify(attr)
    assert pair.a.qp_state == RTS


# ---- fences


def test_each_fenced_request_of_a_list_waits_for_all_preceding_reads(
    two_device_connector: ListenerAndConnector,
) -> None:
    """Check that no Read returns the new data of the fenced Write that follows the Read."""
    a, b = two_device_connector.connect(size=1 << 20)
    size = 1 << 17
    b.mem.write(octet_pattern(size, 1))
    a.mem.write(bytes(size), offset=4 * size)  # the zeroes that the Writes transfer
    there = b.mem.remote(0, size)
    fenced = SendFlag.FENCE | SendFlag.SIGNALED
    back = SendWR(9, WRITE, sg=[a.mem.sge(0, size)], remote=there, send_flags=fenced)
    wipe = SendWR(8, WRITE, sg=[a.mem.sge(4 * size, size)], remote=there, send_flags=fenced)
    for _ in range(5):
        a.qp.post_send(
            [
                SendWR(0, READ, sg=[a.mem.sge(0, size)], remote=there),
                SendWR(1, READ, sg=[a.mem.sge(size, size)], remote=there),
                wipe,
                SendWR(2, READ, sg=[a.mem.sge(2 * size, size)], remote=there),
                back,
                SendWR(3, READ, sg=[a.mem.sge(3 * size, size)], remote=there),
            ]
        )
        assert [w.wr_id for w in poll(a.scq, 6)] == [0, 1, 8, 2, 9, 3]
        assert a.mem.read(size, 0) == a.mem.read(size, size) == octet_pattern(size, 1)
        assert a.mem.read(size, 2 * size) == bytes(size)
        # The peer executes a Read after a Write on one connection in order, so the Read returns the
        # restored data.
        assert a.mem.read(size, 3 * size) == octet_pattern(size, 1)


def test_a_fence_without_a_preceding_read_delays_nothing(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    b.post_receive(wr_id=5)
    a.post(SEND, 1, length=4, flags=SendFlag.FENCE | SendFlag.SIGNALED)
    assert poll(a.scq)[0].ok and poll(b.rcq)[0].wr_id == 5


def test_a_fence_on_ud_has_no_effect(pair: Pair) -> None:
    pair.post_receive()
    pair.send(b"x", flags=SendFlag.FENCE | SendFlag.SIGNALED)
    assert poll(pair.scq)[0].ok and poll(pair.rcq)[0].ok


# ---- SQE


def build_send_with_invalid_key(pair: Pair, wr_id: int = 9) -> SendWR:
    return SendWR(wr_id, sg=[SGE(pair.out.addr, 4, 0xBAD)], ah=pair.to_b)


def test_an_invalid_key_moves_a_ud_send_queue_to_sqe_where_sends_are_flushed(
    pair: Pair,
) -> None:
    pair.post_receive(wr_id=1)
    into = pair.rig.reg_mr(64)
    pair.a.post_recv(RecvWR(5, sg=[into.sge()]))
    pair.a.post_send(build_send_with_invalid_key(pair))
    assert poll(pair.scq)[0].status == WCStatus.LOC_PROT_ERR
    assert pair.a.qp_state == SQE
    pair.send(b"silent ones too", wr_id=10, flags=0)
    pair.a.post_send([SendWR(i, ah=pair.to_b) for i in (11, 12)])
    assert [(w.wr_id, w.status) for w in poll(pair.scq, 3)] == [
        (i, WCStatus.WR_FLUSH_ERR) for i in (10, 11, 12)
    ]
    assert_no_completion(pair.rcq)
    pair.b.post_send(SendWR(3, sg=[pair.out.sge(0, 4)], ah=pair.rig.create_ah(pair.a)))
    assert [w.wr_id for w in poll(pair.idle, 2) if w.opcode & 128] == [5]
    pair.a.to_rts()
    pair.send(b"again")
    assert poll(pair.scq)[0].ok and poll(pair.rcq)[0].byte_len == 5


def test_a_too_long_ud_message_moves_the_send_queue_to_sqe(pair: Pair) -> None:
    pair.send(bytes(65486))
    assert poll(pair.scq)[0].status == WCStatus.LOC_LEN_ERR
    assert pair.a.qp_state == SQE


@pytest.mark.parametrize("target", [ERR, RESET], ids=lambda s: s.name)
def test_a_queue_pair_can_be_moved_from_sqe_to_err_or_reset(pair: Pair, target: QPState) -> None:
    pair.a.post_recv(RecvWR(1))
    pair.a.post_send(build_send_with_invalid_key(pair))
    poll(pair.scq)
    pair.a.modify(QPAttr(qp_state=target))
    if target == ERR:
        assert poll(pair.idle)[0].status == WCStatus.WR_FLUSH_ERR
    assert_no_completion(pair.idle)
