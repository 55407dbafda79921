"""Completion queues that are resized, that overflow, and whose queue pair is destroyed."""

from __future__ import annotations

import errno
import threading

import pytest
from harness.cq_harness import create_qp_with_flushed_receives, poll_wr_ids
from harness.rc_harness import SEND, ListenerAndConnector
from harness.verbs_harness import Rig, counter_value, errno_raised_by, wait_until

from siwarp._siwarp import ffi, lib
from siwarp.verbs import (
    EventType,
    QPState,
    RecvWR,
    SendWR,
    StateError,
)


def test_a_cq_cannot_be_resized_below_the_number_of_its_completions(rig: Rig) -> None:
    cq = rig.create_cq(16)
    qp = create_qp_with_flushed_receives(rig, cq)
    qp.post_recv([RecvWR(i) for i in range(5)])
    with pytest.raises(OSError, match="poll the CQ first") as caught:
        cq.resize(4)
    assert caught.value.errno == errno.EINVAL
    assert cq.capacity == 16
    assert poll_wr_ids(cq, 1) == [0]
    cq.resize(4)
    assert cq.capacity == 4
    assert poll_wr_ids(cq, 4) == [1, 2, 3, 4]


@pytest.mark.parametrize("cqe", [0, -1, (1 << 20) + 1])
def test_resizing_a_cq_beyond_the_limits_is_refused(rig: Rig, cqe: int) -> None:
    assert errno_raised_by(rig.create_cq(8).resize, cqe) == errno.EINVAL


def test_a_cq_is_resized_while_another_thread_fills_and_polls_it(rig: Rig) -> None:
    cq = rig.create_cq(64)
    qp = create_qp_with_flushed_receives(rig, cq)
    total, got = 3000, []
    stop = threading.Event()

    def resize_repeatedly() -> None:
        while not stop.is_set():
            for cqe in (64, 256, 128, 512):
                try:
                    cq.resize(cqe)
                except OSError as e:
                    assert e.errno == errno.EINVAL

    thread = threading.Thread(target=resize_repeatedly)
    thread.start()
    try:
        for i in range(0, total, 20):
            qp.post_recv([RecvWR(i + k) for k in range(20)])
            got += poll_wr_ids(cq, 20)
    finally:
        stop.set()
        thread.join()
    assert got == list(range(total))


def test_resizing_or_destroying_a_destroyed_cq_is_refused(rig: Rig) -> None:
    cq = lib.siw_create_cq(rig.ctx._c_object(), 4, ffi.NULL, ffi.NULL, 0)
    assert lib.siw_destroy_cq(cq) == 0
    assert lib.siw_resize_cq(cq, 8) == -errno.EINVAL
    assert lib.siw_destroy_cq(cq) == -errno.EINVAL
    assert lib.siw_poll_cq(cq, 1, ffi.new("struct siw_wc[1]")) == 0


# ---- overflow


def test_a_cq_overflow_raises_cq_err_and_fails_its_queue_pairs_but_keeps_completions(
    rig: Rig,
) -> None:
    small = rig.create_cq(4)
    qp = rig.create_ud_qp(scq=rig.create_cq(), rcq=small)
    other = rig.create_ud_qp(scq=small, rcq=rig.create_cq())
    apart = rig.create_ud_qp(rig.create_cq())
    into, out = rig.reg_mr(64), rig.reg_mr(64)
    qp.post_recv([RecvWR(i, sg=[into.sge()]) for i in range(8)])
    lost = counter_value("cq_overflow")
    for i in range(5):
        apart.post_send(SendWR(i, sg=[out.sge(0, 4)], ah=rig.create_ah(qp), send_flags=0))
    told = [rig.next_async_event() for _ in range(3)]
    # The completions of the fifth message and of the three flushed receives are lost.
    wait_until(lambda: counter_value("cq_overflow") == lost + 4)
    assert [(t.event_type, t.element) for t in told[:1]] == [(EventType.CQ_ERR, small)]
    fatal = EventType.QP_FATAL
    assert {(t.event_type, t.element) for t in told[1:]} == {(fatal, qp), (fatal, other)}
    assert other.qp_state == QPState.ERR and apart.qp_state == QPState.RTS
    assert poll_wr_ids(small, 4) == [0, 1, 2, 3]
    for use in (
        small.poll,
        lambda: small.poll(8),
        lambda: small.resize(64),
        lambda: rig.create_qp(small),
    ):
        with pytest.raises(StateError, match="with a CQ that has room for all") as caught:
            use()
        assert caught.value.errno == errno.EOVERFLOW
    for t in told:
        t.ack()
    other.close()
    qp.close()
    small.close()


def test_a_cq_overflow_moves_both_ends_of_an_rc_connection_to_err(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    b.rcq.resize(2)
    for i in range(4):
        b.post_receive(i, length=64)
    for i in range(3):
        a.post(SEND, i, length=4)
    wait_until(lambda: b.scq.poll() or b.qp.qp_state == QPState.ERR)
    kinds = {two_device_connector.passive.next_async_event().event_type for _ in range(2)}
    assert kinds == {EventType.CQ_ERR, EventType.QP_FATAL}
    a.wait_for_error_state()
    assert poll_wr_ids(b.rcq, 2) == [0, 1]
    assert errno_raised_by(b.rcq.poll) == errno.EOVERFLOW


def test_a_cq_overflow_wakes_a_waiter_and_later_calls_are_refused(rig: Rig) -> None:
    channel = rig.create_channel()
    cq = rig.create_cq(1, channel)
    qp = create_qp_with_flushed_receives(rig, cq)
    qp.post_recv(RecvWR(1))
    cq.req_notify(solicited_only=True)
    qp.post_recv(RecvWR(2))
    assert channel.get_cq_event(5) is cq
    assert poll_wr_ids(cq, 1) == [1]
    with pytest.raises(StateError, match="with a CQ that has room for all"):
        cq.wait(5)
    assert errno_raised_by(cq.req_notify) == errno.EOVERFLOW
