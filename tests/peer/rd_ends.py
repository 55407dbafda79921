"""Both ends of the tests of RD: a queue pair of siwarp's, the peer, and the line between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from peer.line import Faults, Line, run, udp_socket
from peer.ours import LIMIT_S, SEED, Siwarp, closing, siwarp_queue_pair
from peer.rd import RdPeer
from peer.rdmap import Arrival, Region

from siwarp.verbs import MR, QPAttr, QPType, RemoteBuffer, WCFlag

QKEY = 0x5D0001
MEMORY = 1 << 17
STAG, BASE = 0x0A0B0C0D, 1 << 33


class Ends:
    """siwarp's queue pair with memory, the peer with memory, and the line."""

    def __init__(self, ours: Siwarp, line: Line, peer: RdPeer) -> None:
        self.ours, self.line, self.peer = ours, line, peer
        self.region: MR = ours.region(MEMORY)
        self.theirs = peer.regions[STAG] = Region(BASE, bytearray(MEMORY))
        self.ah = ours.toward(line.far)
        line.siwarp, line.peer = ours.qp.addr, peer.sock.getsockname()

    def run(self, until: Callable[[], bool], limit: float = LIMIT_S) -> None:
        """Move everything until something is true."""
        steps = [self.peer.step, self.line.step, self.ours.step]
        run(until, steps, [*self.line.sockets(), self.peer.sock], limit)
        assert self.peer.wrong == []

    def there(self, at: int, length: int) -> RemoteBuffer:
        """Return part of the peer's memory, for siwarp."""
        return RemoteBuffer(BASE + at, length, STAG)


@contextmanager
def ends(faults: Faults, attr: QPAttr | None = None, **peer: int) -> Iterator[Ends]:
    """Give both ends; ``attr`` is siwarp's, the rest the peer's."""
    attr = attr or QPAttr(qkey=QKEY)
    with (
        siwarp_queue_pair(QPType.RD, attr=attr, slot=1 << 15) as ours,
        udp_socket() as sock,
        closing(Line(SEED, faults)) as line,
    ):
        yield Ends(ours, line, RdPeer(sock, QKEY, SEED, **peer))


def arrivals(ours: Siwarp) -> list[Arrival]:
    """Return what siwarp's receives got, in the peer's words."""
    found = []
    for wc, data in ours.got:
        assert wc.ok, wc
        with_imm = wc.wc_flags & WCFlag.WITH_IMM
        value = wc.imm_data.to_bytes(4, sys.byteorder) if with_imm else None
        found.append(Arrival(data, value, wc.byte_len))
    return found
