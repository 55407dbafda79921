# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Calls of the file system outside of the event loop, which a slow disk must not stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from siwarp.base import system

__all__ = ["Disk", "DiskThreads"]

T = TypeVar("T")

#: Number of threads. While all of them are in calls, the calls of further sessions wait.
_THREADS = 16

#: The threads that the sessions of an end share.
DiskThreads = ThreadPoolExecutor


class Disk:
    """Makes one session's calls, one at a time and in their order.

    In a simulated process the calls are made by the event loop's thread, so that a run depends on
    its seed alone.

    Args:
        threads: threads to use, which several sessions may share; None: threads of its own.

    """

    def __init__(self, threads: DiskThreads | None = None) -> None:
        self._own = threads is None and not system.simulated
        self._threads = None if system.simulated else threads or self.make_threads()
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._loop = asyncio.get_running_loop()
        #: The time (``system.monotonic``) at which the present call began; None: there is none.
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
        self._waiting.append((lambda: call(*args), result))
        if self.busy_since is None:
            self._start_next()
        return result

    def _start_next(self) -> None:
        if not self._waiting:
            self.busy_since = None
            return
        call, result = self._waiting.popleft()
        self.busy_since = system.monotonic()
        if self._threads is None:
            done: Future[Any] = Future()
            try:
                done.set_result(call())
            except Exception as e:
                done.set_exception(e)
            self._finish(done, result)
            return
        running = self._threads.submit(call)
        running.add_done_callback(lambda done: self._finish_in_loop(done, result))

    def _finish_in_loop(self, done: Future[Any], result: asyncio.Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed while the disk was slow
            self._loop.call_soon_threadsafe(self._finish, done, result)

    def _finish(self, done: Future[Any], result: asyncio.Future[Any]) -> None:
        error = done.exception()
        if result.done():
            pass  # cancelled: nobody waits for it
        elif error is not None:
            result.set_exception(error)
        else:
            result.set_result(done.result())
        self._start_next()

    def close(self) -> None:
        """End threads of its own after the last call; do not wait for them."""
        if self._own and self._threads is not None:
            self._threads.shutdown(wait=False)
