# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp capture``: run a command and write what its siwarp sends and receives to a file."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from siwarp.cli.capture_file import capture_variables
from siwarp.cli.execute import execute


def capture(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
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
    suffix; with %p in FILE each has its own name. The exit status is the command's.
    """
    variables = capture_variables(output, command[0], max_mb)
    raise typer.Exit(execute(command, {**os.environ, **variables}))
