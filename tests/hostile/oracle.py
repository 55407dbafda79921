"""An independent implementation of RFC 5040, 5041 and 7306: the expected result of one segment.

The oracle judges from the octets of the segment only. It applies to a connection whose responder is
siwarp and on which only the first FPDU of the initiator has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from siwarp.inspect import (
    DDP,
    AtomicRequest,
    AtomicResponse,
    DDPTagged,
    DDPUntagged,
    Opcode,
    ReadRequest,
)
from siwarp.inspect.names import AtomicCode

Numbers = tuple[int, int, int]  # the layer, error type and error code of a Terminate
SEND_OPS = (Opcode.SEND, Opcode.SEND_SE)
IMMEDIATES = (Opcode.IMMEDIATE, Opcode.IMMEDIATE_SE)
INVALIDATES = (Opcode.SEND_INVALIDATE, Opcode.SEND_SE_INVALIDATE)
QUEUE = {
    Opcode.RDMA_READ_REQUEST: 1,
    Opcode.SEND: 0,
    Opcode.SEND_INVALIDATE: 0,
    Opcode.SEND_SE: 0,
    Opcode.SEND_SE_INVALIDATE: 0,
    Opcode.TERMINATE: 2,
    # siwarp's private opcode is missing: it is not used with a peer that has not announced itself
    # as siwarp.
    Opcode.IMMEDIATE: 0,
    Opcode.IMMEDIATE_SE: 0,
    Opcode.ATOMIC_REQUEST: 1,
    Opcode.ATOMIC_RESPONSE: 3,
}
TAGGED = (Opcode.RDMA_WRITE, Opcode.RDMA_READ_RESPONSE)


@dataclass
class OutstandingRead:
    """An outstanding RDMA Read of the siwarp end under test."""

    stag: int
    length: int


@dataclass
class EndState:
    """State of the siwarp end under test: its region and its outstanding RDMA Read or atomic."""

    stag: int
    start: int
    length: int
    buffers: dict[int, int] = field(default_factory=lambda: {0: 200, 1: 52, 2: 256, 3: 12})
    reading: OutstandingRead | None = None
    asking: int | None = None  # number of the outstanding atomic request of the end under test


def expected_range_error(state: EndState, to: int, length: int) -> int | None:
    """Return ``None`` if the range lies within the region, otherwise the error code of DDP.

    AS_RDMAP maps the code to the code of RDMAP for the same error.
    """
    if to + length >= 1 << 64:
        return WRAP
    if to < state.start or to + length > state.start + state.length:
        return BOUNDS
    return None


WRAP, BOUNDS, INVALID = 3, 1, 0
AS_RDMAP = {INVALID: 0, BOUNDS: 1, WRAP: 4}


def expected_terminate(octets: bytes, state: EndState) -> Numbers | None:
    """Return ``None`` if the segment is legal, otherwise the numbers of the expected Terminate."""
    tagged = bool(octets[0] & 0x80)
    if len(octets) < (14 if tagged else 18):
        return 1, 0, 0  # the RFCs define no error code for a truncated DDP header
    seg = DDP(octets)
    payload = octets[14 if tagged else 18 :]
    if seg.dv != 1:
        return (1, 1, 4) if tagged else (1, 2, 6)
    if isinstance(seg, DDPUntagged):
        if seg.qn not in state.buffers:
            return 1, 2, 1
        if seg.msn != 1:
            return 1, 2, 3
        if seg.mo != 0:
            return 1, 2, 4
        if len(payload) > state.buffers[seg.qn]:
            return 1, 2, 5
    if seg.rv > 1:
        return 0, 2, 5
    due = seg.opcode in TAGGED if tagged else QUEUE.get(seg.opcode) == seg.qn
    if not due:
        return 0, 2, 6
    if isinstance(seg, DDPTagged):
        return expected_error_of_tagged_segment(seg, payload, state)
    if seg.opcode in INVALIDATES:
        return 0, 1, 9  # the STag to invalidate is not associated with this stream
    return expected_error_of_untagged_segment(seg, payload, state)


def expected_error_of_untagged_segment(
    seg: DDPUntagged, payload: bytes, state: EndState
) -> Numbers | None:
    if seg.opcode in IMMEDIATES:
        wrong = len(payload) != 8 if seg.l else len(payload) > 8
        return (0, 2, 0xFF) if wrong else None
    if seg.opcode == Opcode.ATOMIC_RESPONSE:
        return expected_error_of_atomic_response(seg, payload, state)
    # The untagged buffer of queue 1 has the size of an Atomic Request, which is longer than a Read
    # Request.
    if seg.opcode == Opcode.RDMA_READ_REQUEST and len(payload) > 28:
        return 1, 2, 5
    if seg.opcode == Opcode.RDMA_READ_REQUEST and seg.l:
        return expected_error_of_read_request(payload, state)
    if seg.opcode == Opcode.ATOMIC_REQUEST and seg.l:
        return expected_error_of_atomic_request(payload, state)
    return None


def expected_error_of_atomic_response(
    seg: DDPUntagged, payload: bytes, state: EndState
) -> Numbers | None:
    if state.asking is None:
        return 0, 2, 6
    if seg.l and (len(payload) != 12 or AtomicResponse(payload).request != state.asking):
        return 0, 2, 0xFF
    return None


def expected_error_of_atomic_request(payload: bytes, state: EndState) -> Numbers | None:
    if len(payload) != 52:
        return 0, 2, 0xFF
    asked = AtomicRequest(payload)
    if asked.code not in (AtomicCode.FETCH_ADD, AtomicCode.CMP_SWAP):
        return 0, 2, 6
    if asked.stag != state.stag:
        return 0, 1, 0
    code = expected_range_error(state, asked.to, 8)
    if code is not None:
        return 0, 1, AS_RDMAP[code]
    return (0, 2, 7) if asked.to % 8 else None


def value_after_atomic(word: int, asked: AtomicRequest) -> int:
    """Return the value of a 64-bit word after an atomic operation (RFC 7306 section 5.1)."""
    if asked.code == AtomicCode.CMP_SWAP:
        if (asked.compare ^ word) & asked.compare_mask:
            return word
        return int(word & ~asked.mask | asked.data & asked.mask)
    total, carry = 0, 0
    # A set bit of the mask ends a field of a FetchAdd, and the carry of the field is dropped.
    for bit in range(64):
        digit = (word >> bit & 1) + (asked.data >> bit & 1) + carry
        total |= (digit & 1) << bit
        carry = 0 if asked.mask >> bit & 1 else digit >> 1
    return total


def expected_error_of_tagged_segment(
    seg: DDPTagged, payload: bytes, state: EndState
) -> Numbers | None:
    reading = state.reading
    if seg.opcode == Opcode.RDMA_READ_RESPONSE:
        if reading is None:
            return 0, 2, 6
        if payload and seg.stag == state.stag:
            return 0, 1, 2  # the STag belongs to the siwarp end, but is not the sink of a Read
        if payload and seg.stag != reading.stag:
            return 1, 1, 0
        if payload and seg.to + len(payload) >= 1 << 64:
            return 1, 1, 3
        if payload and (seg.to or len(payload) > reading.length):
            return 1, 1, 1
        return (0, 2, 0xFF) if seg.l and len(payload) != reading.length else None
    if not payload:
        return None
    if reading is not None and seg.stag == reading.stag:
        return 0, 1, 2
    if seg.stag != state.stag:
        return 1, 1, 0
    code = expected_range_error(state, seg.to, len(payload))
    return None if code is None else (1, 1, code)


def expected_error_of_read_request(payload: bytes, state: EndState) -> Numbers | None:
    if len(payload) != 28:
        return 0, 2, 0xFF
    read = ReadRequest(payload)
    if read.size == 0:
        return None
    if read.src_stag != state.stag:
        return 0, 1, 0
    code = expected_range_error(state, read.src_to, read.size)
    return None if code is None else (0, 1, AS_RDMAP[code])
