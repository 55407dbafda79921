# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The simulator's TCP: RC queue pairs, and results of the llp layer compared with the kernel's TCP.

The scenarios are those of tests/c/sim_tcp.c, which checks each message itself, and the script is
tests/c/llp_script.c. All bounds are on virtual time.
"""

from __future__ import annotations

import errno
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import run_siwarp_command
from namespaces.wan_harness import skip_without_tun_device

MS = 1_000_000
SECOND = 1_000_000_000
SCENARIOS = (
    *("rc", "disorder", "queue", "one_sided", "connects", "refused", "slow", "half", "crash"),
    *("partition", "silence", "reset", "ring", "window", "mtu", "pair"),
)
CM_UNREACHABLE, CM_REJECTED, CM_DISCONNECTED = 7, 8, 10


def run_program_and_get_lines(build_dir: Path, name: str, *args: str | int) -> list[str]:
    """Run a program of tests/c, and return the lines that it printed."""
    done = subprocess.run(
        [build_dir / "tests/c" / name, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_tcp_scenarios(build_dir: Path, *args: str | int) -> dict[str, list[str]]:
    """Run TCP scenarios; return the values printed for each name, in order."""
    found: dict[str, list[str]] = {}
    for line in run_program_and_get_lines(build_dir, "siw-test-sim-tcp", *args):
        for word in line.split():
            name, value = word.split("=")
            found.setdefault(name, []).append(value)
    return found


def single_value(found: dict[str, list[str]], name: str) -> int:
    """Return the only value that a program printed for a name."""
    (value,) = found[name]
    return int(value)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_seed_determines_the_run_of_a_tcp_scenario(build_dir: Path, scenario: str) -> None:
    """Check that two processes, and two worlds in one process, have equal runs for one seed."""
    first = run_tcp_scenarios(build_dir, scenario, 1)["hash"]
    assert run_tcp_scenarios(build_dir, "twice", scenario, 1)["hash"] == first * 2
    assert run_tcp_scenarios(build_dir, scenario, 2)["hash"] != first


@pytest.mark.parametrize("seed", range(3, 8))
def test_rc_sends_arrive_over_a_lossy_slow_link(build_dir: Path, seed: int) -> None:
    """Check that a thousand Sends in each direction arrive in order although segments are lost."""
    got = run_tcp_scenarios(build_dir, "rc", seed)
    assert single_value(got, "lost") > 50
    # The rate of the link determines the lower bound: 2 MB in each direction at 20 Mbit/s.
    assert single_value(got, "now") > 800 * MS


@pytest.mark.parametrize("seed", range(3, 8))
def test_tcp_streams_are_correct_despite_duplicated_and_reordered_segments(
    build_dir: Path, seed: int
) -> None:
    """Check a scenario with lost, duplicated and reordered segments."""
    got = run_tcp_scenarios(build_dir, "disorder", seed)
    assert single_value(got, "lost") > 20
    assert single_value(got, "duplicated") > 20


@pytest.mark.parametrize("seed", range(3, 8))
def test_a_tcp_sender_adapts_to_a_full_queue(build_dir: Path, seed: int) -> None:
    """Check that a sender adapts to a queue of eight packets faster than by timeouts alone."""
    got = run_tcp_scenarios(build_dir, "queue", seed)
    assert single_value(got, "lost") > 10
    # The transfer of 600 KB in each direction at 10 Mbit/s takes half a second.
    assert single_value(got, "now") < 5 * SECOND


@pytest.mark.parametrize("seed", range(3, 8))
@pytest.mark.parametrize("scenario", ["one_sided", "half", "ring", "window", "pair"])
def test_rc_scenarios_complete_despite_loss_of_segments(
    build_dir: Path, scenario: str, seed: int
) -> None:
    """Check Writes and Reads, data sent before a disconnect, and several connections.

    The scenarios also contain a receiver that does not read for a minute, and queue pairs that
    connect by GID and QPN.
    """
    assert single_value(run_tcp_scenarios(build_dir, scenario, seed), "lost") > 0


def test_connecting_takes_two_and_a_half_round_trips(build_dir: Path) -> None:
    """Check a round trip of TCP, a round trip of MPA frames, and half a round trip for the RTR."""
    got = run_tcp_scenarios(build_dir, "connects", 1)
    assert single_value(got, "took") == 50 * MS
    assert single_value(got, "connections") == 1


def test_a_simulated_connect_without_listener_is_refused_in_one_round_trip(build_dir: Path) -> None:
    """Check that connecting fails after one round trip if no listener exists."""
    got = run_tcp_scenarios(build_dir, "refused", 1)
    assert single_value(got, "event") in {CM_REJECTED, CM_UNREACHABLE}
    assert single_value(got, "status") == -errno.ECONNREFUSED
    assert single_value(got, "took") == 20 * MS


def test_a_tcp_connection_is_established_after_lost_syns(build_dir: Path) -> None:
    """Check the loss of all segments for 4 s, so that only the SYN at 7 s arrives."""
    got = run_tcp_scenarios(build_dir, "slow", 1)
    assert single_value(got, "took") == 7 * SECOND + 50 * MS
    assert single_value(got, "lost") == 3


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_crashed_host_resets_its_tcp_connections(build_dir: Path, seed: int) -> None:
    """Check that a reset ends the connection, and that later attempts find no listener."""
    got = run_tcp_scenarios(build_dir, "crash", seed)
    assert single_value(got, "event") == CM_DISCONNECTED
    # The queued data, a window of 14 KB at a rate of 1 Mbit/s, arrives before the reset.
    assert single_value(got, "took") < 200 * MS
    assert single_value(got, "status") == -errno.ECONNREFUSED


def test_tcp_retransmission_succeeds_after_a_partition(build_dir: Path) -> None:
    """Check that the next retransmission arrives at most a minute after a partition of a minute."""
    assert single_value(run_tcp_scenarios(build_dir, "partition", 1), "took") < 60 * SECOND


def test_an_unanswered_tcp_connection_ends_after_924_s(build_dir: Path) -> None:
    """Check that a connection without an answer ends at the first timeout after 924.6 s."""
    took = single_value(run_tcp_scenarios(build_dir, "silence", 1), "took")
    assert 924_600 * MS <= took < 924_600 * MS + 120 * SECOND


def test_tcp_segments_shrink_to_the_path_mtu(build_dir: Path) -> None:
    """Check that segments too long for the path are lost and segmented again, over IPv6."""
    got = run_tcp_scenarios(build_dir, "mtu", 1)
    assert single_value(got, "lost") > 0
    assert single_value(got, "now") < SECOND


def test_a_planned_reset_limits_the_number_of_successful_writes(build_dir: Path) -> None:
    """Check that with reset=100KB at most as many Writes of 4 KiB succeed as fit in 100 KB."""
    assert single_value(run_tcp_scenarios(build_dir, "reset", 1), "writes") <= 100_000 // 4096 + 1


def split_output_by_scenario(written: list[str]) -> dict[str, list[str]]:
    """Return, for each scenario, the lines that the program of llp calls printed about it."""
    found: dict[str, list[str]] = {}
    for line in written:
        if line.startswith("- "):
            found[line[2:]] = []
        else:
            found[list(found)[-1]].append(line)
    return found


@pytest.fixture(scope="module")
def kernel_tcp_output_by_scenario(build_dir: Path) -> dict[str, list[str]]:
    """The output of the script of llp calls on the kernel's TCP over loopback, by scenario."""
    return split_output_by_scenario(run_program_and_get_lines(build_dir, "siw-test-llp-script"))


@pytest.fixture(scope="module")
def simulated_tcp_output_by_scenario(build_dir: Path) -> dict[str, list[str]]:
    written = run_program_and_get_lines(build_dir, "siw-test-llp-script-sim", 1)
    return split_output_by_scenario(written)


@pytest.mark.parametrize("seed", range(1, 9))
def test_calls_of_the_llp_layer_return_the_same_results_on_simulated_and_kernel_tcp(
    build_dir: Path, kernel_tcp_output_by_scenario: dict[str, list[str]], seed: int
) -> None:
    """Check that the same script of llp calls prints the same lines on both TCP implementations."""
    found = split_output_by_scenario(
        run_program_and_get_lines(build_dir, "siw-test-llp-script-sim", seed)
    )
    # Two scenarios of the script are not possible over loopback.
    assert list(found)[-2:] == ["simultaneous", "lossy"]
    del found["simultaneous"], found["lossy"]
    assert found == kernel_tcp_output_by_scenario


def run_script_over_simulated_link(
    build_dir: Path, plan: str, what: str
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Run the script of llp calls in two namespaces; return its output and relay statistics."""
    skip_without_tun_device()
    script = build_dir / "tests/c/siw-test-llp-script"
    done = run_siwarp_command("wan", "--json", "--faults", plan, "--", script, what, timeout=100)
    assert done.returncode == 0, done.stderr
    written = done.stdout.splitlines()
    begin = next(i for i, line in enumerate(written) if line.startswith("{"))
    return split_output_by_scenario(written[:begin]), json.loads("".join(written[begin:]))


def test_calls_of_the_llp_layer_return_the_same_results_over_a_simulated_line(
    build_dir: Path, simulated_tcp_output_by_scenario: dict[str, list[str]]
) -> None:
    """Check both TCPs, including two ends that connect to each other simultaneously."""
    found, _ = run_script_over_simulated_link(build_dir, "delay=1ms", "line")
    assert found["simultaneous"][:2] == ["a connects 0", "b connects 0"]
    assert found == {
        name: wrote
        for name, wrote in simulated_tcp_output_by_scenario.items()
        if name not in {"ports", "lossy"}
    }


def test_loss_of_segments_only_delays_data_on_simulated_and_kernel_tcp(
    build_dir: Path, simulated_tcp_output_by_scenario: dict[str, list[str]]
) -> None:
    """Check that all octets arrive in order although segments are lost in both directions."""
    found, stats = run_script_over_simulated_link(build_dir, "delay=5ms,loss=3%", "lossy")
    assert found == {"lossy": simulated_tcp_output_by_scenario["lossy"]}
    assert found["lossy"][:2] == ["a received all 1", "b received all 1"]
    assert all(stats[way]["lost"] > 0 for way in ("a_to_b", "b_to_a"))
