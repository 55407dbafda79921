# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Fair shares of a limited resource: peers are limited only when the resource is scarce.

A peer is an address and port. A source is an IPv4 address or an IPv6 /64, because a host may use
any number of ports, and the owner of an IPv6 address usually has the complete /64.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from siwarp.base import system
from siwarp.verbs import Address

__all__ = ["Admission", "RateLimit", "Shares", "ipv4_address_or_ipv6_prefix"]


@functools.lru_cache(maxsize=4096)
def ipv4_address_or_ipv6_prefix(address: Address) -> str:
    """Return the source to which a peer address belongs: an IPv4 address or an IPv6 /64."""
    host = address[0].partition("%")[0]
    ip = ipaddress.ip_address(host)
    if ip.version == 4:
        return host
    if (mapped := ip.ipv4_mapped) is not None:
        return str(mapped)
    return str(ipaddress.IPv6Address(int(ip) >> 64 << 64))


class Shares:
    """Counts the places of a limited resource that each peer holds, out of ``places`` in total.

    - While less than a quarter is in use, any peer may have any number of places.
    - From then on a peer may have at most a sixteenth, and its source a quarter; a peer that has
      none may have one while its source has less than three quarters.
    - The last quarter is reserved for sources that have none.

    If a peer without a place cannot have one, another peer is displaced
    (``peer_to_displace_next``), so that peers that never release places do not keep others out. A
    peer releases its places in order.
    """

    #: Seconds for which a peer may hold a place before the place can be taken from the peer; a
    #: responsive peer releases the place earlier.
    SAFE = 0.1

    def __init__(self, places: int) -> None:
        self.places, self.used = places, 0
        #: For each peer, the times at which it acquired the places that it holds.
        self._peers: dict[Address, deque[float]] = {}
        self._sources: Counter[str] = Counter()

    def may_acquire(self, peer: Address) -> bool:
        """Return whether the peer may acquire one more place."""
        quarter = self.places // 4
        if self.used < quarter:
            return True
        own, source = self.held_count(peer), self._sources[ipv4_address_or_ipv6_prefix(peer)]
        if self.used >= 3 * quarter:
            return self.used < self.places and not source
        if not own:
            return source < 3 * quarter
        return own < max(1, self.places // 16) and source < quarter

    def held_count(self, peer: Address) -> int:
        """Return how many places a peer holds."""
        return len(self._peers.get(peer, ()))

    def peer_to_displace_next(self) -> tuple[Address, float] | None:
        """Return the peer to displace next, and the time from which it may be displaced.

        The peer is the one that has held a place longest, among the peers of the source with most
        places.
        """
        most = max(self._sources.values(), default=0)
        holders = [
            (taken[0], peer)
            for peer, taken in self._peers.items()
            if self._sources[ipv4_address_or_ipv6_prefix(peer)] == most
        ]
        if not holders:
            return None
        taken, peer = min(holders)
        return peer, taken + self.SAFE

    def acquire(self, peer: Address) -> None:
        """Record that the peer has taken one more place."""
        self.used += 1
        self._peers.setdefault(peer, deque()).append(system.monotonic())
        self._sources[ipv4_address_or_ipv6_prefix(peer)] += 1

    def release(self, peer: Address) -> None:
        """Record that the peer has released the place that it has held longest."""
        self.used -= 1
        self._peers[peer].popleft()
        if not self._peers[peer]:
            del self._peers[peer]
        source = ipv4_address_or_ipv6_prefix(peer)
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]


class Admission:
    """Admits tasks by the shares of their peers; the other tasks of each peer wait in order.
    Cancelling a task loses no place.

    ``displace(peer)`` must make a peer release its places soon. It is called for the peer that has
    held a place longest, while a peer without a place waits.
    """

    def __init__(self, places: int, displace: Callable[[Address], object] | None = None) -> None:
        self._shares = Shares(places)
        self._displace = displace
        self._displaced: Address | None = None
        self._look: asyncio.TimerHandle | None = None
        self._waiting: OrderedDict[Address, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, peer: Address) -> None:
        """Wait until the peer may acquire a place, and acquire it."""
        if peer not in self._waiting and self._shares.may_acquire(peer):
            self._shares.acquire(peer)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        if self._look is None:
            self._displace_longest_holder()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(peer)  # the task was admitted and cancelled at the same time
            else:
                self._remove_waiter(peer, turn)
            raise

    def _displace_longest_holder(self) -> None:
        """If a peer without a place waits, displace the peer that has held a place longest, once
        that peer has held it for the time ``SAFE``.
        """
        self._look = None
        if self._displace is None or all(self._shares.held_count(peer) for peer in self._waiting):
            return
        longest = self._shares.peer_to_displace_next()
        if longest is None:
            return
        peer, safe_until = longest
        left = safe_until - system.monotonic()
        if left <= 0.001:  # a timer may fire early by the clock's resolution
            self._displaced = peer
            self._displace(peer)
            left = Shares.SAFE
        self._look = asyncio.get_running_loop().call_later(left, self._displace_longest_holder)

    def _remove_waiter(self, peer: Address, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(peer)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[peer]

    def release(self, peer: Address) -> None:
        """Release a place of the peer, and admit waiting tasks that may now acquire a place."""
        self._shares.release(peer)
        for one in list(self._waiting):
            if self._shares.used >= self._shares.places:
                break
            self._admit_waiters(one)
        if peer == self._displaced and not self._shares.held_count(peer):
            self._displaced = None
            if self._look is not None:
                self._look.cancel()
            self._displace_longest_holder()

    def _admit_waiters(self, peer: Address) -> None:
        turns = self._waiting[peer]
        while turns and (turns[0].done() or self._shares.may_acquire(peer)):
            turn = turns.popleft()
            if not turn.done():
                turn.set_result(None)
                self._shares.acquire(peer)
        if turns:
            self._waiting.move_to_end(peer)
        else:
            del self._waiting[peer]

    def close(self) -> None:
        """Stop displacing peers."""
        self._displace = None
        if self._look is not None:
            self._look.cancel()


class RateLimit:
    """Limits the requests per second of each source address, with bursts of up to ``burst``
    requests; keeps the state of the last ``SOURCES`` sources.
    """

    SOURCES = 1024

    def __init__(self, rate: float, burst: int) -> None:
        self._every, self._burst = 1 / rate, burst
        self._due: OrderedDict[str, float] = OrderedDict()

    def try_consume(self, peer: Address) -> bool:
        """Return whether the peer's source may make one more request now; count a permitted
        request.
        """
        source, now = ipv4_address_or_ipv6_prefix(peer), system.monotonic()
        due = max(self._due.pop(source, now), now)
        if len(self._due) >= self.SOURCES:
            self._due.popitem(last=False)
        granted = due - now <= self._every * (self._burst - 1)
        self._due[source] = due + self._every if granted else due
        return granted
