# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The C core of the simulator: types of queue pairs, time, crashes, partitions, effects of a seed.

The scenarios are in tests/c/sim.c, which checks each message itself. All bounds except two are on
virtual time. The two bounds on real time are guarantees of the simulator, which a quiet machine
fulfils with a margin of a factor of ten.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

SECOND = 1_000_000_000
SANITIZED = "SANITIZER" in os.environ
SCENARIOS = ("ud", "rd", "uc", "record", "group", "idle", "size", "crash", "partition", "tasks")
#: The scenarios in which the seed has a visible effect.
RANDOM = ("ud", "rd", "idle", "crash", "partition", "tasks")


def run_simulator_core_program(
    build_dir: Path, *args: str | int, **environment: str
) -> dict[str, list[str]]:
    """Run the program of the simulator core; return the values printed for each name, in order."""
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-sim", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for word in done.stdout.split():
        name, value = word.split("=")
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_seed_determines_the_run_of_a_scenario(build_dir: Path, scenario: str) -> None:
    """Check that two processes, and two worlds in one process, have equal runs for one seed."""
    first = run_simulator_core_program(build_dir, scenario, 1)["hash"]
    worlds = run_simulator_core_program(build_dir, "twice", scenario, 1)["hash"]
    assert worlds == first * 2
    if scenario in RANDOM:
        assert run_simulator_core_program(build_dir, scenario, 2)["hash"] != first


def test_the_wait_for_another_process_at_the_counters_folder_takes_no_virtual_time(
    build_dir: Path, tmp_path: Path
) -> None:
    free = run_simulator_core_program(build_dir, "ud", 1, XDG_RUNTIME_DIR=str(tmp_path))
    folder = os.open(tmp_path / "siwarp", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert run_simulator_core_program(build_dir, "ud", 1, XDG_RUNTIME_DIR=str(tmp_path)) == free
    os.close(folder)


@pytest.mark.parametrize("seed", range(3, 13))
def test_rd_messages_in_the_simulator_core_arrive_over_an_unreliable_network(
    build_dir: Path, seed: int
) -> None:
    """Check that a thousand messages in each direction arrive once and in order."""
    got = run_simulator_core_program(build_dir, "rd", seed)
    assert int(got["lost"][0]) > 200
    assert int(got["duplicated"][0]) > 50


def test_a_partitioned_rd_peer_is_gone_after_the_peer_timeout(build_dir: Path) -> None:
    """Check that a silent peer is gone after peer_timeout_ms, not at the next retransmission."""
    for seed in range(1, 6):
        after = int(run_simulator_core_program(build_dir, "partition", seed)["after"][0])
        assert 10 * SECOND <= after < 10 * SECOND + SECOND // 1000


def test_a_crashed_host_refuses_datagrams_by_icmp(build_dir: Path) -> None:
    """Check that a datagram to a crashed host is refused by ICMP and does not count as lost."""
    got = run_simulator_core_program(build_dir, "crash", 1)
    assert int(got["refused"][0]) > 0
    assert got["lost"] == ["0"]
    assert got["status"] == ["12"]


def test_simulated_idle_time_takes_little_real_time(build_dir: Path) -> None:
    """Check that ten minutes of an idle RD pair take less than a tenth of a second."""
    got = run_simulator_core_program(build_dir, "idle", 1)
    assert int(got["now"][0]) >= 600 * SECOND
    assert float(got["real"][0]) < 0.1


@pytest.mark.skipif(SANITIZED, reason="the rate is promised without sanitizers")
def test_the_simulator_handles_100000_datagrams_per_second(build_dir: Path) -> None:
    """Check the promised rate of at least 100,000 datagrams per second of real time."""
    assert float(run_simulator_core_program(build_dir, "speed", 1)["rate"][0]) >= 100_000
