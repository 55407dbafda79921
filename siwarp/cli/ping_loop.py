# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How a server waits: it polls for a moment after each message, and sleeps then."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Protocol

from siwarp.verbs import CQ, WC

__all__ = ["BUSY", "Sleeper", "Stop", "Stopping", "serve"]

#: Seconds that a server polls after the last message before it sleeps.
BUSY = 0.002


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


class Sleeper:
    """Sleeps until something completes, something else is readable, or the server shall stop."""

    def __init__(self, cq: CQ, stop: Stopping, *others: int) -> None:
        assert cq.channel is not None
        self._cq, self._channel = cq, cq.channel
        self._poll = select.poll()
        for fd in (self._channel.fileno(), stop.fileno(), *others):
            self._poll.register(fd, select.POLLIN)

    def sleep(self) -> list[WC]:
        """Sleep, without a limit, and return what completed, if anything did."""
        self._cq.req_notify()
        if wcs := self._cq.poll(16):
            return wcs
        self._poll.poll()
        while (cq := self._channel.get_cq_event(0)) is not None:
            cq.ack_events(1)
        return self._cq.poll(16)


def serve(cq: CQ, handle: Callable[[list[WC]], None], stop: Stopping) -> None:
    """Pass on completions until ``stop`` is set. The queue has a completion channel."""
    sleeper = Sleeper(cq, stop)
    active = time.monotonic()
    while not stop.is_set():
        wcs = cq.poll(16)
        if not wcs:
            if time.monotonic() - active > BUSY:
                wcs = sleeper.sleep()
            else:
                os.sched_yield()
        if wcs:
            active = time.monotonic()
            handle(wcs)
