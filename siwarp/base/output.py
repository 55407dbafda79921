# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Commands whose output is not read to the end, as ``siwarp bench | head``, or that lack typer."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import TextIO

__all__ = ["BROKEN_PIPE", "unbroken"]

#: Their exit status: what a shell reports for a process that SIGPIPE ended.
BROKEN_PIPE = 141


def _flushed(stream: TextIO) -> bool:
    """Return whether the reader took all that was written.

    The rest is discarded: otherwise the interpreter tries again at exit, and prints an error.
    """
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        stream.flush()
        return False
    return True


def unbroken(command: Callable[[], int]) -> int:
    """Run a command and return its exit status: BROKEN_PIPE if its output is not read to the end.

    A SystemExit of the command is its exit status, too. Without what the extra ``cli`` installs it
    prints so, and the status is 1.
    """
    output, complaints = sys.stdout, sys.stderr
    try:
        status = command()
    except BrokenPipeError:
        status = BROKEN_PIPE
    except ModuleNotFoundError as e:
        if e.name not in ("typer", "rich"):
            raise
        python = shlex.quote(sys.executable)
        print(
            f"siwarp: this command needs {e.name}: run {python} -m pip install 'siwarp[cli]' "
            "(siwarp run, env and config do without)",
            file=complaints,
        )
        status = 1
    except SystemExit as e:
        # typer replaces the standard output by another object after a broken pipe.
        broken = sys.stdout is not output
        if _flushed(output) and _flushed(complaints) and not broken:
            raise
        raise SystemExit(BROKEN_PIPE) from e
    return status if _flushed(output) and _flushed(complaints) else BROKEN_PIPE
