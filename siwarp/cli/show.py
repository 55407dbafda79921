# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How the commands print: tables and bars in a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

__all__ = ["bar", "console", "data", "fancy", "heading", "line", "note", "table", "tick"]

console = Console(highlight=False, soft_wrap=True)


def fancy() -> bool:
    """Whether a person looks at a terminal."""
    return console.is_terminal


def data(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def line(text: str = "", style: str = "") -> None:
    """Print one line as it is."""
    console.print(Text(text, style=style))


def heading(text: str) -> None:
    """Print what comes next."""
    if fancy():
        console.print()
        console.print(Rule(Text(text, style="bold cyan"), align="left", style="cyan"))
    else:
        print(f"\n== {text}")


def tick(text: str, good: bool = True) -> None:
    """Print something that was found to be so, or not."""
    mark = "✓" if good else "✗"
    if fancy():
        console.print(Text.assemble((f"  {mark} ", "bold green" if good else "bold red"), text))
    else:
        print(f"{'ok' if good else 'FAILED'}: {text}")


def note(text: str) -> None:
    """Print an explanation beside the matter."""
    console.print(Text(f"    {text}", style="dim"))


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    styles: Sequence[str] = (),
) -> None:
    """Print a table; the columns numbered in ``right`` are aligned there.

    ``styles``: one for each row, on a terminal.
    """
    if fancy():
        shown = Table(header_style="bold", border_style="dim")
        for i, column in enumerate(columns):
            shown.add_column(column, justify="right" if i in right else "left", overflow="fold")
        for i, row in enumerate(rows):
            shown.add_row(*(Text(cell) for cell in row), style=styles[i] if styles else "")
        Console(highlight=False).print(shown)
        return
    everything = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in everything) for i in range(len(columns))]
    for row in everything:
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


@contextlib.contextmanager
def bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while something goes on; call what this gives with the steps done since then."""
    if not fancy():
        yield lambda _steps: None
        return
    with Progress(
        TextColumn("    {task.description}"),
        BarColumn(bar_width=40),
        TaskProgressColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task(text, total=total)
        yield lambda steps: progress.update(task, advance=steps)
