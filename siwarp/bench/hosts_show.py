# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Prints points between hosts as a table, as CSV, and sample by sample."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from siwarp.base import samples as of_samples
from siwarp.bench.hosts_measure import Point

__all__ = ["distribution", "every_sample", "heading", "notes", "row", "write_csv"]

_LATENCY = ("min", "p50", "p99", "p99.9", "max")


def _size(octets: int) -> str:
    for unit, text in ((1 << 20, "M"), (1 << 10, "K")):
        if octets >= unit and octets % unit == 0:
            return f"{octets // unit}{text}"
    return str(octets)


def heading(kind: str) -> str:
    """Return the heading of the table."""
    head = f"{'qp':<3} {'op':<5} {'size':>7} {'messages':>8}"
    if kind == "lat":
        return head + "".join(f" {name:>8}" for name in _LATENCY) + " us"
    unit = "MB/s" if kind == "bw" else "M msg/s"
    return f"{head} {'median':>12} {'least':>12} {'largest':>12} {unit}"


def row(point: Point) -> str:
    """Return a point as a line; a star refers to a note about its reliability."""
    plan = point.plan
    head = f"{plan.qp:<3} {plan.op:<5} {_size(plan.size):>7} {point.n:>8}"
    if point.value is None:
        return f"{head} failed: {point.partial}"
    if plan.kind == "lat":
        found = point.percentiles((50.0, 99.0, 99.9))
        shown = head + "".join(f" {found[name]:8.2f}" for name in _LATENCY)
    else:
        values = point.value, min(point.rounds), max(point.rounds)
        scale, digits = (1e3, 2) if plan.kind == "bw" else (1e-6, 5)
        shown = head + "".join(f" {value * scale:12.{digits}f}" for value in values)
    return shown + " partial" * bool(point.partial) + "*" * bool(point.unreliable)


def notes(points: Iterable[Point]) -> list[str]:
    """Return the reasons why points are partial or unreliable, each once with its points."""
    reasons: dict[str, list[str]] = {}
    for point in points:
        where = f"{point.plan.qp} {_size(point.plan.size)}"
        if point.partial and point.rounds:
            reasons.setdefault(f"partial: {point.partial}", []).append(where)
        for doubt in point.unreliable:
            reasons.setdefault(f"*unreliable: {doubt}", []).append(where)
    return [
        f"{', '.join(where[:3])}{' and others' * (len(where) > 3)}: {why}"
        for why, where in reasons.items()
    ]


def distribution(point: Point, wanted: Sequence[float] | None, *, histogram: bool) -> list[str]:
    """Return the requested percentiles and a histogram, as lines."""
    if not point.samples:
        return []
    found = []
    if wanted:
        shown = of_samples.percentiles(sorted(point.samples), wanted)
        found.append("  " + "  ".join(f"{name} {value:.2f}" for name, value in shown.items()))
    if histogram:
        found += of_samples.lines(sorted(point.samples))
    return found


def every_sample(point: Point, *, in_order: bool) -> list[str]:
    """Return each sample in the format of perftest's -H (sorted) or -U (unsorted)."""
    found = point.samples if in_order else sorted(point.samples)
    return ["#, usec", *(f"{i + 1}, {value:.2f}" for i, value in enumerate(found))]


def write_csv(path: Path, points: Sequence[Point], wanted: Sequence[float]) -> None:
    """Write a line for each point; missing values are empty."""
    everything = [point.as_json(tuple(wanted)) for point in points]
    for each in everything:
        each |= each.pop("percentiles")
        each["rounds"] = len(each["rounds"])
        each["unreliable"] = "; ".join(each["unreliable"])
    names = list(dict.fromkeys(name for each in everything for name in each))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(everything)
