# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Values of rounds, their medians and quartiles, and ratios with the limits that they must keep."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from siwarp.bench.runner import BenchError
from siwarp.bench.trust import spread_warning

__all__ = ["Log", "find_spreads", "judge_ratio", "measure_rounds", "summarize_values"]


class Log:
    """Prints how a part of the study goes on, and keeps why its results are doubtful."""

    def __init__(self) -> None:
        self.doubts: list[str] = []

    def tell(self, text: str) -> None:
        """Print a line on standard error."""
        print(text, file=sys.stderr, flush=True)

    def doubt(self, text: str) -> None:
        """Print and keep a reason to doubt the results."""
        self.doubts.append(text)
        self.tell(text)


def summarize_values(values: Sequence[float]) -> dict[str, Any]:
    """Return ``median``, ``quartiles`` (the first and the third), ``rounds`` and ``values``."""
    quartiles = [values[0], values[0]]
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        quartiles = [low, high]
    return {
        "median": statistics.median(values),
        "quartiles": quartiles,
        "rounds": len(values),
        "values": list(values),
    }


def measure_rounds(
    runs: Mapping[str, Callable[[], float]], rounds: int, log: Log
) -> dict[str, list[float]]:
    """Make each run once in each round, in every other round in the reverse order.

    Returns:
        The values of each run. If a run fails after the first round, the rounds so far; the log
        then has the reason.

    Raises:
        BenchError: a run of the first round failed.

    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        values = {}
        try:
            for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
                values[name] = runs[name]()
                log.tell(f"round {turn + 1} of {rounds}: {name}: {values[name]:.6g}")
        except BenchError as e:
            if not turn:
                raise
            log.doubt(f"round {turn + 1} of {rounds} failed, and was the last: {e}")
            break
        for name, value in values.items():
            found[name].append(value)
    return found


def judge_ratio(
    name: str, first: Sequence[float], second: Sequence[float], must: float | None
) -> dict[str, Any]:
    """Return the ratios of the rounds, first / second, and whether their median is at least
    ``must``; None: it is only reported.
    """
    summary = summarize_values([a / b for a, b in zip(first, second, strict=True)])
    met = None if must is None else summary["median"] >= must
    return {"name": name, **summary, "must": must, "met": met}


def find_spreads(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield why figures of a part are doubtful: their rounds differ too much."""
    measured = [
        (name, values)
        for key in ("mbit_s", "files_s")
        for name, values in part.get(key, {}).items()
    ] + [
        (f"{curve}, {x:g} {part['axis']}", values)
        for curve, points in part.get("curves", {}).items()
        for x, values in points
    ]
    for name, values in measured:
        if warning := spread_warning(values["values"]):
            yield f"{name}: {warning}"
