# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The state of each end of a UD channel that repeats lost units and puts units in order.

Units are numbered from 0 in each direction. The receiver reports every ``REPORT_S`` while units
arrive: the number of the first unit that it lacks, the ranges of missing units behind it, and the
*limit*, the number of the first unit that the sender may not send yet. The sender sends at a rate,
which grows while nothing is lost and decreases with the part that is lost, and repeats what a
report lacks. If there is no report in time, it asks for one.

No I/O: calls get the time in seconds, which never decreases.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from siwarp.ulp.adts.wire import WireError

__all__ = ["REPORT_S", "Inbound", "Outbound", "Report"]

#: Seconds between two reports of a receiver.
REPORT_S = 0.02
#: Maximum number of ranges in a report.
MOST_RANGES = 64
#: The initial, the lowest and the highest sending rate in units per second.
FIRST_RATE, LEAST_RATE, MOST_RATE = 500.0, 50.0, 100_000.0
#: Maximum number of units that are sent together after the timer was late.
LEAST_BURST, MOST_BURST = 8.0, 64.0
#: Seconds after which a report is asked for: the value before the round-trip time is known, and the
#: limits.
FIRST_WAIT_S, LEAST_WAIT_S, MOST_WAIT_S = 0.5, 0.1, 2.0

T = TypeVar("T")

_MAGIC = b"ADTR"
_HEAD = struct.Struct(">4sIQQQ")
_RANGE = struct.Struct(">QQ")
#: Flag of a report that asks its receiver to answer with a report.
_ASK = 1
_MOST = (1 << 63) - 1


class Report(NamedTuple):
    """A report, by which the receiver tells the sender what has arrived (see the module)."""

    next: int
    limit: int
    #: The number of the unit that arrived last, plus 1; 0: no unit has arrived.
    latest: int = 0
    #: First unit and number of units of each range, in ascending order.
    missing: tuple[tuple[int, int], ...] = ()
    ask: bool = False

    def pack(self) -> bytes:
        """Return the octets of the report."""
        head = _HEAD.pack(_MAGIC, _ASK if self.ask else 0, self.next, self.limit, self.latest)
        return head + b"".join(_RANGE.pack(*one) for one in self.missing)

    @classmethod
    def unpack(cls, octets: memoryview) -> Report:
        """Return the report in octets.

        Raises:
            WireError: the octets are no report, or its ranges are not in ascending order.

        """
        count, rest = divmod(len(octets) - _HEAD.size, _RANGE.size)
        if count < 0 or rest or count > MOST_RANGES or octets[:4] != _MAGIC:
            raise WireError(f"{len(octets)} octets are no report")
        _, flags, first, limit, latest = _HEAD.unpack_from(octets)
        missing = tuple(_RANGE.iter_unpack(octets[_HEAD.size :]))
        at = first
        for start, length in missing:
            if start < at or not length:
                raise WireError(f"a range of {length} units from {start} follows unit {at}")
            at = start + length
        if max(at, limit, latest) > _MOST:
            raise WireError(f"a report about unit {max(at, limit, latest)}: the limit is {_MOST}")
        return cls(first, limit, latest, missing, bool(flags & _ASK))

    @staticmethod
    def is_report(octets: memoryview) -> bool:
        """Return whether a datagram contains a report instead of a unit."""
        return octets[:4] == _MAGIC


class Inbound(Generic[T]):
    """The units that an end receives; ``window``: maximum number of units that the end stores."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._next = 0
        self._released = 0
        self._held: dict[int, T] = {}
        self._limit = window
        self._told = window
        self._latest = 0

    def store_unit(self, number: int, unit: T) -> list[T]:
        """Store a received unit; return the units that can now be delivered in order.

        Raises:
            WireError: the number is not below the limit.

        """
        if number >= self._limit:
            raise WireError(f"unit {number} was sent, but the limit is {self._limit}")
        self._latest = number + 1
        if number >= self._next:
            self._held.setdefault(number, unit)
        ready = []
        while self._next in self._held:
            ready.append(self._held.pop(self._next))
            self._next += 1
        return ready

    def count_released_unit(self, grant: bool) -> bool:
        """Count a released unit; ``grant``: raise the limit. Return whether to send a report."""
        self._released += 1
        return grant and self.raise_unit_limit()

    def raise_unit_limit(self) -> bool:
        """Raise the limit by the released units; return whether to report it to the sender."""
        self._limit = self._released + self._window
        return self._limit - self._told >= max(1, self._window // 2)

    @property
    def has_gaps(self) -> bool:
        """Whether units are missing in front of received ones."""
        return bool(self._held)

    def make_report(self, *, ask: bool = False) -> Report:
        """Return the report of this end."""
        self._told = self._limit
        missing: list[tuple[int, int]] = []
        at = self._next
        for number in sorted(self._held):
            if number > at and len(missing) < MOST_RANGES:
                missing.append((at, number - at))
            at = number + 1
        return Report(self._next, self._limit, self._latest, tuple(missing), ask)


@dataclass
class _Sent(Generic[T]):
    unit: T
    #: The time of the last transmission, and the number of transmissions.
    at: float = 0.0
    times: int = 0


@dataclass
class _Epoch:
    """A period of about one round-trip time, in which the rate changes at most once."""

    end: float = 0.0
    sent: int = 0
    lost: int = 0


@dataclass
class Outbound(Generic[T]):
    """The units that an end sends, from ``queue_unit`` to the report that they have arrived."""

    #: The sending rate in units per second.
    rate: float = FIRST_RATE
    #: The number of the first unit that may not be sent.
    limit: int = 0
    _next: int = 0
    _acked: int = 0
    _units: dict[int, _Sent[T]] = field(default_factory=dict)
    _queue: deque[int] = field(default_factory=deque)
    _repeats: dict[int, None] = field(default_factory=dict)
    _epoch: _Epoch = field(default_factory=_Epoch)
    _is_starting: bool = True
    _round_trip: float | None = None
    _budget: float = LEAST_BURST
    _budget_at: float | None = None
    #: The time of the peer's last report or of this end's last request for a report, and the
    #: seconds until this end asks for one again.
    _heard_at: float = 0.0
    _wait: float = FIRST_WAIT_S
    #: Whether this end has asked for a report since the peer's last report.
    _has_asked: bool = False

    @property
    def unacknowledged(self) -> int:
        """The number of units that were added and have not arrived, as far as this end knows."""
        return len(self._units)

    @property
    def room(self) -> int:
        """The number of units that may be added."""
        return self.limit - self._next

    def queue_unit(self, unit: T, now: float) -> None:
        """Queue a unit; permitted if there is room."""
        if not self._units:
            self._heard_at = now
        self._units[self._next] = _Sent(unit)
        self._queue.append(self._next)
        self._next += 1

    def take_due_units(self, now: float) -> Iterator[tuple[int, T]]:
        """Yield the units to send now with their numbers, first those that are sent again."""
        if self._budget_at is not None:
            burst = min(MOST_BURST, max(LEAST_BURST, self.rate * REPORT_S))
            self._budget = min(burst, self._budget + (now - self._budget_at) * self.rate)
        self._budget_at = now
        while self._budget >= 1 and (self._repeats or self._queue):
            if self._repeats:
                number = next(iter(self._repeats))
                del self._repeats[number]
            else:
                number = self._queue.popleft()
            sent = self._units[number]
            sent.at = now
            sent.times += 1
            self._budget -= 1
            self._epoch.sent += 1
            yield number, sent.unit

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next unit is due; None: no unit waits to be sent."""
        if not self._repeats and not self._queue:
            return None
        return max(0.0, (1 - self._budget) / self.rate)

    def process_report(self, report: Report, now: float) -> list[T]:
        """Process a report of the peer; return the units that have arrived at the peer.

        Raises:
            WireError: it reports a unit that was not sent.

        """
        last = report.missing[-1] if report.missing else (report.next, 0)
        if (most := max(report.latest, sum(last))) > self._next:
            raise WireError(f"a report about unit {most}, but {self._next} units were sent")
        if report.next < self._acked:
            return []  # a report that was sent later has arrived earlier
        self._heard_at = now
        if report.next > self._acked or report.limit > self.limit:
            self._wait = self._seconds_until_asking_for_report()
        self.limit = max(self.limit, report.limit)
        missing = report.missing
        is_answer, self._has_asked = self._has_asked, False
        if not is_answer:
            self._measure_round_trip(report.latest - 1, now)
        elif not missing and report.next < self._next:
            # This end asked for the report, and it names no gap: of the units that were sent before
            # this end asked, none from number report.next on has arrived.
            missing = ((report.next, self._next - report.next),)
        arrived = self._remove_arrived_units(report.next - self._acked)
        lost = 0
        # Units after report.next that are in no missing range are not removed yet, because a
        # report names only the first missing ranges: units after these may be missing, too.
        for first, count in missing:
            for number in range(max(first, self._acked), first + count):
                sent = self._units[number]
                patience = 1.25 * (self._round_trip or FIRST_WAIT_S)
                if sent.times and number not in self._repeats and now - sent.at >= patience:
                    self._repeats[number] = None
                    lost += 1
        self._adapt_rate(lost, now)
        return arrived

    def _measure_round_trip(self, latest: int, now: float) -> None:
        """Measure the round-trip time, if the unit that arrived last was sent only once."""
        sent = self._units.get(latest)
        if sent is not None and sent.times == 1:
            sample = now - sent.at
            known = self._round_trip
            self._round_trip = sample if known is None else known + (sample - known) / 8

    def _remove_arrived_units(self, count: int) -> list[T]:
        """Remove the units at the front that have arrived, and return them."""
        arrived = []
        for number in range(self._acked, self._acked + count):
            sent = self._units.pop(number)
            self._repeats.pop(number, None)
            if not sent.times:
                raise WireError(f"a report that unit {number}, which was not sent, has arrived")
            arrived.append(sent.unit)
        self._acked += count
        return arrived

    def _adapt_rate(self, lost: int, now: float) -> None:
        epoch = self._epoch
        epoch.lost += lost
        if now < epoch.end or not epoch.sent:
            return
        part = epoch.lost / epoch.sent
        if epoch.lost:
            self._is_starting = False
            self.rate *= max(0.5, 0.95 - part)
        else:
            self.rate = self.rate * 2 if self._is_starting else self.rate * 17 / 16 + 10
        self.rate = min(MOST_RATE, max(LEAST_RATE, self.rate))
        self._epoch = _Epoch(now + (self._round_trip or FIRST_WAIT_S))

    def _seconds_until_asking_for_report(self) -> float:
        known = FIRST_WAIT_S if self._round_trip is None else 3 * self._round_trip + 2 * REPORT_S
        return min(MOST_WAIT_S, max(LEAST_WAIT_S, known))

    def must_ask_for_report(self, now: float) -> bool:
        """Return whether an expected report is late, so that this end should ask for it.

        The first unit that is not known to have arrived is then repeated, at half of the rate.
        """
        if now - self._heard_at < self._wait:
            return False
        self._heard_at = now
        self._has_asked = True
        self._wait = min(MOST_WAIT_S, 2 * self._wait)
        first = self._units.get(self._acked)
        if first is not None and first.times:
            self._is_starting = False
            self.rate = max(LEAST_RATE, self.rate / 2)
            self._repeats[self._acked] = None
        return True
