# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Capturing the traffic of this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from siwarp.verbs._ffi import check_return_code, lib

__all__ = ["capture"]


@contextlib.contextmanager
def capture(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write all traffic of this process to a pcapng file while the block runs.

    The file is overwritten; ``%p`` in its path is replaced by the PID. Every packet is in the file
    when the call that sent or received it returns. A connection that was established earlier is
    written without its start.

    Raises:
        StateError: a capture is running already (EBUSY).
        Error: the file cannot be written.

    """
    name = os.fspath(path)
    check_return_code(lib.siw_capture_start(os.fsencode(name)), f"capturing to {name}")
    try:
        yield
    finally:
        lib.siw_capture_stop()
