# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Shares of what peers use up: they bind once it is scarce, and some is left for newcomers.

A peer is an address with its port, a source an IPv4 address or an IPv6 /64: a host has as many
ports as it likes, and whoever has an IPv6 address has the whole /64.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from siwarp.base import system
from siwarp.verbs import Address

__all__ = ["Admission", "Ration", "Shares", "source_of"]


@functools.lru_cache(maxsize=4096)
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

    A peer without a place that may have none displaces another (``longest_held``), so that peers
    that give no place back do not keep others out. A peer gives its places back in order.
    """

    #: Seconds for which a place is safe. Peers that take what they are sent need less.
    SAFE = 0.1

    def __init__(self, places: int) -> None:
        self.places, self.used = places, 0
        #: When each peer took the places that it holds.
        self._peers: dict[Address, deque[float]] = {}
        self._sources: Counter[str] = Counter()

    def may_take(self, peer: Address) -> bool:
        """Whether it may have one more."""
        quarter = self.places // 4
        if self.used < quarter:
            return True
        own, source = self.held(peer), self._sources[source_of(peer)]
        if self.used >= 3 * quarter:
            return self.used < self.places and not source
        if not own:
            return source < 3 * quarter
        return own < max(1, self.places // 16) and source < quarter

    def held(self, peer: Address) -> int:
        """Return how many places a peer holds."""
        return len(self._peers.get(peer, ()))

    def longest_held(self) -> tuple[Address, float] | None:
        """Return who is displaced next, and when that may be.

        That is the peer that has held a place for the longest time, at the source that holds most.
        """
        most = max(self._sources.values(), default=0)
        holders = [
            (taken[0], peer)
            for peer, taken in self._peers.items()
            if self._sources[source_of(peer)] == most
        ]
        if not holders:
            return None
        taken, peer = min(holders)
        return peer, taken + self.SAFE

    def take(self, peer: Address) -> None:
        """Count one more."""
        self.used += 1
        self._peers.setdefault(peer, deque()).append(system.monotonic())
        self._sources[source_of(peer)] += 1

    def give(self, peer: Address) -> None:
        """Count one less."""
        self.used -= 1
        self._peers[peer].popleft()
        if not self._peers[peer]:
            del self._peers[peer]
        source = source_of(peer)
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]


class Admission:
    """Admits tasks by shares; the others wait, each peer's in order. Cancelling loses no place.

    ``displace(peer)`` has a peer's places given back soon. It is called for who holds one longest
    while a peer without a place waits.
    """

    def __init__(self, places: int, displace: Callable[[Address], object] | None = None) -> None:
        self._shares = Shares(places)
        self._displace = displace
        self._displaced: Address | None = None
        self._look: asyncio.TimerHandle | None = None
        self._waiting: OrderedDict[Address, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, peer: Address) -> None:
        """Wait for admission."""
        if peer not in self._waiting and self._shares.may_take(peer):
            self._shares.take(peer)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        if self._look is None:
            self._make_room()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(peer)  # admitted and cancelled at once
            else:
                self._forget(peer, turn)
            raise

    def _make_room(self) -> None:
        """Displace a peer, now or when its place is safe no more, if one without a place waits."""
        self._look = None
        if self._displace is None or all(self._shares.held(peer) for peer in self._waiting):
            return
        longest = self._shares.longest_held()
        if longest is None:
            return
        peer, safe_until = longest
        left = safe_until - system.monotonic()
        if left <= 0.001:  # timers may be early by the clock's resolution
            self._displaced = peer
            self._displace(peer)
            left = Shares.SAFE
        self._look = asyncio.get_running_loop().call_later(left, self._make_room)

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
                break
            self._admit(one)
        if peer == self._displaced and not self._shares.held(peer):
            self._displaced = None
            if self._look is not None:
                self._look.cancel()
            self._make_room()

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

    def close(self) -> None:
        """Displace nobody any more."""
        self._displace = None
        if self._look is not None:
            self._look.cancel()


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
