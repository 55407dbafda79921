# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The environment variables that make siwarp in another program write a capture file."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

__all__ = ["existing_capture_files", "prepare_capture_environment"]

VARIABLE = "SIWARP_CAPTURE"
LIMIT = "SIWARP_CAPTURE_MB"


def _remove_older_capture(path: Path) -> None:
    """Remove an older capture, because the library never overwrites a file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is not a regular file: a capture cannot be written there")
    path.unlink()


def _check_writable(path: Path) -> None:
    """Raise OSError if the capture file cannot be created; the library would run without a
    capture.
    """
    path = Path(str(path).replace("%p", str(os.getpid())))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as e:
        raise OSError(f"{path}: no capture can be written there: {e.strerror}") from None
    path.unlink()


def prepare_capture_environment(output: str, program: str, max_mb: int = 0) -> dict[str, str]:
    """Remove an older capture; return the variables that make a program's siwarp write a new one.

    ``output`` is the name of the capture file, ``program`` the first word of the command. If there
    is no such program, the older capture is kept.

    Raises:
        OSError: the file cannot be created there.

    """
    file = Path(output).absolute()
    if not file.parent.is_dir():
        raise OSError(f"{file.parent}: no such directory: make it with mkdir")
    if shutil.which(program):  # if the program does not exist, the older capture is kept
        _remove_older_capture(file)
    _check_writable(file)
    return {VARIABLE: str(file), **({LIMIT: str(max_mb)} if max_mb else {})}


def existing_capture_files(output: str) -> set[str]:
    """Return the existing capture files that ``output`` names: of the first and of other processes.

    The names are relative to the same folder as ``output``.
    """
    file = Path(output)
    stem, suffix = (re.escape(part).replace("%p", r"\d+") for part in (file.stem, file.suffix))
    pattern = re.compile(rf"{stem}(-\d+)?{suffix}")
    return {str(entry) for entry in file.parent.iterdir() if pattern.fullmatch(entry.name)}
