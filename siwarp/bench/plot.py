# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Draws the figures of ``siwarp bench lat|bw|rate`` by message size (``--plot``), by matplotlib."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from siwarp.bench.sizes import format_size

__all__ = ["draw_curves_to_file", "validate_plot_option"]

_SUFFIXES = (".svg", ".png")
#: A chart with more sizes has labels only at powers of two.
_MOST_LABELS = 24
_TITLES = {"lat": "latency (us)", "bw": "bandwidth (GB/s)", "rate": "messages per second"}


def validate_plot_option(path: Path) -> None:
    """Refuse a file that cannot be drawn, before the measurement."""
    if path.suffix.lower() not in _SUFFIXES:
        raise typer.BadParameter(f"{path}: give a name that ends in .svg or .png")
    if importlib.util.find_spec("matplotlib") is None:
        python = shlex.quote(sys.executable)
        raise typer.BadParameter(
            f"--plot needs matplotlib: run {python} -m pip install 'siwarp[plot]', or write the "
            "figures with --csv"
        )


def draw_curves_to_file(
    path: Path, kind: str, curves: Mapping[str, Sequence[tuple[int, float]]]
) -> None:
    """Draw curves, named points (octets, figure), on logarithmic axes; the suffix is the format.

    Raises:
        OSError: the file cannot be written.

    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({size for points in curves.values() for size, _ in points})
    if len(sizes) <= _MOST_LABELS:
        axes.set_xticks(sizes, [format_size(size) for size in sizes])
        axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("octets of a message")
    axes.set_ylabel(_TITLES[kind])
    axes.grid(visible=True, alpha=0.4)
    axes.legend()
    figure.savefig(path)
