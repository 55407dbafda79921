# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the Python side asks of the system: time, sleep, threads, locks, readiness, routes.

``siwarp.verbs``, ``siwarp.cm``, ``siwarp.aio`` and ``siwarp.testing`` ask here and nowhere else
(tests/lint/py_system.py), as the C library asks base/os.h. In a simulated process ``siwarp.sim``
puts its own functions in the place of these; so call them as ``system.monotonic()``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

__all__ = [
    "Lock",
    "lock",
    "monotonic",
    "random_bytes",
    "readable_now",
    "rlock",
    "simulated",
    "sleep",
    "sleep_on",
    "source_address",
    "start_thread",
    "threaded",
]


class Lock(Protocol):
    """What a lock has, for a ``with`` block that may block inside."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take it, or return False."""

    def release(self) -> None:
        """Give it back."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


#: Whether this process works on siwarp.sim's network and clock; settled when siwarp.base.library
#: is imported.
simulated = os.environ.get("SIWARP_SIM", "") not in {"", "0"}

#: Whether devices may have threads, which move traffic while a program sleeps.
threaded = True

#: Seconds of a clock that only goes on.
monotonic: Callable[[], float] = time.monotonic

#: Sleep so many seconds.
sleep: Callable[[float], None] = time.sleep

#: Return so many random octets.
random_bytes: Callable[[int], bytes] = os.urandom

#: Return a new lock, or one that its thread may take again.
lock: Callable[[], Lock] = threading.Lock
rlock: Callable[[], Lock] = threading.RLock

#: More seconds than the kernel's poll accepts: treated as no limit.
_LONG = 1_000_000.0


def _start_thread(call: Callable[[], object], name: str) -> None:
    threading.Thread(target=call, name=name).start()


#: Start a thread of this name that calls something once.
start_thread: Callable[[Callable[[], object], str], None] = _start_thread


def _readable_now(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


#: Whether a descriptor is readable at this moment.
readable_now: Callable[[int], bool] = _readable_now


def sleep_on(fds: list[int], deadline: float | None) -> None:
    """Sleep until one of these descriptors is readable, a signal comes, or it is ``deadline``.

    Threads of real devices alone make that necessary: a simulated process has none.
    """
    sleeper = select.poll()
    for fd in fds:
        sleeper.register(fd, select.POLLIN)
    left = None if deadline is None else deadline - monotonic()
    with _signals_wake(sleeper):
        if left is None or left > _LONG:
            sleeper.poll()
        else:
            sleeper.poll(max(0, int(left * 1000 + 0.999)))


@contextlib.contextmanager
def _signals_wake(sleeper: select.poll) -> Iterator[None]:
    """Let a signal that arrives right before the sleep end it, as one during the sleep does.

    Python checks for signals before the call, and not within. If an event loop uses the wake-up
    descriptor, that stays so. Only the main thread handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            if before == -1:
                sleeper.register(reader, select.POLLIN)
            else:
                signal.set_wakeup_fd(before)
            yield
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(reader)
        os.close(writer)


def _source_address(name: str, port: int) -> str:
    infos = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
    family, kind, proto, _, sockaddr = infos[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(sockaddr)
        host, _, *more = probe.getsockname()
        scoped = len(more) == 2 and more[1] and "%" not in host
        return f"{host}%{socket.if_indextoname(more[1])}" if scoped else str(host)


#: Return this machine's address toward a host and port; nothing is sent. Raises OSError.
source_address: Callable[[str, int], str] = _source_address
