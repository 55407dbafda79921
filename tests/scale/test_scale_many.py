"""Many processes on few CPUs, and many connections between two processes, with rdma_cm.

``pytest -rP tests/scale`` shows the time and memory of each test.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from abi.abi_harness import run_program
from pace import scale_limit

SANITIZED = "SANITIZER" in os.environ
#: A factor for the time limits of sanitized code, which is slower.
SLOWER = 10 if SANITIZED else 1
PROCESSES = 16 if SANITIZED else 64
CONNECTIONS = 200 if SANITIZED else 2000
#: The memory of a connection at both ends together in KiB: its queue pairs, streams and registered
#: memory.
KIB_EACH = 1000 if SANITIZED else 120

pytestmark = [pytest.mark.scales, pytest.mark.timeout(200)]


@dataclass(frozen=True)
class RunCost:
    """The cost of a run: seconds, and the resident memory in KiB and the number of descriptors,
    each before and after the connections were established.
    """

    wall: float
    cpu: float
    rss: tuple[int, int]
    fds: tuple[int, int]


@pytest.fixture(autouse=True)
def raise_open_file_limit() -> Iterator[None]:
    """Raise the soft limit of open files to the hard limit (at most 65536), as siwarp run does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def run_many_processes(
    program: Path, *, processes: int, group: int, each: int, rounds: int, how: str
) -> RunCost:
    said = json.loads(run_program(program, *map(str, (processes, group, each, rounds)), how))
    took = RunCost(said["wall"], said["cpu"], tuple(said["rss"]), tuple(said["fds"]))
    print(f"{processes} processes in groups of {group}, {each} x {rounds}, {how}: {took}")
    return took


@pytest.mark.parametrize(("how", "cpu"), [("event", 4), ("poll", 15)])
def test_64_processes_that_exchange_messages_in_pairs_need_little_cpu_time(
    compiled_programs: dict[str, Path], how: str, cpu: float
) -> None:
    """Run 6,400 round trips, for which processes that only poll need 25 s to 40 s of CPU time."""
    took = run_many_processes(
        compiled_programs["many"], processes=PROCESSES, group=2, each=1, rounds=100, how=how
    )
    assert took.cpu < cpu * SLOWER
    assert took.wall < scale_limit(cpu * SLOWER)


def test_64_processes_can_each_be_connected_to_every_other_process(
    compiled_programs: dict[str, Path],
) -> None:
    took = run_many_processes(
        compiled_programs["many"],
        processes=PROCESSES,
        group=PROCESSES,
        each=1,
        rounds=5,
        how="event",
    )
    assert took.cpu < 20 * SLOWER
    # Each process has one socket for each connection, and a few other descriptors.
    assert took.fds[1] - took.fds[0] <= PROCESSES + 2


def test_thousands_of_connections_between_two_processes_need_bounded_resources(
    compiled_programs: dict[str, Path],
) -> None:
    took = run_many_processes(
        compiled_programs["many"], processes=2, group=2, each=CONNECTIONS, rounds=1, how="event"
    )
    assert took.cpu < 15 * SLOWER
    assert CONNECTIONS <= took.fds[1] - took.fds[0] <= CONNECTIONS + 4
    assert took.rss[1] - took.rss[0] < KIB_EACH * CONNECTIONS
