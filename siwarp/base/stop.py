# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How a server is told to stop: by a signal handler or another thread."""

from __future__ import annotations

import os
from typing import Protocol

__all__ = ["Stop", "Stopping"]


class Stopping(Protocol):
    """Ends a server: says whether it shall stop, and has a descriptor that is readable then."""

    def is_set(self) -> bool:
        """Whether it shall stop."""

    def fileno(self) -> int:
        """Return the descriptor."""


class Stop:
    """Ends a server; a signal handler or another thread calls ``set``."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._set = False

    def is_set(self) -> bool:
        """Whether ``set`` was called."""
        return self._set

    def set(self) -> None:
        """Tell the server to stop; this wakes it if it sleeps on the descriptor."""
        self._set = True
        os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        """Return the descriptor that is readable from then on."""
        return self._fd
