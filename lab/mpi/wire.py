# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Latency and bandwidth of MPI between two ranks, by size, over each transport in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.mpi.launch import TRANSPORTS, Mpich
from siwarp.bench.runner import BenchError, Progress

__all__ = [
    "METRICS",
    "PROMISES",
    "SIZES",
    "RatioBound",
    "judge_performance_promises",
    "measure_transports",
    "median_and_range",
]

SIZES = (64, 256, 1024, 4096, 8192, 16384, 65536, 262144, 1048576)
#: The metrics: description, unit, and whether less is better.
METRICS = {
    "lat": ("latency, one way", "us", True),
    "bw": ("bandwidth, one way", "GB/s", False),
    "bibw": ("bandwidth, both directions together", "GB/s", False),
}
#: Seconds for the measurement of one metric with one size, and seconds until a job is killed.
TARGET_S = 0.03
LIMIT_S = 60


@dataclass(frozen=True)
class RatioBound:
    """A promised limit: the ratio of a figure to another transport's is at most, or at least, 1."""

    transport: str
    metric: str
    size: int
    beside: str = "tcp"

    @property
    def name(self) -> str:
        """The promised limit as a sentence."""
        words, _, less = METRICS[self.metric]
        size = f"{self.size} B" if self.size < 1024 else f"{self.size >> 20} MiB"
        limit = "no more" if less else "no less"
        ours, beside = TRANSPORTS[self.transport].name, TRANSPORTS[self.beside].name
        return f"{ours}, {size}: {words} {limit} than {beside}'s"

    def is_kept_by_ratio(self, ratio: float) -> bool:
        """Return whether the ratio to the other transport is within the promised limit."""
        return ratio <= 1 if METRICS[self.metric][2] else ratio >= 1


PROMISES = (
    RatioBound("ud", "lat", 64),
    RatioBound("rc", "lat", 64),
    RatioBound("rc", "bw", 1 << 20),
)


def median_and_range(values: Iterable[float]) -> dict[str, float]:
    """Return the median, the minimum and the maximum of the values."""
    listed = sorted(values)
    return {"median": statistics.median(listed), "min": listed[0], "max": listed[-1]}


def _run_mpi_wire(
    mpich: Mpich, name: str, netif: str, sizes: Sequence[int]
) -> dict[int, dict[str, float]]:
    program = mpich.compile_program("mpi_wire")
    command = [str(program), str(TARGET_S), *map(str, sizes)]
    found = mpich.run_program(TRANSPORTS[name], netif, 2, command, limit=LIMIT_S, bind=True)
    return {point["size"]: {metric: point[metric] for metric in METRICS} for point in found}


def _summarize_transport(
    name: str, rounds: Sequence[dict[str, dict[int, dict[str, float]]]], sizes: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Return, for each message size, how far each metric and its ratio to TCP are spread."""
    beside = TRANSPORTS[name].beside
    figures: dict[str, dict[str, Any]] = {}
    for size in sizes:
        point: dict[str, Any] = {}
        for metric in METRICS:
            own = [each[name][size][metric] for each in rounds]
            point[metric] = median_and_range(own)
            if name != beside and all(beside in each for each in rounds):
                theirs = [each[beside][size][metric] for each in rounds]
                point[f"{metric}_ratio"] = median_and_range(
                    a / b for a, b in zip(own, theirs, strict=True)
                )
        figures[str(size)] = point
    return figures


def measure_transports(
    mpich: Mpich,
    netif: str,
    rounds: int,
    sizes: Sequence[int] = SIZES,
    transports: Sequence[str] = tuple(TRANSPORTS),
    progress: Progress | None = None,
    run: Callable[..., dict[int, dict[str, float]]] = _run_mpi_wire,
) -> dict[str, Any]:
    """Measure MPI over every transport once a round, in a different order each time.

    A transport that fails has the reason in ``errors``, and is left out of later rounds.
    """
    seen: list[dict[str, dict[int, dict[str, float]]]] = []
    errors: dict[str, str] = {}
    for turn in range(rounds):
        values: dict[str, dict[int, dict[str, float]]] = {}
        shift = turn % len(transports)
        for i, name in enumerate([*transports[shift:], *transports[:shift]]):
            if name not in errors:
                try:
                    values[name] = run(mpich, name, netif, sizes)
                except BenchError as e:
                    errors[name] = str(e)
            if progress:
                progress(turn * len(transports) + i + 1, rounds * len(transports))
        seen.append(values)
    whole = [name for name in transports if name not in errors]
    kept = [{name: each[name] for name in whole} for each in seen]
    return {
        "sizes": list(sizes),
        "transports": {name: _summarize_transport(name, kept, sizes) for name in whole},
        "errors": errors,
        "rounds": kept,
    }


def judge_performance_promises(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for each promised limit the ratio, and whether it is kept (no, without a ratio)."""
    verdicts = []
    for must in PROMISES:
        point = found["transports"].get(must.transport, {}).get(str(must.size), {})
        ratio = point.get(f"{must.metric}_ratio")
        verdicts.append(
            {
                "name": must.name,
                "ratio": ratio,
                "kept": ratio is not None and must.is_kept_by_ratio(ratio["median"]),
            }
        )
    return verdicts
