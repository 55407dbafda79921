"""A relay that loses, duplicates, reorders and damages some datagrams, controlled by a seed."""

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


def udp_socket(address: Address = (net.HERE, 0)) -> socket.socket:
    """Return a bound non-blocking UDP socket with buffers large enough for a burst."""
    sock: socket.socket = net.open_udp_socket(*address)
    if not net.SIMULATED:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    sock.setblocking(False)
    return sock


def receive_waiting_datagrams(sock: socket.socket) -> list[tuple[bytes, Address]]:
    """Return all waiting datagrams with their source addresses."""
    got = []
    while True:
        try:
            got.append(sock.recvfrom(65536))
        except BlockingIOError:
            return got
        except ConnectionRefusedError:
            continue  # an ICMP error for a datagram that was sent earlier


@dataclass(frozen=True)
class Faults:
    """The quality of a line: the fractions of datagrams that are affected."""

    loss: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    damage: float = 0.0
    # maximum delay in seconds of a reordered datagram, so that later ones overtake it
    hold: float = 0.004


CLEAN = Faults()
BAD = Faults(loss=0.08, double=0.05, reorder=0.1, damage=0.04)


@dataclass
class _Direction:
    """One direction of the line: delayed datagrams, and those forwarded, in order."""

    faults: Faults
    rng: random.Random
    held: list[tuple[float, int, bytes]] = field(default_factory=list)
    came: int = 0
    passed: list[bytes] = field(default_factory=list)


class Line:
    """A line with two sockets: siwarp sends to ``far`` as its peer's address, the peer to ``near``.

    There is no background thread: ``forward_datagrams`` forwards waiting datagrams. So a given seed
    has the same effect on the same datagrams.
    """

    def __init__(self, seed: int, faults: Faults = CLEAN) -> None:
        self._near, self._far = udp_socket(), udp_socket()
        self.near: Address = self._near.getsockname()
        self.far: Address = self._far.getsockname()
        self.peer: Address | None = None
        self.siwarp: Address | None = None
        self.to_siwarp = _Direction(faults, random.Random(f"{seed}/to"))
        self.from_siwarp = _Direction(faults, random.Random(f"{seed}/from"))

    def close(self) -> None:
        """Close both sockets of the line."""
        self._near.close()
        self._far.close()

    def remove_faults(self) -> None:
        """Stop losing and changing datagrams from now on."""
        self.to_siwarp.faults = self.from_siwarp.faults = CLEAN

    def sockets(self) -> list[socket.socket]:
        """Return the sockets of the line, to wait on."""
        return [self._near, self._far]

    def set_multicast_interface(self, host: str) -> None:
        """Send multicast through the interface with this address."""
        self._far.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))

    def forward_datagrams(self) -> None:
        """Forward new datagrams, and delayed ones whose time has come."""
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
        """Whether no datagram is waiting at a socket or being delayed."""
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
                # the ICMP error was about an earlier datagram, so send again
                sock.sendto(datagram, to)


def _apply_faults(way: _Direction, datagram: bytes) -> None:
    """Decide the fate of a datagram, always with the same number of random values."""
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
    """Repeat all steps until the condition is true; fail after ``limit`` seconds."""
    began = net.now()
    while not until():
        for step in steps:
            step()
        assert not limit_exceeded(began, limit), "what the test waits for did not happen"
        if net.SIMULATED:
            net.sleep(0.0005)
        else:
            select.select(sockets, [], [], 0.0005)
