"""RD queue pairs that are closed: completed and transmitted requests reach their peers."""

from __future__ import annotations

import net
import pytest
from harness.rd_harness import Peer
from harness.rd_stranger import Stranger, stranger
from harness.verbs_harness import Rig, nothing, pattern, settings, until

from siwarp.inspect.rd import RDDatagram, RDFlag, RDReason, RDType
from siwarp.verbs import WROpcode

PATIENT = 60_000  # ms: linger time of tests that do not test its end
#: ms: linger time on a lossy line, where one end may exit before the other one has its answer; the
#: other one then lingers for this time.
LOSSY = 5000


def bye_to(s: Stranger) -> RDDatagram:
    """Wait for a BYE."""
    while True:
        d = s.take()
        if d.type == RDType.BYE:
            return d


def answer(s: Stranger) -> None:
    s.say(RDType.BYE, rd_flags=int(RDFlag.ANSWER))


@pytest.mark.clause("DGRAM-BYE-3")
def test_a_bye_is_repeated_until_it_is_answered(rig: Rig) -> None:
    with settings(linger_ms=PATIENT):
        a = Peer(rig)
        a.recv()
        with stranger(a) as s:
            s.put(s.untagged(3, b"taken"))
            a.got()
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
    with settings(linger_ms=PATIENT):
        a = Peer(rig)
        a.recv()
        with stranger(a) as s:
            s.put(s.untagged(3, b"taken"))
            a.got()
            a.qp.close()
            bye_to(s)
            s.say(RDType.PROBE)
            again = bye_to(s)
            assert (again.ird, again.acknowledged) == (RDReason.CLOSED, s.psn[0])
            # The peer's own BYE, which crossed ours, is answered, too, and counts as an answer
            # itself.
            s.say(RDType.BYE)
            until(lambda: bye_to(s).rd_flags & RDFlag.ANSWER)
            rig.close()


@pytest.mark.clause("DGRAM-BYE-3")
def test_a_peer_that_never_answers_is_waited_for_as_long_as_linger_says(rig: Rig) -> None:
    with settings(linger_ms=300):
        a = Peer(rig)
        with stranger(a) as s:
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
    with settings(linger_ms=LOSSY), net.apply_fault_plan("tx:loss=30%,seed=11"):
        for _ in range(4):
            a, b = Peer(rig, 1 << 17), Peer(rig, 1 << 17)
            b.recv()
            a.send(b, pattern(size))
            assert b.got()[0].ok
            b.qp.close()
            assert a.done()[0].ok
            a.qp.close()


@pytest.mark.clause("DGRAM-BYE-4")
def test_a_response_that_was_sent_reaches_its_peer_before_the_bye(rig: Rig) -> None:
    with settings(linger_ms=PATIENT):
        a = Peer(rig)
        a.into.view[:] = pattern(1 << 16)
        with stranger(a) as s:
            s.keeps = lambda _head: True
            s.put(s.read(1000))
            _, octets = s.pull()
            a.qp.close()
            assert len(octets) == 1000
            # the endpoint retransmits the data, and sends no BYE before it
            while (d := s.take()).type != RDType.DATA:
                assert d.type == RDType.ACK
            s.release()
            assert bye_to(s).ird == RDReason.CLOSED
            answer(s)


@pytest.mark.clause("DGRAM-BYE-4")
@pytest.mark.parametrize("size", [8, 100_000])
def test_a_read_is_answered_over_a_lossy_line_by_who_closes_then(rig: Rig, size: int) -> None:
    with settings(linger_ms=LOSSY), net.apply_fault_plan("tx:loss=30%,seed=5"):
        for i in range(3):
            a, b = Peer(rig, 1 << 17), Peer(rig, 1 << 17)
            b.into.view[:size] = pattern(size, i)
            b.recv()
            a.rdma(b, WROpcode.RDMA_READ, size)
            a.send(b, b"close", 9, offset=size)
            assert b.got()[0].ok  # so the Read before it has been answered, from b's point of view
            b.qp.close()
            assert [w.ok for w in a.done(2)] == [True, True]
            assert a.out.read(size) == pattern(size, i)
            a.qp.close()


@pytest.mark.clause("DGRAM-BYE-4")
def test_a_peer_that_is_not_ready_is_not_waited_for(rig: Rig) -> None:
    with settings(linger_ms=PATIENT):
        a, b = Peer(rig), Peer(rig)
        a.send(b, b"no receive is posted for it")
        until(lambda: a.qp.waits())
        a.qp.close()
        # wait until the BYE of a has arrived
        until(lambda: b.rcq.poll(1) == [] and not b.qp.waits())
        b.recv()
        nothing(b.rcq)


def test_the_port_of_an_endpoint_that_still_says_bye_is_free_for_the_next(rig: Rig) -> None:
    with settings(linger_ms=PATIENT):
        a = Peer(rig)
        with stranger(a) as s:
            where = a.qp.addr
            a.qp.close()
            bye_to(s)
            b = Peer(rig, host=where[0], port=where[1])
            assert b.qp.addr == where
            b.recv()
            c = Peer(rig)
            c.send(b, b"served")
            assert c.done()[0].ok and b.got()[0].byte_len == 6
