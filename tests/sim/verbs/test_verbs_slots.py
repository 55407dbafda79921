"""Slots of the work queues: used by a posted request, and freed when a completion is polled."""

from __future__ import annotations

import errno

import pytest
from harness.rc_harness import SEND, WRITE, ListenerAndConnector
from harness.slots_harness import SIGNALED, SILENT, post_sends_until_queue_full
from harness.verbs_harness import Pair, Rig, assert_no_completion, errno_raised_by, poll

from siwarp.verbs import QPAttr, QPState, SendFlag, SendWR


def test_polling_a_completion_frees_the_slots_of_all_requests_up_to_it(rig: Rig) -> None:
    pair = Pair(rig, max_send_wr=8)
    kinds = [SILENT, SILENT, SIGNALED, SIGNALED, SILENT, SIGNALED, SILENT, SILENT]
    for i, flags in enumerate(kinds):
        pair.a.post_send(SendWR(i, ah=pair.to_b, send_flags=flags))
    for wr_id, freed in [(2, 3), (3, 1), (5, 2)]:
        assert poll(pair.scq)[0].wr_id == wr_id
        assert post_sends_until_queue_full(pair, SILENT) == freed
    # Two unsignaled requests and the later requests still use slots, which only a later signaled
    # request would free.
    assert_no_completion(pair.scq)
    assert post_sends_until_queue_full(pair, SILENT) == 0


def test_an_rc_send_queue_holds_exactly_max_send_wr_requests(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(max_send_wr=8)
    remote = b.mem.remote(0, 1)
    for i in range(7):
        a.post(WRITE, i, length=1, remote=remote, flags=SILENT)
    a.post(WRITE, 7, length=1, remote=remote)
    full = SendWR(8, WRITE, sg=[a.mem.sge(0, 1)], remote=remote)
    assert_no_completion(b.rcq)  # all eight requests have been executed when nothing more completes
    assert errno_raised_by(a.qp.post_send, full) == errno.ENOMEM
    assert [w.wr_id for w in poll(a.scq)] == [7]
    a.qp.post_send([full] * 8)
    assert errno_raised_by(a.qp.post_send, full) == errno.ENOMEM
    assert len(poll(a.scq, 3)) == 3
    a.qp.post_send([full] * 3)
    assert len(poll(a.scq, 8)) == 8


@pytest.mark.parametrize("kind", ["RC", "UD"])
def test_post_send_all_posts_nothing_if_the_last_request_finds_no_slot(
    rig: Rig, connector: ListenerAndConnector, kind: str
) -> None:
    if kind == "UD":
        pair = Pair(rig, max_send_wr=4)
        qp, cq = pair.a, pair.scq
        wrs = [SendWR(i, ah=pair.to_b, send_flags=SIGNALED) for i in range(5)]
    else:
        a, b = connector.connect(max_send_wr=4)
        qp, cq = a.qp, a.scq
        wrs = [SendWR(i, WRITE, sg=[a.mem.sge(0, 1)], remote=b.mem.remote(0, 1)) for i in range(5)]
    with pytest.raises(OSError) as e:
        qp.post_send_all(wrs)
    assert e.value.errno == errno.ENOMEM and e.value.bad_wr is wrs[4]
    assert_no_completion(cq)
    qp.post_send_all(wrs[:3])
    assert [w.wr_id for w in poll(cq, 3)] == [0, 1, 2]
    qp.post_send_all(wrs[:4])
    assert errno_raised_by(qp.post_send_all, wrs[:1]) == errno.ENOMEM
    assert [w.wr_id for w in poll(cq, 4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("state", [QPState.RTS, QPState.ERR])
def test_post_send_all_posts_nothing_if_a_later_request_is_invalid(
    connector: ListenerAndConnector, state: QPState
) -> None:
    a, b = connector.connect()
    wrs = [SendWR(i, WRITE, sg=[a.mem.sge(0, 1)], remote=b.mem.remote(0, 1)) for i in range(3)]
    wrs[2] = SendWR(2, SEND, sg=[a.mem.sge(0, 1)], send_flags=SendFlag(1 << 30))
    if state == QPState.ERR:
        a.qp.modify(QPAttr(qp_state=state))
    with pytest.raises(OSError) as e:
        a.qp.post_send_all(wrs)
    assert e.value.errno == errno.EINVAL and e.value.bad_wr is wrs[2]
    assert_no_completion(a.scq)
