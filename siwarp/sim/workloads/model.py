# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The guarantees of the verbs, by queue pair type, as values that results are checked against.

The model knows which requests were posted, and nothing about the implementation of the engine.
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

#: Octets of the guards before and behind each region, and before each slot.
GUARD = 64
_GUARD = b"\xa5" * GUARD
#: Value of each octet of a receive slot before the receive is posted.
BLANK = 0x5A
#: Tag at the start of each message that has room for it: mark, number and length.
TAG = struct.Struct("!4sQI")
_MARK = b"siws"


class Violation(Exception):
    """The engine did not behave as the verbs guarantee."""


def require(holds: bool, text: str) -> None:
    """Raise a Violation with this text if the condition is false."""
    if not holds:
        raise Violation(text)


def content(number: int, length: int) -> bytes:
    """Return the octets of a message: its tag, if it fits, then octets derived from its number."""
    octets = hashlib.shake_128(number.to_bytes(8, "big")).digest(length)
    if length < TAG.size:
        return octets
    return TAG.pack(_MARK, number, length) + octets[TAG.size :]


def number_of(octets: bytes) -> int | None:
    """Return the number in a message's tag; None: the message has no tag."""
    if len(octets) < TAG.size:
        return None
    mark, number, _ = TAG.unpack_from(octets)
    return int(number) if mark == _MARK else None


class Memory:
    """Memory between two guards, and its memory region."""

    def __init__(self, name: str, length: int) -> None:
        self.name = name
        self._all = bytearray(_GUARD + bytes(length) + _GUARD)
        self.view = memoryview(self._all)[GUARD : GUARD + length]
        self.mr: MR | None = None
        self._frozen: bytes | None = None

    def check(self) -> None:
        """Raise a Violation if a guard was overwritten."""
        whole = self._all
        if whole[:GUARD] != _GUARD or whole[-GUARD:] != _GUARD:
            raise Violation(f"a write outside of a region: a guard of {self.name} has changed")

    def freeze(self) -> None:
        """Record that the region is closed: from now on nothing may write to the memory."""
        self._frozen = bytes(self._all)

    def thaw(self) -> None:
        """Record that the memory is registered again."""
        self.check_frozen()
        self._frozen = None

    def __len__(self) -> int:
        return len(self._all)

    def octets(self, at: int, length: int) -> bytearray:
        """Return a copy of ``length`` octets at an offset."""
        return self._all[GUARD + at : GUARD + at + length]

    def guards(self, layout: struct.Struct) -> tuple[bytes, ...]:
        """Return the guards at the positions that a layout describes."""
        return layout.unpack_from(self._all)

    def check_frozen(self) -> None:
        """Raise a Violation if the memory was written after its region was closed."""
        if self._frozen is not None and self._frozen != self._all:
            raise Violation(f"a write to {self.name}, whose region is closed")


class Slots:
    """Memory for messages, divided into slots of one size, each with a guard in front of it."""

    def __init__(self, name: str, count: int, size: int) -> None:
        self.size = size
        self._stride = size + GUARD
        self.memory = Memory(name, count * self._stride)
        for i in range(count):
            self.memory.view[i * self._stride : i * self._stride + GUARD] = _GUARD
        self.free = list(range(count - 1, -1, -1))
        # One unpack call extracts all guards, because they are checked after each operation.
        self._layout = struct.Struct(f"{GUARD}s" + f"{GUARD}s{size}x" * count + f"{GUARD}s")
        self._intact = (_GUARD,) * (count + 2)

    def at(self, slot: int) -> int:
        """Return the offset of a slot's first octet."""
        return slot * self._stride + GUARD

    def fill(self, slot: int, octets: bytes) -> None:
        """Write octets to a slot."""
        at = self.at(slot)
        self.memory.view[at : at + len(octets)] = octets

    def read(self, slot: int, length: int) -> bytes:
        """Return the first octets of a slot."""
        at = self.at(slot)
        return bytes(self.memory.view[at : at + length])

    def check(self) -> None:
        """Raise a Violation if a guard was overwritten."""
        if self.memory.guards(self._layout) != self._intact:
            self.memory.check()
            raise Violation(f"a write past a slot: a guard within {self.memory.name} changed")


@dataclass(eq=False)
class Message:
    """A Send, or a Write with Immediate: it consumes a receive of the peer."""

    number: int
    source: End
    life: int  # life of the source when the message was posted
    dest: Address
    index: int  # number among the messages of this source to this destination
    length: int
    imm: int | None
    wide: bool  # a Write with Immediate: its octets are in the target
    cell: Cell | None = None
    offset: int = 0
    status: int | None = None
    #: RC: the last Write posted before the message; it must be placed when the message arrives.
    behind: tuple[Cell, int] | None = None
    #: RC: the key that a Send with Invalidate invalidates.
    inv_key: int | None = None
    #: How often the message arrived, by life of the receiving queue pair.
    taken: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Request:
    """A posted work request."""

    wr_id: int
    end: End | None  # None: a receive of a shared receive queue
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
    expected: bytes | None = None  # expected octets of a Read
    counter: Counter | None = None
    amount: int = 0
    bad: str = ""  # kind of a deliberate error; empty: none
    posted_ns: int = 0
    done: bool = False
    status: int | None = None  # status of its completion


@dataclass(eq=False)
class Cell:
    """A part of a target that one queue pair writes to.

    All Writes to a ``steady`` cell write the same octets, so that any octets that arrived are
    correct, whatever was lost. In other cells the last Write determines the content.
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
    """A 64-bit counter, to which any number of peers add 1 by atomics."""

    at: int
    done: int = 0
    unknown: int = 0
    seen: set[int] = field(default_factory=set)


class Target:
    """Memory of a host that peers write, read, and use as counters."""

    STATIC = 40000
    COUNTERS = 8
    CELL = 1024
    CELLS = 64
    #: Size of a cell for Write-Records: four or five datagrams.
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
        # content of all cells when they were last checked
        self._seen = bytearray(self._octets_of_cells())
        # offset of the next free cell, by cell size
        self._at = {self.CELL: 0, self.RECORD: self.CELL * self.CELLS}
        self.closed_at = -1  # number of the step in which the region was last closed

    def _octets_of_cells(self) -> int:
        return self.CELL * self.CELLS + self.RECORD * self.RECORDS

    def cell(
        self, writer: End, dest: Address, *, steady: bool, record: bool = False
    ) -> Cell | None:
        """Return the cell for Writes of ``writer`` to the queue pair at ``dest``; None: none left.

        A cell belongs to one pair of writer and destination.
        """
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
        """Overwrite the constant part after its region was closed: no Read may return that."""
        self._present = b"\xdd" * self.STATIC
        self.memory.view[: self.STATIC] = self._present

    def restore(self) -> None:
        """Restore the constant part before the memory is registered again."""
        self._present = self.static
        self.memory.view[: self.STATIC] = self.static

    def octets(self, cell: Cell) -> bytes:
        """Return the current content of a cell."""
        return bytes(self.memory.view[cell.at : cell.at + cell.length])

    def check(self, liars: bool) -> None:
        """Raise a Violation if the target contains octets that nothing wrote."""
        self.memory.check()
        if liars:
            return
        memory = self.memory
        require(
            memory.octets(0, self.STATIC) == self._present,
            f"{memory.name}: a write that was not posted",
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
                    f"{self.memory.name}: cell {cell.number} contains octets that were not written",
                )


class Disturbance:
    """Faults of a host or a queue pair that may make it lose its RD peers, and their times.

    A disturbance lasts while there is a fault. It excuses a lost message until requests complete
    again.
    """

    def __init__(self) -> None:
        self.faults: set[str] = set()  # names of faults that have not ended
        self.ended_ns = -1  # when the last fault ended; -1: there was none

    def note(self, now_ns: int) -> None:
        """Record a fault that ended at once."""
        self.ended_ns = now_ns

    def begin(self, fault: str) -> None:
        """Record the beginning of a fault."""
        self.faults.add(fault)

    def end(self, fault: str, now_ns: int) -> None:
        """Record the end of a fault."""
        if fault in self.faults:
            self.faults.remove(fault)
            self.ended_ns = now_ns

    def last_ns(self, now_ns: int) -> int:
        """Return the last time at which there was a fault; -1: never."""
        return now_ns if self.faults else self.ended_ns


class Completions:
    """A completion queue and its expected state."""

    def __init__(self, cq: CQ, small: bool) -> None:
        self.cq = cq
        self.small = small
        self.overflowed = False
        self.waiters = 0
        # number of completions in the queue when it was armed; None: not armed
        self.armed: int | None = None


class Host:
    """A host of the world, and the objects open on it."""

    def __init__(self, number: int, address: str, liar: bool) -> None:
        self.number = number
        self.address = address
        self.liar = liar
        self.up = True
        self.life = 0
        self.slow = False  # does not poll and post receives
        self.disturbance = Disturbance()
        self.context: Context
        self.pd: PD
        self.srq: SRQ | None = None
        self.srq_slots: Slots
        self.srq_posted: dict[int, Request] = {}
        self.srq_limit = 0  # armed limit of the shared receive queue; 0: none
        self.ends: list[End] = []
        # maximum number of queue pairs open at a time in this life
        self.most: dict[QPType, int] = {}
        self.completions: list[Completions] = []
        self.channel: CMEventChannel | None = None  # for RC by the connection manager
        self.listener: CMID | None = None
        self.target: Target
        self.handles: dict[Address, AH] = {}

    def memories(self) -> Iterator[Memory]:
        """Yield all memory that is or was registered in this life of the host."""
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
    """A type 2 memory window of an RC queue pair, and the region that it is bound to.

    ``key`` is valid for the peer from the completion of the bind until either end posts an
    invalidation.
    """

    memory: Memory
    mw: MW
    remote: RemoteBuffer | None = None
    key: int | None = None
    bound: bool = False  # until an invalidation has completed
    binding: int | None = None  # number of the posted bind or invalidation, until it completes


@dataclass(eq=False)
class Pair:
    """Two RC queue pairs that connect to each other, in one life of both.

    ``causes`` lists what may end the connection or fail a request, other than the program itself:
    ``rnr``, a Send that may find no receive; ``refused``, an access without permission; ``local``,
    a local error of one end; ``ended``, an orderly end of one end; ``lost``, an end of which the
    peer may not be notified; ``meeting``, a connection start-up that may fail; ``memory``, a
    failed allocation; ``corrupt``, a link that alters the octets of TCP. Without any cause nothing
    may fail.
    """

    a: End
    b: End
    by_qpn: bool
    #: Maximum number of outstanding RDMA Reads in each direction.
    depth: int
    #: Connection manager: RTR with which the initiator opens the connection; 0: by a Send.
    rtr: RTR
    #: By QPN: InfiniBand's time-out code for requests to an unreachable peer; 0: no limit.
    timeout: int
    causes: set[str] = field(default_factory=set)
    #: Connection manager: numbers of the ends that are established.
    established: set[int] = field(default_factory=set)


class End:
    """A queue pair and its expected state; it may have several lives, separated by RESET."""

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
        self.large: Slots  # for Reads larger than a slot, on types that support Reads
        self.shares = False  # uses the shared receive queue
        self.grh = False
        self.groups: set[str] = set()  # UD: multicast groups that it is or was a member of
        self.rnr_retry: int | None = None  # RD, RC; None: the device's default, which is no limit
        self.min_rnr_timer: int | None = None
        self.window: Window | None = None  # RC only
        self.address: Address = ("", 0)
        self.peer: End | None = None  # UC and RC only
        self.posted: dict[int, Request] = {}  # send requests, in the order of the queue
        self.waiting: dict[int, Request] = {}  # receive requests
        self.life = 0  # number of the current life; RESET begins a new one
        self.short = False  # it has posted receives that are too short
        self.errors = 0  # number of entries read from its error queue
        self.gone = False  # destroyed, or its host crashed
        self.disturbance = Disturbance()
        #: RD: by peer, when the last request that completed with success was posted.
        self.proven_ns: dict[Address, int] = {}
        self.lost = False  # completions of this queue pair may have been lost
        self._may_err = False
        self.pair: Pair | None = None  # RC only
        self.by_qpn = False  # RC: connected by address and QPN
        self.persona = Persona.IWARP
        self.private = False  # RC: it may send immediate data with Sends
        self.id: CMID | None = None
        self.failed = False  # RC: a request of this life has failed
        self.waits = False  # RC: a message of this life may have had to wait for a receive
        self.offered = 0  # number of receives posted in this life
        self.promised = 0  # RC: number of messages posted in this life
        self.last_write: tuple[Cell, int] | None = None  # RC only
        self.next_index: dict[Address, int] = {}
        self.last_taken: dict[tuple[int, int], int] = {}
        self.last_done: dict[Address | None, int] = {}
        self.last_received = -1

    @property
    def may_err(self) -> bool:
        """Whether the queue pair may be in state ERR or SQE."""
        return self._may_err or bool(self.pair and self.pair.causes)

    @may_err.setter
    def may_err(self, value: bool) -> None:
        self._may_err = value
        if self.pair is not None and value:
            self.pair.causes.add("ended")

    def all_slots(self) -> list[Slots]:
        """Return the memory of its messages."""
        return [self.sends, self.receives, *([self.large] if hasattr(self, "large") else [])]

    @property
    def connected(self) -> bool:
        """RC: whether the limits of its connection are known."""
        return self.by_qpn or bool(self.pair and self.number in self.pair.established)

    @property
    def liar(self) -> bool:
        """Whether its host mutates the datagrams it sends."""
        return self.host.liar

    def __repr__(self) -> str:
        return f"{self.kind.name} {self.number} at {self.address[0]} port {self.address[1]}"
