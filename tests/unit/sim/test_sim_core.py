# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The simulator's C core: types of queue pairs, time, crashes, partitions, effects of a seed.

The scenarios are in tests/c/sim.c, which checks each message itself. All bounds except two are on
virtual time. The two on real time are promises of the simulator, which a quiet machine keeps with a
margin of a factor of ten.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SECOND = 1_000_000_000
SANITIZED = "SANITIZER" in os.environ
SCENARIOS = ("ud", "rd", "uc", "record", "group", "idle", "size", "crash", "partition", "tasks")
#: The scenarios in which the seed has a visible effect.
RANDOM = ("ud", "rd", "idle", "crash", "partition", "tasks")


def run_core_program(build_dir: Path, *args: str | int) -> dict[str, list[str]]:
    """Run the program; return the values printed for each name, in order."""
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-sim", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for word in done.stdout.split():
        name, value = word.split("=")
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seed_decides(build_dir: Path, scenario: str) -> None:
    """Two processes with different memory layouts, and two worlds in one process, run alike."""
    first = run_core_program(build_dir, scenario, 1)["hash"]
    worlds = run_core_program(build_dir, "twice", scenario, 1)["hash"]
    assert worlds == first * 2
    if scenario in RANDOM:
        assert run_core_program(build_dir, scenario, 2)["hash"] != first


@pytest.mark.parametrize("seed", range(3, 13))
def test_rd_over_a_bad_network(build_dir: Path, seed: int) -> None:
    """A thousand messages each way arrive once and in order over a bad network."""
    got = run_core_program(build_dir, "rd", seed)
    assert int(got["lost"][0]) > 200
    assert int(got["duplicated"][0]) > 50


def test_partition_ends_in_time(build_dir: Path) -> None:
    """A silent peer is declared lost after peer_timeout_ms, not at the next retransmission."""
    for seed in range(1, 6):
        after = int(run_core_program(build_dir, "partition", seed)["after"][0])
        assert 10 * SECOND <= after < 10 * SECOND + SECOND // 1000


def test_crash_is_told_by_icmp(build_dir: Path) -> None:
    """A datagram to a host that has crashed is refused by ICMP, not lost."""
    got = run_core_program(build_dir, "crash", 1)
    assert int(got["refused"][0]) > 0
    assert got["lost"] == ["0"]
    assert got["status"] == ["12"]


def test_idle_time_is_free(build_dir: Path) -> None:
    """Ten minutes of an idle RD pair take less than a tenth of a second."""
    got = run_core_program(build_dir, "idle", 1)
    assert int(got["now"][0]) >= 600 * SECOND
    assert float(got["real"][0]) < 0.1


@pytest.mark.skipif(SANITIZED, reason="the rate is promised without sanitizers")
def test_a_hundred_thousand_datagrams_per_second(build_dir: Path) -> None:
    """The simulator handles at least 100,000 datagrams per second of real time."""
    assert float(run_core_program(build_dir, "speed", 1)["rate"][0]) >= 100_000
