"""RD peers whose port is taken over by another process, and peers that restart repeatedly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.rd_harness import QKEY, RDEnd
from harness.rd_stranger import ScriptedRDPeer, scripted_peer
from harness.verbs_harness import (
    Rig,
    assert_no_completion,
    counter_value,
    octet_pattern,
    temporary_settings,
    wait_until,
)

from siwarp.inspect.rd import RDType
from siwarp.verbs import (
    AH,
    Error,
    EventType,
    PeerRestart,
    QPAttr,
    QPState,
    SendWR,
    WCStatus,
)

FLUSHED = WCStatus.WR_FLUSH_ERR


@pytest.fixture
def enable_rd_follow_restart() -> Iterator[None]:
    """Set rd_follow_restart: requests are sent to the process that takes over a peer's address."""
    with temporary_settings(rd_follow_restart=1):
        yield


def receive_restart_event(rig: Rig, end: RDEnd) -> list[PeerRestart]:
    """Receive the event PEER_RESTARTED, and return the restarts that the queue pair reports."""
    event = rig.ctx.get_async_event(10)
    assert event is not None
    with event:
        assert (event.event_type, event.element) == (EventType.PEER_RESTARTED, end.qp)
    return end.qp.restarts()


def exchange_first_message(a: RDEnd, s: ScriptedRDPeer, ah: AH) -> None:
    """Establish an incarnation between ``a`` and the scripted peer by one message."""
    a.qp.post_send(SendWR(9, sg=[a.out.sge(0, 4)], ah=ah))
    s.receive_segment()
    assert a.poll_sends()[0].ok


def post_while_drained(a: RDEnd, ah: AH) -> None:
    """Post three requests while the send queue is drained, so that the requests are not started."""
    a.qp.modify(QPAttr(qp_state=QPState.SQD))
    for i in range(3):
        a.qp.post_send(SendWR(i, sg=[a.out.sge(0, 4 + i)], ah=ah))
    assert_no_completion(a.scq)


@pytest.mark.clause("DGRAM-INST-3", "DGRAM-INST-4")
@pytest.mark.parametrize(
    ("begins", "left"), [("peer", False), ("peer", True), ("queue pair", True)]
)
def test_requests_that_were_not_started_are_flushed_when_another_instance_appears(
    rig: Rig, begins: str, left: bool
) -> None:
    a = RDEnd(rig)
    with scripted_peer(a, instance=1) as s, AH(rig.pd, s.addr) as ah:
        exchange_first_message(a, s, ah)
        post_while_drained(a, ah)
        if left:
            s.send_datagram(RDType.BYE)
            assert_no_completion(a.scq)
        s.restart(2)
        if begins == "peer":
            s.connect()
            assert [(w.wr_id, w.status, w.source) for w in a.poll_sends(3)] == [
                (i, FLUSHED, s.addr) for i in range(3)
            ]
            a.qp.modify(QPAttr(qp_state=QPState.RTS))
        else:
            a.qp.modify(QPAttr(qp_state=QPState.RTS))
            wait_until(lambda: s.receive_and_answer_datagram().type == RDType.HELLO)
            assert [(w.wr_id, w.status) for w in a.poll_sends(3)] == [
                (i, FLUSHED) for i in range(3)
            ]
        assert receive_restart_event(rig, a) == [PeerRestart(s.addr, 2)]
        a.qp.post_send(SendWR(7, sg=[a.out.sge(0, 20)], ah=ah))
        head, octets = s.receive_segment()
        assert (head.msn, len(octets)) == (1, 20) and not s.receives_segment_within()
        assert a.poll_sends()[0].ok


@pytest.mark.clause("DGRAM-INST-5")
@pytest.mark.parametrize("how", ["lives anew", "left"])
@pytest.mark.parametrize("instance", [0, 5])
def test_requests_are_sent_in_a_new_incarnation_with_the_same_instance(
    rig: Rig, how: str, instance: int
) -> None:
    a = RDEnd(rig)
    before = counter_value("rd_restarted")
    with scripted_peer(a, instance=instance) as s, AH(rig.pd, s.addr) as ah:
        exchange_first_message(a, s, ah)
        post_while_drained(a, ah)
        if how == "left":
            s.send_datagram(RDType.BYE)
            s.restart()
        else:
            s.restart_and_connect()
        assert_no_completion(a.scq)
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        got = [s.receive_segment() for _ in range(3)]
        assert [(head.msn, len(octets)) for head, octets in got] == [(1, 4), (2, 5), (3, 6)]
        assert all(w.ok for w in a.poll_sends(3))
    assert counter_value("rd_restarted") == before and a.qp.restarts() == []


@pytest.mark.clause("DGRAM-INST-5")
@pytest.mark.parametrize("begins", ["peer", "queue pair"])
@pytest.mark.usefixtures("enable_rd_follow_restart")
def test_with_rd_follow_restart_requests_are_sent_to_another_instance(
    rig: Rig, begins: str
) -> None:
    a = RDEnd(rig)
    with scripted_peer(a, instance=1) as s, AH(rig.pd, s.addr) as ah:
        exchange_first_message(a, s, ah)
        post_while_drained(a, ah)
        if begins == "peer":
            s.restart_and_connect(2)
        else:
            s.send_datagram(RDType.BYE)
            s.restart(2)
        assert_no_completion(a.scq)
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        assert [len(s.receive_segment()[1]) for _ in range(3)] == [4, 5, 6]
        assert all(w.ok for w in a.poll_sends(3))
        assert receive_restart_event(rig, a) == [PeerRestart(s.addr, 2)]


@pytest.mark.clause("DGRAM-INST-2")
@pytest.mark.parametrize(("first", "then", "moves"), [(0, 1, True), (1, 0, False)])
def test_a_peer_that_first_states_its_instance_is_the_same_but_without_it_is_another(
    rig: Rig, first: int, then: int, moves: bool
) -> None:
    a = RDEnd(rig)
    with scripted_peer(a, instance=first) as s, AH(rig.pd, s.addr) as ah:
        exchange_first_message(a, s, ah)
        post_while_drained(a, ah)
        s.restart_and_connect(then)
        if moves:
            assert_no_completion(a.scq)
            a.qp.modify(QPAttr(qp_state=QPState.RTS))
            assert [len(s.receive_segment()[1]) for _ in range(3)] == [4, 5, 6]
        else:
            assert receive_restart_event(rig, a) == [PeerRestart(s.addr, 0)]
        assert [w.ok for w in a.poll_sends(3)] == [moves] * 3


@pytest.mark.clause("DGRAM-INST-4")
def test_the_restart_event_is_raised_without_requests_in_progress(rig: Rig) -> None:
    a = RDEnd(rig)
    with scripted_peer(a, instance=1) as s:
        s.restart_and_connect(2)
        assert receive_restart_event(rig, a) == [PeerRestart(s.addr, 2)]
        s.restart_and_connect(2)
        assert_no_completion(a.scq)
        assert a.qp.restarts() == []


@pytest.mark.clause("DGRAM-INST-6")
def test_completions_name_the_instance_of_the_sender(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    with scripted_peer(a, instance=1) as s:
        for instance in (1, 2, 3):
            if instance > 1:
                s.restart_and_connect(instance)
            a.post_receive()
            s.send_and_wait(s.build_untagged(3, b"data"))
            assert [(w.source, w.source_instance) for w in a.poll_receives()] == [
                (s.addr, instance)
            ]
    seen = set()
    for _ in range(2):
        a.post_receive()
        b.send(a, b"data")
        assert b.poll_sends()[0].ok
        seen.add(a.poll_receives()[0].source_instance)
    assert len(seen) == 1 and 0 not in seen
    for step in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS):
        b.qp.modify(QPAttr(qp_state=step, qkey=QKEY if step == QPState.INIT else None))
    a.post_receive()
    b.send(a, b"data")
    # The source instance stays the same, because it is still the same queue pair of one process.
    assert {a.poll_receives()[0].source_instance} == seen
    with scripted_peer(a) as s:
        a.post_receive()
        s.send_and_wait(s.build_untagged(3, b"data"))
        assert a.poll_receives()[0].source_instance == 0


@pytest.mark.clause("DGRAM-INST-7")
def test_a_peer_that_is_another_instance_each_time_does_not_affect_other_peers(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    before = counter_value("rd_restarted")
    with scripted_peer(a, instance=1) as s:
        for i in range(2, 202):
            s.restart_and_connect(i)
            if i % 20 == 0:
                b.post_receive()
                a.send(b, octet_pattern(5000, i))
                assert a.poll_sends()[0].ok
                assert b.poll_receives()[0].byte_len == 5000 and b.into.read(5000) == octet_pattern(
                    5000, i
                )
        wait_until(
            lambda: (
                assert_no_completion(a.scq, 0.01) or counter_value("rd_restarted") == before + 200
            )
        )
        assert receive_restart_event(rig, a) == [PeerRestart(s.addr, 201)]
        assert rig.ctx.get_async_event(0) is None


def test_only_an_rd_queue_pair_reports_restarts(rig: Rig) -> None:
    a, ud = RDEnd(rig), rig.create_qp()
    assert a.qp.restarts() == []
    with pytest.raises(Error, match="RD"):
        ud.restarts()
