"""UD queue pairs that are reset, moved to an error state or destroyed."""

from __future__ import annotations

from harness.verbs_harness import (
    Pair,
    Rig,
    assert_counter_grows,
    assert_no_completion,
    poll,
)

from siwarp.verbs import (
    QPAttr,
    QPState,
    RecvWR,
    SendWR,
    WCStatus,
)


def test_a_ud_queue_pair_in_err_flushes_posted_receives_in_order_and_later_posts(
    pair: Pair,
) -> None:
    for i in range(5):
        pair.post_receive(wr_id=i)
    pair.b.modify(QPAttr(qp_state=QPState.ERR))
    flushed = poll(pair.rcq, 5)
    assert [(w.wr_id, w.status) for w in flushed] == [(i, WCStatus.WR_FLUSH_ERR) for i in range(5)]
    pair.post_receive(wr_id=77)
    assert [(w.wr_id, w.status) for w in poll(pair.rcq)] == [(77, WCStatus.WR_FLUSH_ERR)]
    pair.b.post_send([SendWR(i, ah=pair.to_b, send_flags=0) for i in (5, 6)])
    assert [(w.wr_id, w.status, w.qp_num) for w in poll(pair.idle, 2)] == [
        (i, WCStatus.WR_FLUSH_ERR, pair.b.qp_num) for i in (5, 6)
    ]
    assert_no_completion(pair.rcq)
    assert_no_completion(pair.idle)


def test_a_ud_queue_pair_in_err_receives_nothing_and_works_again_after_reset(pair: Pair) -> None:
    pair.b.modify(QPAttr(qp_state=QPState.ERR))
    pair.send(b"lost")
    assert_no_completion(pair.rcq)
    number = pair.b.qp_num
    pair.b.modify(QPAttr(qp_state=QPState.RESET))
    pair.b.to_rts()
    assert pair.b.qp_num == number
    pair.post_receive(wr_id=4)
    pair.send(b"found")
    assert [(w.wr_id, w.ok) for w in poll(pair.rcq)] == [(4, True)]
    assert pair.into.read(5) == b"found"


def test_reset_discards_posted_receives_without_completions(pair: Pair) -> None:
    for i in range(3):
        pair.post_receive(wr_id=i)
    pair.b.modify(QPAttr(qp_state=QPState.RESET))
    assert_no_completion(pair.rcq)
    pair.b.to_rts()
    with assert_counter_grows("drop_no_buffer", 1):
        pair.send(b"x")
        assert_no_completion(pair.rcq)


def test_a_message_that_arrives_before_rtr_consumes_no_receive(pair: Pair) -> None:
    cq = pair.rig.create_cq()
    late = pair.rig.create_qp(cq)
    late.to_init()
    late.post_recv(RecvWR(1, sg=[pair.into.sge(0, 8)]))
    to = pair.rig.create_ah(late)
    pair.out.write(b"early")
    pair.a.post_send(SendWR(1, sg=[pair.out.sge(0, 5)], ah=to))
    assert_no_completion(cq)
    late.to_rtr()
    pair.out.write(b"later")
    pair.a.post_send(SendWR(1, sg=[pair.out.sge(0, 5)], ah=to))
    assert poll(cq)[0].ok and pair.into.read(5) in (b"early", b"later")


def test_closing_a_queue_pair_removes_only_its_own_completions(rig: Rig) -> None:
    cq = rig.create_cq()
    mr = rig.reg_mr(bytearray(8))
    a, b = rig.create_ud_qp(cq), rig.create_ud_qp(cq)
    a_ah, b_ah = rig.create_ah(a), rig.create_ah(b)
    for i in range(3):
        a.post_send(SendWR(10 + i, sg=[mr.sge()], ah=b_ah))
        b.post_send(SendWR(20 + i, sg=[mr.sge()], ah=a_ah))
    a.close()
    assert [w.wr_id for w in poll(cq, 3)] == [20, 21, 22]
    assert_no_completion(cq)
