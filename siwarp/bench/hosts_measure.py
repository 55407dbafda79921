# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measures one point between hosts in rounds, for a number of messages or of seconds.

A round is a run of at most a second, so that a failure costs only that round, and earlier rounds
are still reported.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from siwarp.base import samples as of_samples
from siwarp.bench.hosts_client import Load, Round
from siwarp.bench.plan import Plan
from siwarp.bench.runner import ITERS, BenchError, seconds_of
from siwarp.bench.trust import spread

__all__ = ["Amount", "Point", "measure"]

#: Seconds of a round: the maximum, and the length without -D.
ROUND_S, SHORT_S = 1.0, 0.15
#: Messages of the first probe. The second probe has the number in ``ITERS``, if that is short
#: enough.
FIRST = 16
#: Maximum number of samples that are stored for a point.
KEPT = 10_000_000


@dataclass(frozen=True)
class Amount:
    """How much is measured: ``iters`` messages, or else ``seconds``."""

    iters: int | None
    seconds: float


class SessionProtocol(Protocol):
    """The interface that does the runs: ``hosts_client.Visit``."""

    def run(self, plan: Plan, load: Load, *, keep: bool = False) -> Round:
        """Do one run of the plan."""


@dataclass
class Point:
    """The result for one kind of queue pair and one size.

    Attributes:
        rounds: value of each round, in the plan's unit.
        n: total number of messages.
        samples: us of each message, in order: one way, or the round trip for a Read.
        partial: why there are fewer rounds than requested; empty if all were done.
        unreliable: reasons why the figure may not describe siwarp.
    """

    plan: Plan
    load: Load
    rounds: list[float] = field(default_factory=list)
    n: int = 0
    samples: array[float] = field(default_factory=lambda: array("d"))
    partial: str = ""
    unreliable: list[str] = field(default_factory=list)

    @property
    def value(self) -> float | None:
        """The median: of all samples of latency, otherwise of the rounds; None without a round."""
        if self.samples:
            return statistics.median(self.samples)
        return statistics.median(self.rounds) if self.rounds else None

    def percentiles(self, wanted: tuple[float, ...]) -> dict[str, float]:
        """Return percentiles of the samples, ``min`` and ``max``; empty without samples."""
        if not self.samples:
            return {}
        ordered = sorted(self.samples)
        found = {"min": ordered[0], **of_samples.percentiles(ordered, wanted)}
        return {**found, "max": ordered[-1], "mean": statistics.fmean(ordered)}

    def as_json(self, wanted: tuple[float, ...]) -> dict[str, Any]:
        """Return the point as a dictionary without its samples."""
        plan = self.plan
        return {
            "kind": plan.kind,
            "qp": plan.qp,
            "op": plan.op,
            "size": plan.size,
            "depth": plan.depth,
            "post_list": plan.post_list,
            "wait": plan.wait,
            "pairs": self.load.pairs,
            "both": self.load.both,
            "unit": plan.unit,
            "value": self.value,
            "least": min(self.rounds, default=None),
            "largest": max(self.rounds, default=None),
            "n": self.n,
            "rounds": self.rounds,
            "percentiles": self.percentiles(wanted),
            "partial": self.partial,
            "unreliable": self.unreliable,
        }


def _iters(plan: Plan, seconds: float) -> int:
    """Return a number of messages that suits a run; it is a multiple of the credit."""
    _, _, most = ITERS[plan.kind]
    iters = max(1, min(most, int(seconds)))
    return iters + -iters % plan.credit


def _probe(visit: SessionProtocol, plan: Plan, load: Load, most: int | None) -> float:
    """Return the seconds per message, measured by short runs."""
    short = ITERS[plan.kind][0]
    each = 0.0
    for n in (FIRST, short):
        if most is not None and n > most:
            n = most
        if each * n > ROUND_S:
            break
        probe = replace(plan, iters=n + -n % plan.credit)
        each = seconds_of(plan, visit.run(probe, load).slowest)
        if n == most:
            break
    return each


def measure(
    visit: SessionProtocol,
    plan: Plan,
    amount: Amount,
    load: Load,
    tick: Callable[[float], None],
    busy: str = "",
) -> Point:
    """Measure one point.

    Args:
        visit: the session with the server.
        plan: the measurement; its ``iters`` are ignored.
        amount: how much to measure. A round has at most the messages of one second.
        load: how many queue pairs run at once.
        tick: called with the fraction that is done, 0 to 1.
        busy: a doubt about the machine from before the measurement.

    Returns:
        The point, partial if a round failed.

    """
    point = Point(plan, load)
    began = time.monotonic()
    left = amount.iters
    try:
        each = _probe(visit, plan, load, left)
        length = min(ROUND_S, max(SHORT_S, amount.seconds / 7))
        began = time.monotonic()
        while (left is None and time.monotonic() - began < amount.seconds) or left:
            n = _iters(plan, (ROUND_S if left else length) / max(each, 1e-9))
            n = n if left is None else min(n, left + -left % plan.credit)
            done = visit.run(replace(plan, iters=n), load, keep=plan.kind == "lat")
            _add(point, done)
            each = seconds_of(plan, done.slowest)
            if left is not None:
                left = max(0, left - n)
            part = (time.monotonic() - began) / amount.seconds
            tick(min(1.0, part if amount.iters is None else 1 - (left or 0) / amount.iters))
    except BenchError as e:
        point.partial = str(e)
    point.unreliable = [doubt for doubt in (busy, spread(point.rounds)) if doubt]
    return point


def _add(point: Point, done: Round) -> None:
    point.rounds.append(done.value)
    point.n += done.n
    parts = 1000 * (1 if point.plan.op == "read" else 2)
    room = KEPT - len(point.samples)
    point.samples.extend(ns / parts for ns in done.samples[:room])
