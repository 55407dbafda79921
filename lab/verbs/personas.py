# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The cost of persona roce: each figure of RC, alternately with persona iwarp and persona roce."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.console import fixed_width_console
from lab.verbs import runs
from siwarp.bench.runner import BenchError, Progress, make_progress_counter
from siwarp.bench.runner import run as bench_run
from siwarp.bench.table import MIB, format_value_with_unit
from siwarp.bench.trust import minimum_and_maximum

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PERSONAS", "ROWS", "Row", "measure_personas", "print_personas"]

PERSONAS = ("iwarp", "roce")


@dataclass(frozen=True)
class Row:
    """A figure of the table: the name, and the arguments of the run that measures it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


ROWS: tuple[Row, ...] = (
    Row("Write 64 B, posting to completion", {"kind": "done"}),
    Row("Send 64 B, one-way latency", {"kind": "lat", "op": "send"}),
    Row("Send 64 B, and its completion", {"kind": "answer"}),
    Row("Write 64 B, one-way latency", {"kind": "lat", "op": "write"}),
    Row("Write 64 B into memory that is read instead of polling", {"kind": "watched"}),
    Row("Read 64 B, round trip", {"kind": "lat", "op": "read"}),
    Row("Send 1 MiB", {"kind": "bw", "op": "send", "size": MIB}),
    Row("Write 1 MiB, 16 outstanding", {"kind": "bw", "op": "write", "size": MIB}),
    Row("Read 1 MiB, 16 outstanding", {"kind": "bw", "op": "read", "size": MIB}),
    Row("Send 64 B", {"kind": "rate", "op": "send"}),
    Row("Write 64 B, 16 outstanding", {"kind": "rate", "op": "write"}),
)


def _measure_value_once(
    arguments: dict[str, Any], persona: str, iters: int | None
) -> dict[str, Any]:
    """Measure a figure once; return ``value``, ``p99``, ``floor`` or None, ``iters``, ``unit``."""
    env = {"SIWARP_PERSONA": persona}
    if arguments["kind"] in runs.KINDS:
        plan = runs.create_measurement_plan(arguments["kind"], "rc", iters)
        values = runs.run_measurement_once(plan, env=env)
        return {**values, "floor": None, "iters": plan.iters, "unit": "us"}
    found = bench_run(**arguments, qp="rc", env=env, rounds=1, iters=iters, others=False)
    (only,) = found["rounds"]
    return {
        "value": found["ours"],
        "p99": only.get("p99", {}).get("ours", 0),
        "floor": found["floor"],
        "iters": found["iters"],
        "unit": found["unit"],
    }


def _measure_row(
    row: Row, rounds: int, iters: int | None, step: Callable[[], None]
) -> dict[str, Any]:
    found: list[dict[str, dict[str, Any]]] = []
    for turn in range(rounds):
        each = {}
        for persona in PERSONAS if turn % 2 == 0 else PERSONAS[::-1]:
            each[persona] = _measure_value_once(row.arguments, persona, iters)
            # Later runs send as many messages as the first run.
            iters = each[persona]["iters"]
            step()
        found.append(each)
    ratios = [each["roce"]["value"] / each["iwarp"]["value"] for each in found]
    floors = [of["floor"] for each in found for of in each.values() if of["floor"] is not None]

    def medians_by_persona(name: str) -> dict[str, float]:
        return {
            persona: statistics.median(each[persona][name] for each in found)
            for persona in PERSONAS
        }

    return {
        "unit": found[0]["iwarp"]["unit"],
        "iters": iters,
        "floor": statistics.median(floors) if floors else None,
        **medians_by_persona("value"),
        "p99": medians_by_persona("p99"),
        "roce_ratio": statistics.median(ratios),
        "span": minimum_and_maximum(ratios),
        "rounds": found,
    }


def measure_personas(
    rows: Sequence[Row],
    rounds: int,
    progress: Progress | None = None,
    iters: int | None = None,
) -> list[dict[str, Any]]:
    """Measure each row with persona iwarp and persona roce alternately.

    Returns:
        For each row ``name``, ``error`` (why it failed, or None) and ``measured``: ``unit``,
        ``iters``, ``floor`` (raw TCP), ``iwarp`` and ``roce`` (medians), ``p99`` (medians of the
        99th percentiles, by persona; 0 without), ``roce_ratio`` (the median of the rounds' ratios
        of roce to iwarp), ``span`` (the least and the largest ratio), and ``rounds``.

    """
    step = make_progress_counter(progress, len(rows) * rounds * len(PERSONAS))
    results = []
    for row in rows:
        result: dict[str, Any] = {"name": row.name, "error": None, "measured": None}
        try:
            result["measured"] = _measure_row(row, rounds, iters, step)
        except BenchError as e:
            result["error"] = str(e)
        results.append(result)
    return results


def _format_table_row_cells(result: dict[str, Any]) -> list[str]:
    measured = result["measured"]
    if measured is None:
        return [result["name"], "", "", "", "failed", ""]
    unit, floor = measured["unit"], measured["floor"]
    least, largest = measured["span"]
    late = [measured["p99"][persona] for persona in PERSONAS]
    return [
        result["name"],
        "-" if floor is None else format_value_with_unit(floor, unit),
        *(format_value_with_unit(measured[persona], unit) for persona in PERSONAS),
        f"{measured['roce_ratio']:.2f} ({least:.2f} to {largest:.2f})",
        " / ".join(format_value_with_unit(us, unit) for us in late) if all(late) else "",
    ]


def print_personas(results: list[dict[str, Any]], console: Console | None = None) -> None:
    """Print the table of both personas, and the reason for each row that failed."""
    from rich.table import Table

    console = fixed_width_console(console, 140)
    shown = Table(header_style="bold", border_style="dim")
    for column in ("RC", "raw TCP", *PERSONAS, "roce / iwarp", "99% within, iwarp / roce"):
        shown.add_column(column, justify="left" if column == "RC" else "right")
    for result in results:
        shown.add_row(*_format_table_row_cells(result))
    console.print(shown)
    console.print(
        "medians; roce / iwarp: the median of the rounds' ratios, the least and the largest. A "
        "request completes with iwarp when TCP has accepted it, with roce when the peer has "
        "acknowledged it",
        soft_wrap=True,
    )
    for result in results:
        if result["error"]:
            console.print(f"{result['name']}: {result['error']}", style="red", soft_wrap=True)
