"""The reports of a UC receiver, and the circuit breaker that the reports control."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.uc_harness import (
    QKEY,
    ROUND,
    LossReporter,
    PlainUCPeer,
    crc32c,
    wait_until_datagrams_processed,
)
from harness.verbs_harness import LIMIT, Rig, assert_counter_grows, wait_until
from pace import limit_exceeded

from siwarp.base.library import lib
from siwarp.inspect import UCReport
from siwarp.verbs import EventType, SendWR

MIN_REPORTED_DATAGRAMS = 16


@pytest.fixture
def enable_uc_loss_reports_on_loopback() -> Iterator[None]:
    """Enable reports on the loopback device, too."""
    assert lib.siw_setting_set(b"uc_breaker", 2) == 0
    yield
    lib.siw_setting_set(b"uc_breaker", 1)


@pytest.fixture(name="peer")
def plain_uc_peer(rig: Rig, enable_uc_loss_reports_on_loopback: None) -> Iterator[PlainUCPeer]:
    made = PlainUCPeer(rig, max_send_wr=128)
    yield made
    made.close()


def is_throttled_to_minimum_rate(told: LossReporter) -> bool:
    """Return whether the queue pair sends at the minimum rate, at which a round takes 13 s."""
    told.peer.qp.post_send([SendWR(1, sg=[told.out.sge()])] * ROUND)
    began = net.now()
    done = 0
    while done < ROUND and net.now() - began < 0.3:
        done += len(told.peer.cq.poll(ROUND))
    return done < ROUND


@pytest.mark.clause("DGRAM-CB-1", "DGRAM-CB-2")
def test_a_uc_receiver_reports_its_received_datagrams_once_a_second(peer: PlainUCPeer) -> None:
    began = net.now()
    sent = octets = reports = 0
    told: list[UCReport] = []
    peer.sock.settimeout(0.01)
    while len(told) < 2:
        (one,) = peer.build_send(bytes(100))
        peer.send_datagrams(one)
        sent, octets = sent + 1, octets + len(one)
        peer.cq.poll(1)
        try:
            told.append(UCReport(peer.sock.recv(2000)))
        except TimeoutError:
            assert not limit_exceeded(began, LIMIT)
            continue
        found = told[-1]
        reports += 1
        assert reports <= 1 + net.now() - began
        assert (found.type, found.mark, found.version, found.flags) == (3, 2, 1, 0)
        assert (found.dest_index, found.source_index, found.reserved) == (0, 0, 0)
        assert (found.q_key, found.psn, len(bytes(found))) == (QKEY, len(told) - 1, 40)
        assert found.crc == crc32c(bytes(found)[:-4])
        assert MIN_REPORTED_DATAGRAMS <= found.datagrams <= sent and found.octets <= octets
        # The report counts all datagrams up to its PSN, because no datagram was lost.
        assert found.next_psn == found.datagrams
    assert told[1].datagrams - told[0].datagrams >= MIN_REPORTED_DATAGRAMS


@pytest.mark.clause("DGRAM-CB-1")
def test_lost_and_late_uc_datagrams_are_not_counted_in_the_report(peer: PlainUCPeer) -> None:
    datagrams = [peer.build_send(b"x")[0] for _ in range(3 * MIN_REPORTED_DATAGRAMS)]
    came = datagrams[::2]
    peer.send_datagrams(*came[1:], came[0])
    found = _wait_for_loss_report(peer)
    assert MIN_REPORTED_DATAGRAMS <= found.datagrams < len(came)
    assert found.next_psn == 2 * found.datagrams + 1
    assert found.octets == found.datagrams * len(came[0])


def _wait_for_loss_report(peer: PlainUCPeer) -> UCReport:
    """Poll until a loss report has arrived, and return it."""
    peer.sock.setblocking(False)

    def receive_loss_report() -> bytes:
        peer.cq.poll(1)
        try:
            return peer.sock.recv(2000)
        except BlockingIOError:
            return b""

    return UCReport(wait_until(receive_loss_report))


@pytest.mark.clause("DGRAM-CB-2")
def test_too_few_uc_datagrams_and_reports_of_the_peer_cause_no_report(peer: PlainUCPeer) -> None:
    peer.send_datagrams(*[peer.build_send(b"x")[0] for _ in range(MIN_REPORTED_DATAGRAMS - 1)])
    peer.send_datagrams(*[bytes(UCReport(q_key=QKEY))] * 100)
    wait_until_datagrams_processed(peer)
    peer.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.sock.recv(2000)


@pytest.mark.clause("DGRAM-CB-5", "DGRAM-CB-7")
def test_lasting_loss_reduces_the_uc_sending_rate_and_raises_the_event_congested(
    peer: PlainUCPeer, rig: Rig
) -> None:
    told = LossReporter(peer)
    for _ in range(3):
        told.send_messages_from_qp()
        told.send_loss_report(ROUND * 8 // 10, octets=0)
        wait_until_datagrams_processed(peer)
    with rig.next_async_event() as event:
        assert (event.event_type, event.element) == (EventType.CONGESTED, peer.qp)
    assert is_throttled_to_minimum_rate(told)


@pytest.mark.clause("DGRAM-CB-5")
@pytest.mark.parametrize("came", [(80, 80, 90, 80, 80), (90,) * 6, (100,) * 4])
def test_short_or_small_loss_does_not_change_the_uc_sending_rate(
    peer: PlainUCPeer, rig: Rig, came: tuple[int, ...]
) -> None:
    told = LossReporter(peer)
    for n in came:
        told.send_messages_from_qp()
        told.send_loss_report(n)
        wait_until_datagrams_processed(peer)
    told.send_messages_from_qp()
    assert rig.ctx.get_async_event(0) is None


IMPOSSIBLE_REPORTS = {
    "more datagrams than were sent": {"datagrams": 10_000},
    "more octets than fit in them": {"octets": 1 << 50},
    "a number that was not sent": {"next_psn": 5000},
}


@pytest.mark.clause("DGRAM-CB-4")
@pytest.mark.parametrize("what", IMPOSSIBLE_REPORTS)
def test_uc_reports_with_impossible_values_are_ignored(
    peer: PlainUCPeer, rig: Rig, what: str
) -> None:
    told = LossReporter(peer)
    for _ in range(4):
        told.send_messages_from_qp()
        told.send_loss_report(0, **IMPOSSIBLE_REPORTS[what])
        wait_until_datagrams_processed(peer)
    told.send_messages_from_qp()
    assert rig.ctx.get_async_event(0) is None


@pytest.mark.clause("DGRAM-CB-3")
def test_uc_reports_of_another_sender_or_with_wrong_fields_are_ignored(
    peer: PlainUCPeer, rig: Rig
) -> None:
    told = LossReporter(peer)
    right = {"q_key": QKEY, "datagrams": 0, "octets": 0}
    with net.open_udp_socket() as other:
        for _ in range(4):
            told.send_messages_from_qp()
            other.sendto(bytes(UCReport(**right, next_psn=told.psn)), peer.qp.addr)
            wrong = [
                bytes(UCReport(**{**right, "q_key": 1}, next_psn=told.psn)),
                bytes(UCReport(**right, next_psn=told.psn, crc=1)),
                bytes(UCReport(**right, next_psn=told.psn, source_index=1)),
            ]
            peer.send_datagrams(*wrong)
            with assert_counter_grows("drop_short", 1):
                octets = bytes(UCReport(**right, next_psn=told.psn))[:-4] + bytes(4)
                peer.send_datagrams(octets + crc32c(octets).to_bytes(4, "little"))
                wait_until_datagrams_processed(peer)
    told.send_messages_from_qp()
    assert rig.ctx.get_async_event(0) is None


def send_until_breaker_event(told: LossReporter, seconds: float, until_event: bool) -> bool:
    """Send for at most ``seconds``; return whether the circuit breaker raised an event."""
    began = net.now()
    while not limit_exceeded(began, seconds) if until_event else net.now() - began < seconds:
        told.send_messages_from_qp(10)
        event = told.peer.rig.ctx.get_async_event(0.01)
        if event is not None:
            event.ack()
            return True
    return False


@pytest.mark.clause("DGRAM-CB-6", "DGRAM-CB-7")
def test_a_uc_peer_that_stops_reporting_receives_at_the_minimum_rate(peer: PlainUCPeer) -> None:
    told = LossReporter(peer)
    told.send_messages_from_qp()
    told.send_loss_report(ROUND)
    wait_until_datagrams_processed(peer)
    assert send_until_breaker_event(told, 10.0, until_event=True)
    assert is_throttled_to_minimum_rate(told)


@pytest.mark.clause("DGRAM-CB-8")
def test_a_uc_peer_that_never_reports_receives_at_full_rate(peer: PlainUCPeer) -> None:
    assert not send_until_breaker_event(LossReporter(peer), 4.5, until_event=False)
