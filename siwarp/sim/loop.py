# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""An asyncio event loop for a world: it uses the world's clock and siwarp's descriptors."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from siwarp.base import system
from siwarp.base.library import ffi, lib
from siwarp.sim.units import NEVER, nanoseconds

__all__ = ["Loop", "run"]

T = TypeVar("T")


class _Selector:
    """The loop's selector, which supports only descriptors of the simulated library."""

    #: Maximum number of descriptors that one wait reports; the next wait reports the rest.
    _MOST = 256

    def __init__(self, check: Callable[[], None]) -> None:
        self.check: Callable[[], None] | None = check
        self._readers: dict[int, asyncio.Handle] = {}
        self._waker = system.waker()
        self._set = lib.siw_sim_set_open()
        self._ready = ffi.new("int[]", self._MOST)
        lib.siw_sim_set_add(self._set, self._waker.fileno())

    def wake(self) -> None:
        """End the current wait, or the next wait if there is none."""
        self._waker.wake()

    def add(self, fd: int, handle: asyncio.Handle) -> None:
        """Call ``handle`` whenever the descriptor is readable.

        Raises:
            OSError: the descriptor belongs to the operating system (EBADF).

        """
        if lib.siw_sim_set_add(self._set, fd) < 0:
            raise OSError(
                errno.EBADF, "a world's event loop supports only siwarp descriptors: use siwarp.aio"
            )
        self._readers[fd] = handle

    def remove(self, fd: int) -> asyncio.Handle | None:
        """Stop watching the descriptor, and return its handle, or None if it was not watched."""
        handle = self._readers.pop(fd, None)
        if handle is not None:
            lib.siw_sim_set_del(self._set, fd)
        return handle

    def select(self, timeout: float | None) -> list[asyncio.Handle]:
        """Wait up to ``timeout`` seconds (None: without limit); return the handles to call."""
        end = NEVER
        if timeout is not None:
            end = lib.siw_sim_now() + nanoseconds(max(0.0, timeout))
        n = lib.siw_sim_set_wait(self._set, end, self._ready, self._MOST)
        lib.siw_sim_event_clear(self._waker.fileno())
        if self.check is not None:
            self.check()
        fds = self._ready[0:n]
        handles = [self._readers[fd] for fd in fds if fd in self._readers]
        for fd in fds:
            # The descriptor was closed, for example by a crash. This last call of the handle lets
            # its user notice.
            if not lib.siw_sim_event_is(fd):
                self._readers.pop(fd, None)
        return handles

    def close(self) -> None:
        """Stop watching all descriptors."""
        self._readers.clear()
        if self._set is not None:
            lib.siw_sim_set_close(self._set)
            self._set = None
        self._waker.close()


class Loop(asyncio.BaseEventLoop):
    """An event loop for ``World.run``."""

    def __init__(
        self, start: Callable[[Callable[[], Any]], None], check: Callable[[], None]
    ) -> None:
        """Make an event loop.

        Args:
            start: starts a task of the world.
            check: called after each wait; an exception that it raises ends the loop.

        """
        super().__init__()
        self._selector = _Selector(check)
        self._clock_resolution = 1e-9
        self._ready: deque[asyncio.Handle]  # BaseEventLoop made it
        self._start = start

    def time(self) -> float:
        """Return seconds since the world began."""
        return float(lib.siw_sim_now()) / 1e9

    def wake(self) -> None:
        """Wake the loop: it calls its check function and then handles events."""
        self._selector.wake()

    def clean_up(self) -> None:
        """Disable the check function, so that waits raise no exceptions from now on."""
        self._selector.check = None

    def close(self) -> None:
        """Close the loop."""
        if not self.is_closed():
            self._selector.close()
        super().close()

    def _process_events(self, event_list: list[asyncio.Handle]) -> None:
        for handle in event_list:
            if not handle.cancelled():
                self._ready.append(handle)

    def _write_to_self(self) -> None:
        self._selector.wake()

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        """Call ``callback`` whenever a siwarp descriptor is readable.

        Raises:
            OSError: the descriptor belongs to the operating system (EBADF).

        """
        self._selector.add(_number(fd), asyncio.Handle(callback, args, self, None))

    def remove_reader(self, fd: Any) -> bool:
        """Stop watching the descriptor; return whether it was watched."""
        handle = self._selector.remove(_number(fd))
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
        """Resolve a numeric address; a world has no host names.

        Raises:
            OSError: the host is not a numeric address.

        """
        return system.addresses(host, port, type, flags)

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        """Raise OSError (EOPNOTSUPP): a world has no operating system sockets."""
        raise _no_sockets()

    async def create_server(self, *_: Any, **__: Any) -> Any:
        """Raise OSError (EOPNOTSUPP): a world has no operating system sockets."""
        raise _no_sockets()

    async def create_datagram_endpoint(self, *_: Any, **__: Any) -> Any:
        """Raise OSError (EOPNOTSUPP): a world has no operating system sockets."""
        raise _no_sockets()


def _no_sockets() -> OSError:
    return OSError(
        errno.EOPNOTSUPP, "a simulated world has no operating system sockets: use siwarp.aio"
    )


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
        loop.clean_up()
        try:
            left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
