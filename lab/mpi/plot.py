# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The curves of ``python -m lab.mpi --plot``: one file for each figure, drawn with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from lab.curves import draw_curves
from lab.mpi.hybrid import CHANNELS
from lab.mpi.launch import TRANSPORTS
from lab.mpi.wire import METRICS

__all__ = ["draw_measured_parts"]


def _draw_transports(found: dict[str, Any], folder: Path) -> list[Path]:
    drawn = []
    for metric, (words, unit, _) in METRICS.items():
        curves = {
            TRANSPORTS[name].name: (
                list(found["sizes"]),
                [figures[str(size)][metric]["median"] for size in found["sizes"]],
            )
            for name, figures in found["transports"].items()
        }
        title, labels = f"MPI: {words}", ("octets of a message", unit)
        drawn.append(draw_curves(folder / f"mpi-{metric}.png", title, labels, curves))
    return drawn


def _draw_memory(found: dict[str, Any], folder: Path) -> list[Path]:
    curves = {}
    for name in found["transports"]:
        points = [point for point in found["points"] if name in point]
        ranks = [point["ranks"] for point in points]
        for of, words in (("whole", ""), ("siwarp_and_kernel", ", siwarp's and the kernel's")):
            octets = [point[name][of] / (1 << 20) for point in points]
            curves[f"{TRANSPORTS[name].name}{words}"] = (ranks, octets)
    labels = ("ranks, all communicating with each other", "MiB of each rank")
    return [draw_curves(folder / "mpi-memory.png", "MPI: memory", labels, curves)]


def _draw_ud_rc_hybrid_channels(found: dict[str, Any], folder: Path) -> list[Path]:
    first = found["rows"][0]["size"]
    rows = [row for row in found["rows"] if row["size"] == first]
    memory, rate = {}, {}
    for name in found["channels"]:
        own = [row for row in rows if name in row]
        ranks = [row["ranks"] for row in own]
        memory[CHANNELS[name]] = (ranks, [row[name]["whole"] / (1 << 20) for row in own])
        rate[CHANNELS[name]] = (ranks, [row[name]["rate"]["median"] for row in own])
    return [
        draw_curves(folder / f"hybrid-{name}.png", f"A channel: {words}", ("ranks", unit), curves)
        for name, words, unit, curves in (
            ("memory", "memory", "MiB of each rank", memory),
            ("rate", "message rate", "messages per second, all ranks", rate),
        )
    ]


_DRAW = {"wire": _draw_transports, "memory": _draw_memory, "hybrid": _draw_ud_rc_hybrid_channels}


def draw_measured_parts(found: dict[str, Any], folder: Path) -> list[Path]:
    """Create a folder, draw each measured part of the results into it, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for part, draw_part in _DRAW.items():
        if found.get(part):
            drawn += draw_part(found[part], folder)
    for path in drawn:
        typer.echo(f"written: {path}", err=True)
    return drawn
