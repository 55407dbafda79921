"""Shared receive queues: order of consumption, the limit event, and the effects of errors."""

from __future__ import annotations

import errno
import itertools
import threading

import net
import pytest
from harness.rc_harness import SEND, End, ListenerAndConnector
from harness.srq_harness import (
    LIMIT_REACHED,
    SharedReceiveQueue,
    connect_with_srq,
    consume_receives,
)
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


def test_query_of_an_srq_returns_the_granted_size(rig: Rig) -> None:
    srq = SRQ(rig.pd, SrqInitAttr(SrqAttr(max_wr=100, max_sge=3)))
    assert srq.attr.max_wr >= 100 and srq.attr.max_sge >= 3
    assert srq.query() == srq.attr
    for i in range(srq.attr.max_wr):
        srq.post_recv(RecvWR(i))
    with pytest.raises(OSError, match="all 128 receives are posted") as caught:
        srq.post_recv(RecvWR(5))
    assert caught.value.errno == errno.ENOMEM


def test_a_receive_with_too_many_elements_is_refused_and_reported_as_bad_wr(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig)
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
def test_srq_attributes_out_of_bounds_are_refused(rig: Rig, attr: SrqAttr) -> None:
    assert errno_raised_by(SRQ, rig.pd, attr) == errno.EINVAL


def test_an_srq_can_have_the_sizes_that_the_device_reports_and_not_more(rig: Rig) -> None:
    most = rig.ctx.query_device()
    assert SRQ(rig.pd, SrqAttr(most.max_srq_wr)).attr.max_wr >= most.max_srq_wr
    assert SRQ(rig.pd, SrqAttr(1, most.max_srq_sge)).attr.max_sge >= most.max_srq_sge
    assert errno_raised_by(SRQ, rig.pd, SrqAttr(most.max_srq_wr + 1)) == errno.EINVAL
    assert errno_raised_by(SRQ, rig.pd, SrqAttr(1, most.max_srq_sge + 1)) == errno.EINVAL


def test_posting_a_receive_to_a_queue_pair_with_an_srq_is_refused(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig)
    qp = rig.create_ud_qp(shared.cq, srq=shared.srq)
    assert (qp.cap.max_recv_wr, qp.cap.max_recv_sge) == (0, 0)
    with pytest.raises(OSError, match=r"SRQ\.post_recv") as caught:
        qp.post_recv(RecvWR(1))
    assert caught.value.errno == errno.EINVAL
    assert qp.query()[1].srq is shared.srq


def test_messages_of_rc_and_ud_queue_pairs_use_the_oldest_receive_of_the_srq(
    two_device_connector: ListenerAndConnector,
) -> None:
    shared = SharedReceiveQueue(two_device_connector.passive)
    ends = [connect_with_srq(two_device_connector, shared) for _ in range(3)]
    ud = two_device_connector.passive.create_ud_qp(shared.cq, srq=shared.srq)
    sender = two_device_connector.active.create_ud_qp()
    out = two_device_connector.active.reg_mr(64)
    to = AH(two_device_connector.active.pd, ud.addr)
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


def test_all_queue_pairs_that_share_an_srq_receive_their_messages(
    two_device_connector: ListenerAndConnector,
) -> None:
    shared = SharedReceiveQueue(two_device_connector.passive, 512)
    ends = [connect_with_srq(two_device_connector, shared) for _ in range(4)]
    each = 64
    shared.post_receives(*[i % 200 for i in range(4 * each)], length=8)
    for i in range(each):
        for a, _ in ends:
            a.post(SEND, i, length=8)
    for _, b in ends:
        assert all(wc.ok for wc in poll(b.rcq, each))


def test_a_receive_uses_the_protection_domain_of_its_srq(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig)
    other = PD(rig.ctx)
    mine, rig.pd = rig.pd, other
    qp = rig.create_ud_qp(shared.cq, srq=shared.srq)
    rig.pd = mine
    shared.post_receives(1)
    sender = rig.create_ud_qp()
    sender.post_send(SendWR(sg=[shared.mr.sge(1024, 5)], ah=AH(rig.pd, qp.addr)))
    (wc,) = poll(shared.cq)
    assert (wc.wr_id, wc.ok, wc.byte_len) == (1, True, 5)


def test_the_srq_limit_event_is_raised_once_and_the_limit_is_then_disarmed(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig)
    shared.post_receives(*range(6))
    shared.srq.modify(SrqAttr(srq_limit=4))
    assert shared.srq.query().srq_limit == 4
    consume_receives(rig, shared, 2)
    # The 4 receives that are left are not fewer than the limit.
    assert rig.ctx.get_async_event(0) is None
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


def test_an_srq_limit_above_the_posted_receives_raises_its_event_immediately(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig)
    shared.post_receives(1)
    shared.srq.modify(SrqAttr(srq_limit=2))
    assert rig.next_async_event().event_type == LIMIT_REACHED
    shared.srq.modify(SrqAttr(srq_limit=1))
    assert rig.ctx.get_async_event(0) is None
    shared.srq.modify(SrqAttr(srq_limit=0))
    consume_receives(rig, shared, 1)
    assert rig.ctx.get_async_event(0) is None


@pytest.mark.clause("RFC5040-8.1.2-08", "RFC5041-8.3.2-07")
def test_a_queue_pair_that_uses_most_receives_of_an_srq_is_identified_and_stopped(
    two_device_connector: ListenerAndConnector,
) -> None:
    """The limit event is raised while receives are left, and completions name the queue pair."""
    shared = SharedReceiveQueue(two_device_connector.passive)
    ends = [connect_with_srq(two_device_connector, shared, persona=Persona.IWARP) for _ in range(3)]
    cqs = {b.qp.qp_num: b.rcq for _, b in ends}
    hog, hog_end = ends[1]
    shared.post_receives(*range(16))
    shared.srq.modify(SrqAttr(srq_limit=8))
    used = dict.fromkeys(cqs, 0)

    def send_messages(a: End, n: int) -> None:
        for _ in range(n):
            a.post(SEND, length=4)
            (wc,) = wait_until(lambda: [w for cq in cqs.values() for w in cq.poll(1)])
            assert wc.ok
            used[wc.qp_num] += 1

    for a, _ in ends:
        send_messages(a, 1)
    send_messages(hog, 5)
    # The 8 receives that are left are not fewer than the limit.
    assert two_device_connector.passive.ctx.get_async_event(0) is None
    send_messages(hog, 1)
    assert two_device_connector.passive.next_async_event().event_type == LIMIT_REACHED
    assert used == {b.qp.qp_num: 7 if b is hog_end else 1 for _, b in ends}
    ends[1][1].qp.modify(QPAttr(qp_state=QPState.ERR))
    hog.post(SEND, 9, length=4)
    hog.wait_for_error_state()
    for a, _ in (ends[0], ends[2]):
        send_messages(a, 3)  # the two remaining queue pairs use 6 of the 7 receives left
    assert sum(used.values()) == 15


def test_messages_of_an_rc_queue_pair_raise_the_srq_limit_event(
    two_device_connector: ListenerAndConnector,
) -> None:
    shared = SharedReceiveQueue(two_device_connector.passive)
    a, b = connect_with_srq(two_device_connector, shared)
    shared.post_receives(1, 2)
    shared.srq.modify(SrqAttr(srq_limit=2))
    a.post(SEND, length=4)
    poll(b.rcq)
    assert two_device_connector.passive.next_async_event().event_type == LIMIT_REACHED


BOTH = SrqAttrMask.MAX_WR | SrqAttrMask.LIMIT


def test_an_invalid_srq_size_or_limit_is_refused_and_changes_nothing(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig, max_wr=16)
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


def test_an_srq_can_shrink_to_its_receives_after_its_limit_event(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig, max_wr=16)
    shared.post_receives(*range(9))
    shared.srq.modify(SrqAttr(srq_limit=9))
    shared.consume_receive(rig)
    assert rig.next_async_event().event_type == LIMIT_REACHED
    # 8 receives are posted, and no limit is armed.
    shared.srq.modify(SrqAttr(max_wr=8), SrqAttrMask.MAX_WR)
    assert shared.srq.query().max_wr == 8


@pytest.mark.parametrize("size", [5, 16, 64, 1000])
def test_posted_receives_keep_their_order_when_the_srq_is_resized(rig: Rig, size: int) -> None:
    shared = SharedReceiveQueue(rig, max_wr=8)
    shared.post_receives(*range(8))
    # Three receives are consumed, so that the ring does not start at index 0.
    for n in range(3):
        assert shared.consume_receive(rig) == n
    shared.srq.modify(SrqAttr(max_wr=size), SrqAttrMask.MAX_WR)
    room = shared.srq.query().max_wr
    assert size <= room < 2 * size
    shared.post_receives(*range(8, 3 + room))
    assert errno_raised_by(shared.post_receives, 9999) == errno.ENOMEM
    for n in range(3, 3 + min(room, 40)):
        assert shared.consume_receive(rig) == n


def test_every_srq_has_a_unique_number(rig: Rig) -> None:
    numbers = [rig.create_srq().srq_num for _ in range(3)]
    with rig.create_srq() as gone:
        numbers.append(gone.srq_num)
    # The new SRQ may use the memory of the destroyed SRQ.
    numbers.append(rig.create_srq().srq_num)
    assert 0 not in numbers and len(set(numbers)) == 5


def test_an_srq_is_resized_while_receives_are_posted_and_consumed(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig, max_wr=64)
    pair = Pair(rig)
    receiver = rig.create_ud_qp(shared.cq, srq=shared.srq)
    to = AH(rig.pd, receiver.addr)
    messages, posted, done = 3000, 0, threading.Event()
    changes = []

    def resize_repeatedly() -> None:
        sizes = itertools.cycle((64, 4096, 128, 1000))
        while not done.is_set():
            shared.srq.modify(SrqAttr(max_wr=next(sizes)), SrqAttrMask.MAX_WR)
            changes.append(1)
            done.wait(0.0005)

    changer = threading.Thread(target=resize_repeatedly)
    changer.start()
    try:
        taken: list[int] = []
        began = net.now()
        # On a busy machine the other thread may not run before many messages have arrived.
        while len(taken) < messages or len(changes) < 4:
            assert not limit_exceeded(began, LIMIT)
            while posted < len(taken) + 32:
                shared.post_receives(posted)
                pair.a.post_send(SendWR(sg=[pair.out.sge(0, 4)], ah=to))
                posted += 1
            taken.extend(wc.wr_id for wc in shared.cq.poll(16))
            pair.scq.poll(64)
    finally:
        done.set()
        changer.join()
    assert taken == list(range(len(taken)))


# ---- objects in use


def test_an_srq_cannot_be_closed_while_a_queue_pair_uses_it(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig)
    qp = rig.create_ud_qp(shared.cq, srq=shared.srq)
    with pytest.raises(StateError) as caught:
        shared.srq.close()
    assert caught.value.errno == errno.EBUSY
    assert repr(qp) in str(caught.value)
    qp.close()
    shared.srq.close()


def test_a_protection_domain_cannot_be_closed_while_it_has_an_srq(rig: Rig) -> None:
    pd = PD(rig.ctx)
    srq = SRQ(pd, SrqAttr(4))
    with pytest.raises(StateError) as caught:
        pd.close()
    assert caught.value.errno == errno.EBUSY
    assert repr(srq) in str(caught.value)
    srq.close()
    pd.close()


def test_calls_on_a_destroyed_srq_are_refused(rig: Rig) -> None:
    init = ffi.new("struct siw_srq_init_attr *", {"attr": {"max_wr": 4, "max_sge": 1}})
    srq = lib.siw_create_srq(rig.pd._c_object(), init)
    wr, bad = ffi.new("struct siw_recv_wr *"), ffi.new("struct siw_recv_wr **")
    attr = ffi.new("struct siw_srq_attr *", {"srq_limit": 1})
    assert lib.siw_post_srq_recv(srq, wr, bad) == 0
    assert lib.siw_destroy_srq(srq) == 0
    assert lib.siw_post_srq_recv(srq, wr, bad) == -errno.EINVAL
    assert bad[0] == wr
    assert lib.siw_modify_srq(srq, attr, SrqAttrMask.LIMIT) == -errno.EINVAL
    assert lib.siw_query_srq(srq, attr) == -errno.EINVAL
    assert lib.siw_destroy_srq(srq) == -errno.EINVAL
    # The next SRQ may use the memory of the destroyed SRQ and must inherit no state.
    again = rig.create_srq(4)
    again.modify(SrqAttr(srq_limit=1))
    assert rig.next_async_event().event_type == LIMIT_REACHED


# ---- persona roce


def test_under_persona_roce_a_send_to_an_empty_srq_completes_after_a_receive_is_posted(
    two_device_connector: ListenerAndConnector,
) -> None:
    shared = SharedReceiveQueue(two_device_connector.passive)
    a, b = connect_with_srq(two_device_connector, shared, persona=Persona.ROCE)
    a.mem.write(b"early")
    a.post(SEND, length=5)
    wait_until(lambda: b.rcq.poll() or counter_value("rnr_unexpected"))
    shared.post_receives(3)
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.ok, shared.received_octets(3, 5)) == (3, True, b"early")
    assert poll(a.scq)[0].ok


def test_bad_wr_is_set_only_for_a_refused_receive_and_may_be_null(rig: Rig) -> None:
    srq = rig.create_srq(2)._c_object()
    wrs = ffi.new("struct siw_recv_wr[3]")
    wrs[0].next, wrs[1].next = wrs + 1, wrs + 2
    bad = ffi.new("struct siw_recv_wr **", wrs)
    assert lib.siw_post_srq_recv(srq, wrs + 2, bad) == 0 and bad[0] == wrs, "bad_wr was written"
    assert lib.siw_post_srq_recv(srq, wrs, bad) == -errno.ENOMEM and bad[0] == wrs + 1
    assert lib.siw_post_srq_recv(srq, wrs, ffi.NULL) == -errno.ENOMEM
    assert lib.siw_post_srq_recv(ffi.NULL, wrs, ffi.NULL) == -errno.EINVAL


def test_waiting_rc_queue_pairs_receive_as_receives_are_posted_to_their_srq(
    two_device_connector: ListenerAndConnector,
) -> None:
    shared = SharedReceiveQueue(two_device_connector.passive)
    ends = [connect_with_srq(two_device_connector, shared, persona=Persona.ROCE) for _ in range(3)]
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
