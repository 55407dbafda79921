# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Calls of the file system outside of the event loop, which a slow disk must not stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from siwarp.base import system

__all__ = ["Disk", "DiskThreads"]

T = TypeVar("T")

#: Threads of one process, and the calls of one session that a thread makes before it looks for
#: another session that waits for a thread.
_THREADS = 16
_CALLS_A_TURN = 8

#: The threads that the sessions of an end share.
DiskThreads = ThreadPoolExecutor


class Disk:
    """Makes one session's calls, one at a time and in their order.

    A thread makes the calls that wait one after the other, without the event loop in between. In a
    simulated process the calls are made by the event loop's thread, so that a run depends on its
    seed alone.

    Args:
        threads: threads to use, which several sessions may share; None: threads of its own.

    """

    def __init__(self, threads: DiskThreads | None = None) -> None:
        self._own = threads is None and not system.simulated
        self._threads = None if system.simulated else threads or self.make_threads()
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._loop = asyncio.get_running_loop()
        # Guards ``_waiting`` and ``busy_since``, which is None if no thread has calls to make.
        self._lock = system.lock()
        #: The time (``system.monotonic``) since which a call has been running; None if none is.
        self.busy_since: float | None = None

    @staticmethod
    def make_threads() -> DiskThreads:
        """Return threads that several sessions may share."""
        return ThreadPoolExecutor(_THREADS, "siwarp-disk")

    def run(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Make a call; return the future of its result.

        If the future is cancelled, the call is made nevertheless, in its turn.
        """
        result: asyncio.Future[T] = self._loop.create_future()
        if self._threads is None:
            _finish(result, *_outcome(partial(call, *args)))
            return result
        with self._lock:
            self._waiting.append((partial(call, *args), result))
            if self.busy_since is not None:
                return result
            self.busy_since = system.monotonic()
        self._threads.submit(self._make_calls)
        return result

    def _make_calls(self) -> None:
        """Make the calls that wait; called by a thread."""
        assert self._threads is not None
        done = 0
        while True:
            with self._lock:
                if not self._waiting:
                    self.busy_since = None
                    return
                self.busy_since = system.monotonic()
                if done == _CALLS_A_TURN:
                    with contextlib.suppress(RuntimeError):  # closed: this thread goes on
                        self._threads.submit(self._make_calls)
                        return
                call, result = self._waiting.popleft()
            outcome = _outcome(call)
            done += 1
            with contextlib.suppress(RuntimeError):  # the loop was closed while the disk was slow
                self._loop.call_soon_threadsafe(_finish, result, *outcome)

    def close(self) -> None:
        """End threads of its own after the last call; do not wait for them."""
        if self._own and self._threads is not None:
            self._threads.shutdown(wait=False)


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as e:
        return None, e


def _finish(result: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if result.done():
        pass  # cancelled: nobody waits for it
    elif error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)
