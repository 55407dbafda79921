"""`siwarp bench memory`: the memory that a process uses for its peers."""

from __future__ import annotations

import json
import os
import subprocess

import pace
import pytest
from harness.siwarp_process import COMMAND, SiwarpProcess

from siwarp.bench import memory

pytestmark = pytest.mark.scales

skip_with_sanitizer = pytest.mark.skipif(
    "SANITIZER" in os.environ,
    reason="a sanitizer's allocator adds memory to each allocation",
)


def run_bench_memory(*arguments: str) -> subprocess.CompletedProcess[str]:
    return pace.run_command(
        [*COMMAND, "bench", "memory", *arguments],
        capture_output=True,
        text=True,
        check=False,
        seconds=120,
        start=SiwarpProcess,
    )


def test_each_number_of_peers_is_a_point_with_the_memory_per_further_peer() -> None:
    done = run_bench_memory("--peers", "20,2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(memory.QPS)
    for qp, (few, more) in found.items():
        assert (few["peers"], more["peers"]) == (2, 20)
        # Besides the queue pairs, the device has one socket, which watches its interface.
        assert few["sockets"] == (2 if qp == "rc" else 1) + 1
        assert more["sockets"] == (20 if qp == "rc" else 1) + 1
        assert "idle_per_peer" not in few
        assert all(point[state] > 100_000 for point in (few, more) for state in ("idle", "loaded"))
        kernel = (few["kernel_objects"] or 0, more["kernel_objects"] or 0)
        grown = more["idle"] - few["idle"] + more["idle_kernel"] - few["idle_kernel"]
        assert more["idle_per_peer"] == round((grown + kernel[1] - kernel[0]) / 18)


@skip_with_sanitizer
def test_an_rc_connection_needs_more_memory_than_a_ud_address_handle() -> None:
    found = memory.measure_memory_per_peer(peers=(10, 200))
    assert found["rc"][1]["idle_per_peer"] > 10 * found["ud"][1]["idle_per_peer"]


@skip_with_sanitizer
def test_an_idle_rc_connection_keeps_no_buffers_allocated() -> None:
    few, many = memory.measure_memory_per_peer(qps=("rc",), peers=(100, 1_000))["rc"]
    # Only the memory of the process is compared: the memory of the kernel, about 4 kB, may include
    # octets that have not been read yet.
    assert 10_000 < (many["idle"] - few["idle"]) / 900 < 20_000


@skip_with_sanitizer
def test_an_idle_rd_peer_needs_less_than_a_kilobyte() -> None:
    # With so many peers, the roughly 200 kB of free memory in the heap add little to each peer.
    found = memory.measure_memory_per_peer(qps=("rd",), peers=(1_000, 8_000))
    assert 500 < found["rd"][1]["idle_per_peer"] < 1_000


def test_the_table_has_a_line_for_each_point() -> None:
    lines = run_bench_memory("--qp", "ud", "--peers", "1,10").stdout.splitlines()
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
def test_invalid_queue_pair_types_and_peer_numbers_are_refused(
    arguments: tuple[str, ...], words: str
) -> None:
    done = run_bench_memory(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
