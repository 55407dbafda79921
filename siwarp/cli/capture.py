# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp capture``: run a command and record the packets that siwarp exchanges in it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from siwarp.cli.capture_file import existing_capture_files, prepare_capture_environment
from siwarp.cli.execute import end_by_signal_of_child, run_program_and_wait


def capture(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Command to run.")],
    output: str = typer.Option(
        ...,
        "-o",
        "--output",
        metavar="FILE",
        help="Output file (pcapng); %p is replaced by the PID.",
    ),
    max_mb: int = typer.Option(
        0,
        min=0,
        max=1 << 20,
        help="Limit of each file in millions of octets; 0: until the disk is full.",
    ),
) -> None:
    """Run a command and capture the packets that siwarp sends and receives in it; needs no root.

    The first process that opens a device writes FILE; every other process writes FILE with -PID
    inserted before the suffix. With %p in FILE, each process has its own name. When the command has
    ended, the names of the files are printed on standard error. The exit status is the command's.
    """
    variables = prepare_capture_environment(output, command[0], max_mb)
    before = existing_capture_files(output)
    status = run_program_and_wait(command, {**os.environ, **variables})
    _report_capture_files(output, before, status)
    raise typer.Exit(end_by_signal_of_child(status))


def _report_capture_files(output: str, before: set[str], status: int) -> None:
    """Report the capture files that were written; nothing for a command that could not be run."""
    written = sorted(existing_capture_files(output) - before)
    for file in written:
        with contextlib.suppress(FileNotFoundError):  # the captured command may remove the file
            size = Path(file).stat().st_size
            typer.echo(f"siwarp capture: {file}, {size:,} octets", err=True)
    if not written and status not in (126, 127):
        typer.echo(
            f"siwarp capture: no {output}: the command opened no siwarp device; for a "
            "program of libibverbs, use siwarp capture -o FILE siwarp run PROGRAM",
            err=True,
        )
