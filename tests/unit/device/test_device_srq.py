"""Shared receive queues: order of consumption, the limit event, and the effects of errors."""

from __future__ import annotations

import errno
import itertools
import threading

import net
import pytest
from harness.rc_harness import SEND, End, Wire
from harness.srq_harness import LIMIT_REACHED, Shared, connect_with_srq, consume_receives
from harness.verbs_harness import (
    LIMIT,
    Pair,
    Rig,
    counter_value,
    errno_raised_by,
    poll,
    wait_until,
)
from pace import limit_exceeded

from siwarp._siwarp import ffi, lib
from siwarp.verbs import (
    AH,
    PD,
    SRQ,
    Persona,
    QPAttr,
    QPState,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqAttrMask,
    SrqInitAttr,
    StateError,
)


def test_query_returns_the_granted_size(rig: Rig) -> None:
    srq = SRQ(rig.pd, SrqInitAttr(SrqAttr(max_wr=100, max_sge=3)))
    assert srq.attr.max_wr >= 100 and srq.attr.max_sge >= 3
    assert srq.query() == srq.attr
    for i in range(srq.attr.max_wr):
        srq.post_recv(RecvWR(i))
    with pytest.raises(OSError, match="all 128 receives are posted") as caught:
        srq.post_recv(RecvWR(5))
    assert caught.value.errno == errno.ENOMEM


def test_what_it_cannot_hold_is_refused_from_the_first_such_receive_on(rig: Rig) -> None:
    shared = Shared(rig)
    good = RecvWR(1, sg=[shared.mr.sge(0, 1)])
    bad = RecvWR(2, sg=[shared.mr.sge(0, 1)] * 2)
    with pytest.raises(OSError, match="2 elements exceed the SRQ's max_sge of 1") as caught:
        shared.srq.post_recv([good, bad, good])
    assert caught.value.errno == errno.EINVAL
    assert caught.value.bad_wr is bad


@pytest.mark.parametrize(
    "attr",
    [SrqAttr(0), SrqAttr(1 << 30), SrqAttr(4, max_sge=1000), SrqAttr(4, srq_limit=5)],
    ids=["no receives", "too many", "too many elements", "limit above size"],
)
def test_attributes_out_of_bounds_are_einval(rig: Rig, attr: SrqAttr) -> None:
    assert errno_raised_by(SRQ, rig.pd, attr) == errno.EINVAL


def test_each_limit_that_the_device_tells_can_be_reached_and_not_passed(rig: Rig) -> None:
    most = rig.ctx.query_device()
    assert SRQ(rig.pd, SrqAttr(most.max_srq_wr)).attr.max_wr >= most.max_srq_wr
    assert SRQ(rig.pd, SrqAttr(1, most.max_srq_sge)).attr.max_sge >= most.max_srq_sge
    assert errno_raised_by(SRQ, rig.pd, SrqAttr(most.max_srq_wr + 1)) == errno.EINVAL
    assert errno_raised_by(SRQ, rig.pd, SrqAttr(1, most.max_srq_sge + 1)) == errno.EINVAL


def test_a_receive_cannot_be_posted_to_a_queue_pair_that_has_one(rig: Rig) -> None:
    shared = Shared(rig)
    qp = rig.create_ud_qp(shared.cq, srq=shared.srq)
    assert (qp.cap.max_recv_wr, qp.cap.max_recv_sge) == (0, 0)
    with pytest.raises(OSError, match=r"SRQ\.post_recv") as caught:
        qp.post_recv(RecvWR(1))
    assert caught.value.errno == errno.EINVAL
    assert qp.query()[1].srq is shared.srq


def test_streams_and_datagrams_take_the_oldest_receive_whoever_comes(two_device_wire: Wire) -> None:
    shared = Shared(two_device_wire.passive)
    ends = [connect_with_srq(two_device_wire, shared) for _ in range(3)]
    ud = two_device_wire.passive.create_ud_qp(shared.cq, srq=shared.srq)
    sender = two_device_wire.active.create_ud_qp()
    out = two_device_wire.active.reg_mr(64)
    to = AH(two_device_wire.active.pd, ud.addr)
    shared.post_receives(*range(8))
    for wr_id, who in enumerate([0, 3, 1, 2, 3, 2, 0, 1]):
        message = b"%d from %d" % (wr_id, who)
        if who == 3:
            out.write(message)
            sender.post_send(SendWR(sg=[out.sge(0, len(message))], ah=to))
            qp, cq = ud, shared.cq
        else:
            a, b = ends[who]
            a.mem.write(message)
            a.post(SEND, length=len(message))
            qp, cq = b.qp, b.rcq
        (wc,) = poll(cq)
        assert (wc.wr_id, wc.ok, wc.qp_num) == (wr_id, True, qp.qp_num)
        assert shared.received_octets(wr_id, wc.byte_len) == message


def test_queue_pairs_that_all_have_messages_are_all_served(two_device_wire: Wire) -> None:
    shared = Shared(two_device_wire.passive, 512)
    ends = [connect_with_srq(two_device_wire, shared) for _ in range(4)]
    each = 64
    shared.post_receives(*[i % 200 for i in range(4 * each)], length=8)
    for i in range(each):
        for a, _ in ends:
            a.post(SEND, i, length=8)
    for _, b in ends:
        assert all(wc.ok for wc in poll(b.rcq, each))


def test_a_receive_keeps_the_pd_of_its_srq(rig: Rig) -> None:
    shared = Shared(rig)
    other = PD(rig.ctx)
    mine, rig.pd = rig.pd, other
    qp = rig.create_ud_qp(shared.cq, srq=shared.srq)
    rig.pd = mine
    shared.post_receives(1)
    sender = rig.create_ud_qp()
    sender.post_send(SendWR(sg=[shared.mr.sge(1024, 5)], ah=AH(rig.pd, qp.addr)))
    (wc,) = poll(shared.cq)
    assert (wc.wr_id, wc.ok, wc.byte_len) == (1, True, 5)


def test_the_limit_is_told_once_when_fewer_are_left_and_then_is_off(rig: Rig) -> None:
    shared = Shared(rig)
    shared.post_receives(*range(6))
    shared.srq.modify(SrqAttr(srq_limit=4))
    assert shared.srq.query().srq_limit == 4
    consume_receives(rig, shared, 2)
    assert rig.ctx.get_async_event(0) is None  # 4 receives are left, which is not below the limit
    consume_receives(rig, shared, 1)
    with rig.next_async_event() as told:
        assert (told.event_type, told.element) == (LIMIT_REACHED, shared.srq)
    assert shared.srq.query().srq_limit == 0
    consume_receives(rig, shared, 2)
    assert rig.ctx.get_async_event(0) is None
    shared.post_receives(*range(6))
    shared.srq.modify(SrqAttr(srq_limit=7))
    consume_receives(rig, shared, 1)
    assert rig.next_async_event().event_type == LIMIT_REACHED


def test_a_limit_that_is_passed_already_is_told_at_once(rig: Rig) -> None:
    shared = Shared(rig)
    shared.post_receives(1)
    shared.srq.modify(SrqAttr(srq_limit=2))
    assert rig.next_async_event().event_type == LIMIT_REACHED
    shared.srq.modify(SrqAttr(srq_limit=1))
    assert rig.ctx.get_async_event(0) is None
    shared.srq.modify(SrqAttr(srq_limit=0))
    consume_receives(rig, shared, 1)
    assert rig.ctx.get_async_event(0) is None


@pytest.mark.clause("RFC5040-8.1.2-08", "RFC5041-8.3.2-07")
def test_a_greedy_queue_pair_is_identified_and_stopped(two_device_wire: Wire) -> None:
    """The limit event comes while receives are left; completions name the queue pair to stop."""
    shared = Shared(two_device_wire.passive)
    ends = [connect_with_srq(two_device_wire, shared, persona=Persona.IWARP) for _ in range(3)]
    cqs = {b.qp.qp_num: b.rcq for _, b in ends}
    hog, hog_end = ends[1]
    shared.post_receives(*range(16))
    shared.srq.modify(SrqAttr(srq_limit=8))
    used = dict.fromkeys(cqs, 0)

    def send(a: End, n: int) -> None:
        for _ in range(n):
            a.post(SEND, length=4)
            (wc,) = wait_until(lambda: [w for cq in cqs.values() for w in cq.poll(1)])
            assert wc.ok
            used[wc.qp_num] += 1

    for a, _ in ends:
        send(a, 1)
    send(hog, 5)
    assert two_device_wire.passive.ctx.get_async_event(0) is None  # 8 receives are left
    send(hog, 1)
    assert two_device_wire.passive.next_async_event().event_type == LIMIT_REACHED
    assert used == {b.qp.qp_num: 7 if b is hog_end else 1 for _, b in ends}
    ends[1][1].qp.modify(QPAttr(qp_state=QPState.ERR))
    hog.post(SEND, 9, length=4)
    hog.wait_for_error_state()
    for a, _ in (ends[0], ends[2]):
        send(a, 3)  # the two remaining queue pairs use 6 of the 7 receives left
    assert sum(used.values()) == 15


def test_a_stream_reaches_the_limit_too(two_device_wire: Wire) -> None:
    shared = Shared(two_device_wire.passive)
    a, b = connect_with_srq(two_device_wire, shared)
    shared.post_receives(1, 2)
    shared.srq.modify(SrqAttr(srq_limit=2))
    a.post(SEND, length=4)
    poll(b.rcq)
    assert two_device_wire.passive.next_async_event().event_type == LIMIT_REACHED


BOTH = SrqAttrMask.MAX_WR | SrqAttrMask.LIMIT


def test_a_size_or_limit_that_does_not_fit_changes_nothing(rig: Rig) -> None:
    shared = Shared(rig, max_wr=16)
    most = rig.ctx.query_device().max_srq_wr
    shared.post_receives(*range(10))
    shared.srq.modify(SrqAttr(srq_limit=10))
    for attr, mask, words in [
        (SrqAttr(srq_limit=17), SrqAttrMask.LIMIT, "or a larger SRQ"),
        (SrqAttr(max_wr=32, srq_limit=33), BOTH, "or a larger SRQ"),
        (SrqAttr(max_wr=9), SrqAttrMask.MAX_WR, "use at least that"),
        (SrqAttr(max_wr=8, srq_limit=4), BOTH, "10 posted receives"),
        (SrqAttr(max_wr=0), SrqAttrMask.MAX_WR, "max_wr"),
        (SrqAttr(max_wr=most + 1), SrqAttrMask.MAX_WR, "max_wr"),
        (SrqAttr(), 4, "unknown flags"),
    ]:
        with pytest.raises(OSError, match=words) as caught:
            shared.srq.modify(attr, mask)
        assert caught.value.errno == errno.EINVAL
        assert shared.srq.query() == SrqAttr(16, 1, 10)


def test_a_size_below_the_limit_that_is_armed_is_refused(rig: Rig) -> None:
    shared = Shared(rig, max_wr=16)
    shared.post_receives(*range(9))
    shared.srq.modify(SrqAttr(srq_limit=9))
    shared.consume_receive(rig)
    assert rig.next_async_event().event_type == LIMIT_REACHED
    # 8 receives are posted, and no limit is armed
    shared.srq.modify(SrqAttr(max_wr=8), SrqAttrMask.MAX_WR)
    assert shared.srq.query().max_wr == 8


@pytest.mark.parametrize("size", [5, 16, 64, 1000])
def test_what_is_posted_stays_in_its_order_when_the_size_changes(rig: Rig, size: int) -> None:
    shared = Shared(rig, max_wr=8)
    shared.post_receives(*range(8))
    for n in range(3):  # uses up some receives, so that the ring does not start at index 0
        assert shared.consume_receive(rig) == n
    shared.srq.modify(SrqAttr(max_wr=size), SrqAttrMask.MAX_WR)
    room = shared.srq.query().max_wr
    assert size <= room < 2 * size
    shared.post_receives(*range(8, 3 + room))
    assert errno_raised_by(shared.post_receives, 9999) == errno.ENOMEM
    for n in range(3, 3 + min(room, 40)):
        assert shared.consume_receive(rig) == n


def test_every_srq_has_a_number_of_its_own(rig: Rig) -> None:
    numbers = [rig.create_srq().srq_num for _ in range(3)]
    with rig.create_srq() as gone:
        numbers.append(gone.srq_num)
    numbers.append(rig.create_srq().srq_num)  # the new SRQ may use the memory of the destroyed one
    assert 0 not in numbers and len(set(numbers)) == 5


def test_the_size_changes_while_others_post_and_messages_take(rig: Rig) -> None:
    shared = Shared(rig, max_wr=64)
    pair = Pair(rig)
    receiver = rig.create_ud_qp(shared.cq, srq=shared.srq)
    to = AH(rig.pd, receiver.addr)
    messages, posted, done = 3000, 0, threading.Event()
    changes = []

    def change() -> None:
        sizes = itertools.cycle((64, 4096, 128, 1000))
        while not done.is_set():
            shared.srq.modify(SrqAttr(max_wr=next(sizes)), SrqAttrMask.MAX_WR)
            changes.append(1)
            done.wait(0.0005)  # pauses, because polls make no progress during a resize

    changer = threading.Thread(target=change)
    changer.start()
    try:
        taken: list[int] = []
        began = net.now()
        while len(taken) < messages:
            assert not limit_exceeded(began, LIMIT)
            while posted < min(len(taken) + 32, messages):
                shared.post_receives(posted)
                pair.a.post_send(SendWR(sg=[pair.out.sge(0, 4)], ah=to))
                posted += 1
            taken.extend(wc.wr_id for wc in shared.cq.poll(16))
            pair.scq.poll(64)
    finally:
        done.set()
        changer.join()
    assert taken == list(range(messages))
    assert len(changes) > 3


# ---- in use


def test_it_cannot_be_closed_while_a_queue_pair_uses_it(rig: Rig) -> None:
    shared = Shared(rig)
    qp = rig.create_ud_qp(shared.cq, srq=shared.srq)
    with pytest.raises(StateError) as caught:
        shared.srq.close()
    assert caught.value.errno == errno.EBUSY
    assert repr(qp) in str(caught.value)
    qp.close()
    shared.srq.close()


def test_a_pd_cannot_be_closed_while_an_srq_stands_on_it(rig: Rig) -> None:
    pd = PD(rig.ctx)
    srq = SRQ(pd, SrqAttr(4))
    with pytest.raises(StateError) as caught:
        pd.close()
    assert caught.value.errno == errno.EBUSY
    assert repr(srq) in str(caught.value)
    srq.close()
    pd.close()


def test_one_that_was_destroyed_refuses_all_that_comes_too_late(rig: Rig) -> None:
    init = ffi.new("struct siw_srq_init_attr *", {"attr": {"max_wr": 4, "max_sge": 1}})
    srq = lib.siw_create_srq(rig.pd._c_object(), init)
    wr, bad = ffi.new("struct siw_recv_wr *"), ffi.new("struct siw_recv_wr **")
    attr = ffi.new("struct siw_srq_attr *", {"srq_limit": 1})
    assert lib.siw_post_srq_recv(srq, wr, bad) == 0
    assert lib.siw_destroy_srq(srq) == 0
    assert lib.siw_post_srq_recv(srq, wr, bad) == -errno.EINVAL
    assert bad[0] == wr
    assert lib.siw_modify_srq(srq, attr, SrqAttrMask.LIMIT) == -errno.EINVAL
    assert lib.siw_destroy_srq(srq) == -errno.EINVAL
    # The next SRQ may use the same memory and must inherit nothing from the destroyed one.
    again = rig.create_srq(4)
    again.modify(SrqAttr(srq_limit=1))
    assert rig.next_async_event().event_type == LIMIT_REACHED


# ---- persona roce


def test_a_send_that_finds_it_empty_is_received_once_somebody_posts(two_device_wire: Wire) -> None:
    shared = Shared(two_device_wire.passive)
    a, b = connect_with_srq(two_device_wire, shared, persona=Persona.ROCE)
    a.mem.write(b"early")
    a.post(SEND, length=5)
    wait_until(lambda: b.rcq.poll() or counter_value("rnr_unexpected"))
    shared.post_receives(3)
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.ok, shared.received_octets(3, 5)) == (3, True, b"early")
    assert poll(a.scq)[0].ok


def test_which_receive_was_refused_is_told_to_who_asks_and_to_nobody_else(rig: Rig) -> None:
    srq = rig.create_srq(2)._c_object()
    wrs = ffi.new("struct siw_recv_wr[3]")
    wrs[0].next, wrs[1].next = wrs + 1, wrs + 2
    bad = ffi.new("struct siw_recv_wr **", wrs)
    assert lib.siw_post_srq_recv(srq, wrs + 2, bad) == 0 and bad[0] == wrs, "not written"
    assert lib.siw_post_srq_recv(srq, wrs, bad) == -errno.ENOMEM and bad[0] == wrs + 1
    assert lib.siw_post_srq_recv(srq, wrs, ffi.NULL) == -errno.ENOMEM
    assert lib.siw_post_srq_recv(ffi.NULL, wrs, ffi.NULL) == -errno.EINVAL


def test_streams_that_wait_for_it_are_served_as_receives_come(two_device_wire: Wire) -> None:
    shared = Shared(two_device_wire.passive)
    ends = [connect_with_srq(two_device_wire, shared, persona=Persona.ROCE) for _ in range(3)]
    unexpected = counter_value("rnr_unexpected")
    for a, _ in ends:
        a.post(SEND, length=5)
    wait_until(lambda: ends[0][1].rcq.poll() or counter_value("rnr_unexpected") == unexpected + 3)
    for wr_id in range(3):
        shared.post_receives(wr_id)
        (wc,) = wait_until(lambda: [wc for _, b in ends for wc in b.rcq.poll()])
        assert (wc.wr_id, wc.ok) == (wr_id, True)
    for a, _ in ends:
        assert poll(a.scq)[0].ok
