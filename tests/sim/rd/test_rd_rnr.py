"""RD: the reports about a message without a receive, and the time that the message may wait."""

from __future__ import annotations

import net
import pytest
from harness.rd_harness import QKEY, RDEnd
from harness.rd_stranger import scripted_peer
from harness.verbs_harness import Rig, assert_no_completion, counter_value, wait_until

from siwarp.inspect import Opcode
from siwarp.inspect.rd import RDFlag, RDReason, RDType, make_ack_body
from siwarp.verbs import AH, QPAttr, QPState, SendWR, WCStatus, WROpcode


def create_rd_end_with_rnr_attributes(rig: Rig, retry: int = 7, timer: int = 12) -> RDEnd:
    return RDEnd(rig, attr=QPAttr(qkey=QKEY, rnr_retry=retry, min_rnr_timer=timer))


@pytest.mark.clause("DGRAM-RDV-19")
@pytest.mark.parametrize("timer", [0, 1, 12, 31])
def test_an_ack_reports_a_missing_receive_with_the_rnr_timer_of_the_receiver(
    rig: Rig, timer: int
) -> None:
    a = create_rd_end_with_rnr_attributes(rig, timer=timer)
    with scripted_peer(a) as s:
        s.send_datagram(RDType.PROBE)
        ready = s.receive_and_answer_datagram()
        assert (int(ready.rd_flags), ready.rnr_timer) == (RDFlag.PROBED, 0)
        s.send_segment(s.build_untagged(Opcode.SEND, b"held"))
        told = s.receive_and_answer_datagram()
        while told.type != RDType.ACK or not told.rd_flags & RDFlag.NOT_READY:
            told = s.receive_and_answer_datagram()
        assert told.rnr_timer == timer and told.acknowledged == s.epoch
        assert told.received() == {s.epoch}  # the segment has arrived, but is not accepted
        s.send_datagram(RDType.PROBE)
        assert int(s.receive_and_answer_datagram().rd_flags) == RDFlag.PROBED | RDFlag.NOT_READY
        a.post_receive()
        assert a.poll_receives()[0].ok
        s.wait_for_acknowledgement()
        s.send_datagram(RDType.PROBE)
        assert not s.receive_and_answer_datagram().rd_flags & RDFlag.NOT_READY


@pytest.mark.clause("DGRAM-RDV-20")
def test_by_default_an_rd_send_waits_without_limit_for_a_receive(rig: Rig) -> None:
    a, b = RDEnd(rig), create_rd_end_with_rnr_attributes(rig, timer=1)
    before = counter_value("rd_not_ready")
    a.send(b, b"patient")
    assert_no_completion(a.scq, 2.0)
    assert counter_value("rd_not_ready") == before + 1
    (here,), (there,) = b.qp.waits(), a.qp.waits()
    assert (here.peer, here.here) == (a.qp.addr, True)
    assert (there.peer, there.here) == (b.qp.addr, False)
    assert 1.0 < here.seconds < 30 and 1.0 < there.seconds < 30
    b.post_receive()
    assert a.poll_sends()[0].ok and b.poll_receives()[0].ok
    assert wait_until(lambda: not a.qp.waits() and not b.qp.waits())


@pytest.mark.clause("DGRAM-RDV-20", "DGRAM-RDV-10")
@pytest.mark.parametrize(("retry", "timer", "least"), [(0, 31, 0.0), (3, 1, 0.0), (2, 0, 1.3)])
def test_an_rd_send_that_exhausts_its_rnr_retries_ends_the_incarnation(
    rig: Rig, retry: int, timer: int, least: float
) -> None:
    a, b, c = (
        create_rd_end_with_rnr_attributes(rig, retry=retry),
        create_rd_end_with_rnr_attributes(rig, timer=timer),
        RDEnd(rig),
    )
    # with a limit of 0, the first message may fail before the second message is posted
    several = least > 0
    before, began = counter_value("rnr_expired"), net.now()
    c.post_receive()
    a.send(b, b"one", 1)
    if several:
        a.send(b, b"two", 2)
    one, *behind = a.poll_sends(1 + several)
    assert net.now() - began >= least
    assert (one.wr_id, one.status, one.source) == (1, WCStatus.RNR_RETRY_EXC_ERR, b.qp.addr)
    assert [(w.wr_id, w.status) for w in behind] == [(2, WCStatus.WR_FLUSH_ERR)] * several
    assert counter_value("rnr_expired") == before + 1 and a.qp.qp_state == QPState.RTS
    a.send(c, b"others go on", 3)
    assert a.poll_sends()[0].ok and c.poll_receives()[0].ok
    assert wait_until(lambda: not b.qp.waits())
    b.post_receive(7)
    a.send(b, b"and to it again", 4)
    assert a.poll_sends()[0].ok and b.poll_receives()[0].wr_id == 7


@pytest.mark.clause("DGRAM-RDV-20")
def test_an_rd_send_completes_if_a_receive_is_posted_within_the_rnr_time(rig: Rig) -> None:
    a, b = (
        create_rd_end_with_rnr_attributes(rig, retry=6),
        create_rd_end_with_rnr_attributes(rig, timer=0),
    )  # the Send may wait 6 times 0.65 s
    for _ in range(3):
        a.send(b, b"soon")
        assert_no_completion(a.scq, 0.3)
        b.post_receive()
        assert a.poll_sends()[0].ok and b.poll_receives()[0].ok


@pytest.mark.clause("DGRAM-RDV-20")
def test_an_endpoint_without_rnr_retries_sends_a_bye_with_reason_not_ready(rig: Rig) -> None:
    a = create_rd_end_with_rnr_attributes(rig, retry=0)
    with scripted_peer(a, connect=False) as s:
        s.keeps = lambda head: head.opcode == Opcode.SEND
        a.qp.post_send(SendWR(1, sg=[a.out.sge(0, 4)], ah=AH(rig.pd, s.addr)))
        wait_until(lambda: s.receive_and_answer_datagram().type == RDType.DATA)
        first = s.last[0] - 1
        s.send_datagram(
            RDType.ACK,
            rd_flags=int(RDFlag.NOT_READY),
            body=make_ack_body(first, [first], rnr_timer=12),
        )
        bye = s.receive_and_answer_datagram()
        while bye.type != RDType.BYE:
            bye = s.receive_and_answer_datagram()
        assert (bye.ird, bye.source_epoch) == (RDReason.NOT_READY, s.other)
    assert a.poll_sends()[0].status == WCStatus.RNR_RETRY_EXC_ERR


@pytest.mark.clause("DGRAM-RDV-20", "DGRAM-RDV-17")
def test_a_read_by_a_peer_that_is_not_ready_is_answered(rig: Rig) -> None:
    a, b = (
        create_rd_end_with_rnr_attributes(rig, retry=6),
        create_rd_end_with_rnr_attributes(rig, timer=0),
    )
    a.send(b, b"held")
    assert_no_completion(a.scq, 0.05)
    b.post_rdma(a, WROpcode.RDMA_READ, 64, 5)
    assert b.poll_sends()[0].ok
    assert_no_completion(a.scq, 0.05)
    b.post_receive()
    assert a.poll_sends()[0].ok
