# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Operating system services for the Python code: time, sleep, threads, locks, polling, addresses.

``siwarp.verbs``, ``siwarp.cm``, ``siwarp.aio``, ``siwarp.pyverbs`` and ``siwarp.testing`` use these
services only through this module (tests/lint/py_system.py), as C code uses base/os.h. In a
simulated process ``siwarp.sim`` replaces the functions, so call them by attribute:
``system.monotonic()``.
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
    """The interface of a lock, which can also be used in a ``with`` statement."""

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; return False if ``blocking`` is false and the lock is held."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


#: Whether this process uses the network and clock of siwarp.sim. The value is final once
#: siwarp.base.library is imported.
simulated = os.environ.get("SIWARP_SIM", "") not in {"", "0"}

#: Return the time of a monotonic clock in seconds.
monotonic: Callable[[], float] = time.monotonic


def _clock_ns(real: bool) -> int:
    return time.time_ns() if real else time.monotonic_ns()


#: Return ``time.CLOCK_MONOTONIC``, or with argument True ``time.CLOCK_REALTIME``, in nanoseconds.
clock_ns: Callable[[bool], int] = _clock_ns

#: Sleep for a number of seconds.
sleep: Callable[[float], None] = time.sleep

#: Return a number of random octets.
random_bytes: Callable[[int], bytes] = os.urandom


def _make_random_qkey() -> int:
    return int.from_bytes(os.urandom(4), "big") & 0x7FFFFFFF or 1


#: Random Q_Key, chosen once per process so that queue pairs of the process and of its forked
#: children can reach each other. The Q_Key is not 0, which anyone can guess; its top bit is clear,
#: because in a work request a set top bit selects the Q_Key of the sender's queue pair.
_QKEY = _make_random_qkey()


def _qkey_of_process(_address: str) -> int:
    return _QKEY


#: Return the random Q_Key of the process that has opened the device with this address.
process_qkey: Callable[[str], int] = _qkey_of_process

#: Return a new lock (``lock``), or a new reentrant lock (``rlock``).
lock: Callable[[], Lock] = threading.Lock
rlock: Callable[[], Lock] = threading.RLock

#: Time-outs in seconds above this value exceed the range of poll(2) and are treated as unlimited.
_LONG = 1_000_000.0


def _start_thread(call: Callable[[], object], name: str) -> None:
    threading.Thread(target=call, name=name).start()


#: Start a thread with a given name that runs a function once.
start_thread: Callable[[Callable[[], object], str], None] = _start_thread


def _readable_now(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


#: Return, without waiting, whether a descriptor is readable.
readable_now: Callable[[int], bool] = _readable_now


class Waker(Protocol):
    """An object with a descriptor, by which another thread ends a call of ``sleep_on``."""

    def fileno(self) -> int:
        """Return the descriptor; it is readable once ``wake`` was called."""

    def wake(self) -> None:
        """Make the descriptor readable; may be called by any thread."""

    def close(self) -> None:
        """Close the descriptor; no thread may sleep on it any more."""


class _EventFDWaker:
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
waker: Callable[[], Waker] = _EventFDWaker


def _sleep_until_descriptor_readable(fds: list[int], deadline: float | None) -> None:
    sleeper = select.poll()
    for fd in fds:
        sleeper.register(fd, select.POLLIN)
    left = None if deadline is None else deadline - monotonic()
    with _wake_on_signals(sleeper):
        if left is None or left > _LONG:
            sleeper.poll()
        else:
            sleeper.poll(max(0, int(left * 1000 + 0.999)))


#: Sleep until one of the descriptors is readable, a signal arrives, or ``monotonic`` reaches the
#: deadline (None: no deadline).
sleep_on: Callable[[list[int], float | None], None] = _sleep_until_descriptor_readable


@contextlib.contextmanager
def _wake_on_signals(sleeper: select.poll) -> Iterator[None]:
    """Make a signal that arrives right before a sleep end the sleep, like a signal during the
    sleep.

    Python checks for signals before the system call, not atomically with it. If an event loop
    already uses the wake-up descriptor, that descriptor is kept and the gap remains. Only the main
    thread handles signals.
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


#: Return the local source address for a host and port, without sending anything. Raises OSError.
source_address: Callable[[str, int], str] = _source_address


def _device_name(name: str) -> str:
    return name or "127.0.0.1"


#: Return the device for a name or address, which may be empty (loopback) or a wildcard address.
device_name: Callable[[str], str] = _device_name


def _resolve_addresses(
    host: str | None, port: str | int | None, kind: int, flags: int
) -> list[Any]:
    return socket.getaddrinfo(host, port, type=kind, flags=flags)


#: Resolve a host and port, for a socket type, like ``socket.getaddrinfo``. Raises OSError.
addresses: Callable[[str | None, str | int | None, int, int], list[Any]] = _resolve_addresses


def _interface_index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


#: Return the index of the network interface with a given name, 0 if there is none.
interface_index: Callable[[str], int] = _interface_index


def _check_event_loop(loop: object) -> None:
    pass


#: Raise RuntimeError if siwarp's events cannot be awaited on an asyncio event loop.
check_loop: Callable[[object], None] = _check_event_loop
