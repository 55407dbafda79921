"""Completion queues and channels."""

from __future__ import annotations

import errno
import os
import selectors
import threading
import time

import pytest
from harness.cq_harness import QPWithReceiveEvents
from harness.rc_harness import SEND, ListenerAndConnector
from harness.verbs_harness import Rig, counter_value, errno_raised_by, poll
from pace import scale_limit

from siwarp._siwarp import ffi, lib
from siwarp.verbs import CQ, SGE, CompChannel, Context, QPAttr, QPState, RecvWR, SendFlag, SendWR

#: The number of seconds by which a wait may exceed its time-out.
SLACK = 1.0 if "SANITIZER" in os.environ else 0.2


@pytest.fixture
def qp_with_channel(rig: Rig) -> QPWithReceiveEvents:
    return QPWithReceiveEvents(rig)


# ---- queues


@pytest.mark.parametrize("cqe", [1, 2, 3, 4, 100, 4096])
def test_a_cq_holds_as_many_completions_as_its_capacity_says(rig: Rig, cqe: int) -> None:
    cq = rig.create_cq(cqe)
    room = cq.capacity
    assert room >= cqe
    qp = rig.create_qp(cq, max_recv_wr=room + 1)
    qp.to_init()
    qp.modify(QPAttr(qp_state=QPState.ERR))
    before = counter_value("cq_overflow")
    for i in range(room):
        qp.post_recv(RecvWR(i))
    assert counter_value("cq_overflow") == before
    qp.post_recv(RecvWR(room))
    assert counter_value("cq_overflow") == before + 1
    got = poll(cq, room)
    assert [w.wr_id for w in got] == list(range(room))
    assert errno_raised_by(cq.poll) == errno.EOVERFLOW


@pytest.mark.parametrize("cqe", [0, -1, (1 << 20) + 1])
def test_cq_sizes_beyond_the_limits_are_refused(rig: Rig, cqe: int) -> None:
    assert errno_raised_by(rig.create_cq, cqe) == errno.EINVAL


def test_a_completion_vector_that_the_device_does_not_have_is_refused(rig: Rig) -> None:
    assert errno_raised_by(CQ, rig.ctx, 4, comp_vector=rig.ctx.num_comp_vectors) == errno.EINVAL


def test_poll_returns_as_many_completions_as_requested_and_available(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    qp_with_channel.post_receives(5)
    qp_with_channel.post_sends(n=5)
    first = poll(qp_with_channel.cq, 2)
    got = poll(qp_with_channel.cq, 3)
    assert [w.wr_id for w in first + got] == [0, 1, 2, 3, 4]
    assert qp_with_channel.cq.poll(16) == []


def test_polling_for_zero_completions_returns_zero_and_for_fewer_is_refused(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    wc = ffi.new("struct siw_wc[1]")
    assert lib.siw_poll_cq(qp_with_channel.cq._c_object(), 0, wc) == 0
    assert lib.siw_poll_cq(qp_with_channel.cq._c_object(), -1, wc) == -errno.EINVAL


def test_a_cq_that_wraps_around_many_times_keeps_the_order(rig: Rig) -> None:
    cq = rig.create_cq(4)
    qp = rig.create_qp(cq)
    qp.to_init()
    qp.modify(QPAttr(qp_state=QPState.ERR))
    for i in range(50):
        qp.post_recv([RecvWR(3 * i), RecvWR(3 * i + 1), RecvWR(3 * i + 2)])
        assert [w.wr_id for w in poll(cq, 3)] == [3 * i, 3 * i + 1, 3 * i + 2]


# ---- objects still in use


def test_destroying_an_object_in_use_returns_ebusy(rig: Rig) -> None:
    ctx = Context()
    pd = lib.siw_alloc_pd(ctx._c_object())
    channel = lib.siw_create_comp_channel(ctx._c_object())
    cq = lib.siw_create_cq(ctx._c_object(), 4, ffi.NULL, channel, 0)
    init = ffi.new("struct siw_qp_init_attr *", {"send_cq": cq, "recv_cq": cq, "qp_type": 4})
    qp = lib.siw_create_qp(pd, init)
    memory = ffi.new("char[8]")
    mr = lib.siw_reg_mr(pd, memory, 8, 1)
    addr = ffi.new("struct siw_addr *")
    assert lib.siw_addr_parse(b"127.0.0.1", 5, addr) == 0
    ah = lib.siw_create_ah(pd, addr)
    assert qp and mr and ah
    busy = -errno.EBUSY
    assert lib.siw_close_device(ctx._c_object()) == busy
    assert lib.siw_dealloc_pd(pd) == busy
    assert lib.siw_destroy_cq(cq) == busy
    assert lib.siw_destroy_comp_channel(channel) == busy
    assert lib.siw_destroy_qp(qp) == 0
    assert lib.siw_dealloc_pd(pd) == busy
    assert lib.siw_dereg_mr(mr) == 0
    assert lib.siw_dealloc_pd(pd) == busy
    assert lib.siw_destroy_ah(ah) == 0
    assert lib.siw_dealloc_pd(pd) == 0
    assert lib.siw_close_device(ctx._c_object()) == busy
    assert lib.siw_destroy_comp_channel(channel) == busy
    assert lib.siw_destroy_cq(cq) == 0
    assert lib.siw_close_device(ctx._c_object()) == busy
    assert lib.siw_destroy_comp_channel(channel) == 0
    ctx.close()


def test_an_object_of_another_device_is_refused(rig: Rig) -> None:
    with Context() as other:
        channel = CompChannel(other)
        assert errno_raised_by(rig.create_cq, 4, channel) == errno.EINVAL
        cq = CQ(other, 4)
        assert errno_raised_by(rig.create_qp, cq) == errno.EINVAL


# ---- events


def test_a_cq_without_a_completion_channel_cannot_be_armed(rig: Rig) -> None:
    assert errno_raised_by(rig.create_cq().req_notify) == errno.EINVAL


def test_an_armed_cq_raises_one_event_for_its_next_completion(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    qp_with_channel.post_receives(3)
    qp_with_channel.post_sends()
    poll(qp_with_channel.cq)
    # A CQ that was never armed raises no event.
    assert qp_with_channel.channel.get_cq_event(0) is None
    qp_with_channel.cq.req_notify()
    qp_with_channel.post_sends(n=2)
    assert qp_with_channel.channel.get_cq_event(5) is qp_with_channel.cq
    assert len(poll(qp_with_channel.cq, 2)) == 2
    # An armed CQ raises only one event, however many requests complete.
    assert qp_with_channel.channel.get_cq_event(0) is None


def test_a_cq_armed_twice_raises_one_event(qp_with_channel: QPWithReceiveEvents) -> None:
    qp_with_channel.post_receives(2)
    qp_with_channel.cq.req_notify()
    qp_with_channel.cq.req_notify()
    qp_with_channel.post_sends(n=2)
    poll(qp_with_channel.cq, 2)
    assert qp_with_channel.channel.get_cq_event(5) is qp_with_channel.cq
    assert qp_with_channel.channel.get_cq_event(0) is None


def test_a_cq_armed_solicited_only_raises_an_event_for_a_solicited_message_only(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    qp_with_channel.post_receives(3)
    qp_with_channel.cq.req_notify(solicited_only=True)
    qp_with_channel.post_sends()
    poll(qp_with_channel.cq)
    assert qp_with_channel.channel.get_cq_event(0) is None
    qp_with_channel.post_sends(SendFlag.SOLICITED)
    assert qp_with_channel.channel.get_cq_event(5) is qp_with_channel.cq
    poll(qp_with_channel.cq)


def test_a_cq_armed_solicited_only_raises_an_event_for_an_error(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    qp_with_channel.post_receives()
    qp_with_channel.cq.req_notify(solicited_only=True)
    qp_with_channel.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert qp_with_channel.channel.get_cq_event(5) is qp_with_channel.cq


def test_only_a_failed_send_completion_counts_as_solicited(rig: Rig) -> None:
    channel = rig.create_channel()
    cq = rig.create_cq(16, channel)
    qp = rig.create_ud_qp(scq=cq, rcq=rig.create_cq())
    mr, ah = rig.reg_mr(8), rig.create_ah(("127.0.0.1", 9))
    cq.req_notify(solicited_only=True)
    qp.post_send(SendWR(1, sg=[mr.sge()], ah=ah, send_flags=SendFlag.SIGNALED | SendFlag.SOLICITED))
    assert poll(cq)[0].ok
    assert channel.get_cq_event(0) is None
    qp.post_send(SendWR(2, sg=[SGE(mr.addr, 8, mr.lkey ^ 1)], ah=ah))
    assert channel.get_cq_event(5) is cq
    assert not poll(cq)[0].ok


def test_over_rc_only_a_solicited_message_raises_an_event_when_armed_solicited_only(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    b.post_receive()
    b.post_receive()
    b.rcq.req_notify(solicited_only=True)
    a.post(SEND, length=4)
    assert poll(b.rcq)[0].ok
    assert b.events.get_cq_event(0) is None
    a.post(SEND, length=4, flags=SendFlag.SIGNALED | SendFlag.SOLICITED)
    assert b.events.get_cq_event(5) is b.rcq


def test_arming_solicited_only_does_not_narrow_an_earlier_arming_for_any_completion(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    qp_with_channel.post_receives()
    qp_with_channel.cq.req_notify()
    qp_with_channel.cq.req_notify(solicited_only=True)
    qp_with_channel.post_sends()
    assert qp_with_channel.channel.get_cq_event(5) is qp_with_channel.cq


def test_a_wait_for_a_cq_event_ends_at_its_time_out(qp_with_channel: QPWithReceiveEvents) -> None:
    for seconds in (0.0, 0.01, 0.12):
        start = time.monotonic()
        assert qp_with_channel.channel.get_cq_event(seconds) is None
        took = time.monotonic() - start
        assert seconds <= took < seconds + scale_limit(SLACK)
    which = ffi.new("struct siw_cq **")
    assert (
        lib.siw_get_cq_event(qp_with_channel.channel._c_object(), which, ffi.NULL, 0)
        == -errno.EAGAIN
    )
    start = time.monotonic()
    assert (
        lib.siw_get_cq_event(qp_with_channel.channel._c_object(), which, ffi.NULL, 30)
        == -errno.EAGAIN
    )
    assert 0.03 <= time.monotonic() - start < scale_limit(SLACK)


def test_the_channel_descriptor_is_readable_exactly_while_an_event_is_unread(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    qp_with_channel.post_receives(2)
    assert not qp_with_channel.channel_becomes_readable(0)
    qp_with_channel.cq.req_notify()
    qp_with_channel.post_sends()
    assert qp_with_channel.channel_becomes_readable(5)
    assert qp_with_channel.channel_becomes_readable(
        0
        # The descriptor of a channel stays readable until the event is read.
    )
    assert qp_with_channel.channel.get_cq_event(0) is qp_with_channel.cq
    assert not qp_with_channel.channel_becomes_readable(0)
    assert len(poll(qp_with_channel.cq)) == 1


def test_a_completion_channel_works_with_selectors(qp_with_channel: QPWithReceiveEvents) -> None:
    qp_with_channel.post_receives()
    qp_with_channel.cq.req_notify()
    with selectors.DefaultSelector() as s:
        s.register(qp_with_channel.channel, selectors.EVENT_READ, "mine")
        qp_with_channel.post_sends()
        assert [key.data for key, _ in s.select(5)] == ["mine"]


def test_one_completion_channel_delivers_the_events_of_several_cqs(rig: Rig) -> None:
    channel = rig.create_channel()
    cqs = [rig.create_cq(8, channel) for _ in range(5)]
    qps = [rig.create_ud_qp(scq=rig.create_cq(), rcq=cq) for cq in cqs]
    for qp in qps:
        qp.post_recv(RecvWR(1))
    for cq in cqs:
        cq.req_notify()
    for qp in qps:
        qp.post_send(SendWR(1, ah=rig.create_ah(qp), send_flags=0))
    found = [channel.get_cq_event(5) for _ in cqs]
    assert {id(cq) for cq in found} == {id(cq) for cq in cqs}
    assert channel.get_cq_event(0) is None
    for cq in cqs:
        assert len(poll(cq)) == 1


def test_cq_wait_misses_no_completion_between_arming_and_polling(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    rounds, window = 300, 4
    # The semaphore counts the posted receives for which no message has been sent.
    room = threading.Semaphore(window)

    def send_messages() -> None:
        for _ in range(rounds):
            room.acquire()
            qp_with_channel.post_sends()

    qp_with_channel.post_receives(window)
    thread = threading.Thread(target=send_messages)
    thread.start()
    got = 0
    while got < rounds:
        wcs = qp_with_channel.cq.wait(5)
        assert wcs, f"no completion for 5 s after {got}"
        got += len(wcs)
        qp_with_channel.post_receives(len(wcs))
        room.release(len(wcs))
    thread.join()
    assert got == rounds


def test_a_thread_that_waits_for_a_cq_event_wakes_when_another_thread_causes_it(
    qp_with_channel: QPWithReceiveEvents,
) -> None:
    found: list[object] = []
    qp_with_channel.cq.req_notify()
    waiter = threading.Thread(target=lambda: found.append(qp_with_channel.channel.get_cq_event(10)))
    waiter.start()
    time.sleep(0.05)
    start = time.monotonic()
    qp_with_channel.post_receives()
    # modify() completes the flushed receives before it returns.
    qp_with_channel.qp.modify(QPAttr(qp_state=QPState.ERR))
    waiter.join()
    assert found == [qp_with_channel.cq] and time.monotonic() - start < 2


def test_destroying_a_cq_waits_until_its_read_events_are_acknowledged(rig: Rig) -> None:
    channel = rig.create_channel()
    cq = lib.siw_create_cq(rig.ctx._c_object(), 4, ffi.NULL, channel._c_object(), 0)
    init = ffi.new("struct siw_qp_init_attr *", {"send_cq": cq, "recv_cq": cq, "qp_type": 4})
    init.cap.max_recv_wr = 2
    qp = lib.siw_create_qp(rig.pd._c_object(), init)
    for state in (1, 6):
        attr = ffi.new("struct siw_qp_attr *", {"qp_state": state})
        assert lib.siw_modify_qp(qp, attr, 1) == 0
    which = ffi.new("struct siw_cq **")
    wr = ffi.new("struct siw_recv_wr *")
    for _ in range(2):
        assert lib.siw_req_notify_cq(cq, 0) == 0
        assert lib.siw_post_recv(qp, wr, ffi.NULL) == 0
        assert lib.siw_get_cq_event(channel._c_object(), which, ffi.NULL, 5000) == 0
        assert which[0] == cq
    assert lib.siw_destroy_qp(qp) == 0
    done = threading.Event()

    def destroy_cq() -> None:
        assert lib.siw_destroy_cq(cq) == 0
        done.set()

    thread = threading.Thread(target=destroy_cq)
    thread.start()
    lib.siw_ack_cq_events(cq, 1)
    assert not done.wait(0.05)
    lib.siw_ack_cq_events(cq, 1)
    assert done.wait(5)
    thread.join()


def test_an_unread_cq_event_is_discarded_with_its_cq(qp_with_channel: QPWithReceiveEvents) -> None:
    qp_with_channel.post_receives()
    qp_with_channel.cq.req_notify()
    qp_with_channel.post_sends()
    assert qp_with_channel.channel_becomes_readable(5)
    qp_with_channel.qp.close()
    qp_with_channel.cq.close()
    assert not qp_with_channel.channel_becomes_readable(0)
    assert qp_with_channel.channel.get_cq_event(0) is None


def test_a_cq_event_returns_the_context_pointer_of_the_cq(rig: Rig) -> None:
    channel = rig.create_channel()
    cq = lib.siw_create_cq(
        rig.ctx._c_object(), 4, ffi.cast("void *", 0x1234), channel._c_object(), 0
    )
    init = ffi.new("struct siw_qp_init_attr *", {"send_cq": cq, "recv_cq": cq, "qp_type": 4})
    qp = lib.siw_create_qp(rig.pd._c_object(), init)
    assert lib.siw_modify_qp(qp, ffi.new("struct siw_qp_attr *", {"qp_state": 1}), 1) == 0
    assert lib.siw_post_recv(qp, ffi.new("struct siw_recv_wr *"), ffi.NULL) == 0
    assert lib.siw_req_notify_cq(cq, 0) == 0
    assert lib.siw_modify_qp(qp, ffi.new("struct siw_qp_attr *", {"qp_state": 6}), 1) == 0
    which, user = ffi.new("struct siw_cq **"), ffi.new("void **")
    assert lib.siw_get_cq_event(channel._c_object(), which, user, 1000) == 0
    assert (which[0], user[0]) == (cq, ffi.cast("void *", 0x1234))
    # Acknowledging more events than were read does no harm.
    lib.siw_ack_cq_events(cq, 5)
    assert lib.siw_destroy_qp(qp) == 0
    assert lib.siw_destroy_cq(cq) == 0


def test_every_completion_status_has_a_text(rig: Rig) -> None:
    from siwarp.verbs import WCStatus

    words = {ffi.string(lib.siw_wc_status_str(s)) for s in WCStatus}
    assert len(words) == len(WCStatus) == 22
    assert lib.siw_wc_status_str(-1) == lib.siw_wc_status_str(22)
