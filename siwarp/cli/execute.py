# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A program in place of this process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

__all__ = ["execute"]

#: What the interpreter ignores for itself; the program is to find them as it would in a shell.
_IGNORED_HERE = (signal.SIGPIPE, signal.SIGXFSZ)


def execute(command: list[str], environment: Mapping[str, str]) -> int:
    """Become a program, with the same PID, terminal, open files and signals.

    Returns only if that is not possible: the exit status that a shell would have then.
    """
    for number in _IGNORED_HERE:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as e:
        print(f"siwarp: cannot run {command[0]}: {e.strerror}", file=sys.stderr)
        return 127 if isinstance(e, FileNotFoundError) else 126
