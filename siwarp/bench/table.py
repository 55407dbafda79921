# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The figures that siwarp promises, each with its floor (raw sockets), its limit, and its aim."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siwarp.base import show
from siwarp.bench.runner import BenchError, run

__all__ = [
    "ROWS",
    "Row",
    "format_value_with_unit",
    "measure_rows",
    "row_verdict",
    "show_table",
    "write_results",
]

MIB = 1 << 20

#: For each figure that siwarp is compared with, the key of the ratio to it in a result of ``run``.
_RATIOS = {"floor": "ratio_median", "lossless": "lossless_ratio"}
#: For each figure that siwarp is compared with, the key of the ratio in a result's ``spans``.
_SPANS = {"floor": "ratio", "lossless": "lossless_ratio"}


@dataclass(frozen=True)
class Row:
    """A row of the table: one promised figure.

    ``must`` and ``aim`` limit the ratio to the floor (the median of the rounds' ratios), or, for a
    figure without a floor, the microseconds. ``beside`` is the reference of the ratio: the floor,
    or ``lossless``, RD on the same link without its losses.
    """

    name: str
    floor: str
    must: float
    aim: float
    less_is_better: bool
    arguments: dict[str, Any] = field(default_factory=dict)
    beside: str = "floor"


ROWS: tuple[Row, ...] = (
    Row(
        "UD 64 B one-way latency, C",
        "raw UDP, unconnected",
        1.15,
        1.06,
        True,
        {"kind": "lat", "qp": "ud", "size": 64},
    ),
    Row(
        "RC Send 64 B one-way latency, C",
        "raw TCP",
        1.15,
        1.05,
        True,
        {"kind": "lat", "qp": "rc", "size": 64},
    ),
    Row(
        "UD 64 B latency, Python API",
        "the same in C",
        1.50,
        1.25,
        True,
        {"kind": "lat", "qp": "ud", "size": 64, "api": "python"},
    ),
    Row(
        "RC RDMA Write 1 MiB bandwidth",
        "raw TCP, polling",
        0.70,
        0.88,
        False,
        {"kind": "bw", "qp": "rc", "op": "write", "size": MIB},
    ),
    Row(
        "RC RDMA Read 1 MiB, 16 outstanding",
        "raw TCP, polling",
        0.65,
        0.85,
        False,
        {"kind": "bw", "qp": "rc", "op": "read", "size": MIB, "depth": 16},
    ),
    Row(
        "UD 60 KB messages",
        "raw UDP, windowed",
        0.70,
        0.90,
        False,
        {"kind": "bw", "qp": "ud", "size": 60000},
    ),
    Row(
        "UD 64 B posted one by one",
        "sendmmsg, recvmmsg",
        0.80,
        0.92,
        False,
        {"kind": "rate", "qp": "ud", "size": 64},
    ),
    Row(
        "RD 64 B latency compared with UD",
        "siwarp, UD",
        1.15,
        1.03,
        True,
        {"kind": "lat", "qp": "rd", "size": 64},
    ),
    Row(
        "RD 64 B posted one by one, compared with UD",
        "siwarp, UD",
        0.60,
        1.00,
        False,
        {"kind": "rate", "qp": "rd", "size": 64},
    ),
    Row(
        "RD 1 MiB bandwidth compared with raw UDP 60 KB",
        "raw UDP, windowed",
        0.60,
        0.85,
        False,
        {"kind": "bw", "qp": "rd", "size": MIB},
    ),
    Row(
        "RD at 1% loss of 1,500-octet packets, 0.1 ms",
        "the same without loss",
        0.70,
        0.90,
        False,
        {
            "kind": "bw",
            "qp": "rd",
            "size": MIB,
            "env": {"SIWARP_RD_MAX_DATAGRAM": "1472", "SIWARP_FAULTS": "loss=1%,delay=0.1ms"},
        },
        "lossless",
    ),
    # By default a wait spins first and would not sleep in this measurement, so spinning is off.
    Row(
        "UD 64 B, asleep on a completion channel",
        "raw UDP, blocking",
        1.30,
        1.05,
        True,
        {
            "kind": "lat",
            "qp": "ud",
            "size": 64,
            "wait": "event",
            "env": {"SIWARP_SPIN_US": "0"},
        },
    ),
)


def format_value_with_unit(value: float, unit: str) -> str:
    """Return a value as text, with its unit and three significant digits."""
    if unit == "msg/s":
        value, unit = value / 1e6, "M msg/s"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f} {unit}"


def row_verdict(row: Row, value: float) -> str:
    """Return ``aim`` if the value reaches the aim, ``must`` if only the limit, else ``missed``."""
    sign = 1 if row.less_is_better else -1
    if value * sign <= row.aim * sign:
        return "aim"
    return "must" if value * sign <= row.must * sign else "missed"


def measure_rows(
    rows: Sequence[Row],
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
    run: Callable[..., dict[str, Any]] = run,
) -> list[dict[str, Any]]:
    """Measure each row; a row that fails counts as missed, with the reason."""
    results = []
    for i, row in enumerate(rows):

        def report_progress(done: int, total: int, i: int = i) -> None:
            if progress is not None:
                progress(i * 100 + done * 100 // total, 100 * len(rows))

        result: dict[str, Any] = {
            "name": row.name,
            "floor_words": row.floor,
            "must": row.must,
            "aim": row.aim,
            "beside": row.beside,
        }
        try:
            measured = run(**row.arguments, rounds=rounds, progress=report_progress)
        except BenchError as e:
            result.update(verdict="missed", error=str(e), measured=None)
        else:
            ratio = measured[_RATIOS[row.beside]]
            verdict = row_verdict(row, measured["ours"] if ratio is None else ratio)
            result.update(verdict=verdict, error=None, measured=measured)
        results.append(result)
    return results


def write_results(results: list[dict[str, Any]], output: str) -> None:
    """Write all results of the table to the file ``output``, unless the name is empty."""
    if output:
        Path(output).write_text(json.dumps(results, indent=2) + "\n", "utf-8")


def _format_table_row_cells(result: dict[str, Any]) -> list[str]:
    measured, limits = result["measured"], [f"{result['must']:g}", f"{result['aim']:g}"]
    name = [result["name"], result["verdict"]]
    if measured is None:
        return [*name, "", "", *limits, "", "", result["floor_words"]]
    unit = measured["unit"]
    ours = format_value_with_unit(measured["ours"], unit)
    floor = measured[result["beside"]]
    if floor is None:
        return [*name, "", "", *(f"{limit} {unit}" for limit in limits), "", ours, "-"]
    ratio = f"{measured[_RATIOS[result['beside']]]:.2f}"
    least, largest = measured["spans"][_SPANS[result["beside"]]]
    floor_value = format_value_with_unit(floor, unit)
    spans = f"{least:.2f} to {largest:.2f}"
    return [*name, ratio, spans, *limits, floor_value, ours, result["floor_words"]]


def _format_further_floors(result: dict[str, Any]) -> str:
    measured = result["measured"]
    if measured is None or not measured["floors"]:
        return ""
    unit = measured["unit"]
    figures = (
        f"{name} {format_value_with_unit(value, unit)}"
        for name, value in measured["floors"].items()
    )
    return f"{result['name']}: {', '.join(figures)}"


def show_table(results: list[dict[str, Any]]) -> None:
    """Print the table, the other raw-socket runs, and the reasons for failures."""
    columns = (
        "what",
        "verdict",
        "ratio",
        "of the rounds",
        "must",
        "aim",
        "floor",
        "ours",
        "beside",
    )
    styles = {"aim": "green", "must": "yellow", "missed": "bold red"}
    show.print_table(
        columns,
        [_format_table_row_cells(result) for result in results],
        right=(2, 4, 5, 6, 7),
        styles=[styles[result["verdict"]] for result in results],
    )
    show.print_line("floor and ours: medians; ratio: the median of the rounds' ratios, CRC on")
    for line in filter(None, map(_format_further_floors, results)):
        show.print_line(f"others: {line}")
    for result in results:
        for doubt in result["measured"]["unreliable"] if result["measured"] else ():
            show.print_line(f"{result['name']}: unreliable: {doubt}")
        if result["error"]:
            show.print_line(f"{result['name']}: {result['error']}", style="red")
