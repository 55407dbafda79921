# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Latencies of single messages: percentiles, histograms, and sample files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "PERCENTILES",
    "histogram",
    "histogram_lines",
    "parse_percentiles",
    "percentiles",
    "write_samples",
]

#: The percentiles that a summary of latencies contains.
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
#: Number of histogram bars between two successive powers of two.
_BARS = 4
_WIDTH = 40
_GAP = f"{'...':>10}"


def parse_percentiles(text: str) -> tuple[float, ...]:
    """Parse a comma-separated list of percentiles.

    Raises:
        ValueError: an element is not a number above 0 and up to 100.

    """
    found = []
    for word in text.split(","):
        try:
            value = float(word)
        except ValueError:
            value = 0.0
        if not 0 < value <= 100:
            raise ValueError(f"{word!r} is not a percentile: use a list such as 50,99,99.9")
        found.append(value)
    return tuple(found)


def percentiles(ordered: Sequence[float], wanted: Sequence[float]) -> dict[str, float]:
    """Return the requested percentiles by name, such as ``p99``, by the nearest-rank method.

    Args:
        ordered: the samples in ascending order, at least one.
        wanted: the percentiles, each above 0 and up to 100.

    """
    last = len(ordered) - 1
    return {
        f"p{each:g}": ordered[max(0, min(last, math.ceil(len(ordered) * each / 100) - 1))]
        for each in wanted
    }


def histogram(ordered: Sequence[float]) -> list[tuple[float, float, int]]:
    """Return histogram bars (lower bound, upper bound, count) of logarithmic width.

    The first and the last bar are not empty.

    Args:
        ordered: samples in ascending order; samples of 0 belong to the first bar.

    """
    if not ordered:
        return []

    def bar_index(value: float) -> int:
        return math.floor(math.log2(value) * _BARS) if value > 0 else first

    first = math.floor(math.log2(next((v for v in ordered if v > 0), 1.0)) * _BARS)
    counts = [0] * (bar_index(ordered[-1]) - first + 1)
    for value in ordered:
        counts[bar_index(value) - first] += 1
    return [
        (2 ** ((first + i) / _BARS), 2 ** ((first + i + 1) / _BARS), n)
        for i, n in enumerate(counts)
    ]


def histogram_lines(ordered: Sequence[float]) -> list[str]:
    """Return a histogram of samples in us as text lines with range, count and bar.

    A run of empty bars is shown as one line.
    """
    bars = histogram(ordered)
    most = max((n for *_, n in bars), default=1)
    found = []
    for low, high, n in bars:
        if n:
            bar = "#" * -(-n * _WIDTH // most)
            found.append(f"{low:10.2f} to {high:10.2f} us {n:9} {bar}")
        elif found[-1] != _GAP:
            found.append(_GAP)
    return found


def write_samples(path: Path, samples: Sequence[float]) -> None:
    """Write samples in us to a file, one per line, in order."""
    with path.open("w", encoding="ascii") as file:
        file.writelines(f"{value:.3f}\n" for value in samples)
