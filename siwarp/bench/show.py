# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Prints a measurement of ``siwarp bench`` as text, and prepares it for CSV and for a chart."""

from __future__ import annotations

import csv
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siwarp.bench.plan import RD_FLOOR
from siwarp.bench.table import format_value_with_unit

__all__ = [
    "curves_of_results",
    "describe_raw_socket_floor",
    "print_measurement",
    "print_text",
    "result_to_csv_dict",
    "write_csv",
]


def _describe_measurement(result: dict[str, Any]) -> str:
    what = f"{result['qp'].upper()} {result['op']} {result['size']} octets"
    if result["kind"] == "lat":
        what += ", round trip" if result["op"] == "read" else ", one way"
    else:
        what += f", {result['depth']} outstanding"
    if result["wait"] == "event":
        what += ", sleeping on a completion channel"
    if result["api"] != "c":
        what += ", Python API" + (", NumPy arrays" if result["api"] == "numpy" else "")
    if result["faults"]:
        what += f", siwarp with faults {result['faults']}"
    rounds = len(result["rounds"])
    times = f"{rounds} rounds, medians" if rounds > 1 else "1 round"
    return f"{what}: {result['iters']} per run, {times}"


_FLOORS = {
    "unconnected": "raw UDP, unconnected, polling",
    "connected": "raw UDP, connected, polling",
    "mmsg": "raw UDP, sendmmsg and recvmmsg",
    "blocking-mmsg": "raw UDP, sendmmsg and recvmmsg, blocking",
    "gso": "raw UDP, batches by GSO and GRO",
    "blocking-gso": "raw UDP, batches by GSO and GRO, blocking",
    "coalesced": "raw TCP, 64 KiB per send",
    "blocking-coalesced": "raw TCP, 64 KiB per send, blocking",
    "c": "the same in C",
    "ud": "siwarp, UD",
}


#: Variants of siwarp that the table compares: key of the measured number in the result, key of its
#: ratio, title, and meaning of the ratio.
_BESIDE = (
    ("with_markers", "markers_ratio", "siwarp, Markers in both directions", "{} of without"),
    (
        "lossless",
        "lossless_ratio",
        "siwarp, the same without the losses",
        "{} of the rate without losses",
    ),
)


def describe_raw_socket_floor(name: str, qp: str) -> str:
    """Return the description of a floor, the raw-socket run for comparison."""
    if name in _FLOORS:
        return _FLOORS[name]
    words = {"single": "one send per message", "polling": "polling", "blocking": "blocking"}[name]
    return f"raw {'TCP' if qp == 'rc' else 'UDP'}, {words}"


def _format_ratio_range(result: dict[str, Any], name: str) -> str:
    """Return the minimum and maximum of a ratio over the rounds, as text."""
    least, largest = result["spans"][name]
    return f"{least:.3f} to {largest:.3f}"


def _format_partial_and_unreliable_lines(result: dict[str, Any]) -> list[str]:
    """Return the lines about a result's restrictions: partial or unreliable."""
    found = [f"unreliable: {doubt}" for doubt in result["unreliable"]]
    return [f"partial: {result['partial']}", *found] if result["partial"] else found


def _terminal_columns() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _print_measured_value(words: str, value: float, unit: str, more: str = "") -> None:
    """Print a figure with a remark; the remark goes to the next line if the terminal is narrow."""
    line = f"  {words:<42} {format_value_with_unit(value, unit):>16}"
    whole = f"{line}   {more}".rstrip()
    if len(whole) <= _terminal_columns():
        print(whole)
    else:
        print(line, f"      {more}", sep="\n")


def print_text(text: str, indent: str = "") -> None:
    """Print a sentence, wrapped between words on a narrow terminal."""
    print(
        *textwrap.wrap(
            text, _terminal_columns(), initial_indent=indent, subsequent_indent=indent + "    "
        ),
        sep="\n",
        flush=True,
    )


def print_measurement(result: dict[str, Any]) -> None:
    """Print the result of a measurement in a few lines."""
    unit = result["unit"]
    print_text(_describe_measurement(result))
    _print_measured_value("siwarp", result["ours"], unit)
    words = describe_raw_socket_floor(result["floor_name"], result["qp"])
    if (result["qp"], result["kind"]) == ("rd", "bw"):
        words += f", {RD_FLOOR // 1000} KB"
    good = "less" if result["less_is_better"] else "more"
    more = f"ratio {result['ratio']:.3f} ({_format_ratio_range(result, 'ratio')}; {good} is better)"
    _print_measured_value(words, result["floor"], unit, more)
    for tail, values in result["tails"].items():
        beside = f"{words}: {format_value_with_unit(values['floor'], unit)}"
        more = f"ratio {values['ratio']:.3f} ({beside})"
        _print_measured_value(f"siwarp, {tail}", values["ours"], unit, more)
    for key, ratio, words, beside in _BESIDE:
        if result[key] is not None:
            more = beside.format(f"{result[ratio]:.3f}")
            _print_measured_value(
                words, result[key], unit, f"{more} ({_format_ratio_range(result, ratio)})"
            )
    for name, value in result["floors"].items():
        _print_measured_value(describe_raw_socket_floor(name, result["qp"]), value, unit)
    for line in _format_partial_and_unreliable_lines(result):
        print_text(line, "  ")


def result_to_csv_dict(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without its rounds, as a row for write_csv."""
    names = ("kind", "qp", "op", "size", "depth", "unit", "ours", "floor", "floor_name", "ratio")
    least, largest = result["spans"]["ratio"]
    return {
        **{name: result[name] for name in names},
        "least": least,
        "largest": largest,
        "rounds": len(result["rounds"]),
        "partial": result["partial"],
        "unreliable": "; ".join(result["unreliable"]),
    }


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a CSV file; a value that a row does not have is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def curves_of_results(results: Sequence[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return the points (octets, figure) of siwarp and of each floor, by name."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        floor = describe_raw_socket_floor(result["floor_name"], result["qp"])
        for name, key in ((f"siwarp, {result['qp'].upper()}", "ours"), (floor, "floor")):
            curves.setdefault(name, []).append((result["size"], result[key]))
    return {name: sorted(dict(points).items()) for name, points in curves.items()}
