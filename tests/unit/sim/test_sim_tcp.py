# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The simulator's TCP: RC queue pairs on it, and llp's return values compared with the kernel's.

The scenarios are those of tests/c/sim_tcp.c, which checks each message itself, and the script is
tests/c/llp_script.c. All bounds are on virtual time.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from namespaces.wan_harness import need_line

MS = 1_000_000
SECOND = 1_000_000_000
SCENARIOS = (
    *("rc", "disorder", "queue", "one_sided", "connects", "refused", "slow", "half", "crash"),
    *("partition", "silence", "reset", "ring", "window", "mtu", "pair"),
)
CM_UNREACHABLE, CM_REJECTED, CM_DISCONNECTED = 7, 8, 10


def program_output_lines(build_dir: Path, name: str, *args: str | int) -> list[str]:
    """Run a program of tests/c; return the lines that it printed."""
    done = subprocess.run(
        [build_dir / "tests/c" / name, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_tcp_scenarios(build_dir: Path, *args: str | int) -> dict[str, list[str]]:
    """Run scenarios; return the values printed for each name, in order."""
    found: dict[str, list[str]] = {}
    for line in program_output_lines(build_dir, "siw-test-sim-tcp", *args):
        for word in line.split():
            name, value = word.split("=")
            found.setdefault(name, []).append(value)
    return found


def single_value(found: dict[str, list[str]], name: str) -> int:
    """Return the only value of a name."""
    (value,) = found[name]
    return int(value)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seed_decides(build_dir: Path, scenario: str) -> None:
    """Two processes with different memory layouts, and two worlds in one process, run alike."""
    first = run_tcp_scenarios(build_dir, scenario, 1)["hash"]
    assert run_tcp_scenarios(build_dir, "twice", scenario, 1)["hash"] == first * 2
    assert run_tcp_scenarios(build_dir, scenario, 2)["hash"] != first


@pytest.mark.parametrize("seed", range(3, 8))
def test_sends_over_a_lossy_slow_link(build_dir: Path, seed: int) -> None:
    """A thousand Sends each way arrive in order although segments are lost."""
    got = run_tcp_scenarios(build_dir, "rc", seed)
    assert single_value(got, "lost") > 50
    # The link's rate is a lower bound: 2 MB each way at 20 Mbit/s.
    assert single_value(got, "now") > 800 * MS


@pytest.mark.parametrize("seed", range(3, 8))
def test_duplicated_and_reordered_segments_are_harmless(build_dir: Path, seed: int) -> None:
    """Duplicated and reordered segments do no harm."""
    got = run_tcp_scenarios(build_dir, "disorder", seed)
    assert single_value(got, "lost") > 20
    assert single_value(got, "duplicated") > 20


@pytest.mark.parametrize("seed", range(3, 8))
def test_a_full_queue_drops_and_the_sender_adapts(build_dir: Path, seed: int) -> None:
    """A queue of eight packets drops segments, and the sender adapts without only timing out."""
    got = run_tcp_scenarios(build_dir, "queue", seed)
    assert single_value(got, "lost") > 10
    # 600 KB each way at 10 Mbit/s take half a second.
    assert single_value(got, "now") < 5 * SECOND


@pytest.mark.parametrize("seed", range(3, 8))
@pytest.mark.parametrize("scenario", ["one_sided", "half", "ring", "window", "pair"])
def test_scenarios_complete_despite_loss(build_dir: Path, scenario: str, seed: int) -> None:
    """Writes and Reads; data sent before a disconnect arrives; several connections.

    Also a receiver that does not read for a minute, and queue pairs that connect by address and
    QPN.
    """
    assert single_value(run_tcp_scenarios(build_dir, scenario, seed), "lost") > 0


def test_connect_takes_round_trips(build_dir: Path) -> None:
    """A connect takes a round trip of TCP, one of MPA's Request and Reply, half of one for RTR."""
    got = run_tcp_scenarios(build_dir, "connects", 1)
    assert single_value(got, "took") == 50 * MS
    assert single_value(got, "connections") == 1


def test_a_connect_without_listener_is_refused_in_one_round_trip(build_dir: Path) -> None:
    """Without a listener, a connect fails after one round trip."""
    got = run_tcp_scenarios(build_dir, "refused", 1)
    assert single_value(got, "event") in {CM_REJECTED, CM_UNREACHABLE}
    assert single_value(got, "status") == -errno.ECONNREFUSED
    assert single_value(got, "took") == 20 * MS


def test_slow_connect(build_dir: Path) -> None:
    """All segments are lost for 4 s, among them the SYNs at 0, 1 and 3 s; that at 7 s arrives."""
    got = run_tcp_scenarios(build_dir, "slow", 1)
    assert single_value(got, "took") == 7 * SECOND + 50 * MS
    assert single_value(got, "lost") == 3


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_crashed_host_resets_its_connections(build_dir: Path, seed: int) -> None:
    """A reset ends the connection; then there is no listener."""
    got = run_tcp_scenarios(build_dir, "crash", seed)
    assert single_value(got, "event") == CM_DISCONNECTED
    # Data that waits because of the rate of 1 Mbit/s, a window of 14 KB, arrives before the reset.
    assert single_value(got, "took") < 200 * MS
    assert single_value(got, "status") == -errno.ECONNREFUSED


def test_retransmission_recovers_after_a_partition(build_dir: Path) -> None:
    """After a minute of silence the next retransmission arrives, at most a minute later."""
    assert single_value(run_tcp_scenarios(build_dir, "partition", 1), "took") < 60 * SECOND


def test_an_unanswered_connection_ends_after_924_s(build_dir: Path) -> None:
    """Without an answer a connection ends at the first retransmission time-out after 924.6 s."""
    took = single_value(run_tcp_scenarios(build_dir, "silence", 1), "took")
    assert 924_600 * MS <= took < 924_600 * MS + 120 * SECOND


def test_segments_shrink_to_the_path_mtu(build_dir: Path) -> None:
    """Segments that are too long for the path are lost, and segmented again; over IPv6."""
    got = run_tcp_scenarios(build_dir, "mtu", 1)
    assert single_value(got, "lost") > 0
    assert single_value(got, "now") < SECOND


def test_planned_reset(build_dir: Path) -> None:
    """With reset=100KB, at most as many Writes of 4 KiB succeed as fit in 100 KB."""
    assert single_value(run_tcp_scenarios(build_dir, "reset", 1), "writes") <= 100_000 // 4096 + 1


def split_scenes(written: list[str]) -> dict[str, list[str]]:
    """Return the lines of each scene of the script."""
    found: dict[str, list[str]] = {}
    for line in written:
        if line.startswith("- "):
            found[line[2:]] = []
        else:
            found[list(found)[-1]].append(line)
    return found


@pytest.fixture(scope="module")
def kernel_scenes(build_dir: Path) -> dict[str, list[str]]:
    """Return the script's output on the kernel's TCP, over loopback."""
    return split_scenes(program_output_lines(build_dir, "siw-test-llp-script"))


@pytest.fixture(scope="module")
def simulated_scenes(build_dir: Path) -> dict[str, list[str]]:
    return split_scenes(program_output_lines(build_dir, "siw-test-llp-script-sim", 1))


@pytest.mark.parametrize("seed", range(1, 9))
def test_calls_return_what_the_kernels_do(
    build_dir: Path, kernel_scenes: dict[str, list[str]], seed: int
) -> None:
    """The same script of llp calls returns the same results on both, line by line."""
    found = split_scenes(program_output_lines(build_dir, "siw-test-llp-script-sim", seed))
    # these two scenes are not possible over loopback: see below
    assert list(found)[-2:] == ["simultaneous", "lossy"]
    del found["simultaneous"], found["lossy"]
    assert found == kernel_scenes


def run_script_over_line(
    build_dir: Path, plan: str, what: str
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Run the script in two network namespaces; return its scenes, and the relay's statistics."""
    need_line()
    script = build_dir / "tests/c/siw-test-llp-script"
    done = subprocess.run(
        [sys.executable, "-m", "siwarp.cli", "wan", "--json", "--faults", plan, "--", script, what],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    written = done.stdout.splitlines()
    begin = next(i for i, line in enumerate(written) if line.startswith("{"))
    return split_scenes(written[:begin]), json.loads("".join(written[begin:]))


def test_calls_return_what_the_kernels_do_over_a_line(
    build_dir: Path, simulated_scenes: dict[str, list[str]]
) -> None:
    """Both TCPs agree; two sides that connect to each other at once get one connection."""
    found, _ = run_script_over_line(build_dir, "delay=1ms", "line")
    assert found["simultaneous"][:2] == ["a connects 0", "b connects 0"]
    assert found == {
        name: wrote for name, wrote in simulated_scenes.items() if name not in {"ports", "lossy"}
    }


def test_loss_is_delay_on_both(build_dir: Path, simulated_scenes: dict[str, list[str]]) -> None:
    """Segments are lost in both directions: all octets arrive, in order, as without loss."""
    found, stats = run_script_over_line(build_dir, "delay=5ms,loss=3%", "lossy")
    assert found == {"lossy": simulated_scenes["lossy"]}
    assert found["lossy"][:2] == ["a received all 1", "b received all 1"]
    assert all(stats[way]["lost"] > 0 for way in ("a_to_b", "b_to_a"))
