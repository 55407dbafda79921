# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How ping waits: a client polls; a server polls briefly after each message, then sleeps."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from siwarp.base.stop import Stopping
from siwarp.verbs import CQ, WC, QPAttr

__all__ = ["BUSY", "RNR", "YIELD_AFTER", "Sleeper", "serve"]

#: Seconds that a server polls after the last message before it sleeps.
BUSY = 0.002

#: Seconds that a client polls before it yields to other processes, for example the server. On one
#: CPU the server runs only once the client yields, so the client yields at once.
YIELD_AFTER = 0.0 if len(os.sched_getaffinity(0)) == 1 else 0.0002

#: RNR settings of an RD queue pair: 6 retries, each after the peer's min_rnr_timer. Value 0 of
#: min_rnr_timer, which these queue pairs use, is the longest: 655 ms.
RNR = QPAttr(rnr_retry=6, min_rnr_timer=0)


class Sleeper:
    """Sleeps until a completion arrives, another descriptor is readable, or the server must end."""

    def __init__(self, cq: CQ, stop: Stopping, *others: int) -> None:
        assert cq.channel is not None
        self._cq, self._channel = cq, cq.channel
        self._poll = select.poll()
        for fd in (self._channel.fileno(), stop.fileno(), *others):
            self._poll.register(fd, select.POLLIN)

    def sleep(self, seconds: float | None = None) -> list[WC]:
        """Sleep for at most ``seconds`` (None: without limit); return the completions, possibly
        none.
        """
        self._cq.req_notify()
        if wcs := self._cq.poll(16):
            return wcs
        self._poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        while (cq := self._channel.get_cq_event(0)) is not None:
            cq.ack_events(1)
        return self._cq.poll(16)


def serve(cq: CQ, handle: Callable[[list[WC]], float | None], stop: Stopping) -> None:
    """Pass completions to ``handle`` until ``stop`` is set; ``cq`` must have a completion channel.

    ``handle`` returns the seconds until it must be called even without completions, or None.
    """
    sleeper = Sleeper(cq, stop)
    active = time.monotonic()
    due: float | None = None
    while not stop.is_set():
        wcs = cq.poll(16)
        if not wcs:
            if time.monotonic() - active > BUSY:
                wcs = sleeper.sleep(due and due - time.monotonic())
            else:
                os.sched_yield()
        now = time.monotonic()
        if wcs:
            active = now
        if wcs or (due is not None and now >= due):
            wait = handle(wcs)
            due = None if wait is None else now + wait
