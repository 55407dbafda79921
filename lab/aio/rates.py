# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Messages per second of ``siwarp.aio`` and of asyncio's own streams, by the number of connections.

Client and server are processes with one event loop each (``lab.aio.end``). The two libraries are
measured alternately.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from lab.unreliable import cpu_load_warning, spread_warning
from siwarp.bench.runner import BenchError, Progress, make_progress_counter
from siwarp.bench.trust import minimum_and_maximum

__all__ = ["CONNECTIONS", "measure_rates", "print_rates"]

WAYS = ("streams", "siwarp")
#: Time limit of client and server in seconds.
LIMIT_S = 120

CONNECTIONS = (1, 100, 1_000)
#: Total round trips of a run: about half a second with asyncio's streams.
_TRIPS = 8_000


def _start_server_or_client(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lab.aio.end", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def _measure_message_rate(way: str, connections: int, size: int, trips: int) -> float:
    """Return the messages per second of one run; each round trip has two messages."""
    server = _start_server_or_client("server", way, connections, size)
    client = None
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            raise BenchError(f"{way}: the server: {server.communicate()[1].strip()}")
        client = _start_server_or_client("client", way, port, connections, size, trips)
        out, why = client.communicate(timeout=LIMIT_S + 10)
        if client.returncode:
            raise BenchError(f"{way} with {connections} connections: {_last_line_of_output(why)}")
        return 2 * connections * trips / float(json.loads(out))
    except subprocess.TimeoutExpired:
        raise BenchError(
            f"{way} with {connections} connections: did not end in time: check whether the "
            "machine is busy"
        ) from None
    finally:
        for end in filter(None, (client, server)):
            end.kill()
            end.communicate()


def _last_line_of_output(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it failed"


def measure_rates(
    connections: Sequence[int], size: int, rounds: int, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Measure both libraries with each number of connections; return a result for each number.

    A result has ``connections``, ``size`` (octets), ``streams`` and ``siwarp`` (messages per
    second, medians of the rounds), ``ratio`` (the median of the rounds' ratios), ``span`` (the
    least and the largest ratio), ``rounds`` (each round's values) and ``unreliable``.

    Raises:
        BenchError: a run failed.

    """
    step = make_progress_counter(progress, len(connections) * rounds * len(WAYS))
    points = []
    for n in connections:
        warnings = [cpu_load_warning()]
        trips = max(1, _TRIPS // n)
        found: list[dict[str, float]] = []
        for turn in range(rounds):
            each = {}
            for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
                each[way] = _measure_message_rate(way, n, size, trips)
                step()
            found.append(each)
        ratios = [each["siwarp"] / each["streams"] for each in found]
        points.append(
            {
                "connections": n,
                "size": size,
                **{way: statistics.median(each[way] for each in found) for way in WAYS},
                "ratio": statistics.median(ratios),
                "span": minimum_and_maximum(ratios),
                "rounds": found,
                "unreliable": list(filter(None, (*warnings, spread_warning(ratios)))),
            }
        )
    return points


def print_rates(points: list[dict[str, Any]]) -> None:
    """Print a line with the message rates for each number of connections."""
    print("connections   asyncio msg/s   siwarp msg/s   ratio   range of the rounds")
    for point in points:
        least, largest = point["span"]
        print(
            f"{point['connections']:>11,} {point['streams']:>15,.0f} {point['siwarp']:>14,.0f} "
            f"{point['ratio']:7.2f}   {least:.2f} to {largest:.2f}"
        )
    for point in points:
        for doubt in point["unreliable"]:
            print(f"{point['connections']:,} connections: unreliable: {doubt}")
