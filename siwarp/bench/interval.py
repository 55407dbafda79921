# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The confidence interval of a ratio from paired measurements, by Wilcoxon's signed ranks.

Ranks are used because a machine that is busy for a moment produces outliers: outliers widen a t
interval until it is useless, but hardly affect this interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CONFIDENCE", "Interval", "ratio_interval"]

#: The confidence of the interval with at least six pairs.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A ratio, the bounds of its interval, and the interval's confidence (0 to 1)."""

    ratio: float
    low: float
    high: float
    confidence: float


def _rank_sums(n: int) -> list[int]:
    """Return, for each sum, the number of subsets of the ranks 1..n with this sum."""
    counts = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(len(counts) - 1, rank - 1, -1):
            counts[total] += counts[total - rank]
    return counts


def _outside(n: int) -> tuple[int, float]:
    """Return the number of Walsh averages outside the interval on each side, and its confidence.

    With fewer than six pairs no interval reaches CONFIDENCE; the widest one is returned then.
    """
    left, outside, counts = 0, 0, _rank_sums(n)
    while 2 * (left + counts[outside]) <= (1 - CONFIDENCE) * 2**n:
        left += counts[outside]
        outside += 1
    if not outside:
        return 0, 1 - 2 / 2**n
    return outside - 1, 1 - 2 * left / 2**n


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Return the ratio first / second of pairs of positive values, with its interval.

    The ratio is the Hodges-Lehmann estimate: the median of the Walsh averages, which are the means
    of the logarithms of every two pairs' ratios.

    Raises:
        ValueError: there are fewer than two pairs.

    """
    if len(pairs) < 2:
        raise ValueError("too few pairs of values: give at least two")
    logs = [math.log(first / second) for first, second in pairs]
    walsh = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    outside, confidence = _outside(len(logs))
    return Interval(
        math.exp(statistics.median(walsh)),
        math.exp(walsh[outside]),
        math.exp(walsh[-1 - outside]),
        confidence,
    )
