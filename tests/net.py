"""Network and clock for the tests: those of the machine, or of a simulated world (`make sim`).

A test harness that uses the sockets, the clock and the addresses of this module runs in real and in
simulated processes.
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
#: Addresses of the endpoints of a test. All three addresses belong to one host.
HERE, HERE_TOO, HERE_V6 = (
    ("10.0.0.1", "10.77.0.1", "fd00::1") if SIMULATED else ("127.0.0.1", "127.0.0.2", "::1")
)
#: Seconds after which a call on a plain TCP socket times out.
TCP_LIMIT = 60.0

_world: World | None = None
_candidate_ports = iter([10_000 + (64 * os.getpid() + i) % 20_000 for i in range(20_000)])


@contextlib.contextmanager
def use_simulated_world(world: World) -> Iterator[World]:
    """In a with block, let the functions of this module use a world that has the host ``HERE``."""
    global _world
    assert SIMULATED, "a real process has no worlds"
    world.device(HERE, HERE_TOO, HERE_V6).close()
    _world = world
    try:
        yield world
    finally:
        _world = None


def current_simulated_world() -> World:
    """Return the simulated world that ``use_simulated_world`` has selected."""
    assert _world is not None, "this harness needs a world: use use_simulated_world"
    return _world


def open_udp_socket(host: str = HERE, port: int = 0) -> Any:
    """Return a plain UDP socket bound to an address and port."""
    if SIMULATED:
        return current_simulated_world().udp(host, port)
    sock = socket.socket(_address_family(host), socket.SOCK_DGRAM)
    sock.bind((host, port))
    return sock


def tcp_listen(host: str = HERE, limit: float = TCP_LIMIT) -> Any:
    """Return a plain listening TCP socket, on a port that the kernel or the world chooses."""
    if SIMULATED:
        listener = current_simulated_world().tcp_listen(host, 0)
    else:
        listener = socket.create_server((host, 0), family=_address_family(host), backlog=64)
    listener.settimeout(limit)
    return listener


def tcp_connect(to: tuple[str, int], source: str = "", limit: float = TCP_LIMIT) -> Any:
    """Return a plain TCP connection to an address, from the local address `source` if given."""
    if SIMULATED:
        sock = current_simulated_world().tcp_connect(
            source or (HERE_V6 if ":" in to[0] else HERE), to
        )
        sock.settimeout(limit)
        return sock
    sock = socket.create_connection(to, limit, (source, 0) if source else None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def find_unused_port() -> int:
    """Return a port that no socket of this machine uses, for TCP or UDP, at any address.

    The port is below the kernel's default range for sockets without a chosen port, and processes
    whose ids are close get different ports, so that no other test is likely to use the port soon.
    """
    for port in _candidate_ports:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                sock = stack.enter_context(socket.socket(socket.AF_INET6, kind))
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind(("::", port))
            return port
    raise AssertionError("all ports are in use")


def receive_within(sock: Any, seconds: float) -> Any:
    """Return the octets that a plain socket receives within some seconds, or None."""
    before = sock.gettimeout()
    sock.settimeout(seconds)
    try:
        return sock.recv(65536)
    except (TimeoutError, BlockingIOError):
        return None
    finally:
        sock.settimeout(before)


def _address_family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def now() -> float:
    """Return a time in seconds; only differences between two times are meaningful."""
    return current_simulated_world().now if SIMULATED and _world else time.monotonic()


def sleep(seconds: float) -> None:
    """Let some seconds pass, in real or in simulated time."""
    if SIMULATED:
        current_simulated_world().sleep(seconds)
    else:
        time.sleep(seconds)


@contextlib.contextmanager
def apply_fault_plan(plan: str) -> Iterator[None]:
    """In a with block, apply a fault plan to the packets between endpoints at ``HERE``."""
    if SIMULATED:
        # The link of a host with itself has only one direction.
        current_simulated_world().link(HERE, HERE, plan.replace("rx:", "tx:"))
        try:
            yield
        finally:
            current_simulated_world().link(HERE, HERE, None)
        return
    from siwarp.verbs import faults as of_process

    with of_process(plan):
        yield
