# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""An asyncio event loop in a world: its time is the world's, its descriptors are siwarp's."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from siwarp.base.library import ffi, lib
from siwarp.sim.units import NEVER, nanoseconds

__all__ = ["Loop", "run"]

T = TypeVar("T")

#: How long the loop waits before it looks whether another task has called it, in ns.
_SLICE = 1_000_000


class _Selector:
    """What the loop waits with: it knows descriptors of the simulated library alone."""

    def __init__(self, others: Callable[[], bool], check: Callable[[], None]) -> None:
        self.readers: dict[int, asyncio.Handle] = {}
        self.woken = False
        self._others = others
        self._check = check

    def select(self, timeout: float | None) -> list[asyncio.Handle]:
        """Wait so many seconds, None without limit; return what is to be called."""
        now = lib.siw_sim_now()
        end = NEVER if timeout is None else now + nanoseconds(max(0.0, timeout))
        fds = list(self.readers)
        c_fds, ready = ffi.new("int[]", fds or [-1]), ffi.new("uint8_t[]", max(1, len(fds)))
        while True:
            # Only other tasks call the loop from outside.
            until = min(end, lib.siw_sim_now() + _SLICE) if self._others() else end
            if self.woken:
                until = 0
            n = lib.siw_sim_poll(c_fds, len(fds), until, ready)
            self._check()
            if n < 0:
                raise OSError(
                    -n, f"{os.strerror(-n)}: give a world's event loop descriptors of siwarp alone"
                )
            if n or self.woken or lib.siw_sim_now() >= end:
                self.woken = False
                return [self.readers[fd] for i, fd in enumerate(fds) if ready[i]]

    def close(self) -> None:
        """Forget all descriptors."""
        self.readers.clear()


class Loop(asyncio.BaseEventLoop):
    """An event loop for ``World.run``."""

    def __init__(
        self,
        start: Callable[[Callable[[], Any]], None],
        others: Callable[[], bool],
        check: Callable[[], None],
    ) -> None:
        """Make one.

        Args:
            start: starts a task of the world.
            others: whether tasks run that may call the loop.
            check: called after each wait; what it raises ends the loop.

        """
        super().__init__()
        self._selector = _Selector(others, check)
        self._clock_resolution = 1e-9
        self._ready: deque[asyncio.Handle]  # BaseEventLoop made it
        self._start = start

    def time(self) -> float:
        """Return seconds since the world began."""
        return float(lib.siw_sim_now()) / 1e9

    def _process_events(self, event_list: list[asyncio.Handle]) -> None:
        for handle in event_list:
            if not handle.cancelled():
                self._ready.append(handle)

    def _write_to_self(self) -> None:
        self._selector.woken = True

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        """Call ``callback`` whenever a descriptor of siwarp's is readable."""
        self._selector.readers[_number(fd)] = asyncio.Handle(callback, args, self, None)

    def remove_reader(self, fd: Any) -> bool:
        """Stop that; whether it was."""
        handle = self._selector.readers.pop(_number(fd), None)
        if handle is not None:
            handle.cancel()
        return handle is not None

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a task of the world."""
        future: asyncio.Future[Any] = self.create_future()

        def call() -> None:
            try:
                value = func(*args)
            except BaseException as e:
                self.call_soon_threadsafe(_settle, future, None, e)
            else:
                self.call_soon_threadsafe(_settle, future, value, None)

        self._start(call)
        return future

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Return a numeric address: a world has no names.

        Raises:
            OSError: it is none.

        """
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            raise OSError(
                errno.EHOSTUNREACH, f"a world has no names, as {host!r}: give an address"
            ) from None
        if version == 4:
            return [(socket.AF_INET, type, proto, "", (host, port))]
        return [(socket.AF_INET6, type, proto, "", (host, port, 0, 0))]


def _number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def run(loop: Loop, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new loop, as ``asyncio.run`` does."""
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
