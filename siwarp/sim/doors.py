# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Replacements of siwarp.base.system's functions in a simulated process."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from siwarp.base import system
from siwarp.base.library import ffi, lib
from siwarp.sim import tasks
from siwarp.sim.loop import Loop
from siwarp.sim.units import NEVER, nanoseconds

__all__ = [
    "install_simulated_functions",
    "set_address_functions",
    "set_qkey_function",
    "set_task_starter",
]

_start: Callable[[Callable[[], object], str], None] | None = None
_route: Callable[[str], str] | None = None
_home: Callable[[str], str] | None = None
_qkey_of: Callable[[str], int] | None = None
_drawn = 0


def set_task_starter(start: Callable[[Callable[[], object], str], None] | None) -> None:
    """Set the function that starts tasks in the open world; None: no world is open."""
    global _start
    _start = start


def set_address_functions(
    route: Callable[[str], str] | None, home: Callable[[str], str] | None
) -> None:
    """Set the functions that return addresses of the running task's host; None: no world is open.

    Args:
        route: function that returns the host's address for connections to a given peer address.
        home: function that returns the host's address for a wildcard address or for "".

    """
    global _route, _home
    _route, _home = route, home


def set_qkey_function(qkey_of: Callable[[str], int] | None) -> None:
    """Set the function that returns the default Q_Key of the host with a given address."""
    global _qkey_of
    _qkey_of = qkey_of


def _monotonic_seconds() -> float:
    # Waits must also end when no world is open, for example while the process exits.
    if not lib.siw_sim_is_world_open():
        return time.monotonic()
    return float(lib.siw_sim_now() + lib.SIW_SIM_MONOTONIC) / 1e9


def _clock_ns(real: bool) -> int:
    if not lib.siw_sim_is_world_open():
        return time.time_ns() if real else time.monotonic_ns()
    return int(lib.siw_sim_now() + (lib.SIW_SIM_REALTIME if real else lib.SIW_SIM_MONOTONIC))


def _sleep_simulated_or_real(seconds: float) -> None:
    if lib.siw_sim_is_world_open():
        lib.siw_sim_sleep_until(lib.siw_sim_now() + nanoseconds(seconds))
    else:
        time.sleep(seconds)


def _default_qkey_of_host(address: str) -> int:
    if _qkey_of is None:
        raise RuntimeError("no world is open, so there is no Q_Key: create a siwarp.sim.World")
    return _qkey_of(address)


def _random_bytes(n: int) -> bytes:
    global _drawn
    if lib.siw_sim_is_world_open():
        words = (int(lib.siw_sim_random()) for _ in range((n + 7) // 8))
        return b"".join(word.to_bytes(8, "little") for word in words)[:n]
    # Modules that draw random numbers during their import get the same numbers in every run.
    _drawn += 1
    return hashlib.shake_128(str(_drawn).encode()).digest(n)


def _is_readable_now(fd: int) -> bool:
    ready = ffi.new("uint8_t[1]")
    # An error also counts as readable, because reading a descriptor of a crashed device reports the
    # crash.
    return bool(lib.siw_sim_poll_fds(ffi.new("int[1]", [fd]), 1, 0, ready) != 0)


class _Waker:
    def __init__(self) -> None:
        self._fd = int(lib.siw_sim_event_fd_open())
        if self._fd < 0:
            raise OSError(-self._fd, f"{os.strerror(-self._fd)}: close other descriptors first")

    def fileno(self) -> int:
        return self._fd

    def wake(self) -> None:
        lib.siw_sim_event_fd_set(self._fd)

    def close(self) -> None:
        lib.siw_sim_event_fd_close(self._fd)


def _wait_until_readable(fds: list[int], deadline: float | None) -> None:
    until = NEVER
    if deadline is not None:
        begin = lib.SIW_SIM_MONOTONIC
        until = NEVER if deadline > 1e10 else max(0, round(deadline * 1e9) - begin)
    # EBADF is ignored: the next call on an object that was closed during the wait reports the
    # error.
    lib.siw_sim_poll_fds(ffi.new("int[]", fds), len(fds), until, ffi.new("uint8_t[]", len(fds)))
    tasks.raise_if_world_is_closing()


def _resolve_numeric_address(
    host: str | None, port: str | int | None, kind: int, flags: int
) -> list[Any]:
    try:
        numeric = flags | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(host, port, type=kind, flags=numeric)
    except socket.gaierror as e:
        raise socket.gaierror(
            e.errno, f"{e.strerror}; a simulated world has no host names: use numeric addresses"
        ) from None


def _replace_wildcard_by_own_address(name: str) -> str:
    return _home(name) if _home is not None and name in {"", "0.0.0.0", "::"} else name


def _interface_index(name: str) -> int:
    number = name.removeprefix("sim")
    return int(number) + 1 if number != name and number.isdecimal() else 0


def _require_world_loop(loop: object) -> None:
    if not isinstance(loop, Loop):
        raise RuntimeError(
            "this event loop uses the machine's clock, not the world's: run the coroutine with "
            "world.run(main())"
        )


def _source_address_toward(name: str, port: int) -> str:
    try:
        address = str(ipaddress.ip_address(name.partition("%")[0]))
    except ValueError:
        raise OSError(
            errno.EHOSTUNREACH, "a simulated world has no host names: use the address"
        ) from None
    if _route is None:
        raise OSError(errno.ENETUNREACH, "no world is open: create a siwarp.sim.World")
    return _route(address)


def _start_task_instead_of_thread(call: Callable[[], object], name: str) -> None:
    if _start is None:
        raise RuntimeError(
            f"cannot start thread {name}, no world is open: create a siwarp.sim.World"
        )
    _start(call, name)


def install_simulated_functions() -> None:
    """Replace the functions of siwarp.base.system by their simulated counterparts."""
    system.monotonic = _monotonic_seconds
    system.clock_ns = _clock_ns
    system.sleep = _sleep_simulated_or_real
    system.process_qkey = _default_qkey_of_host
    system.random_bytes = _random_bytes
    system.readable_now = _is_readable_now
    system.waker = _Waker
    system.sleep_on = _wait_until_readable
    system.addresses = _resolve_numeric_address
    system.device_name = _replace_wildcard_by_own_address
    system.interface_index = _interface_index
    system.check_loop = _require_world_loop
    system.source_address = _source_address_toward
    system.start_thread = _start_task_instead_of_thread
    system.lock = tasks.SimLock
    system.rlock = tasks.SimRLock
