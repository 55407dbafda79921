# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp counters``: what a process has sent, received and dropped, by reason."""

from __future__ import annotations

from pathlib import Path

import typer

from siwarp.cli import show


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def _helps() -> dict[str, str]:
    """Return what each counter counts, from the table of base/counters.h."""
    from siwarp._siwarp import ffi, lib

    return {
        ffi.string(lib.siw_counter_name(i)).decode(): ffi.string(lib.siw_counter_help(i)).decode()
        for i in range(lib.siw_counters_count())
    }


def counters(
    pid: int | None = typer.Argument(None, help="A process that uses siwarp; default: list them."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    every: bool = typer.Option(False, "--all", help="Print the zeros, too."),
) -> None:
    """Print the counters of another process of yours: traffic, errors, drops by reason."""
    from siwarp.base import counters as pages

    if pid is None:
        found = pages.pids()
        if as_json:
            show.data([{"pid": one, "command": _command(one)} for one in found])
        elif found:
            show.table(("PID", "command"), [(str(one), _command(one)) for one in found], right=(0,))
        else:
            show.line("No process of yours has a siwarp device open.")
        return
    try:
        values = pages.read(pid)
    except pages.CountersError as e:
        typer.echo(f"siwarp: {e}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        show.data({"pid": pid, "counters": values})
        return
    helps = _helps()
    rows = [
        (name, str(value), helps.get(name, "")) for name, value in values.items() if value or every
    ]
    if rows:
        show.table(("counter", "value", "what"), rows, right=(1,))
    else:
        show.line(f"Process {pid} has not sent, received or dropped anything yet.")
