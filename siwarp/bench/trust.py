# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""When a figure may tell of the machine rather than of siwarp."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

__all__ = ["APART", "beaten", "busy", "span", "spread"]

#: Rounds that differ by more than this factor tell of the machine.
APART = 1.5


#: The load that a measurement leaves behind, where another one follows it.
OWN_LOAD = 2.5
#: A floor that another way to do the same beats by more than this has stumbled.
BEATEN = 1.5
#: Floors that do something else: they send many messages by one call.
_OTHER_WORK = ("gso", "coalesced")


def busy() -> str:
    """Return a doubt if other programs want more CPUs than there are: ask before measuring."""
    cores = len(os.sched_getaffinity(0))
    if os.getloadavg()[0] <= max(cores, OWN_LOAD):
        return ""
    return f"before it began the load exceeded the cores ({cores})"


def spread(rounds: Sequence[float]) -> str:
    """Return a doubt if rounds differ much."""
    if len(rounds) < 2 or max(rounds) <= APART * min(rounds):
        return ""
    return f"the rounds differ by more than a factor of {APART:g}"


def span(values: Sequence[float]) -> list[float]:
    """Return the least and the largest."""
    return [min(values), max(values)]


def beaten(floor: float, others: Mapping[str, float], *, less_is_better: bool) -> str:
    """Return a doubt if a floor is far behind another one that does the same.

    Args:
        floor: the chosen one's figure.
        others: those of others by name; who spins beside one that sleeps does something else, too.
        less_is_better: of the figures.

    """
    for name, value in others.items():
        factor = floor / value if less_is_better else value / floor
        if name not in _OTHER_WORK and factor > BEATEN:
            return f"the floor is beaten by another one ({name}) by a factor of {factor:.1f}"
    return ""
