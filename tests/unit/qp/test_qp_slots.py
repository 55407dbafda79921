"""Slots of the work queues: occupied by a post, freed when the completion is polled."""

from __future__ import annotations

import errno

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.slots_harness import SIGNALED, SILENT, post_sends_until_queue_full
from harness.verbs_harness import Pair, Rig, errno_raised_by, poll, wait_until

from siwarp.verbs import QP, QPAttr, QPState, RecvWR, SendFlag, SendWR, WCStatus


@pytest.mark.parametrize("flags", [SIGNALED, SILENT], ids=["signalled", "silent"])
def test_a_ud_queue_pair_accepts_exactly_max_send_wr_posts_before_a_poll(
    rig: Rig, flags: SendFlag
) -> None:
    pair = Pair(rig, max_send_wr=8)
    assert post_sends_until_queue_full(pair, flags) == pair.a.cap.max_send_wr == 8
    # Neither waiting nor progress frees a slot of the send queue.
    wait_until(lambda: pair.rcq.poll(1) == [])
    assert errno_raised_by(pair.a.post_send, SendWR(99, ah=pair.to_b)) == errno.ENOMEM


def test_polling_a_completion_frees_no_slot_of_another_queue_pair(rig: Rig) -> None:
    cq = rig.create_cq()
    a, b = rig.create_ud_qp(cq, max_send_wr=2), rig.create_ud_qp(cq, max_send_wr=2)
    ah = rig.create_ah(("127.0.0.1", 9))
    for qp in (a, b):
        qp.post_send([SendWR(1, ah=ah), SendWR(2, ah=ah)])
    (first,) = poll(cq)
    mine, other = (a, b) if first.qp_num == a.qp_num else (b, a)
    assert errno_raised_by(other.post_send, SendWR(3, ah=ah)) == errno.ENOMEM
    mine.post_send(SendWR(3, ah=ah))


def test_posting_a_list_stops_at_the_first_request_without_a_free_slot(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(max_send_wr=4)
    wrs = [SendWR(i, WRITE, sg=[a.mem.sge(0, 1)], remote=b.mem.remote(0, 1)) for i in range(6)]
    with pytest.raises(OSError) as e:
        a.qp.post_send(wrs)
    assert e.value.errno == errno.ENOMEM and e.value.bad_wr is wrs[4]
    assert [w.wr_id for w in poll(a.scq, 4)] == [0, 1, 2, 3]


def test_with_sq_sig_all_every_unsignaled_request_completes_and_frees_its_slot(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(max_send_wr=2, sig_all=True)
    b.qp.post_recv([RecvWR(i) for i in range(20)])
    for i in range(20):
        kind = (SEND, WRITE, READ)[i % 3]
        remote = None if kind == SEND else b.mem.remote(0, 4)
        a.post(kind, i, length=0 if kind == SEND else 4, remote=remote, flags=SILENT)
        assert [w.wr_id for w in poll(a.scq)] == [i]


def test_a_receive_keeps_its_slot_until_its_completion_is_polled(rig: Rig) -> None:
    pair = Pair(rig, max_recv_wr=4)
    pair.b.post_recv([RecvWR(i) for i in range(4)])
    for _ in range(3):
        pair.a.post_send(SendWR(1, ah=pair.to_b))
    assert poll(pair.rcq)[0].wr_id == 0
    poll(pair.scq, 3)
    pair.b.post_recv(RecvWR(4))
    assert errno_raised_by(pair.b.post_recv, RecvWR(5)) == errno.ENOMEM
    assert [w.wr_id for w in poll(pair.rcq, 2)] == [1, 2]
    pair.b.post_recv([RecvWR(5), RecvWR(6)])
    assert errno_raised_by(pair.b.post_recv, RecvWR(7)) == errno.ENOMEM


def test_flushed_requests_keep_their_slots_until_they_are_polled(rig: Rig) -> None:
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, max_send_wr=4, max_recv_wr=4)
    ah = rig.create_ah(qp)
    qp.post_recv([RecvWR(i) for i in range(4)])
    qp.modify(QPAttr(qp_state=QPState.ERR))
    assert errno_raised_by(qp.post_recv, RecvWR(4)) == errno.ENOMEM
    assert [w.wr_id for w in poll(cq, 4)] == [0, 1, 2, 3]
    qp.post_recv([RecvWR(i) for i in range(4)])
    for i in range(4):
        qp.post_send(SendWR(10 + i, ah=ah, send_flags=SILENT))
    assert errno_raised_by(qp.post_send, SendWR(14, ah=ah)) == errno.ENOMEM
    assert [w.status for w in poll(cq, 8)] == [WCStatus.WR_FLUSH_ERR] * 8


def fill_work_queues(qp: QP, ah: object, n: int) -> None:
    qp.post_recv([RecvWR(i) for i in range(n)])
    for i in range(n):
        qp.post_send(SendWR(i, ah=ah))  # type: ignore[arg-type]


def test_reset_frees_every_slot_and_removes_earlier_completions(rig: Rig) -> None:
    cq = rig.create_cq(64)
    qp = rig.create_ud_qp(cq, max_send_wr=4, max_recv_wr=4)
    elsewhere = rig.create_ah(("127.0.0.1", 9))
    for _ in range(3):
        fill_work_queues(qp, elsewhere, 4)
        assert errno_raised_by(qp.post_send, SendWR(9, ah=elsewhere)) == errno.ENOMEM
        qp.modify(QPAttr(qp_state=QPState.RESET))
        qp.to_rts()
    assert cq.poll(64) == []
    fill_work_queues(qp, elsewhere, 4)
    assert errno_raised_by(qp.post_send, SendWR(9, ah=elsewhere)) == errno.ENOMEM
    assert errno_raised_by(qp.post_recv, RecvWR(9)) == errno.ENOMEM
    assert [w.wr_id for w in poll(cq, 4)] == [0, 1, 2, 3]
    qp.post_send([SendWR(i, ah=elsewhere) for i in range(4)])


def test_polling_the_flushed_receives_of_an_ended_connection_frees_their_slots(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(max_send_wr=4, max_recv_wr=4)
    for end in (a, b):
        end.qp.post_recv([RecvWR(i) for i in range(4)])
    a.id.disconnect()
    for end in (a, b):
        end.wait_for_error_state()
        assert [w.status for w in poll(end.rcq, 4)] == [WCStatus.WR_FLUSH_ERR] * 4
        end.qp.post_recv([RecvWR(i) for i in range(4)])
        assert errno_raised_by(end.qp.post_recv, RecvWR(9)) == errno.ENOMEM
        assert len(poll(end.rcq, 4)) == 4


def test_the_receive_of_a_partly_received_send_is_flushed_and_its_slot_freed(
    two_device_connector: ListenerAndConnector,
) -> None:
    """A Send that was received only in part has consumed a receive, whose slot is freed too."""
    a, b = two_device_connector.connect(size=1 << 22, max_recv_wr=2)
    for i in range(2):
        b.qp.post_recv(RecvWR(i, sg=[b.mem.sge()]))
    a.post(SEND, 1, length=1 << 22)
    end_connection_by_error_state(a, b)
    done = poll(b.rcq, 2)
    assert [w.wr_id for w in done] == [0, 1]
    b.qp.post_recv([RecvWR(0), RecvWR(1)])
    assert errno_raised_by(b.qp.post_recv, RecvWR(2)) == errno.ENOMEM


def end_connection_by_error_state(a: End, b: End) -> None:
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    a.wait_for_error_state()
    b.wait_for_error_state()
