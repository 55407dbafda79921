# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp capture``: run a command and write what its siwarp sends and receives to a file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from siwarp.cli.capture_file import capture_variables, files_of
from siwarp.cli.execute import die_as, run_beside


def capture(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to run.")],
    output: str = typer.Option(
        ..., "-o", "--output", metavar="FILE", help="pcapng file; %p stands for the PID."
    ),
    max_mb: int = typer.Option(
        0,
        min=0,
        max=1 << 20,
        help="End each file at so many million octets; 0: when the disk is full.",
    ),
) -> None:
    """Run a command and capture what siwarp sends and receives in it; no root needed.

    The first process to open a device writes FILE, any other one FILE with -PID before the
    suffix; with %p in FILE each has its own name. Standard error names the files when the command
    has ended. The exit status is the command's.
    """
    variables = capture_variables(output, command[0], max_mb)
    before = files_of(output)
    status = run_beside(command, {**os.environ, **variables})
    _name(output, before, status)
    raise typer.Exit(die_as(status))


def _name(output: str, before: set[str], status: int) -> None:
    """Say which files there are now; of a command that could not be run there is nothing to say."""
    written = sorted(files_of(output) - before)
    for file in written:
        with contextlib.suppress(FileNotFoundError):  # the command's own child may remove it
            size = Path(file).stat().st_size
            typer.echo(f"siwarp capture: {file}, {size:,} octets", err=True)
    if not written and status not in (126, 127):
        typer.echo(f"siwarp capture: no {output}: the command opened no device of siwarp", err=True)
