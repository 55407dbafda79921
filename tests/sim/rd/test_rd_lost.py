"""RD queue pairs whose peers exit, restart or become silent, and RD over an unreliable network."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.rd_harness import QKEY, RDEnd, check_send_to_receiver_that_closes
from harness.rd_stranger import scripted_peer
from harness.verbs_harness import (
    Rig,
    assert_no_completion,
    counter_value,
    octet_pattern,
    wait_until,
)

from siwarp.inspect.rd import RDType
from siwarp.verbs import AH, PeerGone, QPAttr, QPState, SendWR, WCStatus, WROpcode

SEND = 3  # the RDMAP opcode of a Send
OTHER_HOST = "10.0.0.2"


@pytest.mark.clause("DGRAM-BYE-1")
@pytest.mark.parametrize("size", [4, 5000, 300_000])
def test_a_send_received_before_the_receiver_closes_succeeds_at_the_sender(
    rig: Rig, size: int
) -> None:
    for _ in range(12):
        check_send_to_receiver_that_closes(rig, size, 1 << 19)


@pytest.fixture
def other_host_rig() -> Iterator[Rig]:
    """A device on another host, which a test may crash."""
    net.open_udp_socket(OTHER_HOST).close()
    made = Rig(OTHER_HOST)
    yield made
    made.close()


@pytest.mark.clause("DGRAM-RDV-2", "DGRAM-RDV-10")
def test_a_killed_peer_is_reported_and_requests_to_another_peer_complete(
    rig: Rig, other_host_rig: Rig
) -> None:
    a, b = RDEnd(rig, peer_timeout=1.0), RDEnd(rig)
    p = RDEnd(other_host_rig, host=OTHER_HOST)
    p.post_receive()
    where = p.qp.addr
    with AH(rig.pd, where) as ah:
        a.qp.post_send(SendWR(1, sg=[a.out.sge(0, 4)], ah=ah))
        assert a.poll_sends()[0].ok
        net.current_simulated_world().crash(OTHER_HOST)
        began = net.now()
        for i in range(3):
            a.qp.post_send(SendWR(10 + i, sg=[a.out.sge(0, 4)], ah=ah))
        for i in range(20):
            b.post_receive(i, 64)
            a.send(b, b"on", 100 + i, offset=64)
        found = {w.wr_id: w for w in a.poll_sends(23)}
    assert net.now() - began <= 1.2
    assert all(found[100 + i].ok for i in range(20))
    assert [found[10 + i].status for i in range(3)] == [
        WCStatus.RETRY_EXC_ERR,
        WCStatus.WR_FLUSH_ERR,
        WCStatus.WR_FLUSH_ERR,
    ]
    assert {found[10 + i].source for i in range(3)} == {where}
    assert len(b.poll_receives(20)) == 20
    assert a.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-RDV-11")
def test_requests_unacknowledged_by_a_restarted_peer_are_flushed_with_its_address(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    with scripted_peer(a) as s:
        ah = AH(rig.pd, s.addr)
        s.keeps = lambda _head: True
        for i in range(3):
            a.qp.post_send(SendWR(i, sg=[a.out.sge(0, 4)], ah=ah))
        for _ in range(3):
            s.receive_segment()
        assert_no_completion(a.scq)
        s.restart_and_connect()
        flushed = WCStatus.WR_FLUSH_ERR
        assert [(w.wr_id, w.status, w.source) for w in a.poll_sends(3)] == [
            (i, flushed, s.addr) for i in range(3)
        ]
        a.qp.post_send(SendWR(9, sg=[a.out.sge(0, 4)], ah=ah))
        assert s.receive_segment()[0].msn == 1
        b.post_receive()
        a.send(b, b"another", 10, offset=64)
        assert sorted(w.wr_id for w in a.poll_sends(2) if w.ok) == [9, 10]


@pytest.mark.clause("DGRAM-RDV-1", "DGRAM-RDV-4", "DGRAM-RDV-11")
@pytest.mark.parametrize("how", ["lives anew", "left"])
def test_requests_that_were_not_started_are_sent_in_the_next_incarnation_of_the_pair(
    rig: Rig, how: str
) -> None:
    a = RDEnd(rig)
    with scripted_peer(a) as s:
        ah = AH(rig.pd, s.addr)
        a.qp.post_send(SendWR(9, sg=[a.out.sge(0, 4)], ah=ah))
        s.receive_segment()
        assert a.poll_sends()[0].ok
        a.qp.modify(QPAttr(qp_state=QPState.SQD))
        for i in range(3):
            a.qp.post_send(SendWR(i, sg=[a.out.sge(0, 4 + i)], ah=ah))
        assert_no_completion(a.scq)
        if how == "lives anew":
            s.restart_and_connect()
        else:
            s.send_datagram(RDType.BYE)
            s.epoch += 0x1000
            s.psn = [s.epoch, s.epoch]
        assert_no_completion(a.scq)
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        got = [s.receive_segment() for _ in range(3)]
        assert [(head.msn, len(octets)) for head, octets in got] == [(1, 4), (2, 5), (3, 6)]
        assert [(w.wr_id, w.ok) for w in a.poll_sends(3)] == [(0, True), (1, True), (2, True)]


@pytest.mark.clause("DGRAM-RDV-10")
def test_requests_reach_a_queue_pair_that_was_reset_at_the_same_port(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    b.post_receive()
    a.send(b, b"one")
    assert a.poll_sends()[0].ok and b.poll_receives()[0].ok
    a.send(b, b"in doubt", 7)  # the Send waits at the receiver, where no receive is posted
    assert_no_completion(a.scq, 0.02)
    for step in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS):
        b.qp.modify(QPAttr(qp_state=step, qkey=QKEY if step == QPState.INIT else None))
    (lost,) = a.poll_sends()
    # The peer announced the end of its incarnation, so siwarp reports the peer as gone.
    assert (lost.wr_id, lost.status, lost.source) == (7, WCStatus.RETRY_EXC_ERR, b.qp.addr)
    b.post_receive(2)
    a.send(b, b"two", 8)
    assert a.poll_sends()[0].ok
    assert b.poll_receives()[0].byte_len == 3


@pytest.mark.clause("DGRAM-RDV-6")
def test_a_receive_that_an_aborted_message_filled_partly_is_used_for_the_next_message(
    rig: Rig,
) -> None:
    a, b, c = RDEnd(rig, 1 << 22), RDEnd(rig, 1 << 22), RDEnd(rig)
    b.post_receive(1)
    b.post_receive(2)
    # The rate is low enough to stop the sender in the middle of the message.
    with net.apply_fault_plan("rate=20Mbit"):
        a.send(b, octet_pattern(1 << 22))
        wait_until(lambda: any(b.into.view[:1024]))
        a.qp.modify(QPAttr(qp_state=QPState.ERR))
        assert not a.poll_sends()[0].ok
    assert_no_completion(b.rcq, 0.02)  # b learns meanwhile that the message was aborted
    c.send(b, b"whole")
    got = b.poll_receives()[0]
    assert (got.wr_id, got.byte_len, got.source) == (1, 5, c.qp.addr)
    assert b.into.read(5) == b"whole"


@pytest.mark.clause("DGRAM-RD-34", "DGRAM-RDV-6")
def test_the_receive_of_a_message_whose_sender_was_killed_is_used_for_another_message(
    rig: Rig, other_host_rig: Rig
) -> None:
    limit = 1.0
    b, c = RDEnd(rig, 1 << 22, peer_timeout=limit), RDEnd(rig)
    b.post_receive(1)
    b.post_receive(2)
    gone = counter_value("rd_gone")
    p = RDEnd(other_host_rig, 1 << 22, host=OTHER_HOST)
    p.out.view[:] = bytes([1]) * (1 << 22)
    net.current_simulated_world().link(OTHER_HOST, net.HERE, "rate=40Mbit")
    p.qp.post_send(SendWR(1, sg=[p.out.sge(0, 1 << 22)], ah=AH(other_host_rig.pd, b.qp.addr)))
    wait_until(lambda: any(b.into.view[:1024]))
    net.current_simulated_world().crash(OTHER_HOST)
    began = net.now()
    c.send(b, b"whole")
    assert b.poll_receives()[0].wr_id == 2
    # The loss of the dead peer is detected without transmissions to the peer, because its
    # message remains incomplete.
    wait_until(lambda: assert_no_completion(b.rcq, 0.005) or counter_value("rd_gone") > gone)
    assert 0.8 * limit <= net.now() - began <= 1.2 * limit
    c.send(b, b"again")
    assert b.poll_receives()[0].wr_id == 1


def test_rd_requests_complete_intact_over_an_unreliable_network(rig: Rig) -> None:
    a, b = RDEnd(rig, 1 << 20), RDEnd(rig, 1 << 20)
    with net.apply_fault_plan("loss=10%,dup=5%,reorder=10%,corrupt=0.1%,seed=5"):
        for i in range(40):
            b.post_receive(i, 20_000, 20_000 * i)
            a.send(b, octet_pattern(500 * i, i), i, offset=20_000 * i)
        assert [w.wr_id for w in a.poll_sends(40)] == list(range(40))
        assert [(w.wr_id, w.byte_len) for w in b.poll_receives(40)] == [
            (i, 500 * i) for i in range(40)
        ]
        a.out.view[:] = octet_pattern(1 << 20, 3)
        a.post_rdma(b, WROpcode.RDMA_WRITE, 1 << 20)
        assert a.poll_sends()[0].ok
        assert b.into.read(1 << 20) == octet_pattern(1 << 20, 3)
        b.into.view[:] = octet_pattern(1 << 20, 4)
        a.post_rdma(b, WROpcode.RDMA_READ, 1 << 20)
        assert a.poll_sends()[0].ok
        assert a.out.read(1 << 20) == octet_pattern(1 << 20, 4)


@pytest.mark.clause("DGRAM-RDV-10")
@pytest.mark.parametrize("amid", ["held", "send", "write", "read"])
def test_closing_an_rd_queue_pair_during_a_message_fails_the_message_at_its_peer(
    rig: Rig, amid: str
) -> None:
    size = 1 << 22
    a, b, c = RDEnd(rig, size, peer_timeout=0.5), RDEnd(rig, size), RDEnd(rig)
    where = b.qp.addr
    # The rate is low enough to stop the transfer in the middle, even on a busy machine.
    with net.apply_fault_plan("rate=20Mbit"):
        if amid == "held":
            a.send(b, b"nobody posts a receive")
        elif amid == "send":
            b.post_receive()
            a.send(b, bytes(size))
        else:
            a.post_rdma(b, WROpcode.RDMA_WRITE if amid == "write" else WROpcode.RDMA_READ, size)
        assert_no_completion(a.scq, 0.05)
        b.qp.close()
        (lost,) = a.poll_sends()
    assert (lost.status, lost.source) == (WCStatus.RETRY_EXC_ERR, where)
    with pytest.raises(PeerGone, match="has closed or did not answer in time"):
        lost.check()
    c.post_receive()
    a.send(c, b"on")
    assert a.poll_sends()[0].ok and c.poll_receives()[0].byte_len == 2
    assert a.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-RD-20", "DGRAM-RDV-5")
def test_a_silent_peer_without_credit_is_acknowledged_a_limited_number_of_times(
    rig: Rig,
) -> None:
    a = RDEnd(rig)
    with scripted_peer(a) as s:
        # Of 71 datagrams the first is a Read Request without credit for the response, 69 are Sends
        # without a receive, and the last follows a long gap, so that every ACK contains a range.
        s.send_datagram(RDType.DATA, body=s.build_read_request(64), credit=0)
        s.psn[0] += 1
        for i in range(69):
            s.send_datagram(
                RDType.DATA, psn=s.psn[0] + i, body=s.build_untagged(SEND, b"held"), credit=0
            )
        s.send_datagram(
            RDType.DATA, psn=s.psn[0] + 4000, body=s.build_untagged(SEND, b"far"), credit=0
        )
        before = counter_value("rd_acks")
        assert_no_completion(a.rcq, 2.0)
        assert counter_value("rd_acks") - before <= 71
        before = counter_value("rd_acks")
        assert_no_completion(a.rcq, 1.0)
        assert counter_value("rd_acks") == before
