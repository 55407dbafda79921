"""Completion queues and channels."""

from __future__ import annotations

import errno
import os
import selectors
import threading
import time

import pytest
from harness.cq_harness import Told
from harness.rc_harness import SEND, Wire
from harness.verbs_harness import Rig, counter_value, errno_raised_by, poll
from pace import scale_limit

from siwarp._siwarp import ffi, lib
from siwarp.verbs import CQ, SGE, CompChannel, Context, QPAttr, QPState, RecvWR, SendFlag, SendWR

#: How many seconds later than its time-out a wait may end.
SLACK = 1.0 if "SANITIZER" in os.environ else 0.2


@pytest.fixture
def told(rig: Rig) -> Told:
    return Told(rig)


# ---- queues


@pytest.mark.parametrize("cqe", [1, 2, 3, 4, 100, 4096])
def test_a_queue_holds_at_least_what_was_asked_for_and_that_many_are_kept(
    rig: Rig, cqe: int
) -> None:
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
def test_sizes_beyond_the_limits_are_refused(rig: Rig, cqe: int) -> None:
    assert errno_raised_by(rig.create_cq, cqe) == errno.EINVAL


def test_a_completion_vector_is_refused(rig: Rig) -> None:
    assert errno_raised_by(CQ, rig.ctx, 4, comp_vector=1) == errno.EINVAL


def test_poll_takes_as_many_as_are_asked_for_and_there_are(told: Told) -> None:
    told.post_receives(5)
    told.post_sends(n=5)
    first = poll(told.cq, 2)
    got = poll(told.cq, 3)
    assert [w.wr_id for w in first + got] == [0, 1, 2, 3, 4]
    assert told.cq.poll(16) == []


def test_polling_for_none_or_less_is_nothing_or_refused(told: Told) -> None:
    wc = ffi.new("struct siw_wc[1]")
    assert lib.siw_poll_cq(told.cq._c_object(), 0, wc) == 0
    assert lib.siw_poll_cq(told.cq._c_object(), -1, wc) == -errno.EINVAL


def test_a_queue_wraps_around_many_times_in_order(rig: Rig) -> None:
    cq = rig.create_cq(4)
    qp = rig.create_qp(cq)
    qp.to_init()
    qp.modify(QPAttr(qp_state=QPState.ERR))
    for i in range(50):
        qp.post_recv([RecvWR(3 * i), RecvWR(3 * i + 1), RecvWR(3 * i + 2)])
        assert [w.wr_id for w in poll(cq, 3)] == [3 * i, 3 * i + 1, 3 * i + 2]


# ---- objects still in use


def test_what_is_still_in_use_is_busy(rig: Rig) -> None:
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


def test_objects_of_two_devices_do_not_mix(rig: Rig) -> None:
    with Context() as other:
        channel = CompChannel(other)
        assert errno_raised_by(rig.create_cq, 4, channel) == errno.EINVAL
        cq = CQ(other, 4)
        assert errno_raised_by(rig.create_qp, cq) == errno.EINVAL


# ---- events


def test_a_queue_without_a_channel_cannot_be_armed(rig: Rig) -> None:
    assert errno_raised_by(rig.create_cq().req_notify) == errno.EINVAL


def test_an_armed_queue_raises_one_event_for_its_next_completion(told: Told) -> None:
    told.post_receives(3)
    told.post_sends()
    poll(told.cq)
    assert told.channel.get_cq_event(0) is None  # no event, because the CQ was never armed
    told.cq.req_notify()
    told.post_sends(n=2)
    assert told.channel.get_cq_event(5) is told.cq
    assert len(poll(told.cq, 2)) == 2
    assert told.channel.get_cq_event(0) is None  # only one event, however many requests completed


def test_arming_twice_is_arming_once(told: Told) -> None:
    told.post_receives(2)
    told.cq.req_notify()
    told.cq.req_notify()
    told.post_sends(n=2)
    poll(told.cq, 2)
    assert told.channel.get_cq_event(5) is told.cq
    assert told.channel.get_cq_event(0) is None


def test_solicited_only_waits_for_a_solicited_message(told: Told) -> None:
    told.post_receives(3)
    told.cq.req_notify(solicited_only=True)
    told.post_sends()
    poll(told.cq)
    assert told.channel.get_cq_event(0) is None
    told.post_sends(SendFlag.SOLICITED)
    assert told.channel.get_cq_event(5) is told.cq
    poll(told.cq)


def test_solicited_only_is_told_of_errors_too(told: Told) -> None:
    told.post_receives()
    told.cq.req_notify(solicited_only=True)
    told.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert told.channel.get_cq_event(5) is told.cq


def test_a_successful_send_is_never_solicited_and_a_failed_one_is(rig: Rig) -> None:
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


def test_a_solicited_message_on_a_stream_is_told_and_another_is_not(two_device_wire: Wire) -> None:
    a, b = two_device_wire.connect()
    b.post_receive()
    b.post_receive()
    b.rcq.req_notify(solicited_only=True)
    a.post(SEND, length=4)
    assert poll(b.rcq)[0].ok
    assert b.events.get_cq_event(0) is None
    a.post(SEND, length=4, flags=SendFlag.SIGNALED | SendFlag.SOLICITED)
    assert b.events.get_cq_event(5) is b.rcq


def test_a_wish_for_any_completion_is_not_narrowed_by_one_for_solicited(told: Told) -> None:
    told.post_receives()
    told.cq.req_notify()
    told.cq.req_notify(solicited_only=True)
    told.post_sends()
    assert told.channel.get_cq_event(5) is told.cq


def test_the_time_of_a_wait_is_kept(told: Told) -> None:
    for seconds in (0.0, 0.01, 0.12):
        start = time.monotonic()
        assert told.channel.get_cq_event(seconds) is None
        took = time.monotonic() - start
        assert seconds <= took < seconds + scale_limit(SLACK)
    which = ffi.new("struct siw_cq **")
    assert lib.siw_get_cq_event(told.channel._c_object(), which, ffi.NULL, 0) == -errno.EAGAIN
    start = time.monotonic()
    assert lib.siw_get_cq_event(told.channel._c_object(), which, ffi.NULL, 30) == -errno.EAGAIN
    assert 0.03 <= time.monotonic() - start < scale_limit(SLACK)


def test_the_descriptor_is_readable_exactly_while_an_event_waits(told: Told) -> None:
    told.post_receives(2)
    assert not told.becomes_readable(0)
    told.cq.req_notify()
    told.post_sends()
    assert told.becomes_readable(5)
    assert told.becomes_readable(0)  # the descriptor stays readable until the event is read
    assert told.channel.get_cq_event(0) is told.cq
    assert not told.becomes_readable(0)
    assert len(poll(told.cq)) == 1


def test_the_descriptor_works_with_selectors(told: Told) -> None:
    told.post_receives()
    told.cq.req_notify()
    with selectors.DefaultSelector() as s:
        s.register(told.channel, selectors.EVENT_READ, "mine")
        told.post_sends()
        assert [key.data for key, _ in s.select(5)] == ["mine"]


def test_one_channel_serves_several_queues_each_with_its_events(rig: Rig) -> None:
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


def test_wait_never_misses_what_comes_between_arming_and_polling(told: Told) -> None:
    rounds, window = 300, 4
    # as many slots as there are posted receives that no message has been sent for
    room = threading.Semaphore(window)

    def sender() -> None:
        for _ in range(rounds):
            room.acquire()
            told.post_sends()

    told.post_receives(window)
    thread = threading.Thread(target=sender)
    thread.start()
    got = 0
    while got < rounds:
        wcs = told.cq.wait(5)
        assert wcs, f"nothing for 5 s after {got}"
        got += len(wcs)
        told.post_receives(len(wcs))
        room.release(len(wcs))
    thread.join()
    assert got == rounds


def test_a_wait_in_another_thread_wakes_when_this_one_completes_something(told: Told) -> None:
    found: list[object] = []
    told.cq.req_notify()
    waiter = threading.Thread(target=lambda: found.append(told.channel.get_cq_event(10)))
    waiter.start()
    time.sleep(0.05)
    start = time.monotonic()
    told.post_receives()
    # the flushed receives complete during this call, in this thread
    told.qp.modify(QPAttr(qp_state=QPState.ERR))
    waiter.join()
    assert found == [told.cq] and time.monotonic() - start < 2


def test_destroying_a_queue_waits_for_the_events_that_were_taken(rig: Rig) -> None:
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

    def destroy() -> None:
        assert lib.siw_destroy_cq(cq) == 0
        done.set()

    thread = threading.Thread(target=destroy)
    thread.start()
    lib.siw_ack_cq_events(cq, 1)
    assert not done.wait(0.05)
    lib.siw_ack_cq_events(cq, 1)
    assert done.wait(5)
    thread.join()


def test_an_event_that_nobody_took_goes_with_its_queue(told: Told) -> None:
    told.post_receives()
    told.cq.req_notify()
    told.post_sends()
    assert told.becomes_readable(5)
    told.qp.close()
    told.cq.close()
    assert not told.becomes_readable(0)
    assert told.channel.get_cq_event(0) is None


def test_the_users_pointer_comes_back_with_the_event(rig: Rig) -> None:
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
    lib.siw_ack_cq_events(cq, 5)  # acknowledges more events than were read
    assert lib.siw_destroy_qp(qp) == 0
    assert lib.siw_destroy_cq(cq) == 0


def test_every_status_has_words(rig: Rig) -> None:
    from siwarp.verbs import WCStatus

    words = {ffi.string(lib.siw_wc_status_str(s)) for s in WCStatus}
    assert len(words) == len(WCStatus) == 22
    assert lib.siw_wc_status_str(-1) == lib.siw_wc_status_str(22)
