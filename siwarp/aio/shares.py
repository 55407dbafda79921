# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Shares of what peers use up: they bind once it is scarce, and some is left for newcomers.

A peer is an address with its port, a source an IPv4 address or an IPv6 /64: a host has as many
ports as it likes, and whoever has an IPv6 address has the whole /64.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, OrderedDict, deque

from siwarp.base import system
from siwarp.verbs import Address

__all__ = ["Admission", "Ration", "Shares", "source_of"]


def source_of(address: Address) -> str:
    """Return what the peers of one host have in common."""
    host = address[0].partition("%")[0]
    ip = ipaddress.ip_address(host)
    if ip.version == 4:
        return host
    if (mapped := ip.ipv4_mapped) is not None:
        return str(mapped)
    return str(ipaddress.IPv6Address(int(ip) >> 64 << 64))


class Shares:
    """Counts the places that peers hold, of ``places`` in all.

    - While a quarter or less is in use, any peer may have any number.
    - From then on a peer has at most a sixteenth, and its source a quarter; a peer that has none
      may have one while its source has less than three quarters.
    - The last quarter is for sources that have none.
    """

    def __init__(self, places: int) -> None:
        self.places, self.used = places, 0
        self._peers: Counter[Address] = Counter()
        self._sources: Counter[str] = Counter()

    def may_take(self, peer: Address) -> bool:
        """Whether it may have one more."""
        quarter = self.places // 4
        if self.used < quarter:
            return True
        own, source = self._peers[peer], self._sources[source_of(peer)]
        if self.used >= 3 * quarter:
            return self.used < self.places and not source
        if not own:
            return source < 3 * quarter
        return own < max(1, self.places // 16) and source < quarter

    def take(self, peer: Address) -> None:
        """Count one more."""
        self.used += 1
        self._peers[peer] += 1
        self._sources[source_of(peer)] += 1

    def give(self, peer: Address) -> None:
        """Count one less."""
        self.used -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
        source = source_of(peer)
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]


class Admission:
    """Admits tasks by shares; the others wait, each peer's in order. Cancelling loses no place."""

    def __init__(self, places: int) -> None:
        self._shares = Shares(places)
        self._waiting: OrderedDict[Address, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, peer: Address) -> None:
        """Wait for admission."""
        if peer not in self._waiting and self._shares.may_take(peer):
            self._shares.take(peer)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(peer)  # admitted and cancelled at once
            else:
                self._forget(peer, turn)
            raise

    def _forget(self, peer: Address, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(peer)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[peer]

    def leave(self, peer: Address) -> None:
        """Give a place back, and admit those that may have one now."""
        self._shares.give(peer)
        for one in list(self._waiting):
            if self._shares.used >= self._shares.places:
                return
            self._admit(one)

    def _admit(self, peer: Address) -> None:
        turns = self._waiting[peer]
        while turns and (turns[0].done() or self._shares.may_take(peer)):
            turn = turns.popleft()
            if not turn.done():
                turn.set_result(None)
                self._shares.take(peer)
        if turns:
            self._waiting.move_to_end(peer)
        else:
            del self._waiting[peer]


class Ration:
    """So much a second for each source, ``burst`` at once; of the last ``SOURCES`` sources."""

    SOURCES = 1024

    def __init__(self, rate: float, burst: int) -> None:
        self._every, self._burst = 1 / rate, burst
        self._due: OrderedDict[str, float] = OrderedDict()

    def take(self, peer: Address) -> bool:
        """Whether its source may have one more now."""
        source, now = source_of(peer), system.monotonic()
        due = max(self._due.pop(source, now), now)
        if len(self._due) >= self.SOURCES:
            self._due.popitem(last=False)
        granted = due - now <= self._every * (self._burst - 1)
        self._due[source] = due + self._every if granted else due
        return granted
