"""A UDP relay for tests that loses, duplicates, reorders and damages datagrams, controlled by a
seed.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import net
from pace import limit_exceeded

Address = tuple[str, int]

BUFFER = 4 << 20


def open_udp_socket(address: Address = (net.HERE, 0)) -> socket.socket:
    """Return a bound non-blocking UDP socket with buffers large enough for a burst."""
    sock: socket.socket = net.open_udp_socket(*address)
    if not net.SIMULATED:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    sock.setblocking(False)
    return sock


def receive_waiting_datagrams(sock: socket.socket) -> list[tuple[bytes, Address]]:
    """Return all datagrams that are queued at a socket, with their source addresses."""
    got = []
    while True:
        try:
            got.append(sock.recvfrom(65536))
        except BlockingIOError:
            return got
        except ConnectionRefusedError:
            # An ICMP error for an earlier datagram is ignored.
            continue


@dataclass(frozen=True)
class Faults:
    """The fractions of datagrams that an emulated link loses, duplicates, reorders and damages."""

    loss: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    damage: float = 0.0
    # The maximum delay of a reordered datagram in seconds; later datagrams overtake the datagram
    # meanwhile.
    hold: float = 0.004


CLEAN = Faults()
BAD = Faults(loss=0.08, double=0.05, reorder=0.1, damage=0.04)


@dataclass
class _Direction:
    """One direction of an emulated link: its delayed datagrams, and the forwarded ones in order."""

    faults: Faults
    rng: random.Random
    held: list[tuple[float, int, bytes]] = field(default_factory=list)
    came: int = 0
    passed: list[bytes] = field(default_factory=list)


class EmulatedLink:
    """An emulated link with two sockets. siwarp sends to ``far``, the address of its peer, and the
    peer sends to ``near``.

    The link has no background thread: ``forward_datagrams`` forwards the queued datagrams.
    Therefore a seed always has the same effect on the same datagrams.
    """

    def __init__(self, seed: int, faults: Faults = CLEAN) -> None:
        self._near, self._far = open_udp_socket(), open_udp_socket()
        self.near: Address = self._near.getsockname()
        self.far: Address = self._far.getsockname()
        self.peer: Address | None = None
        self.siwarp: Address | None = None
        self.to_siwarp = _Direction(faults, random.Random(f"{seed}/to"))
        self.from_siwarp = _Direction(faults, random.Random(f"{seed}/from"))

    def close(self) -> None:
        """Close both sockets of the emulated link."""
        self._near.close()
        self._far.close()

    def remove_faults(self) -> None:
        """Forward all later datagrams without loss or change."""
        self.to_siwarp.faults = self.from_siwarp.faults = CLEAN

    def sockets(self) -> list[socket.socket]:
        """Return the sockets of the emulated link, for select()."""
        return [self._near, self._far]

    def set_multicast_interface(self, host: str) -> None:
        """Send multicast datagrams through the interface with this address."""
        self._far.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))

    def forward_datagrams(self) -> None:
        """Forward received datagrams, and delayed datagrams whose delay has expired."""
        for sock, way in ((self._near, self.to_siwarp), (self._far, self.from_siwarp)):
            for datagram, source in receive_waiting_datagrams(sock):
                if sock is self._near:
                    self.peer = source
                else:
                    self.siwarp = self.siwarp or source
                _apply_faults(way, datagram)
        self._send_due_datagrams(self.to_siwarp, self._far, self.siwarp)
        self._send_due_datagrams(self.from_siwarp, self._near, self.peer)

    def is_idle(self) -> bool:
        """Return whether the link has no delayed datagrams, and its sockets no queued datagrams."""
        waits = select.select(self.sockets(), [], [], 0)[0]
        return not waits and not self.to_siwarp.held and not self.from_siwarp.held

    def _send_due_datagrams(self, way: _Direction, sock: socket.socket, to: Address | None) -> None:
        now = net.now()
        while way.held and way.held[0][0] <= now and to is not None:
            datagram = heapq.heappop(way.held)[2]
            way.passed.append(datagram)
            try:
                sock.sendto(datagram, to)
            except ConnectionRefusedError:
                # The ICMP error was caused by an earlier datagram, so the link sends the datagram
                # again.
                sock.sendto(datagram, to)


def _apply_faults(way: _Direction, datagram: bytes) -> None:
    """Lose, damage, duplicate or delay a datagram; use equally many random values per datagram."""
    faults, rng = way.faults, way.rng
    lost, doubled, late, damaged = (rng.random() for _ in range(4))
    bit, hold, second = rng.randrange(8 * len(datagram)), rng.random(), rng.random()
    if lost < faults.loss:
        return
    if damaged < faults.damage:
        octets = bytearray(datagram)
        octets[bit // 8] ^= 1 << bit % 8
        datagram = bytes(octets)
    now = net.now()
    due = now + hold * faults.hold if late < faults.reorder else now
    copies = [due, now + second * faults.hold] if doubled < faults.double else [due]
    for when in copies:
        heapq.heappush(way.held, (when, way.came, datagram))
        way.came += 1


def run_until(
    until: Callable[[], bool],
    steps: list[Callable[[], None]],
    sockets: list[socket.socket],
    limit: float = 10.0,
) -> None:
    """Call all ``steps`` repeatedly until the condition is true; fail after ``limit`` seconds."""
    began = net.now()
    while not until():
        for step in steps:
            step()
        assert not limit_exceeded(began, limit), (
            "the condition did not become true within the limit"
        )
        if net.SIMULATED:
            net.sleep(0.0005)
        else:
            select.select(sockets, [], [], 0.0005)
