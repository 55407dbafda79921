# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How a ping server waits: it polls for a moment after each message, and sleeps then."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from siwarp.verbs import CQ, WC

__all__ = ["BUSY", "NAP", "serve"]

#: Seconds that a server polls after the last message before it sleeps.
BUSY = 0.002
#: Seconds of one sleep: how late a server notices that it shall stop.
NAP = 0.2


def serve(cq: CQ, handle: Callable[[list[WC]], None], stop: threading.Event) -> None:
    """Hand over what completes until ``stop`` is set. The queue has a completion channel."""
    active = time.monotonic()
    while not stop.is_set():
        wcs = cq.poll(16)
        if not wcs:
            if time.monotonic() - active > BUSY:
                wcs = cq.wait(NAP, 16)
            else:
                os.sched_yield()
        if wcs:
            active = time.monotonic()
            handle(wcs)
