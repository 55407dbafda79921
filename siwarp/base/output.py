# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Run siwarp's commands without a traceback if the output pipe is closed or typer is missing."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import TextIO

__all__ = ["BROKEN_PIPE", "run_with_closable_output"]

#: Exit status after a closed pipe: the status that a shell reports for death by SIGPIPE.
BROKEN_PIPE = 141


def _flush_unless_closed(stream: TextIO) -> bool:
    """Flush a stream; return False if the reader of the pipe has closed it.

    Unread output is discarded, because the interpreter would write it again at exit and print an
    error.
    """
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        stream.flush()
        return False
    return True


def run_with_closable_output(command: Callable[[], int]) -> int:
    """Run a command and return its exit status: BROKEN_PIPE if its output is not read to the end.

    A SystemExit raised by the command is passed on. If a package of the extra ``cli`` is missing, a
    message is printed and the status is 1.
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
            "(siwarp run, env and config work without it)",
            file=complaints,
        )
        status = 1
    except SystemExit as e:
        # After a broken pipe, typer has replaced sys.stdout by another object.
        broken = sys.stdout is not output
        if _flush_unless_closed(output) and _flush_unless_closed(complaints) and not broken:
            raise
        raise SystemExit(BROKEN_PIPE) from e
    return (
        status if _flush_unless_closed(output) and _flush_unless_closed(complaints) else BROKEN_PIPE
    )
