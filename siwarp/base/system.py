# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the Python side asks of the system: time, sleep, threads, locks, readiness, addresses.

``siwarp.verbs``, ``siwarp.cm``, ``siwarp.aio``, ``siwarp.pyverbs`` and ``siwarp.testing`` ask here
and nowhere else (tests/lint/py_system.py), as the C library asks base/os.h. In a simulated process
``siwarp.sim`` replaces these functions; so call them as ``system.monotonic()``.
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
from typing import Any, Protocol

__all__ = [
    "Lock",
    "Waker",
    "addresses",
    "check_loop",
    "clock_ns",
    "device_name",
    "interface_index",
    "lock",
    "monotonic",
    "process_qkey",
    "random_bytes",
    "readable_now",
    "rlock",
    "simulated",
    "sleep",
    "sleep_on",
    "source_address",
    "start_thread",
    "waker",
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

#: Seconds of a monotonic clock.
monotonic: Callable[[], float] = time.monotonic


def _clock_ns(real: bool) -> int:
    return time.time_ns() if real else time.monotonic_ns()


#: Return nanoseconds of ``time.CLOCK_MONOTONIC``, or with True of ``time.CLOCK_REALTIME``.
clock_ns: Callable[[bool], int] = _clock_ns

#: Sleep so many seconds.
sleep: Callable[[float], None] = time.sleep

#: Return so many random octets.
random_bytes: Callable[[int], bytes] = os.urandom

#: Drawn once, so that queue pairs of one process, and of its forked children, reach each other. Not
#: 0, which everybody has, and without the top bit, which stands for the sender's own.
_QKEY = int.from_bytes(os.urandom(4), "big") & 0x7FFFFFFF or 1


def _process_qkey(_address: str) -> int:
    return _QKEY


#: Return the random Q_Key of the process that has opened the device of this address.
process_qkey: Callable[[str], int] = _process_qkey

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


class Waker(Protocol):
    """A descriptor by which another thread ends a ``sleep_on``."""

    def fileno(self) -> int:
        """Return it; readable once ``wake`` was called."""

    def wake(self) -> None:
        """Make it readable, from any thread."""

    def close(self) -> None:
        """Close it; no thread sleeps on it any more."""


class _EventFD:
    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        os.close(self._fd)


#: Return a new waker.
waker: Callable[[], Waker] = _EventFD


def _sleep_on(fds: list[int], deadline: float | None) -> None:
    sleeper = select.poll()
    for fd in fds:
        sleeper.register(fd, select.POLLIN)
    left = None if deadline is None else deadline - monotonic()
    with _signals_wake(sleeper):
        if left is None or left > _LONG:
            sleeper.poll()
        else:
            sleeper.poll(max(0, int(left * 1000 + 0.999)))


#: Sleep until one of these descriptors is readable, a signal arrives, or ``monotonic`` is at the
#: deadline (None: there is none).
sleep_on: Callable[[list[int], float | None], None] = _sleep_on


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


def _device_name(name: str) -> str:
    return name or "127.0.0.1"


#: Return the device that this name or address means, which may be empty or a wildcard address.
device_name: Callable[[str], str] = _device_name


def _addresses(host: str | None, port: str | int | None, kind: int, flags: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=kind, flags=flags)


#: As ``socket.getaddrinfo`` with this host, port, socket type and these flags. Raises OSError.
addresses: Callable[[str | None, str | int | None, int, int], list[Any]] = _addresses


def _interface_index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


#: Return the index of a network interface, 0 if there is none of this name.
interface_index: Callable[[str], int] = _interface_index


def _check_loop(loop: object) -> None:
    pass


#: Raises RuntimeError if siwarp's events cannot be awaited on this asyncio event loop.
check_loop: Callable[[object], None] = _check_loop
