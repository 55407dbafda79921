# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Detects figures that may reflect the state of the machine rather than siwarp."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence

__all__ = [
    "LEAST_FLOOR_ROUNDS",
    "SPREAD_FACTOR",
    "cpu_load_warning",
    "floor_spread_warning",
    "minimum_and_maximum",
    "slow_raw_socket_floor_warning",
    "spread_warning",
]

#: Rounds that differ by more than this factor indicate a disturbed machine.
SPREAD_FACTOR = 1.5
#: A floor is unreliable if its interquartile range exceeds this part of its median. Fewer rounds
#: than these do not determine the range.
FLOOR_RANGE = 0.15
LEAST_FLOOR_ROUNDS = 20


#: The load average that a measurement itself causes at the start of the next measurement.
OWN_LOAD = 2.5
#: A floor (raw-socket run) is unreliable if an equivalent floor is better by more than this factor.
SLOWER_FACTOR = 1.5
#: Floors (raw-socket runs) that are not equivalent, because they send many messages in one call.
_OTHER_WORK = ("gso", "blocking-gso", "coalesced", "blocking-coalesced")


def cpu_load_warning() -> str:
    """Return a warning if other programs need more CPUs than the machine has, otherwise "".

    Called before a measurement, which would add its own load.
    """
    cores = len(os.sched_getaffinity(0))
    if os.getloadavg()[0] <= max(cores, OWN_LOAD):
        return ""
    return f"before the measurement, the load exceeded the number of cores ({cores})"


def spread_warning(rounds: Sequence[float]) -> str:
    """Return a warning if the values of the rounds differ by more than SPREAD_FACTOR."""
    if len(rounds) < 2 or max(rounds) <= SPREAD_FACTOR * min(rounds):
        return ""
    return f"the rounds differ by more than a factor of {SPREAD_FACTOR:g}"


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


def slow_raw_socket_floor_warning(
    floor: float, others: Mapping[str, float], *, less_is_better: bool
) -> str:
    """Return a warning if a floor (raw-socket run) is far slower than an equivalent floor.

    Args:
        floor: the figure of the selected floor.
        others: figures of other floors by name. Do not compare a sleeping floor with spinning
            ones, which are not equivalent.
        less_is_better: whether smaller figures are better.

    """
    for name, value in others.items():
        factor = floor / value if less_is_better else value / floor
        if name not in _OTHER_WORK and factor > SLOWER_FACTOR:
            return f"another floor ({name}) is better than the floor by a factor of {factor:.1f}"
    return ""
