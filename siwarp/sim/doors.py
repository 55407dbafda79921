# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a simulated process has in the place of siwarp.base.system's functions."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import time
from collections.abc import Callable

from siwarp.base import system
from siwarp.base.library import ffi, lib
from siwarp.sim import tasks
from siwarp.sim.units import nanoseconds

__all__ = ["install", "set_router", "set_starter"]

_start: Callable[[Callable[[], object], str], None] | None = None
_route: Callable[[str], str] | None = None
_drawn = 0


def set_starter(start: Callable[[Callable[[], object], str], None] | None) -> None:
    """Have tasks started by this function, while a world is open."""
    global _start
    _start = start


def set_router(route: Callable[[str], str] | None) -> None:
    """Have this function say which address reaches a peer, while a world is open."""
    global _route
    _route = route


def _monotonic() -> float:
    # Without a world, as when the process ends, waits must end, too.
    if not lib.siw_sim_is_open():
        return time.monotonic()
    return float(lib.siw_sim_now() + lib.SIW_SIM_MONOTONIC) / 1e9


def _sleep(seconds: float) -> None:
    if lib.siw_sim_is_open():
        lib.siw_sim_sleep_until(lib.siw_sim_now() + nanoseconds(seconds))
    else:
        time.sleep(seconds)


def _random_bytes(n: int) -> bytes:
    global _drawn
    if lib.siw_sim_is_open():
        words = (int(lib.siw_sim_random()) for _ in range((n + 7) // 8))
        return b"".join(word.to_bytes(8, "little") for word in words)[:n]
    # What is drawn when a module is imported is the same in every run.
    _drawn += 1
    return hashlib.shake_128(str(_drawn).encode()).digest(n)


def _readable_now(fd: int) -> bool:
    ready = ffi.new("uint8_t[1]")
    return bool(lib.siw_sim_poll(ffi.new("int[1]", [fd]), 1, 0, ready) > 0)


def _source_address(name: str, port: int) -> str:
    try:
        address = str(ipaddress.ip_address(name.partition("%")[0]))
    except ValueError:
        raise OSError(errno.EHOSTUNREACH, "a world has no names: give the address") from None
    if _route is None:
        raise OSError(errno.ENETUNREACH, "there is no world: make a siwarp.sim.World")
    return _route(address)


def _start_thread(call: Callable[[], object], name: str) -> None:
    if _start is None:
        raise RuntimeError(f"no thread {name}: make a siwarp.sim.World")
    _start(call, name)


def install() -> None:
    """Put the simulated functions in the place of the real ones."""
    system.threaded = False
    system.monotonic = _monotonic
    system.sleep = _sleep
    system.random_bytes = _random_bytes
    system.readable_now = _readable_now
    system.source_address = _source_address
    system.start_thread = _start_thread
    system.lock = tasks.SimLock
    system.rlock = tasks.SimRLock
    # Queue pairs of one simulated process reach each other, in every run alike.
    os.environ.setdefault("SIWARP_QKEY", "1")
