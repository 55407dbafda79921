# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How the commands print: tables and bars in a terminal, plain lines in a pipe.

rich is imported only for a terminal, so that a command whose output goes to a pipe starts fast.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["bar", "data", "fancy", "heading", "line", "note", "table", "tick"]


def fancy() -> bool:
    """Whether a person looks at a terminal, or wants what is printed there."""
    return sys.stdout is not None and (sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR")))


@functools.cache
def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def data(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def line(text: str = "", style: str = "") -> None:
    """Print one line as it is."""
    if not fancy():
        print(text)
        return
    from rich.text import Text

    _console().print(Text(text, style=style))


def heading(text: str) -> None:
    """Print what comes next."""
    if not fancy():
        print(f"\n== {text}")
        return
    from rich.rule import Rule
    from rich.text import Text

    _console().print()
    _console().print(Rule(Text(text, style="bold cyan"), align="left", style="cyan"))


def tick(text: str, good: bool = True) -> None:
    """Print a finding, marked as good or bad."""
    if not fancy():
        print(f"{'ok' if good else 'FAILED'}: {text}")
        return
    from rich.text import Text

    mark = "✓" if good else "✗"
    _console().print(Text.assemble((f"  {mark} ", "bold green" if good else "bold red"), text))


def note(text: str) -> None:
    """Print an additional explanation."""
    line(f"    {text}", style="dim")


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
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

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
    """Show a progress bar; call what this yields with the steps done since the last call."""
    if not fancy():
        yield lambda _steps: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with Progress(
        TextColumn("    {task.description}"),
        BarColumn(bar_width=40),
        TaskProgressColumn(),
        console=_console(),
        transient=True,
    ) as progress:
        task = progress.add_task(text, total=total)
        yield lambda steps: progress.update(task, advance=steps)
