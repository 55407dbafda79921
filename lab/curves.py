# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Draws curves to files with matplotlib, which a study needs only for ``--plot``."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

import typer

__all__ = ["draw_curves", "require_matplotlib"]


def require_matplotlib() -> None:
    """Reject --plot before measuring if matplotlib is missing, because measuring takes minutes.

    Raises:
        typer.BadParameter: matplotlib is not installed.

    """
    if importlib.util.find_spec("matplotlib") is None:
        python = shlex.quote(sys.executable)
        raise typer.BadParameter(f"it needs matplotlib: run {python} -m pip install matplotlib")


def draw_curves(
    path: Path,
    title: str,
    labels: tuple[str, str],
    of: dict[str, tuple[list[int], list[float]]],
) -> Path:
    """Draw named curves over powers of two on logarithmic axes; the suffix selects the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, (x, y) in of.items():
        axes.plot(x, y, marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path
