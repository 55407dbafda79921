from __future__ import annotations

import select
import threading

import pytest
from unit.verbs.rc_harness import SEND, WRITE, End, Wire
from unit.verbs.verbs_harness import LIMIT, Rig, poll, until

from siwarp.verbs import AH, EventType, QPAttr, QPState, RecvWR, RemoteBuffer, SendWR


@pytest.fixture
def pair(two: Wire) -> tuple[End, End]:
    """Two connected ends, each on a device of its own, so that its events are its own."""
    return two.connect()


def readable(rig: Rig) -> bool:
    return bool(select.select([rig.ctx.async_fd()], [], [], 0)[0])


def test_a_write_to_memory_that_is_not_the_peers_tells_both_ends(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    with b.rig.event() as told:
        assert (told.event_type, told.element) == (EventType.QP_ACCESS_ERR, b.qp)
    assert b.qp.qp_state == QPState.ERR
    with a.rig.event() as told:
        assert (told.event_type, told.element) == (EventType.QP_FATAL, a.qp)
    assert b.rig.ctx.get_async_event(0) is None


def test_a_send_that_no_receive_fits_is_an_invalid_request(pair: tuple[End, End]) -> None:
    a, b = pair
    b.recv(length=4)
    a.post(SEND, length=8)
    with b.rig.event() as told:
        assert (told.event_type, told.element) == (EventType.QP_REQ_ERR, b.qp)


def test_a_disconnect_and_a_modify_to_err_raise_nothing(pair: tuple[End, End]) -> None:
    a, b = pair
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    b.is_over()
    assert a.rig.ctx.get_async_event(0) is None
    assert b.rig.ctx.get_async_event(0) is None


def test_the_first_message_in_rtr_is_told_once(rig: Rig) -> None:
    cq = rig.cq()
    mr = rig.mr(256)
    sender, receiver = rig.ud(cq), rig.qp(cq)
    receiver.to_rtr(QPAttr(qkey=0))
    ah = AH(rig.pd, receiver.addr)
    for _ in range(2):
        receiver.post_recv(RecvWR(1, sg=[mr.sge(0, 64)]))
        sender.post_send(SendWR(2, sg=[mr.sge(64, 8)], ah=ah))
        poll(cq, 2)
    assert readable(rig)
    with rig.event() as told:
        assert (told.event_type, told.element) == (EventType.COMM_EST, receiver)
    assert not readable(rig)
    assert rig.ctx.get_async_event(0) is None


def test_waiting_for_an_event_moves_the_traffic(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    # Nobody polls: the wait itself takes the Write in and sends the Terminate.
    assert b.rig.event().event_type == EventType.QP_ACCESS_ERR


def test_close_waits_until_its_event_is_acknowledged(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    told = b.rig.event()
    b.id.close()
    closer = threading.Thread(target=b.qp.close)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive(), "the queue pair was destroyed before its event was acknowledged"
    told.ack()
    closer.join(LIMIT)
    assert not closer.is_alive()
    assert b.qp.closed


def test_an_event_that_nobody_took_goes_with_its_object(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    until(lambda: readable(b.rig))
    b.id.close()
    b.qp.close()
    assert not readable(b.rig)
    assert b.rig.ctx.get_async_event(0) is None


def test_a_dropped_event_counts_as_acknowledged(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    b.rig.event()
    b.id.close()
    b.qp.close()
    assert b.qp.closed
