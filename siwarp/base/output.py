# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Closed output pipes, missing packages and long lines on a terminal, for siwarp's commands."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

__all__ = ["BROKEN_PIPE", "run_with_closable_output", "wrap_lines_of_stderr"]

#: Exit status after a closed pipe: the status that a shell reports for death by SIGPIPE.
BROKEN_PIPE = 141
#: Modules and packages that may be missing, and what to install.
_PACKAGES = {
    "typer": "'siwarp[cli]'",
    "rich": "'siwarp[cli]'",
    "cffi": "cffi",
    "_cffi_backend": "cffi",
    "siwarp.sim": "'siwarp[sim]'",
    "siwarp.ulp": "'siwarp[cli]'",
}


class _WrappedLines:
    """A terminal on which long lines are broken between words."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write whole lines; text with control characters, such as a progress bar, is unchanged."""
        import shutil  # rarely needed

        room = shutil.get_terminal_size().columns
        if len(text) > room and "\x1b" not in text and "\r" not in text:
            text = "".join(_wrap_line(line, room) for line in text.splitlines(keepends=True))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _wrap_line(line: str, room: int) -> str:
    if len(line.rstrip("\n")) <= room:
        return line
    import textwrap

    pieces = textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
    return "\n".join(pieces) + "\n" * line.endswith("\n")


def wrap_lines_of_stderr() -> None:
    """Break the lines of standard error between words, if it is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr = cast(TextIO, _WrappedLines(sys.stderr))


def _flush_unless_reader_closed(stream: TextIO) -> bool:
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

    A SystemExit raised by the command is passed on. If a package that the command needs is missing,
    a message is printed and the status is 1.
    """
    output, complaints = sys.stdout, sys.stderr
    try:
        status = command()
    except BrokenPipeError:
        status = BROKEN_PIPE
    except ModuleNotFoundError as e:
        # A missing module may also be one inside a package of siwarp: siwarp.ulp.adts.
        name = ".".join((e.name or "").split(".")[:2])
        if name not in _PACKAGES:
            raise
        python = shlex.quote(sys.executable)
        print(
            f"siwarp: this command needs {name.lstrip('_').removesuffix('_backend')}: run "
            f"{python} -m pip install {_PACKAGES[name]} "
            "(siwarp run, env and config work without it)",
            file=complaints,
        )
        status = 1
    except SystemExit as e:
        # After a broken pipe, typer has replaced sys.stdout by another object.
        broken = sys.stdout is not output
        if (
            _flush_unless_reader_closed(output)
            and _flush_unless_reader_closed(complaints)
            and not broken
        ):
            raise
        raise SystemExit(BROKEN_PIPE) from e
    return (
        status
        if _flush_unless_reader_closed(output) and _flush_unless_reader_closed(complaints)
        else BROKEN_PIPE
    )
