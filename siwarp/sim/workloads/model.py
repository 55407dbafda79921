# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the verbs promise, by type of queue pair, as values that results are held against.

The model knows what was posted where, and nothing of how the engine works.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from siwarp.cm import CMID, RTR, CMEventChannel
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    Address,
    Context,
    Persona,
    QPType,
    RemoteBuffer,
)

__all__ = [
    "GUARD",
    "Cell",
    "Completions",
    "End",
    "Host",
    "Memory",
    "Message",
    "Pair",
    "Request",
    "Slots",
    "Target",
    "Violation",
    "Window",
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

    def __len__(self) -> int:
        return len(self._all)

    def octets(self, at: int, length: int) -> bytearray:
        """Return a copy of these octets."""
        return self._all[GUARD + at : GUARD + at + length]

    def guards(self, layout: struct.Struct) -> tuple[bytes, ...]:
        """Return the guards, at the places that a layout says."""
        return layout.unpack_from(self._all)

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
        # One call takes all guards out of the memory, which is looked at after each operation.
        self._layout = struct.Struct(f"{GUARD}s" + f"{GUARD}s{size}x" * count + f"{GUARD}s")
        self._intact = (_GUARD,) * (count + 2)

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
        if self.memory.guards(self._layout) != self._intact:
            self.memory.check()
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
    #: RC: the Write before it in its queue, which is in its place when the message arrives.
    behind: tuple[Cell, int] | None = None
    #: RC: the key that a Send with Invalidate invalidates.
    inv_key: int | None = None
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
    posted_ns: int = 0
    done: bool = False
    status: int | None = None  # that it completed with


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

    STATIC = 40000
    COUNTERS = 8
    CELL = 1024
    CELLS = 64
    #: Of Write-Records: four datagrams or five.
    RECORD = 6000
    RECORDS = 6

    def __init__(self, host: Host) -> None:
        self.memory = Memory(
            f"the target of {host.address}",
            self.STATIC + 8 * self.COUNTERS + self._octets_of_cells(),
        )
        self.static = hashlib.shake_128(host.address.encode()).digest(self.STATIC)
        self._present = self.static
        self.memory.view[: self.STATIC] = self.static
        self.counters = [Counter(self.STATIC + 8 * i) for i in range(self.COUNTERS)]
        self.cells: dict[tuple[int, Address, bool], Cell] = {}
        self._seen = bytearray(self._octets_of_cells())  # the cells, as they were looked at last
        self._at = {self.CELL: 0, self.RECORD: self.CELL * self.CELLS}  # of the next cell
        self.closed_at = -1  # the step at which its region was last closed

    def _octets_of_cells(self) -> int:
        return self.CELL * self.CELLS + self.RECORD * self.RECORDS

    def cell(
        self, writer: End, dest: Address, *, steady: bool, record: bool = False
    ) -> Cell | None:
        """Return the cell that this end writes to through that one; None: there are no more."""
        key = (writer.number, dest, steady)
        if key not in self.cells:
            length = self.RECORD if record else self.CELL
            end = self._octets_of_cells() if record else self.CELL * self.CELLS
            at = self._at[length]
            if at + length > end:
                return None
            self._at[length] += length
            at += self.STATIC + 8 * self.COUNTERS
            self.cells[key] = Cell(len(self.cells), at, length, steady, bytearray(length))
        return self.cells[key]

    def spoil(self) -> None:
        """Use what is read for something else, as its region is closed: no Read may get that."""
        self._present = b"\xdd" * self.STATIC
        self.memory.view[: self.STATIC] = self._present

    def restore(self) -> None:
        """Write back what is read, before it is registered again."""
        self._present = self.static
        self.memory.view[: self.STATIC] = self.static

    def octets(self, cell: Cell) -> bytes:
        """Return what a cell holds now."""
        return bytes(self.memory.view[cell.at : cell.at + cell.length])

    def check(self, liars: bool) -> None:
        """Raise a Violation if something is there that nobody wrote."""
        self.memory.check()
        if liars:
            return
        memory = self.memory
        require(
            memory.octets(0, self.STATIC) == self._present,
            f"{memory.name}: a write that nobody posted",
        )
        now = memory.octets(self.STATIC + 8 * self.COUNTERS, len(self._seen))
        if now != self._seen:
            self._check_cells()
            self._seen = now
        view = memory.view
        for counter in self.counters:
            value = int.from_bytes(view[counter.at : counter.at + 8], "little")
            require(
                counter.done <= value <= counter.done + counter.unknown,
                f"{self.memory.name}: a counter is {value} after {counter.done} additions that "
                f"completed and {counter.unknown} that may have been done",
            )

    def _check_cells(self) -> None:
        for cell in self.cells.values():
            now = self.octets(cell)
            if cell.steady and now != cell.expected:
                require(
                    all(a in (0, b) for a, b in zip(now, cell.expected, strict=True)),
                    f"{self.memory.name}: octets in cell {cell.number} that nobody wrote",
                )


class Disturbance:
    """What happened to a host or a queue pair that may lose its RD peers: faults, and when.

    It lasts while there is a fault, and excuses a loss until requests complete again.
    """

    def __init__(self) -> None:
        self.faults: set[str] = set()  # that have not ended
        self.ended_ns = -1  # when the last one did; -1: there was none

    def note(self, now_ns: int) -> None:
        """Note something that is over at once."""
        self.ended_ns = now_ns

    def begin(self, fault: str) -> None:
        """Note a fault that lasts."""
        self.faults.add(fault)

    def end(self, fault: str, now_ns: int) -> None:
        """Note that a fault is over."""
        if fault in self.faults:
            self.faults.remove(fault)
            self.ended_ns = now_ns

    def last_ns(self, now_ns: int) -> int:
        """Return the last time at which there was a fault; -1: never."""
        return now_ns if self.faults else self.ended_ns


class Completions:
    """A completion queue."""

    def __init__(self, cq: CQ, small: bool) -> None:
        self.cq = cq
        self.small = small
        self.overflowed = False
        self.waiters = 0
        self.armed: int | None = None  # with how many completions in it


class Host:
    """A host of the world, and what is open on it."""

    def __init__(self, number: int, address: str, liar: bool) -> None:
        self.number = number
        self.address = address
        self.liar = liar
        self.up = True
        self.life = 0
        self.slow = False  # does not poll or post receives
        self.disturbance = Disturbance()
        self.context: Context
        self.pd: PD
        self.srq: SRQ | None = None
        self.srq_slots: Slots
        self.srq_posted: dict[int, Request] = {}
        self.srq_limit = 0  # that is armed
        self.ends: list[End] = []
        self.most: dict[QPType, int] = {}  # queue pairs that were open at a time, in this life
        self.completions: list[Completions] = []
        self.channel: CMEventChannel | None = None  # RC by the connection manager
        self.listener: CMID | None = None
        self.target: Target
        self.handles: dict[Address, AH] = {}

    def memories(self) -> Iterator[Memory]:
        """All memory that is or was registered in this life of the host."""
        yield self.target.memory
        if self.srq is not None:
            yield self.srq_slots.memory
        for end in self.ends:
            for slots in end.all_slots():
                yield slots.memory
            if end.window is not None:
                yield end.window.memory


@dataclass(eq=False)
class Window:
    """A memory window of type 2 of an RC queue pair, and the region that it is bound to.

    ``key`` is what the peer may use, once the bind has completed and until an invalidation is
    posted by either end.
    """

    memory: Memory
    mw: MW
    remote: RemoteBuffer | None = None
    key: int | None = None
    bound: bool = False  # until an invalidation has completed
    binding: int | None = None  # the number of the bind or invalidation that is posted


@dataclass(eq=False)
class Pair:
    """Two RC queue pairs that connect to each other, in one life of both.

    ``causes`` has what may end the connection or fail a request, beside a program's own wish:
    ``rnr``, a Send that may find no receive; ``refused``, an access that is not granted; ``local``,
    an error of an end's own; ``ended``, an end that left in order; ``lost``, one that left without
    its peer being certain to hear of it; ``meeting``, a start-up that may fail; ``corrupt``, a link
    that alters what TCP carries. Without one of them nothing may fail.
    """

    a: End
    b: End
    by_qpn: bool
    #: RDMA Reads outstanding, of each to the other.
    depth: int
    #: By the connection manager: what its initiator opens the connection with; 0: a Send.
    rtr: RTR
    #: By QPN: InfiniBand's code of the time that a request waits for a peer; 0: without limit.
    timeout: int
    causes: set[str] = field(default_factory=set)
    #: By the connection manager: the ends that are established.
    established: set[int] = field(default_factory=set)


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
        self.large: Slots  # for Reads of more than a slot, of the types that have Reads
        self.shares = False  # takes receives from the shared queue
        self.grh = False
        self.groups: set[str] = set()  # UD: that it is or was a member of
        self.rnr_retry: int | None = None  # RD, RC; None: that of the device, without limit
        self.min_rnr_timer: int | None = None
        self.window: Window | None = None  # RC
        self.address: Address = ("", 0)
        self.peer: End | None = None  # UC, RC
        self.posted: dict[int, Request] = {}  # sends, in the order of the queue
        self.waiting: dict[int, Request] = {}  # receives
        self.life = 0  # of its number of incarnations by RESET
        self.short = False  # has posted receives that are too short
        self.errors = 0  # that its queue of errors had
        self.gone = False  # destroyed, or its host crashed
        self.disturbance = Disturbance()
        #: RD: when the last request was posted to a peer that completed without an error.
        self.proven_ns: dict[Address, int] = {}
        self.lost = False  # completions of it may have been lost
        self._may_err = False
        self.pair: Pair | None = None  # RC
        self.by_qpn = False  # RC
        self.persona = Persona.IWARP
        self.private = False  # RC: it may send immediate data by Send
        self.id: CMID | None = None
        self.failed = False  # RC: a request of this life has failed
        self.waits = False  # RC: a message of this life may have had to wait for a receive
        self.offered = 0  # receives posted in this life
        self.promised = 0  # RC: messages posted in this life
        self.last_write: tuple[Cell, int] | None = None  # RC
        self.next_index: dict[Address, int] = {}
        self.last_taken: dict[tuple[int, int], int] = {}
        self.last_done: dict[Address | None, int] = {}
        self.last_received = -1

    @property
    def may_err(self) -> bool:
        """Whether it may be in ERR or SQE."""
        return self._may_err or bool(self.pair and self.pair.causes)

    @may_err.setter
    def may_err(self, value: bool) -> None:
        self._may_err = value
        if self.pair is not None and value:
            self.pair.causes.add("ended")

    def all_slots(self) -> list[Slots]:
        """Return its memory for messages."""
        return [self.sends, self.receives, *([self.large] if hasattr(self, "large") else [])]

    @property
    def connected(self) -> bool:
        """RC: whether it knows what its connection permits."""
        return self.by_qpn or bool(self.pair and self.number in self.pair.established)

    @property
    def liar(self) -> bool:
        """Whether its host mutates what it sends."""
        return self.host.liar

    def __repr__(self) -> str:
        return f"{self.kind.name} {self.number} at {self.address[0]} port {self.address[1]}"
