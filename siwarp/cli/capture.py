# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp capture``: run a command and write what its siwarp sends and receives to a file."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Annotated

import typer

VARIABLE = "SIWARP_CAPTURE"
LIMIT = "SIWARP_CAPTURE_MB"


def _make_room(path: Path) -> None:
    """Remove an older capture, since the library never overwrites a file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is not a regular file: a capture cannot be written there")
    path.unlink()


def _try(path: Path) -> None:
    """Fail now if the file cannot be created: the library would run without a capture."""
    path = Path(str(path).replace("%p", str(os.getpid())))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as e:
        raise OSError(f"{path}: no capture can be written there: {e.strerror}") from None
    path.unlink()


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
    file = Path(output).absolute()
    if not file.parent.is_dir():
        raise OSError(f"{file.parent}: no such directory")
    if shutil.which(command[0]):  # otherwise an older capture would be removed in vain
        _make_room(file)
    _try(file)
    environment = {**os.environ, VARIABLE: str(file)}
    if max_mb:
        environment[LIMIT] = str(max_mb)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as e:
        typer.echo(f"siwarp: cannot run {command[0]}: {e.strerror}", err=True)
        raise typer.Exit(127 if isinstance(e, FileNotFoundError) else 126) from None
