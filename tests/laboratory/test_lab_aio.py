"""`python -m lab.aio`: siwarp.aio compared with asyncio's streams."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from laboratory.lab_harness import run_lab_study
from pace import limit_exceeded, scale_limit

from lab.aio import rates as aio
from siwarp.bench.runner import BenchError


def test_siwarp_and_asyncio_are_measured_for_each_number_of_connections() -> None:
    done = run_lab_study(
        "aio", "--connections", "1,3", "-s", "1K", "--rounds", 1, "--json", timeout=120
    )
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)
    assert [(p["connections"], p["size"]) for p in points] == [(1, 1024), (3, 1024)]
    for point in points:
        assert point["ratio"] == pytest.approx(point["siwarp"] / point["streams"])
        assert point["streams"] > 0 and len(point["rounds"]) == 1


def test_each_number_of_connections_is_printed_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    point = {"connections": 1000, "streams": 25_000.4, "siwarp": 51_000, "ratio": 2.04}
    aio.print_rates([{**point, "span": [2.0, 2.1], "unreliable": ["a doubt"]}])
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split() == ["1,000", "25,000", "51,000", "2.04", "2.00", "to", "2.10"]
    assert shown[2] == "1,000 connections: unreliable: a doubt"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--connections", "0"], "give numbers from 1 to 10000"),
        (["--connections", "1,x"], "give numbers from 1 to 10000"),
        (["-s", "0"], "not a number of octets"),
        (["-s", "65537"], "1 to 64K"),
        (["-s", "x"], "not a number of octets"),
    ],
)
def test_invalid_numbers_of_connections_and_sizes_are_refused(words: list[str], why: str) -> None:
    done = run_lab_study("aio", *words)
    assert done.returncode == 2
    assert why in done.stderr


def test_a_failed_client_is_a_bench_error_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    start = aio._start_server_or_client

    def start_with_wrong_port(role: str, *words: object) -> subprocess.Popen[str]:
        # No process listens on the server's port any more.
        return start(role, words[0], 1, *words[2:]) if role == "client" else start(role, *words)

    monkeypatch.setattr(aio, "_start_server_or_client", start_with_wrong_port)
    for way in ("streams", "siwarp"):
        with pytest.raises(BenchError, match=f"{way} with 1 connections: .+"):
            aio._measure_message_rate(way, 1, 64, 1)


@pytest.mark.parametrize("way", ["streams", "siwarp"])
def test_a_server_ends_when_its_clients_are_killed(way: str) -> None:
    server = aio._start_server_or_client("server", way, 2, 64)
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    client = aio._start_server_or_client("client", way, port, 2, 64, 10**9)
    began = time.monotonic()
    while count_connections(server.pid) < 2:
        assert not limit_exceeded(began, 20), client.poll()
        time.sleep(0.01)
    os.kill(client.pid, signal.SIGKILL)
    client.communicate()
    assert server.wait(scale_limit(20)) == 0
    server.communicate()


def count_connections(pid: int) -> int:
    """Return the number of connected TCP sockets of a process."""
    own = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(fd.readlink()))
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return sum(f"socket:[{w[9]}]" in own and w[3] == "01" for w in map(str.split, lines))


def test_progress_is_reported_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "_measure_message_rate", lambda *_: 1000.0)
    steps: list[Any] = []
    aio.measure_rates((1, 2), 64, 3, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (12, 12)
