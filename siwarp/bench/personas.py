# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The cost of persona roce: each figure of RC with both personas, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from siwarp.bench.runner import BenchError, run
from siwarp.bench.table import figure, plain

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ROWS", "Row", "measure", "show"]

MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One figure of the table: its name, and the arguments of ``run``."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


ROWS: tuple[Row, ...] = (
    Row("Write 64 B, posting to completion", {"kind": "done"}),
    Row("Send 64 B, one-way latency", {"kind": "lat", "op": "send"}),
    Row("Send 64 B, and its completion", {"kind": "answer"}),
    Row("Write 64 B, one-way latency", {"kind": "lat", "op": "write"}),
    Row("Read 64 B, round trip", {"kind": "lat", "op": "read"}),
    Row("Send 1 MiB", {"kind": "bw", "op": "send", "size": MIB}),
    Row("Write 1 MiB, 16 outstanding", {"kind": "bw", "op": "write", "size": MIB}),
    Row("Read 1 MiB, 16 outstanding", {"kind": "bw", "op": "read", "size": MIB}),
    Row("Send 64 B", {"kind": "rate", "op": "send"}),
    Row("Write 64 B, 16 outstanding", {"kind": "rate", "op": "write"}),
)


def measure(
    rows: Sequence[Row],
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
    run: Callable[..., dict[str, Any]] = run,
    iters: int | None = None,
) -> list[dict[str, Any]]:
    """Measure each row with both personas; for a row that fails, record the reason."""
    results = []
    for i, row in enumerate(rows):

        def step(done: int, total: int, i: int = i) -> None:
            if progress is not None:
                progress(i * 100 + done * 100 // total, 100 * len(rows))

        result: dict[str, Any] = {"name": row.name, "error": None, "measured": None}
        try:
            result["measured"] = run(
                **row.arguments,
                qp="rc",
                persona="both",
                rounds=rounds,
                iters=iters,
                others=False,
                progress=step,
            )
        except BenchError as e:
            result["error"] = str(e)
        results.append(result)
    return results


def _cells(result: dict[str, Any]) -> list[str]:
    measured = result["measured"]
    if measured is None:
        return [result["name"], "", "", "", "failed"]
    unit, floor = measured["unit"], measured["floor"]
    least, largest = measured["spans"]["roce_ratio"]
    return [
        result["name"],
        "-" if floor is None else figure(floor, unit),
        figure(measured["ours"], unit),
        figure(measured["as_roce"], unit),
        f"{measured['roce_ratio']:.2f} ({least:.2f} to {largest:.2f})",
    ]


def show(results: list[dict[str, Any]], console: Console | None = None) -> None:
    """Print the table, and the reasons for failures."""
    from rich.table import Table

    console = plain(console, 120)
    shown = Table(header_style="bold", border_style="dim")
    for column in ("RC", "raw TCP", "iwarp", "roce", "roce / iwarp"):
        shown.add_column(column, justify="left" if column == "RC" else "right")
    for result in results:
        shown.add_row(*_cells(result))
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
