"""Receiver reports of UC queue pairs, and the circuit breaker that the reports control."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from harness.uc_harness import LossReporter, PlainUCPeer, wait_until_datagrams_processed
from harness.verbs_harness import Rig

LEAST = 16


@pytest.mark.clause("DGRAM-CB-9")
def test_on_loopback_uc_has_no_receiver_reports_and_no_circuit_breaker(rig: Rig) -> None:
    peer = PlainUCPeer(rig, max_send_wr=128)
    peer.send_datagrams(*[peer.build_send(b"x")[0] for _ in range(2 * LEAST)])
    wait_until_datagrams_processed(peer)
    peer.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.sock.recv(2000)
    peer.sock.setblocking(True)
    told = LossReporter(peer)
    for _ in range(4):
        told.send_messages_from_qp()
        told.send_loss_report(0)
        wait_until_datagrams_processed(peer)
    told.send_messages_from_qp()
    assert peer.cq.poll(1) == []
    assert rig.ctx.get_async_event(0) is None
    peer.close()


def run_circuit_breaker_test(build_dir: Path, row: str) -> None:
    """Run one row of the C test that calls the circuit breaker's timer with chosen times."""
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-breaker", row],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.clause("DGRAM-CB-7")
@pytest.mark.parametrize("kbits", [0, 5000])
def test_the_circuit_breaker_removes_its_rate_limit_after_ten_seconds(
    build_dir: Path, kbits: int
) -> None:
    run_circuit_breaker_test(build_dir, str(kbits))


@pytest.mark.clause("DGRAM-CB-6")
@pytest.mark.parametrize("row", ["idle", "woken"])
def test_an_idle_uc_queue_pair_has_no_breaker_timer_until_it_sends_again(
    build_dir: Path, row: str
) -> None:
    run_circuit_breaker_test(build_dir, row)


def test_late_reports_open_the_circuit_breaker_of_an_idle_uc_queue_pair(build_dir: Path) -> None:
    run_circuit_breaker_test(build_dir, "late")
