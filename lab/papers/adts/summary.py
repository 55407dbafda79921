# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Values of rounds, their medians and quartiles, and ratios with the limits that they must keep."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from siwarp.bench.runner import BenchError

__all__ = ["judge_ratio", "measure_rounds", "summarize_values"]


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
    runs: Mapping[str, Callable[[], float]], rounds: int, told: Callable[[str], None]
) -> dict[str, list[float]]:
    """Make each run once in each round, in every other round in the reverse order.

    Returns:
        The values of each run. If a run fails after the first round, the rounds so far.

    Raises:
        BenchError: a run of the first round failed.

    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        values = {}
        try:
            for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
                values[name] = runs[name]()
                told(f"round {turn + 1} of {rounds}: {name}: {values[name]:.6g}")
        except BenchError as e:
            if not turn:
                raise
            told(f"round {turn + 1} of {rounds} failed: {e}")
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
