# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Units over a network that loses, repeats and reorders them: what each end of a UD channel knows.

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

#: Seconds between two reports.
REPORT_S = 0.02
#: Ranges in one report, at most.
MOST_RANGES = 64
#: Units a second: at first, at least and at most.
FIRST_RATE, LEAST_RATE, MOST_RATE = 500.0, 50.0, 100_000.0
#: Units that are sent at once, at most, after a timer that was late.
LEAST_BURST, MOST_BURST = 8.0, 64.0
#: Seconds after which a report is asked for: before the round-trip time is known, and limits.
FIRST_WAIT_S, LEAST_WAIT_S, MOST_WAIT_S = 0.5, 0.1, 2.0

T = TypeVar("T")

_MAGIC = b"ADTR"
_HEAD = struct.Struct(">4sIQQQ")
_RANGE = struct.Struct(">QQ")
#: Flag of a report that the receiver answers with a report.
_ASK = 1
_MOST = (1 << 63) - 1


class Report(NamedTuple):
    """A report: see the module."""

    next: int
    limit: int
    #: One more than the number of the unit that has arrived last; 0: none has.
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
        """Return whether a datagram has a report, not a unit."""
        return octets[:4] == _MAGIC


class Inbound(Generic[T]):
    """The units that an end receives; ``window``: units that it stores, at most."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._next = 0
        self._released = 0
        self._held: dict[int, T] = {}
        self._limit = window
        self._told = window
        self._latest = 0

    def take(self, number: int, unit: T) -> list[T]:
        """Take a received unit, and return those that are next in order.

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

    def release(self, grant: bool) -> bool:
        """Count a unit as released; ``grant``: the limit may grow. Return whether to report it."""
        self._released += 1
        return grant and self.grant()

    def grant(self) -> bool:
        """Let the limit grow by the released units; return whether the sender should be told."""
        self._limit = self._released + self._window
        return self._limit - self._told >= max(1, self._window // 2)

    @property
    def has_gaps(self) -> bool:
        """Whether units are missing in front of received ones."""
        return bool(self._held)

    def report(self, *, ask: bool = False) -> Report:
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
    """About one round-trip time, in which the rate changes at most once."""

    end: float = 0.0
    sent: int = 0
    lost: int = 0


@dataclass
class Outbound(Generic[T]):
    """The units that an end sends, from ``add`` to the report that they have arrived."""

    #: Units a second.
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
    #: The time of the last report or question, and the seconds until the next question.
    _heard_at: float = 0.0
    _wait: float = FIRST_WAIT_S
    #: Whether a question was asked after the last report.
    _has_asked: bool = False

    @property
    def unacknowledged(self) -> int:
        """The number of units that were added and have not arrived, as far as this end knows."""
        return len(self._units)

    @property
    def room(self) -> int:
        """The number of units that may be added."""
        return self.limit - self._next

    def add(self, unit: T, now: float) -> None:
        """Queue a unit; permitted if there is room."""
        if not self._units:
            self._heard_at = now
        self._units[self._next] = _Sent(unit)
        self._queue.append(self._next)
        self._next += 1

    def due(self, now: float) -> Iterator[tuple[int, T]]:
        """Yield the numbers and units to send now, repeated ones first."""
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

    def delay(self) -> float | None:
        """Return the seconds until ``due`` has something to send; None: it has nothing."""
        if not self._repeats and not self._queue:
            return None
        return max(0.0, (1 - self._budget) / self.rate)

    def take(self, report: Report, now: float) -> list[T]:
        """Take the peer's report; return the units that have arrived.

        Raises:
            WireError: it reports a unit that was not sent.

        """
        last = report.missing[-1] if report.missing else (report.next, 0)
        if (most := max(report.latest, sum(last))) > self._next:
            raise WireError(f"a report about unit {most}, but {self._next} units were sent")
        if report.next < self._acked:
            return []  # a later report has arrived before
        self._heard_at = now
        if report.next > self._acked or report.limit > self.limit:
            self._wait = self._question_wait()
        self.limit = max(self.limit, report.limit)
        missing = report.missing
        is_answer, self._has_asked = self._has_asked, False
        if not is_answer:
            self._measure(report.latest - 1, now)
        elif not missing and report.next < self._next:
            # Of the units that were sent before the question, none has arrived from the next on.
            missing = ((report.next, self._next - report.next),)
        arrived = self._drop(report.next - self._acked)
        lost = 0
        # Behind the last missing range, and in front of it, units have arrived, but they stay
        # until all in front of them have, because a report names only the first ranges.
        for first, count in missing:
            for number in range(max(first, self._acked), first + count):
                sent = self._units[number]
                patience = 1.25 * (self._round_trip or FIRST_WAIT_S)
                if sent.times and number not in self._repeats and now - sent.at >= patience:
                    self._repeats[number] = None
                    lost += 1
        self._adapt(lost, now)
        return arrived

    def _measure(self, latest: int, now: float) -> None:
        """Measure the round-trip time, if the unit that has arrived last was sent once."""
        sent = self._units.get(latest)
        if sent is not None and sent.times == 1:
            sample = now - sent.at
            known = self._round_trip
            self._round_trip = sample if known is None else known + (sample - known) / 8

    def _drop(self, count: int) -> list[T]:
        """Forget the first units, which have arrived, and return them."""
        arrived = []
        for number in range(self._acked, self._acked + count):
            sent = self._units.pop(number)
            self._repeats.pop(number, None)
            if not sent.times:
                raise WireError(f"a report that unit {number}, which was not sent, has arrived")
            arrived.append(sent.unit)
        self._acked += count
        return arrived

    def _adapt(self, lost: int, now: float) -> None:
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

    def _question_wait(self) -> float:
        known = FIRST_WAIT_S if self._round_trip is None else 3 * self._round_trip + 2 * REPORT_S
        return min(MOST_WAIT_S, max(LEAST_WAIT_S, known))

    def must_ask(self, now: float) -> bool:
        """Return whether no report has come in time; call it while one is expected.

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
