"""The ends of the RD tests: a siwarp queue pair, the independent peer, and the link between
them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from peer.link import EmulatedLink, Faults, open_udp_socket, run_until
from peer.ours import (
    LIMIT_S,
    SEED,
    SiwarpEnd,
    closing_emulated_link,
    open_siwarp_queue_pair,
    seeded_octets,
    stress_round_count,
)
from peer.rd import RdPeer
from peer.rdmap import Arrival, Region

from siwarp.verbs import MR, QPAttr, QPType, RemoteBuffer, WCFlag, WROpcode

QKEY = 0x5D0001
MEMORY = 1 << 17
STAG, BASE = 0x0A0B0C0D, 1 << 33


class Ends:
    """A siwarp queue pair with memory, an independent RD peer with memory, and the link between
    them.
    """

    def __init__(self, ours: SiwarpEnd, link: EmulatedLink, peer: RdPeer) -> None:
        self.ours, self.link, self.peer = ours, link, peer
        self.region: MR = ours.register_memory(MEMORY)
        self.theirs = peer.regions[STAG] = Region(BASE, bytearray(MEMORY))
        self.ah = ours.create_address_handle(link.far)
        link.siwarp, link.peer = ours.qp.addr, peer.sock.getsockname()

    def run_until(self, until: Callable[[], bool], limit: float = LIMIT_S) -> None:
        """Run the peer, the link and siwarp until the condition is true."""
        steps = [
            self.peer.process_datagrams_and_run_timers,
            self.link.forward_datagrams,
            self.ours.poll_completions,
        ]
        run_until(until, steps, [*self.link.sockets(), self.peer.sock], limit)
        assert self.peer.wrong == []

    def peer_buffer(self, at: int, length: int) -> RemoteBuffer:
        """Return part of the peer's memory as a remote buffer for requests of siwarp."""
        return RemoteBuffer(BASE + at, length, STAG)


@contextmanager
def siwarp_and_peer(faults: Faults, attr: QPAttr | None = None, **peer: int) -> Iterator[Ends]:
    """Yield a siwarp queue pair with attributes ``attr``, and a peer with the other arguments."""
    attr = attr or QPAttr(qkey=QKEY)
    with (
        open_siwarp_queue_pair(QPType.RD, attr=attr, slot=1 << 15) as ours,
        open_udp_socket() as sock,
        closing_emulated_link(EmulatedLink(SEED, faults)) as link,
    ):
        yield Ends(ours, link, RdPeer(sock, QKEY, SEED, **peer))


def collect_siwarp_arrivals(ours: SiwarpEnd) -> list[Arrival]:
    """Return the completed receives of siwarp as Arrival objects, for comparison with the
    peer's.
    """
    found = []
    for wc, data in ours.got:
        assert wc.ok, wc
        with_imm = wc.wc_flags & WCFlag.WITH_IMM
        value = wc.imm_data.to_bytes(4, sys.byteorder) if with_imm else None
        found.append(Arrival(data, value, wc.byte_len))
    return found


def check_messages_both_ways(faults: Faults, first: str) -> None:
    """Send messages of each kind and of many lengths in both directions; ``first`` names the end
    that sends first.
    """
    count = stress_round_count(40, 200)
    rng = random.Random(f"{SEED}/{first}")
    with siwarp_and_peer(faults) as both:
        to_siwarp, to_peer = [], []
        talk = None
        for i in range(count):
            payload = seeded_octets(f"to {i}", rng.choice([0, 1, 100, 3000, 20_000]))
            value = i.to_bytes(4, "big") if i % 3 == 0 else None
            to_siwarp.append(Arrival(payload, value, len(payload)))
            answer = seeded_octets(f"from {i}", rng.choice([0, 1, 100, 3000, 60_000]))
            to_peer.append(Arrival(answer, i.to_bytes(4, sys.byteorder), len(answer)))
            if first == "peer" or i:
                talk = talk or both.peer.conversation_with(both.link.near)
                talk.send(payload, immediate=value, solicited=i % 2 == 0)
            both.ours.post_payload(answer, WROpcode.SEND_WITH_IMM, ah=both.ah, imm_data=i)
            if i == 0:
                both.run_until(lambda: bool(both.peer.arrivals))
                if first == "siwarp":
                    talk = both.peer.conversation_with(both.link.near)
                    talk.send(payload, immediate=value)
            # Some Sends must complete first, so that the send queue does not overflow.
            if i % 64 == 63:
                both.run_until(lambda i=i: len(both.ours.sent) > i - 200)
        both.run_until(lambda: len(both.ours.got) == count and len(both.peer.arrivals) == count)
        both.run_until(both.peer.is_idle)
        both.run_until(lambda: len(both.ours.sent) == count)
        assert collect_siwarp_arrivals(both.ours) == to_siwarp
        assert both.peer.arrivals == to_peer
        assert all(wc.ok for wc in both.ours.sent)
        assert {wc.source for wc, _ in both.ours.got} == {both.link.far}
