# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The guarantees of the verbs, by queue pair type, as values that results are checked against.

The model knows which requests were posted, and nothing about the implementation of the engine.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from siwarp.base.library import ffi, lib
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
    "Guards",
    "Host",
    "LazyText",
    "Memory",
    "Message",
    "MessageSlots",
    "Pair",
    "Request",
    "Target",
    "Violation",
    "Window",
    "make_message_content",
    "require",
]

#: Size in octets of the guards before and after each region, and before each slot.
GUARD = 64
_GUARD = b"\xa5" * GUARD
_closed = b""  # content of all memory whose region stays closed
#: Value of each octet of a receive slot before the receive is posted.
BLANK = 0x5A
#: Tag at the start of each message that is long enough: magic octets, message number, length.
TAG = struct.Struct("!4sQI")
_MARK = b"siws"


class Violation(Exception):
    """The engine did not behave as the verbs guarantee."""


class LazyText:
    """A text that is formatted only if it is needed, because most checks succeed."""

    def __init__(self, format_text: Callable[[], str]) -> None:
        self._format_text = format_text

    def __str__(self) -> str:
        return self._format_text()


def require(holds: bool, text: str | Callable[[], str]) -> None:
    """Raise a Violation with a text, or the text that a function returns, if ``holds`` is false."""
    if not holds:
        raise Violation(text if isinstance(text, str) else text())


# Cached, because the content of a message is needed when it is posted and again when it arrives.
@lru_cache(maxsize=1024)
def make_message_content(number: int, length: int) -> bytes:
    """Return a message's octets: a tag if the message is long enough, then pseudo-random octets."""
    octets = hashlib.shake_128(number.to_bytes(8, "big")).digest(length)
    if length < TAG.size:
        return octets
    return TAG.pack(_MARK, number, length) + octets[TAG.size :]


def message_number_of(octets: bytes) -> int | None:
    """Return the message number in the tag of a message, or None if the message has no tag."""
    if len(octets) < TAG.size:
        return None
    mark, number, _ = TAG.unpack_from(octets)
    return int(number) if mark == _MARK else None


class Memory:
    """A buffer between two guards, and the memory region registered for the buffer."""

    def __init__(self, name: str, length: int) -> None:
        self.name = name
        self._all = bytearray(length + 2 * GUARD)
        self._all[:GUARD] = self._all[GUARD + length :] = _GUARD
        self.view = memoryview(self._all)[GUARD : GUARD + length]
        self.mr: MR | None = None
        self._frozen: object = None  # the octets that must not change; None: they may change

    def check_guards(self) -> None:
        """Raise a Violation if a guard of the buffer was overwritten."""
        whole = self._all
        if not (whole.startswith(_GUARD) and whole.endswith(_GUARD)):
            raise Violation(f"a write outside of a region: a guard of {self.name} has changed")

    def take_snapshot(self) -> None:
        """Record the memory, which must not change while its region is closed."""
        self._frozen = bytes(self._all)

    def fill_and_take_snapshot(self) -> None:
        """Fill the memory of a region that stays closed, so that no copy of its content is needed.

        A late write of octets that the memory contained before is then found, too.
        """
        global _closed
        if len(_closed) < len(self._all):
            _closed = b"\xcc" * len(self._all)
        self._frozen = self._all[:] = memoryview(_closed)[: len(self._all)]

    def check_and_drop_snapshot(self) -> None:
        """Check the memory and permit changes, because the memory is registered again."""
        self.check_memory_is_unchanged()
        self._frozen = None

    def __len__(self) -> int:
        return len(self._all)

    def has_octets_at(self, at: int, octets: bytes) -> bool:
        """Return whether the memory contains the given octets at an offset, without a copy."""
        return self._all.startswith(octets, GUARD + at)

    def check_memory_is_unchanged(self) -> None:
        """Raise a Violation if the memory was written after its region was closed."""
        # A comparison by bytearray compares all octets at once, one by memoryview each octet.
        if self._frozen is not None and self._all != self._frozen:
            raise Violation(f"a write to {self.name}, whose region is closed")


class MessageSlots:
    """Memory for messages, divided into slots of one size, each with a guard in front of it."""

    def __init__(self, name: str, count: int, size: int) -> None:
        self.size = size
        self._stride = size + GUARD
        self.memory = Memory(name, count * self._stride)
        for i in range(count):
            self.memory.view[i * self._stride : i * self._stride + GUARD] = _GUARD
        self.free = list(range(count - 1, -1, -1))
        whole = self.memory._all
        guards = [0, *(GUARD + i * self._stride for i in range(count)), len(whole) - GUARD]
        #: Address of the memory, offsets of its guards, and number of guards.
        self.guards = ffi.from_buffer(whole), ffi.new("uint32_t[]", guards), len(guards)

    def offset_of(self, slot: int) -> int:
        """Return the offset of a slot's first octet."""
        return slot * self._stride + GUARD

    def write(self, slot: int, octets: bytes) -> None:
        """Write octets to the start of a slot."""
        at = self.offset_of(slot)
        self.memory.view[at : at + len(octets)] = octets

    def read(self, slot: int, length: int) -> bytes:
        """Return the first ``length`` octets of a slot."""
        at = self.offset_of(slot)
        return bytes(self.memory.view[at : at + length])


class Guards:
    """The guards of several memories with slots, which one call of the library compares."""

    def __init__(self) -> None:
        self._memories: list[MessageSlots] = []
        self._c_memories = ffi.NULL

    def check(self, memories: list[MessageSlots]) -> None:
        """Raise a Violation if a guard of one of the memories was overwritten."""
        if memories != self._memories:
            self._memories = memories
            self._c_memories = ffi.new("struct siw_sim_blocks[]", [m.guards for m in memories])
        changed = lib.siw_sim_find_changed_memory(self._c_memories, len(memories), _GUARD, GUARD)
        if changed >= 0:
            memory = memories[changed].memory
            memory.check_guards()
            raise Violation(f"a write past a slot: a guard within {memory.name} changed")


@dataclass(eq=False)
class Message:
    """A Send or a Write with Immediate, which consumes a receive of the peer."""

    number: int
    source: End
    life: int  # the source's ``life`` when the message was posted
    dest: Address
    index: int  # number of the message among those of this source to this destination
    length: int
    imm: int | None
    wide: bool  # whether the message is a Write with Immediate, whose data is in the target
    cell: Cell | None = None
    offset: int = 0
    status: int | None = None
    #: RC: the last Write posted before the message; the Write is placed before the message arrives.
    behind: tuple[Cell, int] | None = None
    #: RC: the rkey that a Send with Invalidate invalidates.
    inv_key: int | None = None
    #: How often the message has arrived, by the receiving queue pair's ``life`` at that time.
    arrivals: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Request:
    """A posted work request."""

    wr_id: int
    end: End | None  # the queue pair; None for a receive of a shared receive queue
    verb: str
    order: int
    signaled: bool = True
    slots: MessageSlots | None = None
    slot: int = -1
    length: int = 0
    dest: Address | None = None
    message: Message | None = None
    cell: Cell | None = None
    version: int = 0
    expected: bytes | None = None  # octets that a Read must return
    counter: Counter | None = None
    amount: int = 0
    bad: str = ""  # kind of the request's deliberate error; empty: none
    posted_ns: int = 0
    done: bool = False
    status: int | None = None  # status of the request's completion


@dataclass(eq=False)
class Cell:
    """A write area: the part of a target region that one queue pair writes to.

    All Writes to a ``steady`` area write the same octets, so that a partly lost Write leaves no
    wrong octets in the area. In other areas the last Write determines the content.
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
    """A 64-bit counter in a target region, to which any number of peers add 1 by atomics."""

    at: int
    done: int = 0
    unknown: int = 0
    seen: set[int] = field(default_factory=set)


class Target:
    """The target region of a host: peers write and read it, and increment its counters."""

    STATIC = 40000
    COUNTERS = 8
    CELL = 1024
    CELLS = 64
    #: Size in octets of a write area for Write-Records: four or five datagrams.
    RECORD = 6000
    RECORDS = 6
    _COUNTERS = struct.Struct(f"<{COUNTERS}Q")

    def __init__(self, host: Host) -> None:
        self.memory = Memory(
            f"the target of {host.address}",
            self.STATIC + 8 * self.COUNTERS + self._length_of_all_write_areas(),
        )
        self.static = hashlib.shake_128(host.address.encode()).digest(self.STATIC)
        self._present = self.static
        self.memory.view[: self.STATIC] = self.static
        self.counters = [Counter(self.STATIC + 8 * i) for i in range(self.COUNTERS)]
        self.cells: dict[tuple[int, Address, bool], Cell] = {}
        # offset of the next free write area, by size of the area
        self._at = {self.CELL: 0, self.RECORD: self.CELL * self.CELLS}
        # content of the allocated write areas at the time of the last check, by their offset
        self._seen = {self._offset_of_write_areas() + at: b"" for at in self._at.values()}
        self.closed_at = -1  # request number at which the region was last closed; -1: never

    def _offset_of_write_areas(self) -> int:
        return self.STATIC + 8 * self.COUNTERS

    def _length_of_all_write_areas(self) -> int:
        return self.CELL * self.CELLS + self.RECORD * self.RECORDS

    def find_or_allocate_write_area(
        self, writer: End, dest: Address, *, steady: bool, record: bool = False
    ) -> Cell | None:
        """Return the area for Writes of ``writer`` to the address ``dest``; None: none is free.

        Each area belongs to one pair of writer and destination.
        """
        key = (writer.number, dest, steady)
        if key not in self.cells:
            length = self.RECORD if record else self.CELL
            end = self._length_of_all_write_areas() if record else self.CELL * self.CELLS
            at = self._at[length]
            if at + length > end:
                return None
            self._at[length] += length
            at += self._offset_of_write_areas()
            self.cells[key] = Cell(len(self.cells), at, length, steady, bytearray(length))
            first = next(first for first, seen in self._seen.items() if first + len(seen) == at)
            self._seen[first] += self.content_of_write_area(self.cells[key])
        return self.cells[key]

    def poison_constant_memory(self) -> None:
        """Overwrite a deregistered target's constant part with octets that no Read may return."""
        self._present = b"\xdd" * self.STATIC
        self.memory.view[: self.STATIC] = self._present

    def restore_constant_part(self) -> None:
        """Restore the constant part of the target before its memory is registered again."""
        self._present = self.static
        self.memory.view[: self.STATIC] = self.static

    def content_of_write_area(self, cell: Cell) -> bytes:
        """Return the current content of a write area."""
        return bytes(self.memory.view[cell.at : cell.at + cell.length])

    def check_content(self, liars: bool) -> None:
        """Raise a Violation if the target contains octets that no posted request wrote."""
        self.memory.check_guards()
        if liars:
            return
        memory = self.memory
        if not memory.has_octets_at(0, self._present):
            raise Violation(f"{memory.name}: a write that was not posted")
        for at, seen in self._seen.items():
            if not memory.has_octets_at(at, seen):
                self._check_write_areas()
                self._seen[at] = bytes(memory.view[at : at + len(seen)])
        values = self._COUNTERS.unpack_from(memory.view, self.STATIC)
        for counter, value in zip(self.counters, values, strict=True):
            if not counter.done <= value <= counter.done + counter.unknown:
                raise Violation(
                    f"{memory.name}: a counter is {value} after {counter.done} additions that "
                    f"completed and {counter.unknown} that may have been done"
                )

    def _check_write_areas(self) -> None:
        for cell in self.cells.values():
            now = self.content_of_write_area(cell)
            if cell.steady and now != cell.expected:
                require(
                    _is_partly_placed_message(now, cell.expected),
                    f"{self.memory.name}: cell {cell.number} contains octets that were not written",
                )


#: Translation of each octet except 0 to 0xff.
_NOT_ZERO = b"\0" + b"\xff" * 255


def _is_partly_placed_message(octets: bytes, whole: bytearray) -> bool:
    """Return whether each octet is either 0 or equals the octet at its place in ``whole``."""
    mask = int.from_bytes(octets.translate(_NOT_ZERO), "big")
    return mask & int.from_bytes(whole, "big") == int.from_bytes(octets, "big")


class HostFaults:
    """Faults of a host or queue pair that may end its RD connections, and the faults' times.

    A disturbance lasts while there is a fault. A disturbance excuses a lost message until requests
    complete again.
    """

    def __init__(self) -> None:
        self.faults: set[str] = set()  # names of the faults that have not ended
        self.ended_ns = -1  # time in ns at which the last fault ended; -1: there was no fault

    def note_instant_fault(self, now_ns: int) -> None:
        """Record a fault that began and ended at the same instant."""
        self.ended_ns = now_ns

    def record_fault_begin(self, fault: str) -> None:
        """Record the beginning of a fault."""
        self.faults.add(fault)

    def record_fault_end(self, fault: str, now_ns: int) -> None:
        """Record the end of a fault."""
        if fault in self.faults:
            self.faults.remove(fault)
            self.ended_ns = now_ns

    def last_fault_ns(self, now_ns: int) -> int:
        """Return the last time in ns at which there was a fault; -1: there was none."""
        return now_ns if self.faults else self.ended_ns


class Completions:
    """A completion queue of the program and its expected state."""

    def __init__(self, cq: CQ, small: bool) -> None:
        self.cq = cq
        self.small = small
        self.overflowed = False
        self.waiters = 0
        # number of completions in the queue when it was armed; None: not armed
        self.armed: int | None = None


class Host:
    """A host of the world, and the objects that are open on the host."""

    def __init__(self, number: int, address: str, mutates_datagrams: bool) -> None:
        self.number = number
        self.address = address
        self.mutates_datagrams = mutates_datagrams
        self.up = True
        self.life = 0
        self.slow = False  # whether the host currently neither polls nor posts receives
        self.disturbance = HostFaults()
        self.context: Context
        self.pd: PD
        self.srq: SRQ | None = None
        self.srq_slots: MessageSlots
        self.srq_posted: dict[int, Request] = {}
        self.srq_limit = 0  # limit of the shared receive queue that is armed; 0: none
        self.ends: list[End] = []
        self.completions: list[Completions] = []
        # event channel of the RC connections that the connection manager establishes
        self.channel: CMEventChannel | None = None
        self.listener: CMID | None = None
        self.target: Target
        self.handles: dict[Address, AH] = {}

    def all_memories(self) -> Iterator[Memory]:
        """Yield all memory that is or was registered since the host's last start."""
        yield self.target.memory
        if self.srq is not None:
            yield self.srq_slots.memory
        for end in self.ends:
            for slots in end.slots:
                yield slots.memory
            if end.window is not None:
                yield end.window.memory


@dataclass(eq=False)
class Window:
    """A type 2 memory window of an RC queue pair, and the region that it is bound to.

    The peer may use ``key`` from the completion of the bind until either end posts an invalidation.
    """

    memory: Memory
    mw: MW
    remote: RemoteBuffer | None = None
    key: int | None = None
    bound: bool = False  # whether the memory window is bound; true until an invalidation completes
    binding: int | None = None  # number of the bind or invalidation in progress; None: none


@dataclass(eq=False)
class Pair:
    """Two RC queue pairs that are connected to each other until one of them is reset or destroyed.

    ``causes`` lists what may end the connection or fail a request, other than the program itself:
    ``rnr``, a Send that may find no receive; ``refused``, an access without permission; ``local``,
    a local error of one end; ``ended``, an orderly close by one end; ``lost``, a close of which the
    peer may not be notified; ``meeting``, a connection start-up that may fail; ``memory``, a failed
    allocation; ``corrupt``, a link that alters the octets of TCP. Without a cause no request and no
    connection may fail.
    """

    a: End
    b: End
    by_qpn: bool
    #: Maximum number of outstanding RDMA Reads in each direction.
    depth: int
    #: Connection manager: type of the initiator's RTR message; 0: the initiator sends a Send.
    rtr: RTR
    #: Pairing by GID and QPN: InfiniBand time-out code (attribute timeout); 0: no time-out.
    timeout: int
    causes: set[str] = field(default_factory=set)
    #: Connection manager: numbers of the queue pairs that have received ESTABLISHED.
    established: set[int] = field(default_factory=set)


class End:
    """A queue pair and its expected state; ``life`` grows with each move to RESET."""

    def __init__(self, number: int, host: Host, kind: QPType) -> None:
        self.number = number
        self.host = host
        self.kind = kind
        self.qp: QP
        self.qp_num = 0
        self.send: Completions
        self.recv: Completions
        self.sends: MessageSlots
        self.receives: MessageSlots
        self.large: (
            MessageSlots  # buffers for Reads larger than a slot, on types that support Reads
        )
        self.slots: list[MessageSlots] = []  # all slots of the queue pair
        self.shares = False  # whether the queue pair uses the shared receive queue
        self.grh = False
        self.groups: set[str] = set()  # UD: the multicast groups that the queue pair has joined
        self.rnr_retry: int | None = None  # for RD and RC; None: the default, which is no limit
        self.min_rnr_timer: int | None = None
        self.window: Window | None = None  # RC only
        self.address: Address = ("", 0)
        self.peer: End | None = None  # only UC and RC queue pairs have one peer
        self.posted: dict[int, Request] = {}  # send requests, in the order of the queue
        self.waiting: dict[int, Request] = {}  # receive requests
        self.life = 0  # number that grows with each move to RESET
        self.short = False  # whether receives that are too short were posted
        self.errors = 0  # number of entries read from the queue pair's error queue
        self.gone = False  # whether the queue pair was destroyed or its host crashed
        self.disturbance = HostFaults()
        #: RD: by peer, the time at which the last successful request was posted.
        self.proven_ns: dict[Address, int] = {}
        self.lost = False  # whether completions of this queue pair may have been lost
        self._may_be_in_error = False
        self.pair: Pair | None = None  # RC only
        self.by_qpn = False  # RC: whether the queue pair is paired by GID and QPN
        self.persona = Persona.IWARP
        self.private = False  # RC: whether Sends with immediate data are allowed
        self.id: CMID | None = None
        self.failed = False  # RC: whether a request has failed since the last reset
        self.waits = False  # RC: whether a message may have found no receive since the last reset
        self.offered = 0  # number of receives posted since the last reset
        self.promised = 0  # RC: number of messages posted since the last reset
        self.last_write: tuple[Cell, int] | None = None  # RC only
        self.next_index: dict[Address, int] = {}
        self.last_taken: dict[tuple[int, int], int] = {}
        self.last_done: dict[Address | None, int] = {}
        self.last_received = -1

    @property
    def may_be_in_error(self) -> bool:
        """Whether the queue pair may be in state ERR or SQE."""
        return self._may_be_in_error or bool(self.pair and self.pair.causes)

    @may_be_in_error.setter
    def may_be_in_error(self, value: bool) -> None:
        self._may_be_in_error = value
        if self.pair is not None and value:
            self.pair.causes.add("ended")

    @property
    def knows_limits(self) -> bool:
        """RC: whether the queue pair knows the limits of its connection."""
        return self.by_qpn or bool(self.pair and self.number in self.pair.established)

    @property
    def mutates_datagrams(self) -> bool:
        """Whether the queue pair's host mutates the datagrams that the host sends."""
        return self.host.mutates_datagrams

    def __repr__(self) -> str:
        return f"{self.kind.name} {self.number} at {self.address[0]} port {self.address[1]}"
