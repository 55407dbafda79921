# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measures with a program of another package, which is started as server and as client."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from siwarp.bench.runner import BenchError, cpu_for_client_or_server

__all__ = [
    "Pair",
    "extract_figure_from_output",
    "measure_program_pair",
    "parse_client_result",
    "wait_and_return_output",
]

#: Time limit for a pair of programs in seconds.
LIMIT_S = 60


@dataclass(frozen=True)
class Pair:
    """A program that is started twice, as server and as client, and how to find its result.

    ``result`` is a regular expression that finds the figure in the client's output; ``scale``
    converts the figure to us or to GB/s of 10^9 octets. ``ports`` are the server's and the client's
    option before the TCP port.
    """

    program: str
    words: tuple[str, ...]
    result: str
    scale: float = 1
    env: dict[str, str] = field(default_factory=dict)
    #: Options of ``siwarp run`` for the program; None: the program runs without siwarp.
    siwarp: tuple[str, ...] | None = ()
    ports: tuple[str, str] = ("-p", "-p")


def _find_free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _taskset_command(cpu: int | None) -> list[str]:
    return [] if cpu is None else ["taskset", "-c", str(cpu)]


def _is_port_listening(port: int) -> bool:
    table = Path("/proc/net/tcp").read_text(encoding="ascii")
    return re.search(rf":{port:04X} [0-9A-F:]+ 0A ", table) is not None


def wait_and_return_output(process: subprocess.Popen[str], program: str) -> str:
    """Return a program's output; raise BenchError if it does not end in time with status 0."""
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise BenchError(
            f"{program} did not finish within {LIMIT_S} s: reduce the load of the machine"
        ) from None
    if process.returncode != 0:
        last = said.strip().rpartition("\n")[2]
        raise BenchError(f"{program} failed: exit status {process.returncode}: {last}")
    return said


def extract_figure_from_output(program: str, pattern: str, said: str) -> float:
    """Return the figure that a regular expression finds in a program's output.

    Raises:
        BenchError: the output has no such figure.

    """
    found = re.search(pattern, said)
    if found is None:
        raise BenchError(f"{program} printed no results: run it manually")
    return float(found[1])


def parse_client_result(pair: Pair, said: str) -> float:
    """Return the figure in the output of a pair's client: us, or GB/s of 10^9 octets.

    Raises:
        BenchError: the output has no such figure.

    """
    return extract_figure_from_output(pair.program, pair.result, said) * pair.scale


def measure_program_pair(pair: Pair) -> float:
    """Run a pair of programs over loopback; return us one way, or GB/s of 10^9 octets."""
    port = _find_free_port()
    siwarp: list[str] = []
    if pair.siwarp is not None:
        siwarp = [sys.executable, "-m", "siwarp.cli", "run", *pair.siwarp, "--"]

    def start_program(side: str, option: str, *more: str) -> subprocess.Popen[str]:
        pin = _taskset_command(cpu_for_client_or_server(side))
        return subprocess.Popen(
            [*pin, *siwarp, pair.program, *pair.words, option, str(port), *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **pair.env},
        )

    server = start_program("server", pair.ports[0])
    ends = [server]
    try:
        deadline = time.monotonic() + LIMIT_S
        while (
            not _is_port_listening(port) and server.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        client = start_program("client", pair.ports[1], "127.0.0.1")
        ends.append(client)
        said = wait_and_return_output(client, pair.program)
        wait_and_return_output(server, pair.program)
    finally:
        for end in ends:
            if end.poll() is None:
                end.kill()
                end.communicate()
    return parse_client_result(pair, said)
