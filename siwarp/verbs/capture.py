# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Capturing what this process sends and receives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from siwarp.verbs._ffi import check, lib

__all__ = ["capture"]


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
    check(lib.siw_capture_start(os.fsencode(name)), f"capturing to {name}")
    try:
        yield
    finally:
        lib.siw_capture_stop()
