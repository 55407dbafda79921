# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Objects by which a signal handler or another thread stops a server."""

from __future__ import annotations

import os
from typing import Protocol

__all__ = ["StopEvent", "StopRequest"]


class StopRequest(Protocol):
    """A stop request for a server, with a descriptor that is readable once the request is made."""

    def is_set(self) -> bool:
        """Return whether the server should stop."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the server should stop."""


class StopEvent:
    """A stop request that a signal handler or another thread makes by calling ``set``."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._set = False

    def is_set(self) -> bool:
        """Return whether the server was requested to stop by ``set``."""
        return self._set

    def set(self) -> None:
        """Request that the server stop, and wake it if it sleeps on the descriptor."""
        self._set = True
        os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``set`` is called."""
        return self._fd
