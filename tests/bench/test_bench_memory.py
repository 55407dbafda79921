"""`siwarp bench memory`: the memory that a process uses for its peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pace
import pytest

from siwarp.bench import memory

pytestmark = pytest.mark.scales

sanitizers_hide_it = pytest.mark.skipif(
    "SANITIZER" in os.environ,
    reason="a sanitizer's allocator has memory of its own beside each piece",
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "siwarp.cli", "bench", "memory", *arguments]
    return pace.run_command(command, capture_output=True, text=True, check=False, seconds=120)


def test_each_number_of_peers_is_a_point_and_the_second_tells_of_a_further_peer() -> None:
    done = bench("--peers", "20,2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(memory.QPS)
    for qp, (few, more) in found.items():
        assert (few["peers"], more["peers"]) == (2, 20)
        # The sockets of the queue pairs, and the device's socket that watches its interface.
        assert few["sockets"] == (2 if qp == "rc" else 1) + 1
        assert more["sockets"] == (20 if qp == "rc" else 1) + 1
        assert "idle_per_peer" not in few
        assert all(point[state] > 100_000 for point in (few, more) for state in ("idle", "loaded"))
        kernel = (few["kernel_objects"] or 0, more["kernel_objects"] or 0)
        grown = more["idle"] - few["idle"] + more["idle_kernel"] - few["idle_kernel"]
        assert more["idle_per_peer"] == round((grown + kernel[1] - kernel[0]) / 18)


@sanitizers_hide_it
def test_a_connection_costs_more_than_an_address_handle() -> None:
    found = memory.measure(peers=(10, 200))
    assert found["rc"][1]["idle_per_peer"] > 10 * found["ud"][1]["idle_per_peer"]


@sanitizers_hide_it
def test_an_idle_connection_holds_no_buffers() -> None:
    few, many = memory.measure(qps=("rc",), peers=(100, 1_000))["rc"]
    # Memory of the process only: the kernel's, about 4 kB, may include octets that are not read
    # yet.
    assert 10_000 < (many["idle"] - few["idle"]) / 900 < 20_000


@sanitizers_hide_it
def test_an_idle_reliable_peer_costs_less_than_a_kilobyte() -> None:
    # With so many peers, the roughly 200 kB that the heap keeps free count little for each.
    found = memory.measure(qps=("rd",), peers=(1_000, 8_000))
    assert 500 < found["rd"][1]["idle_per_peer"] < 1_000


def test_the_table_has_a_line_for_each_point() -> None:
    lines = bench("--qp", "ud", "--peers", "1,10").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["UD", "1", "peers"],
        ["UD", "10", "peers"],
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--qp", "xx"), "'xx' is not one of"),
        (("--peers", "0"), "1 to 16000"),
        (("--peers", "x"), "1 to"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
