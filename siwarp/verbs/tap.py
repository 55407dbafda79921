# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Capturing what this process sends and receives."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from siwarp.verbs._seam import check, lib

__all__ = ["capture"]

_ADVICE = {
    errno.EBUSY: "a capture is on already: SIWARP_CAPTURE or another siwarp.capture began it",
    errno.ESPIPE: "it is no regular file: capture to one, and read that",
}


@contextlib.contextmanager
def capture(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write all traffic of this process to a pcapng file while the block runs.

    The file is overwritten; ``%p`` in its path stands for the PID. Every packet is in it when the
    call that moved it returns. A connection that was made earlier is written without its start.

    Raises:
        StateError: a capture is on already (EBUSY).
        Error: the file cannot be written.

    """
    name = os.fspath(path)
    check(lib.siw_capture_start(os.fsencode(name)), f"capturing to {name}", _ADVICE)
    try:
        yield
    finally:
        lib.siw_capture_stop()
