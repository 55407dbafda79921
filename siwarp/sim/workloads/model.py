# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the verbs promise, by type of queue pair, as values that results are held against.

The model knows what was posted where, and nothing of how the engine works.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from siwarp.verbs import AH, CQ, MR, PD, QP, SRQ, Address, Context, QPType

__all__ = [
    "GUARD",
    "Cell",
    "Completions",
    "End",
    "Host",
    "Memory",
    "Message",
    "Request",
    "Slots",
    "Target",
    "Violation",
    "content",
    "require",
]

#: Octets before and behind each region, and before each slot.
GUARD = 64
_GUARD = b"\xa5" * GUARD
#: What a slot of a receive holds before it is posted.
BLANK = 0x5A
#: In front of each message that has room for it: number and length.
TAG = struct.Struct("!4sQI")
_MARK = b"siws"


class Violation(Exception):
    """What happened is not what the verbs promise."""


def require(holds: bool, text: str) -> None:
    """Raise a Violation with this text unless it holds."""
    if not holds:
        raise Violation(text)


def content(number: int, length: int) -> bytes:
    """Return the octets of a message: its tag, if that fits, and what follows from its number."""
    octets = hashlib.shake_128(number.to_bytes(8, "big")).digest(length)
    if length < TAG.size:
        return octets
    return TAG.pack(_MARK, number, length) + octets[TAG.size :]


def number_of(octets: bytes) -> int | None:
    """Return the number in a message's tag; None: it has none."""
    if len(octets) < TAG.size:
        return None
    mark, number, _ = TAG.unpack_from(octets)
    return int(number) if mark == _MARK else None


class Memory:
    """Octets between two guards, and the region that they are registered as."""

    def __init__(self, name: str, length: int) -> None:
        self.name = name
        self._all = bytearray(_GUARD + bytes(length) + _GUARD)
        self.view = memoryview(self._all)[GUARD : GUARD + length]
        self.mr: MR | None = None
        self._frozen: bytes | None = None

    def check(self) -> None:
        """Raise a Violation if a guard was written to."""
        whole = self._all
        if whole[:GUARD] != _GUARD or whole[-GUARD:] != _GUARD:
            raise Violation(f"a write outside of a region: a guard of {self.name} has changed")

    def freeze(self) -> None:
        """Note that nothing may write to it any more: its region is closed."""
        self._frozen = bytes(self._all)

    def thaw(self) -> None:
        """Note that it is registered again."""
        self.check_frozen()
        self._frozen = None

    def check_frozen(self) -> None:
        """Raise a Violation if it was written to after its region was closed."""
        if self._frozen is not None and self._frozen != self._all:
            raise Violation(f"a write to {self.name}, whose region is closed")


class Slots:
    """Memory for messages in slots of one size, each behind a guard of its own."""

    def __init__(self, name: str, count: int, size: int) -> None:
        self.size = size
        self._stride = size + GUARD
        self.memory = Memory(name, count * self._stride)
        for i in range(count):
            self.memory.view[i * self._stride : i * self._stride + GUARD] = _GUARD
        self.free = list(range(count - 1, -1, -1))

    def at(self, slot: int) -> int:
        """Return the offset of a slot's first octet."""
        return slot * self._stride + GUARD

    def fill(self, slot: int, octets: bytes) -> None:
        """Write to a slot."""
        at = self.at(slot)
        self.memory.view[at : at + len(octets)] = octets

    def read(self, slot: int, length: int) -> bytes:
        """Return the first octets of a slot."""
        at = self.at(slot)
        return bytes(self.memory.view[at : at + length])

    def check(self) -> None:
        """Raise a Violation if a guard was written to."""
        self.memory.check()
        view, stride = self.memory.view, self._stride
        for at in range(0, len(view), stride):
            if view[at : at + GUARD] != _GUARD:
                raise Violation(f"a write past a slot: a guard within {self.memory.name} changed")


@dataclass(eq=False)
class Message:
    """Something that takes a receive of the peer, or that a completion there reports."""

    number: int
    source: End
    life: int  # of its source, when it was posted
    dest: Address
    index: int  # among those of this source to this destination
    length: int
    imm: int | None
    wide: bool  # carries the octets of a Write, which lie elsewhere
    cell: Cell | None = None
    offset: int = 0
    status: int | None = None
    #: How often it arrived, by the incarnation that took it.
    taken: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Request:
    """A posted work request."""

    wr_id: int
    end: End | None  # None: a receive of a shared queue
    verb: str
    order: int
    signaled: bool = True
    slots: Slots | None = None
    slot: int = -1
    length: int = 0
    dest: Address | None = None
    message: Message | None = None
    cell: Cell | None = None
    version: int = 0
    expected: bytes | None = None  # of a Read
    counter: Counter | None = None
    amount: int = 0
    bad: str = ""  # what is wrong with it, on purpose
    done: bool = False


@dataclass(eq=False)
class Cell:
    """A part of a target that one queue pair writes to.

    ``steady`` ones have the same octets in all Writes, so that those that are there are right
    whatever was lost; of the others the last Write decides.
    """

    number: int
    at: int
    length: int
    steady: bool
    expected: bytearray
    version: int = 0
    tainted: bool = False


@dataclass(eq=False)
class Counter:
    """64 bits that atomics of any number of peers add 1 to."""

    at: int
    done: int = 0
    unknown: int = 0
    seen: set[int] = field(default_factory=set)


class Target:
    """Memory of a host that peers write to, read from, and count in."""

    STATIC = 4096
    COUNTERS = 8
    CELL = 1024
    CELLS = 64

    def __init__(self, host: Host) -> None:
        self.memory = Memory(
            f"the target of {host.address}",
            self.STATIC + 8 * self.COUNTERS + self.CELL * self.CELLS,
        )
        self.static = hashlib.shake_128(host.address.encode()).digest(self.STATIC)
        self.memory.view[: self.STATIC] = self.static
        self.counters = [Counter(self.STATIC + 8 * i) for i in range(self.COUNTERS)]
        self.cells: dict[tuple[int, Address, bool], Cell] = {}
        self.closed_at = -1  # the step at which its region was last closed

    def cell(self, writer: End, dest: Address, steady: bool) -> Cell | None:
        """Return the cell that this end writes to through that one; None: there are no more."""
        key = (writer.number, dest, steady)
        if key not in self.cells:
            if len(self.cells) == self.CELLS:
                return None
            at = self.STATIC + 8 * self.COUNTERS + len(self.cells) * self.CELL
            self.cells[key] = Cell(len(self.cells), at, self.CELL, steady, bytearray(self.CELL))
        return self.cells[key]

    def octets(self, cell: Cell) -> bytes:
        """Return what a cell holds now."""
        return bytes(self.memory.view[cell.at : cell.at + cell.length])

    def check(self, liars: bool) -> None:
        """Raise a Violation if something is there that nobody wrote."""
        self.memory.check()
        if liars:
            return
        view = self.memory.view
        require(
            view[: self.STATIC] == self.static, f"{self.memory.name}: a write that nobody posted"
        )
        for cell in self.cells.values():
            if cell.steady:
                now = self.octets(cell)
                require(
                    all(a in (0, b) for a, b in zip(now, cell.expected, strict=True)),
                    f"{self.memory.name}: octets in cell {cell.number} that nobody wrote",
                )
        for counter in self.counters:
            value = int.from_bytes(view[counter.at : counter.at + 8], "little")
            require(
                counter.done <= value <= counter.done + counter.unknown,
                f"{self.memory.name}: a counter is {value} after {counter.done} additions that "
                f"completed and {counter.unknown} that may have been done",
            )


class Completions:
    """A completion queue."""

    def __init__(self, cq: CQ, small: bool) -> None:
        self.cq = cq
        self.small = small
        self.overflowed = False
        self.waiters = 0


class Host:
    """A host of the world, and what is open on it."""

    def __init__(self, number: int, address: str, liar: bool) -> None:
        self.number = number
        self.address = address
        self.liar = liar
        self.up = True
        self.life = 0
        self.slow = False  # does not poll or post receives
        self.disturbed = False  # since when a peer may be lost without being at fault
        self.context: Context
        self.pd: PD
        self.srq: SRQ | None = None
        self.srq_slots: Slots
        self.srq_posted: dict[int, Request] = {}
        self.ends: list[End] = []
        self.completions: list[Completions] = []
        self.target: Target
        self.handles: dict[Address, AH] = {}

    def memories(self) -> Iterator[Memory]:
        """All memory that is or was registered in this life of the host."""
        yield self.target.memory
        if self.srq is not None:
            yield self.srq_slots.memory
        for end in self.ends:
            yield end.sends.memory
            yield end.receives.memory


class End:
    """One life of a queue pair."""

    def __init__(self, number: int, host: Host, kind: QPType) -> None:
        self.number = number
        self.host = host
        self.kind = kind
        self.qp: QP
        self.qp_num = 0
        self.send: Completions
        self.recv: Completions
        self.sends: Slots
        self.receives: Slots
        self.shares = False  # takes receives from the shared queue
        self.grh = False
        self.address: Address = ("", 0)
        self.peer: End | None = None  # UC
        self.posted: dict[int, Request] = {}  # sends, in the order of the queue
        self.waiting: dict[int, Request] = {}  # receives
        self.life = 0  # of its number of incarnations by RESET
        self.short = False  # has posted receives that are too short
        self.errors = 0  # that its queue of errors had
        self.gone = False  # destroyed, or its host crashed
        self.disturbed = False
        self.lost = False  # completions of it may have been lost
        self.may_err = False  # it may be in ERR or SQE
        self.next_index: dict[Address, int] = {}
        self.last_taken: dict[tuple[int, int], int] = {}
        self.last_done: dict[Address | None, int] = {}
        self.last_received = -1

    @property
    def liar(self) -> bool:
        """Whether its host mutates what it sends."""
        return self.host.liar

    def __repr__(self) -> str:
        return f"{self.kind.name} {self.number} at {self.address[0]} port {self.address[1]}"
