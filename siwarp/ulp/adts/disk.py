# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""File system calls in threads, so that a slow disk does not stop the event loop."""

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

#: The number of threads of one process, and the number of calls that a thread makes for one session
#: before it serves another session that waits.
_THREADS = 16
_CALLS_A_TURN = 8

#: The threads that all sessions of a server or a client share.
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
        #: The time (``system.monotonic``) at which the running call began; None if no call is
        #: running.
        self.busy_since: float | None = None

    @staticmethod
    def make_threads() -> DiskThreads:
        """Return threads that several sessions may share."""
        return ThreadPoolExecutor(_THREADS, "siwarp-disk")

    def queue_call(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Queue a call; return the future of its result.

        If the future is cancelled, the call is made nevertheless, in its turn.
        """
        result: asyncio.Future[T] = self._loop.create_future()
        if self._threads is None:
            _set_result_of_future(result, *_call_and_catch(partial(call, *args)))
            return result
        with self._lock:
            self._waiting.append((partial(call, *args), result))
            if self.busy_since is not None:
                return result
            self.busy_since = system.monotonic()
        self._threads.submit(self._run_queued_calls)
        return result

    def _run_queued_calls(self) -> None:
        """Make the queued calls of the session; a thread of the pool runs this."""
        assert self._threads is not None
        done = 0
        while True:
            with self._lock:
                if not self._waiting:
                    self.busy_since = None
                    return
                self.busy_since = system.monotonic()
                if done == _CALLS_A_TURN:
                    # the pool is closed: this thread makes the remaining calls
                    with contextlib.suppress(RuntimeError):
                        self._threads.submit(self._run_queued_calls)
                        return
                call, result = self._waiting.popleft()
            outcome = _call_and_catch(call)
            done += 1
            with contextlib.suppress(RuntimeError):  # the loop was closed while the disk was slow
                self._loop.call_soon_threadsafe(_set_result_of_future, result, *outcome)

    def close(self) -> None:
        """Let the threads end after the last call, unless they are shared; do not wait for them."""
        if self._own and self._threads is not None:
            self._threads.shutdown(wait=False)


def _call_and_catch(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as e:
        return None, e


def _set_result_of_future(result: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if result.done():
        pass  # the future was cancelled, so nobody waits for the result
    elif error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)
