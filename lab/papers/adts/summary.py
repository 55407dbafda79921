# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Medians and quartiles of measured rounds, and ratios with promised limits."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lab.unreliable import spread_warning
from siwarp.bench.runner import BenchError

__all__ = ["Log", "find_spread_warnings", "judge_ratio", "measure_rounds", "summarize_values"]


class Log:
    """Prints the progress of a part of the study, and stores warnings about its results."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def print_progress(self, text: str) -> None:
        """Print a line about the progress on standard error."""
        print(text, file=sys.stderr, flush=True)

    def add_warning(self, text: str) -> None:
        """Print and store a warning that the results are unreliable."""
        self.warnings.append(text)
        self.print_progress(text)


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
    """Call each function of ``runs`` once per round, in every second round in reverse order.

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
                log.print_progress(f"round {turn + 1} of {rounds}: {name}: {values[name]:.6g}")
        except BenchError as e:
            if not turn:
                raise
            log.add_warning(f"round {turn + 1} of {rounds} failed, and was the last: {e}")
            break
        for name, value in values.items():
            found[name].append(value)
    return found


def judge_ratio(
    name: str, first: Sequence[float], second: Sequence[float], must: float | None
) -> dict[str, Any]:
    """Return the ratios first / second of the rounds, and whether their median reaches ``must``.

    If ``must`` is None, the ratio has no limit.
    """
    summary = summarize_values([a / b for a, b in zip(first, second, strict=True)])
    met = None if must is None else summary["median"] >= must
    return {"name": name, **summary, "must": must, "met": met}


def find_spread_warnings(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each figure of a part whose rounds differ too much."""
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
