"""RD queue pairs that are closed: completed and transmitted requests reach their peers."""

from __future__ import annotations

import net
import pytest
from harness.rd_harness import Peer
from harness.rd_stranger import Stranger, scripted_peer
from harness.verbs_harness import (
    Rig,
    assert_no_completion,
    octet_pattern,
    temporary_settings,
    wait_until,
)

from siwarp.inspect.rd import RDDatagram, RDFlag, RDReason, RDType
from siwarp.verbs import WROpcode

PATIENT = 60_000  # ms: linger time of tests that do not test its end
#: ms: linger time on a lossy line, where one end may exit before the other one has its answer; the
#: other one then lingers for this time.
LOSSY = 5000


def bye_to(s: Stranger) -> RDDatagram:
    """Wait for a BYE."""
    while True:
        d = s.process_datagram()
        if d.type == RDType.BYE:
            return d


def answer(s: Stranger) -> None:
    s.send_datagram(RDType.BYE, rd_flags=int(RDFlag.ANSWER))


@pytest.mark.clause("DGRAM-BYE-3")
def test_a_bye_is_repeated_until_it_is_answered(rig: Rig) -> None:
    with temporary_settings(linger_ms=PATIENT):
        a = Peer(rig)
        a.post_receive()
        with scripted_peer(a) as s:
            s.send_and_wait(s.build_untagged(3, b"taken"))
            a.poll_receives()
            a.qp.close()
            said = [bytes(bye_to(s)) for _ in range(4)]
            assert len(set(said)) == 1
            bye = RDDatagram(said[0])
            assert (bye.ird, bye.rd_flags, bye.acknowledged) == (RDReason.CLOSED, 0, s.psn[0])
            answer(s)
            began = net.now()
            rig.close()  # closing the device waits for peers that have not answered its BYE
            assert net.now() - began < 1


@pytest.mark.clause("DGRAM-BYE-3")
def test_what_comes_of_a_pair_that_is_over_is_answered_by_its_bye(rig: Rig) -> None:
    with temporary_settings(linger_ms=PATIENT):
        a = Peer(rig)
        a.post_receive()
        with scripted_peer(a) as s:
            s.send_and_wait(s.build_untagged(3, b"taken"))
            a.poll_receives()
            a.qp.close()
            bye_to(s)
            s.send_datagram(RDType.PROBE)
            again = bye_to(s)
            assert (again.ird, again.acknowledged) == (RDReason.CLOSED, s.psn[0])
            # The peer's own BYE, which crossed ours, is answered, too, and counts as an answer
            # itself.
            s.send_datagram(RDType.BYE)
            wait_until(lambda: bye_to(s).rd_flags & RDFlag.ANSWER)
            rig.close()


@pytest.mark.clause("DGRAM-BYE-3")
def test_a_peer_that_never_answers_is_waited_for_as_long_as_linger_says(rig: Rig) -> None:
    with temporary_settings(linger_ms=300):
        a = Peer(rig)
        with scripted_peer(a) as s:
            a.qp.close()
            began = net.now()
            rig.close()
            took = net.now() - began
            bye_to(s)
    assert 0.3 <= took < 0.31


@pytest.mark.clause("DGRAM-BYE-1", "DGRAM-BYE-3")
@pytest.mark.parametrize("size", [4, 100_000])
def test_what_was_received_before_a_close_is_a_success_at_its_sender_over_a_lossy_line(
    rig: Rig, size: int
) -> None:
    with temporary_settings(linger_ms=LOSSY), net.apply_fault_plan("tx:loss=30%,seed=11"):
        for _ in range(4):
            a, b = Peer(rig, 1 << 17), Peer(rig, 1 << 17)
            b.post_receive()
            a.send(b, octet_pattern(size))
            assert b.poll_receives()[0].ok
            b.qp.close()
            assert a.poll_sends()[0].ok
            a.qp.close()


@pytest.mark.clause("DGRAM-BYE-4")
def test_a_response_that_was_sent_reaches_its_peer_before_the_bye(rig: Rig) -> None:
    with temporary_settings(linger_ms=PATIENT):
        a = Peer(rig)
        a.into.view[:] = octet_pattern(1 << 16)
        with scripted_peer(a) as s:
            s.keeps = lambda _head: True
            s.send_and_wait(s.build_read_request(1000))
            _, octets = s.receive_segment()
            a.qp.close()
            assert len(octets) == 1000
            # the endpoint retransmits the data, and sends no BYE before it
            while (d := s.process_datagram()).type != RDType.DATA:
                assert d.type == RDType.ACK
            s.acknowledge_kept()
            assert bye_to(s).ird == RDReason.CLOSED
            answer(s)


@pytest.mark.clause("DGRAM-BYE-4")
@pytest.mark.parametrize("size", [8, 100_000])
def test_a_read_is_answered_over_a_lossy_line_by_who_closes_then(rig: Rig, size: int) -> None:
    with temporary_settings(linger_ms=LOSSY), net.apply_fault_plan("tx:loss=30%,seed=5"):
        for i in range(3):
            a, b = Peer(rig, 1 << 17), Peer(rig, 1 << 17)
            b.into.view[:size] = octet_pattern(size, i)
            b.post_receive()
            a.post_rdma(b, WROpcode.RDMA_READ, size)
            a.send(b, b"close", 9, offset=size)
            assert b.poll_receives()[
                0
            ].ok  # so the Read before it has been answered, from b's point of view
            b.qp.close()
            assert [w.ok for w in a.poll_sends(2)] == [True, True]
            assert a.out.read(size) == octet_pattern(size, i)
            a.qp.close()


@pytest.mark.clause("DGRAM-BYE-4")
def test_a_peer_that_is_not_ready_is_not_waited_for(rig: Rig) -> None:
    with temporary_settings(linger_ms=PATIENT):
        a, b = Peer(rig), Peer(rig)
        a.send(b, b"no receive is posted for it")
        wait_until(lambda: a.qp.waits())
        a.qp.close()
        # wait until the BYE of a has arrived
        wait_until(lambda: b.rcq.poll(1) == [] and not b.qp.waits())
        b.post_receive()
        assert_no_completion(b.rcq)


def test_the_port_of_an_endpoint_that_still_says_bye_is_free_for_the_next(rig: Rig) -> None:
    with temporary_settings(linger_ms=PATIENT):
        a = Peer(rig)
        with scripted_peer(a) as s:
            where = a.qp.addr
            a.qp.close()
            bye_to(s)
            b = Peer(rig, host=where[0], port=where[1])
            assert b.qp.addr == where
            b.post_receive()
            c = Peer(rig)
            c.send(b, b"served")
            assert c.poll_sends()[0].ok and b.poll_receives()[0].byte_len == 6
