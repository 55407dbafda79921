# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a command does whose output nobody reads to the end, as of ``siwarp bench | head -1``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

__all__ = ["BROKEN_PIPE", "unbroken"]

#: The exit status then: a shell's own for a process that SIGPIPE ended.
BROKEN_PIPE = 141


def _flushed(stream: TextIO) -> bool:
    """Return whether whoever reads what we wrote there took it all.

    What they did not take is thrown away; the interpreter would try again at exit and complain.
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

    A SystemExit of the command is its exit status, too.
    """
    output, complaints = sys.stdout, sys.stderr
    try:
        status = command()
    except BrokenPipeError:
        status = BROKEN_PIPE
    except SystemExit as e:
        # typer puts something else in place of the output that a broken pipe was.
        broken = sys.stdout is not output
        if _flushed(output) and _flushed(complaints) and not broken:
            raise
        raise SystemExit(BROKEN_PIPE) from e
    return status if _flushed(output) and _flushed(complaints) else BROKEN_PIPE
