"""RD's timers and its handling of acknowledgements, with a clock that the test sets.

The rows are those of the table of timers in spec/datagram-iwarp.md; tests/c/rd_clock.c describes
what each row checks. Only the test moves the clock, so limits are checked to the nanosecond.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def run_c_test_case(build_dir: Path, row: str, program: str = "siw-test-rd-clock") -> None:
    done = subprocess.run(
        [build_dir / "tests/c" / program, row], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("hello", marks=pytest.mark.clause("DGRAM-RD-2", "DGRAM-MEET-5")),
        pytest.param("hello-near", marks=pytest.mark.clause("DGRAM-MEET-5")),
        pytest.param("meeting", marks=pytest.mark.clause("DGRAM-MEET-4")),
        pytest.param("echo-near", marks=pytest.mark.clause("DGRAM-RD-36")),
        pytest.param("echo", marks=pytest.mark.clause("DGRAM-RD-36", "DGRAM-MEET-5")),
        pytest.param("echo-far", marks=pytest.mark.clause("DGRAM-RD-36")),
        pytest.param("cookie", marks=pytest.mark.clause("DGRAM-RD-31")),
        pytest.param("retransmission-first", marks=pytest.mark.clause("DGRAM-RD-12")),
        pytest.param("retransmission", marks=pytest.mark.clause("DGRAM-RD-12")),
        pytest.param("retransmission-far", marks=pytest.mark.clause("DGRAM-RD-12")),
        pytest.param("delay-told", marks=pytest.mark.clause("DGRAM-CC-9")),
        pytest.param("delay-not-believed", marks=pytest.mark.clause("DGRAM-CC-9")),
        pytest.param("retransmission-kept", marks=pytest.mark.clause("DGRAM-RD-12")),
        pytest.param("ack-alone", marks=pytest.mark.clause("DGRAM-RD-13")),
        pytest.param("ack-of-two", marks=pytest.mark.clause("DGRAM-RD-13")),
        pytest.param("ack-of-many", marks=pytest.mark.clause("DGRAM-RD-13")),
        pytest.param("ack-of-long", marks=pytest.mark.clause("DGRAM-RD-13")),
        pytest.param("ack-behind-a-gap", marks=pytest.mark.clause("DGRAM-RD-14")),
        pytest.param("gone", marks=pytest.mark.clause("DGRAM-RD-22")),
        pytest.param("forgotten", marks=pytest.mark.clause("DGRAM-RD-25")),
        pytest.param("asked", marks=pytest.mark.clause("DGRAM-RD-26")),
        pytest.param("longer", marks=pytest.mark.clause("DGRAM-PMTU-2")),
        pytest.param("longer-soon", marks=pytest.mark.clause("DGRAM-PMTU-2", "DGRAM-PMTU-3")),
        pytest.param("challenges", marks=pytest.mark.clause("DGRAM-RD-35")),
        pytest.param("byes", marks=pytest.mark.clause("DGRAM-RD-35")),
    ],
)
def test_rd_timers_expire_exactly_on_time(build_dir: Path, row: str) -> None:
    run_c_test_case(build_dir, row)


@pytest.mark.clause("DGRAM-RD-18")
def test_an_acknowledgement_of_a_queued_segment_that_was_never_sent_is_ignored(
    build_dir: Path,
) -> None:
    run_c_test_case(build_dir, "ack-never-sent")


@pytest.mark.clause("DGRAM-RD-14")
def test_an_acknowledged_range_covers_only_its_own_datagrams(build_dir: Path) -> None:
    run_c_test_case(build_dir, "ack-by-ranges")


@pytest.mark.clause("DGRAM-RD-12")
@pytest.mark.parametrize("how", ["together", "one-by-one", "amid", "ack", "others", "over"])
def test_datagrams_that_a_full_socket_rejected_are_sent_when_it_has_space(
    build_dir: Path, how: str
) -> None:
    run_c_test_case(build_dir, f"full-socket-{how}")


@pytest.mark.clause("DGRAM-MEET-3")
@pytest.mark.parametrize("who", ["one", "both"])
def test_a_handshake_with_2_s_round_trip_time_and_30_percent_loss_takes_at_most_a_minute(
    build_dir: Path, who: str
) -> None:
    run_c_test_case(build_dir, who, "siw-test-rd-meet")
