# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Warnings that measured figures are unreliable: a loaded machine, or rounds that differ widely."""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["cpu_load_warning", "spread_warning"]

#: Rounds that differ by more than this factor indicate a disturbed machine.
SPREAD_FACTOR = 1.5
#: The load average that a measurement itself causes at the start of the next measurement.
OWN_LOAD = 2.5


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
