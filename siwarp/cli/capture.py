# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp capture``: run a command and write what its siwarp sends and receives to a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

import typer

VARIABLE = "SIWARP_CAPTURE"


def _make_room(path: Path) -> None:
    """Remove an older capture: the library never overwrites what it finds at that place."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is not a regular file: a capture cannot be written there")
    path.unlink()


def capture(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
    output: str = typer.Option(
        ..., "-o", "--output", metavar="FILE", help="pcapng file; %p stands for the PID."
    ),
) -> None:
    """Run a command and capture what siwarp sends and receives in it; no root needed.

    The first process to open a device writes FILE, any other one FILE with -PID before the
    suffix; with %p in FILE each has its own name. The exit status is the command's.
    """
    file = Path(output).absolute()
    if not file.parent.is_dir():
        raise OSError(f"{file.parent}: no such directory")
    _make_room(file)
    try:
        os.execvpe(command[0], command, {**os.environ, VARIABLE: str(file)})
    except OSError as e:
        typer.echo(f"siwarp: cannot run {command[0]}: {e.strerror}", err=True)
        raise typer.Exit(127 if isinstance(e, FileNotFoundError) else 126) from None
