# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Warns that figures are unreliable, because the rates of raw sockets vary between rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["LEAST_FLOOR_ROUNDS", "floor_spread_warning", "minimum_and_maximum"]

#: A floor is unreliable if the interquartile range of its rounds exceeds FLOOR_RANGE times its
#: median, or if it has fewer than LEAST_FLOOR_ROUNDS rounds.
FLOOR_RANGE = 0.15
LEAST_FLOOR_ROUNDS = 20


def floor_spread_warning(rounds: Sequence[float]) -> str:
    """Return a warning if the interquartile range of a floor's values is too large or unknown."""
    if len(rounds) < LEAST_FLOOR_ROUNDS:
        return f"fewer than {LEAST_FLOOR_ROUNDS} rounds of the floor"
    low, median, high = statistics.quantiles(rounds, n=4, method="inclusive")
    if high - low <= FLOOR_RANGE * median:
        return ""
    return f"the floor's interquartile range is {(high - low) / median:.0%} of its median"


def minimum_and_maximum(values: Sequence[float]) -> list[float]:
    """Return the minimum and the maximum of ``values``."""
    return [min(values), max(values)]
