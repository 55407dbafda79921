# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp counters``: the messages that a process has sent, received and dropped, by reason."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import typer

from siwarp.base import show


def _command_line_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def _counter_descriptions() -> dict[str, str]:
    """Return the description of each counter, from the table of base/counters.h."""
    from siwarp.base.library import ffi, lib

    return {
        ffi.string(lib.siw_counter_name(i)).decode(): ffi.string(lib.siw_counter_help(i)).decode()
        for i in range(lib.siw_counters_count())
    }


def _make_counter_table_rows(values: dict[str, int], every: bool) -> list[tuple[str, str, str]]:
    helps = _counter_descriptions()
    return [
        (name, str(value), helps.get(name, "")) for name, value in values.items() if value or every
    ]


def _print_counter_changes(pid: int, seconds: float, values: dict[str, int]) -> None:
    """Print the counters that changed, every ``seconds``, until the process ends."""
    from siwarp.base import counters as pages

    while True:
        time.sleep(seconds)
        before = values
        try:
            values = pages.read_counters(pid)
        except pages.CountersError:
            show.print_line(f"Process {pid} has ended.")
            return
        moved = [
            (name, str(value), f"{(value - before.get(name, 0)) / seconds:.0f}")
            for name, value in values.items()
            if value != before.get(name, 0)
        ]
        if moved:
            show.print_table(("counter", "value", "a second"), moved, right=(1, 2))
        show.print_line("" if moved else "No counter changed.")
        sys.stdout.flush()


def _print_prometheus(read: dict[int, dict[str, int]]) -> None:
    """Print Prometheus's text format: a metric family per counter, a sample per process."""
    for name, text in _counter_descriptions().items():
        family = f"siwarp_{name}_total"
        print(f"# HELP {family} {text}")
        print(f"# TYPE {family} counter")
        for pid, values in read.items():
            print(f'{family}{{pid="{pid}"}} {values.get(name, 0)}')


def _read_counters_or_exit(pid: int) -> dict[str, int]:
    from siwarp.base import counters as pages

    try:
        return pages.read_counters(pid)
    except pages.CountersError as e:
        typer.echo(f"siwarp: {e}", err=True)
        raise typer.Exit(1) from None


def _read_all_counters() -> dict[int, dict[str, int]]:
    """Read the counters of every process that is still running."""
    from siwarp.base import counters as pages

    found = {}
    for pid in pages.pids_with_readable_counters():
        with contextlib.suppress(pages.CountersError):
            found[pid] = pages.read_counters(pid)
    return found


def _print_processes(as_json: bool) -> None:
    from siwarp.base import counters as pages

    found = pages.pids_with_readable_counters()
    if as_json:
        show.print_json([{"pid": one, "command": _command_line_of(one)} for one in found])
    elif found:
        show.print_table(
            ("PID", "command"), [(str(one), _command_line_of(one)) for one in found], right=(0,)
        )
    else:
        show.print_line("None of your processes has a siwarp device open.")


def counters(
    pid: int | None = typer.Argument(None, help="A process that uses siwarp; default: list them."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    every: bool = typer.Option(False, "--all", help="Also print counters that are zero."),
    watch: float | None = typer.Option(
        None,
        min=0.01,
        metavar="S",
        help="Print the counters that changed, every S seconds, until PID ends.",
    ),
    prometheus: bool = typer.Option(
        False, "--prometheus", help="Print Prometheus' text format; without PID, of all processes."
    ),
) -> None:
    """Print the counters of another process of the same user: traffic, errors, drops by reason."""
    if watch is not None and (pid is None or as_json or prometheus):
        raise typer.BadParameter("--watch needs a PID, and cannot print JSON or Prometheus format")
    if prometheus:
        _print_prometheus(
            {pid: _read_counters_or_exit(pid)} if pid is not None else _read_all_counters()
        )
    elif pid is None:
        _print_processes(as_json)
    elif as_json:
        show.print_json({"pid": pid, "counters": _read_counters_or_exit(pid)})
    else:
        values = _read_counters_or_exit(pid)
        rows = _make_counter_table_rows(values, every)
        if rows:
            show.print_table(("counter", "value", "what"), rows, right=(1,))
        else:
            show.print_line(f"Process {pid} has not sent, received or dropped anything yet.")
        if watch is not None:
            show.print_line()
            sys.stdout.flush()
            _print_counter_changes(pid, watch, values)
