"""Closing an RD queue pair: completed and transmitted requests reach their peers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import net
import pytest
from harness.rd_harness import RDEnd, check_send_to_receiver_that_closes
from harness.rd_stranger import ScriptedRDPeer, scripted_peer
from harness.verbs_harness import (
    Rig,
    assert_no_completion,
    octet_pattern,
    temporary_settings,
    wait_until,
)

from siwarp.inspect.rd import RDDatagram, RDFlag, RDReason, RDType
from siwarp.verbs import WROpcode

LONG_LINGER_MS = 60_000  # linger time in ms of tests that do not test the end of the linger time
#: The linger time in ms for a lossy link. If the last answer of an end that exits is lost, the
#: other end waits for the answer during the whole linger time.
LOSSY_LINGER_MS = 5000


def receive_bye(s: ScriptedRDPeer) -> RDDatagram:
    """Wait until the scripted peer receives a BYE, and return the BYE."""
    while True:
        d = s.receive_and_answer_datagram()
        if d.type == RDType.BYE:
            return d


def answer_bye(s: ScriptedRDPeer) -> None:
    s.send_datagram(RDType.BYE, rd_flags=int(RDFlag.ANSWER))


@contextlib.contextmanager
def scripted_peer_of_closed_endpoint(rig: Rig) -> Iterator[ScriptedRDPeer]:
    """Provide a scripted peer of an RD endpoint that was closed after it had received a Send."""
    with temporary_settings(linger_ms=LONG_LINGER_MS):
        a = RDEnd(rig)
        a.post_receive()
        with scripted_peer(a) as s:
            s.send_and_wait(s.build_untagged(3, b"taken"))
            a.poll_receives()
            a.qp.close()
            yield s


@pytest.mark.clause("DGRAM-BYE-3")
def test_an_rd_endpoint_repeats_its_bye_until_the_peer_answers(rig: Rig) -> None:
    with scripted_peer_of_closed_endpoint(rig) as s:
        said = [bytes(receive_bye(s)) for _ in range(4)]
        assert len(set(said)) == 1
        bye = RDDatagram(said[0])
        assert (bye.ird, bye.rd_flags, bye.acknowledged) == (RDReason.CLOSED, 0, s.psn[0])
        answer_bye(s)
        began = net.now()
        rig.close()  # closing the device waits for peers that have not answered its BYE
        assert net.now() - began < 1


@pytest.mark.clause("DGRAM-BYE-3")
def test_a_closed_rd_endpoint_answers_later_datagrams_of_the_pair_with_its_bye(rig: Rig) -> None:
    with scripted_peer_of_closed_endpoint(rig) as s:
        receive_bye(s)
        s.send_datagram(RDType.PROBE)
        again = receive_bye(s)
        assert (again.ird, again.acknowledged) == (RDReason.CLOSED, s.psn[0])
        # A BYE of the peer that crossed siwarp's BYE is answered and also counts as an answer.
        s.send_datagram(RDType.BYE)
        wait_until(lambda: receive_bye(s).rd_flags & RDFlag.ANSWER)
        rig.close()


@pytest.mark.clause("DGRAM-BYE-3")
def test_closing_a_device_waits_the_linger_time_for_an_rd_peer_that_never_answers(rig: Rig) -> None:
    with temporary_settings(linger_ms=300):
        a = RDEnd(rig)
        with scripted_peer(a) as s:
            a.qp.close()
            began = net.now()
            rig.close()
            took = net.now() - began
            receive_bye(s)
    assert 0.3 <= took < 0.31


@pytest.mark.clause("DGRAM-BYE-1", "DGRAM-BYE-3")
@pytest.mark.parametrize("size", [4, 100_000])
def test_a_send_received_before_the_receiver_closes_succeeds_over_a_lossy_line(
    rig: Rig, size: int
) -> None:
    with temporary_settings(linger_ms=LOSSY_LINGER_MS), net.apply_fault_plan("tx:loss=30%,seed=11"):
        for _ in range(4):
            check_send_to_receiver_that_closes(rig, size, 1 << 17)


@pytest.mark.clause("DGRAM-BYE-4")
def test_a_closing_endpoint_delivers_its_read_response_before_the_bye(rig: Rig) -> None:
    with temporary_settings(linger_ms=LONG_LINGER_MS):
        a = RDEnd(rig)
        a.into.view[:] = octet_pattern(1 << 16)
        with scripted_peer(a) as s:
            s.keeps = lambda _head: True
            s.send_and_wait(s.build_read_request(1000))
            _, octets = s.receive_segment()
            a.qp.close()
            assert len(octets) == 1000
            # A closing endpoint retransmits its data before it sends a BYE.
            while (d := s.receive_and_answer_datagram()).type != RDType.DATA:
                assert d.type == RDType.ACK
            s.acknowledge_all_received_segments()
            assert receive_bye(s).ird == RDReason.CLOSED
            answer_bye(s)


@pytest.mark.clause("DGRAM-BYE-4")
@pytest.mark.parametrize("size", [8, 100_000])
def test_an_endpoint_that_closes_still_answers_a_read_over_a_lossy_line(
    rig: Rig, size: int
) -> None:
    with temporary_settings(linger_ms=LOSSY_LINGER_MS), net.apply_fault_plan("tx:loss=30%,seed=5"):
        for i in range(3):
            a, b = RDEnd(rig, 1 << 17), RDEnd(rig, 1 << 17)
            b.into.view[:size] = octet_pattern(size, i)
            b.post_receive()
            a.post_rdma(b, WROpcode.RDMA_READ, size)
            a.send(b, b"close", 9, offset=size)
            assert b.poll_receives()[0].ok  # the Read before this Send has been answered
            b.qp.close()
            assert [w.ok for w in a.poll_sends(2)] == [True, True]
            assert a.out.read(size) == octet_pattern(size, i)
            a.qp.close()


@pytest.mark.clause("DGRAM-BYE-4")
def test_an_rd_close_does_not_wait_for_a_peer_that_is_not_ready(rig: Rig) -> None:
    with temporary_settings(linger_ms=LONG_LINGER_MS):
        a, b = RDEnd(rig), RDEnd(rig)
        a.send(b, b"no receive is posted for it")
        wait_until(lambda: a.qp.waits())
        a.qp.close()
        # Wait until the BYE of the endpoint `a` has arrived.
        wait_until(lambda: b.rcq.poll(1) == [] and not b.qp.waits())
        b.post_receive()
        assert_no_completion(b.rcq)


def test_a_new_endpoint_may_use_the_port_of_an_endpoint_that_still_repeats_its_bye(
    rig: Rig,
) -> None:
    with temporary_settings(linger_ms=LONG_LINGER_MS):
        a = RDEnd(rig)
        with scripted_peer(a) as s:
            where = a.qp.addr
            a.qp.close()
            receive_bye(s)
            b = RDEnd(rig, host=where[0], port=where[1])
            assert b.qp.addr == where
            b.post_receive()
            c = RDEnd(rig)
            c.send(b, b"served")
            assert c.poll_sends()[0].ok and b.poll_receives()[0].byte_len == 6
