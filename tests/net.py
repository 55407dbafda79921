"""The network and the clock of this process's tests: the machine's, or a world's (`make sim`).

Harnesses that take sockets, time and addresses from here run in either process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siwarp.sim import World

SIMULATED = os.environ.get("SIWARP_SIM") == "1"
#: Where a test's ends are, all on one host.
HERE = "10.0.0.1" if SIMULATED else "127.0.0.1"

_world: World | None = None


@contextlib.contextmanager
def in_world(world: World) -> Iterator[World]:
    """Let what is called here mean this world, which gets a host at ``HERE``, for a block."""
    global _world
    assert SIMULATED, "a real process has no worlds"
    world.udp(HERE).close()
    _world = world
    try:
        yield world
    finally:
        _world = None


def the_world() -> World:
    """Return the world of ``in_world``."""
    assert _world is not None, "this harness needs a world: use in_world"
    return _world


def udp(host: str = HERE, port: int = 0) -> Any:
    """Return a plain UDP socket at an address and port."""
    if SIMULATED:
        return the_world().udp(host, port)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, port))
    return sock


def now() -> float:
    """Return a time in seconds: differences of two are what counts."""
    return the_world().now if SIMULATED and _world else time.monotonic()


def sleep(seconds: float) -> None:
    """Let so much time pass."""
    if SIMULATED:
        the_world().sleep(seconds)
    else:
        time.sleep(seconds)


@contextlib.contextmanager
def faults(plan: str) -> Iterator[None]:
    """Have packets between ends at ``HERE`` suffer this plan, in a block."""
    if SIMULATED:
        # Of a host's link with itself one direction is all there is.
        the_world().link(HERE, HERE, plan.replace("rx:", "tx:"))
        try:
            yield
        finally:
            the_world().link(HERE, HERE, None)
        return
    from siwarp.verbs import faults as of_process

    with of_process(plan):
        yield
