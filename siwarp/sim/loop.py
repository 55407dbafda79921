# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""An asyncio event loop that uses the clock of a world and the descriptors of siwarp."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from siwarp.base import system
from siwarp.base.library import ffi, lib
from siwarp.sim.units import NEVER, nanoseconds

__all__ = ["Loop", "run_coroutine_and_close_loop"]

T = TypeVar("T")


class _Selector:
    """The event loop's selector, which supports only descriptors of the simulated library."""

    #: Maximum number of ready descriptors that one wait reports; the next wait reports the others.
    _MAX_REPORTED = 256

    def __init__(self, check: Callable[[], None]) -> None:
        self.check: Callable[[], None] | None = check
        self._readers: dict[int, asyncio.Handle] = {}
        self._waker = system.waker()
        self._set = lib.siw_sim_fd_set_open()
        self._ready = ffi.new("int[]", self._MAX_REPORTED)
        lib.siw_sim_fd_set_add(self._set, self._waker.fileno())

    def wake(self) -> None:
        """End the current wait of the selector or, if there is none, the next wait."""
        self._waker.wake()

    def add(self, fd: int, handle: asyncio.Handle) -> None:
        """Register a handle to call whenever a descriptor is readable.

        Raises:
            OSError: the descriptor belongs to the operating system (EBADF).

        """
        if lib.siw_sim_fd_set_add(self._set, fd) < 0:
            raise OSError(
                errno.EBADF, "a world's event loop supports only siwarp descriptors: use siwarp.aio"
            )
        self._readers[fd] = handle

    def remove(self, fd: int) -> asyncio.Handle | None:
        """Stop watching a descriptor; return its handle, or None if it was not watched."""
        handle = self._readers.pop(fd, None)
        if handle is not None:
            lib.siw_sim_fd_set_del(self._set, fd)
        return handle

    def select(self, timeout: float | None) -> list[asyncio.Handle]:
        """Wait up to ``timeout`` seconds (None: no limit), and return the handles to call."""
        end = NEVER
        if timeout is not None:
            end = lib.siw_sim_now() + nanoseconds(max(0.0, timeout))
        n = lib.siw_sim_wait_on_fd_set(self._set, end, self._ready, self._MAX_REPORTED)
        lib.siw_sim_event_fd_clear(self._waker.fileno())
        if self.check is not None:
            self.check()
        fds = self._ready[0:n]
        handles = [self._readers[fd] for fd in fds if fd in self._readers]
        for fd in fds:
            # A closed descriptor, for example after a crash, is reported to its user by a last call
            # of its handle.
            if not lib.siw_sim_is_event_fd(fd):
                self._readers.pop(fd, None)
        return handles

    def close(self) -> None:
        """Stop watching all descriptors, and close the selector's own descriptors."""
        self._readers.clear()
        if self._set is not None:
            lib.siw_sim_fd_set_close(self._set)
            self._set = None
        self._waker.close()


class Loop(asyncio.BaseEventLoop):
    """The asyncio event loop of ``World.run``."""

    def __init__(
        self, start: Callable[[Callable[[], Any]], None], check: Callable[[], None]
    ) -> None:
        """Create an event loop.

        Args:
            start: function that starts a task of the world.
            check: function called after each wait; an exception raised by it ends the loop.

        """
        super().__init__()
        self._selector = _Selector(check)
        self._clock_resolution = 1e-9
        self._ready: deque[asyncio.Handle]  # only a type annotation: BaseEventLoop has created it
        self._start = start

    def time(self) -> float:
        """Return the number of seconds since the world began."""
        return float(lib.siw_sim_now()) / 1e9

    def wake(self) -> None:
        """Wake the event loop, which then calls its check function and handles events."""
        self._selector.wake()

    def remove_check_function(self) -> None:
        """Remove the check function, so that later waits raise no exceptions."""
        self._selector.check = None

    def close(self) -> None:
        """Close the event loop."""
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
        """Register a callback for each time when a siwarp descriptor is readable.

        Raises:
            OSError: the descriptor belongs to the operating system (EBADF).

        """
        self._selector.add(_descriptor_number(fd), asyncio.Handle(callback, args, self, None))

    def remove_reader(self, fd: Any) -> bool:
        """Stop watching a descriptor; return whether it was watched."""
        handle = self._selector.remove(_descriptor_number(fd))
        if handle is not None:
            handle.cancel()
        return handle is not None

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a task of the world, and return a future of its result."""
        future: asyncio.Future[Any] = self.create_future()

        def call_and_set_result() -> None:
            try:
                value = func(*args)
            except BaseException as e:
                self.call_soon_threadsafe(_set_future_result, future, None, e)
            else:
                self.call_soon_threadsafe(_set_future_result, future, value, None)

        self._start(call_and_set_result)
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
        """Resolve a numeric address, because a world has no host names.

        Raises:
            OSError: the host is not a numeric address.

        """
        return system.addresses(host, port, type, flags)

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        """Raise OSError (EOPNOTSUPP): a world has no operating system sockets."""
        raise _no_os_sockets_error()

    async def create_server(self, *_: Any, **__: Any) -> Any:
        """Raise OSError (EOPNOTSUPP): a world has no operating system sockets."""
        raise _no_os_sockets_error()

    async def create_datagram_endpoint(self, *_: Any, **__: Any) -> Any:
        """Raise OSError (EOPNOTSUPP): a world has no operating system sockets."""
        raise _no_os_sockets_error()


def _no_os_sockets_error() -> OSError:
    return OSError(
        errno.EOPNOTSUPP, "a simulated world has no operating system sockets: use siwarp.aio"
    )


def _descriptor_number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _set_future_result(
    future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def run_coroutine_and_close_loop(loop: Loop, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop, close the loop, and return the coroutine's result."""
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        loop.remove_check_function()
        try:
            left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
