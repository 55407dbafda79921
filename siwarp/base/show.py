# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The output of the commands: tables and progress bars on a terminal, plain lines in a pipe.

rich is imported only for a terminal, so that a command whose output goes to a pipe starts fast.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "collect_findings",
    "escape_control_characters",
    "is_terminal_output",
    "print_finding",
    "print_heading",
    "print_json",
    "print_line",
    "print_note",
    "print_table",
    "show_progress_bar",
]


#: Minimum width of a table's last column. If the terminal has less room, the column is printed
#: below the others, indented by INDENT.
MIN_LAST_WIDTH = 24
INDENT = " " * 4


def is_terminal_output() -> bool:
    """Return whether output goes to a terminal (or FORCE_COLOR is set) and rich is installed."""
    seen = sys.stdout is not None and (sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR")))
    return seen and importlib.util.find_spec("rich") is not None


def escape_control_characters(text: str) -> str:
    """Escape the control characters of a text, which a terminal would execute."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


#: The list that records findings instead of printing them, or None.
_record: list[dict[str, Any]] | None = None


@contextlib.contextmanager
def collect_findings() -> Iterator[list[dict[str, Any]]]:
    """Suppress all output in this context; yield a list to which each heading adds a dict.

    The dict has ``title`` and ``findings``; each finding has ``text`` and ``good``.
    """
    global _record
    _record = []
    try:
        yield _record
    finally:
        _record = None


@functools.cache
def _make_rich_console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def print_line(text: str = "", style: str = "") -> None:
    """Print one line; on a terminal, break a long line into several."""
    if _record is not None:
        return
    if not is_terminal_output():
        print(text)
        return
    from rich.text import Text

    for each in _split_into_terminal_lines(text):
        _make_rich_console().print(Text(each, style=style))


def _split_into_terminal_lines(text: str) -> Iterator[str]:
    """Yield the terminal lines for a text; continuation lines are indented further."""
    indent = text[: len(text) - len(text.lstrip())]
    room = _terminal_columns()
    if len(text) <= room:
        yield text
    else:
        yield from _wrap_with_hanging_indent("", indent + INDENT, text, room)


def print_heading(text: str) -> None:
    """Print a heading for the findings that follow."""
    if _record is not None:
        _record.append({"title": text, "findings": []})
        return
    if not is_terminal_output():
        print(f"\n== {text}")
        return
    from rich.rule import Rule
    from rich.text import Text

    _make_rich_console().print()
    _make_rich_console().print(Rule(Text(text, style="bold cyan"), align="left", style="cyan"))


def print_finding(text: str, good: bool = True) -> None:
    """Print a finding of a command, marked as good or bad."""
    if _record is not None:
        _record[-1]["findings"].append({"text": text, "good": good})
        return
    if not is_terminal_output():
        print(f"{'ok' if good else 'FAILED'}: {text}")
        return
    from rich.text import Text

    style, mark = ("bold green", "✓") if good else ("bold red", "✗")
    for each in _split_into_terminal_lines(f"  {mark} {text}"):
        shown = Text(each)
        shown.highlight_words([mark], style)
        _make_rich_console().print(shown)


def print_note(text: str) -> None:
    """Print an additional explanation of the last finding, indented."""
    print_line(f"    {text}", style="dim")


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    styles: Sequence[str] = (),
) -> None:
    """Print a table; the columns numbered in ``right`` are right-aligned.

    On a terminal the last column takes the remaining width, and columns that do not fit are printed
    below. ``styles`` has one style per row. In a pipe, each row is one line.
    """
    everything = [columns, *rows]
    widths = [max(len(row[i]) for row in everything) for i in range(len(columns))]
    room = _terminal_columns()
    for row, style in zip(everything, ["bold", *(styles or [""] * len(rows))], strict=True):
        for each in _table_row_lines(row, widths, right, room):
            print_line(each, style)


def _terminal_columns() -> int:
    return shutil.get_terminal_size().columns if is_terminal_output() else sys.maxsize


def _table_row_lines(
    row: Sequence[str], widths: Sequence[int], right: Sequence[int], room: int
) -> Iterator[str]:
    """Yield the lines of a table row; words and numbers are not broken."""
    cells = [
        cell.rjust(width) if i in right else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    ends = [end - 2 for end in accumulate(width + 2 for width in widths)]
    if ends[-1] <= room:
        yield "  ".join(cells).rstrip()
        return
    fit = sum(end <= room for end in ends[:-1])
    head = "  ".join(cells[:fit])
    if fit == len(cells) - 1 and room - len(head) - 2 >= MIN_LAST_WIDTH:
        yield from _wrap_with_hanging_indent(head + "  ", " " * (len(head) + 2), row[-1], room)
        return
    yield head.rstrip()
    for below in ("  ".join(row[fit:-1]), row[-1]):
        if below:
            yield from _wrap_with_hanging_indent(INDENT, INDENT, below, room)


def _wrap_with_hanging_indent(first: str, others: str, text: str, room: int) -> Iterator[str]:
    lines = textwrap.wrap(
        text,
        room,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from lines or [first.rstrip()]


@contextlib.contextmanager
def show_progress_bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yield a function that is called with the steps since the last call."""
    if _record is not None or not is_terminal_output():
        yield lambda _steps: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with Progress(
        TextColumn("    {task.description}"),
        BarColumn(bar_width=40),
        TaskProgressColumn(),
        console=_make_rich_console(),
        transient=True,
    ) as progress:
        task = progress.add_task(text, total=total)
        yield lambda steps: progress.update(task, advance=steps)
