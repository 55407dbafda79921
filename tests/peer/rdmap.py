"""RDMAP between two RD endpoints: RFC 5040, RFC 7306, and section 9 of the specification.

rd.py delivers each segment complete, exactly once and in order.
"""

from __future__ import annotations

import struct
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from peer.record import HEADER as RECORD_HEADER
from peer.record import (
    WriteRecordHeader,
    parse_write_record_segment,
    split_write_record_into_segments,
)
from peer.wire import (
    ATOMIC_REQUEST,
    ATOMIC_RESPONSE,
    IMMEDIATE,
    IMMEDIATE_SE,
    PRIVATE,
    READ_REQUEST,
    READ_RESPONSE,
    SEND,
    SEND_INVALIDATE,
    SEND_SE,
    SEND_SE_INVALIDATE,
    TERMINATE,
    WRITE,
    ErrorMessage,
    Segment,
    Tagged,
    Untagged,
    WireError,
    make_immediate_payload,
    make_send,
    parse_error_message,
    split_message_into_segments,
)

Q_SEND, Q_REQUEST, Q_ERROR, Q_ATOMIC_RESPONSE = range(4)
SENDS = (SEND, SEND_INVALIDATE, SEND_SE, SEND_SE_INVALIDATE, PRIVATE)
READ = struct.Struct("!IQIIQ")
ATOMIC = struct.Struct("!IIIQQQQQ")
ATOMIC_DONE = struct.Struct("!IQ")
FETCH_ADD, CMP_SWAP = 0, 2
ALL_ONES = (1 << 64) - 1

# Layer, type and code of error messages.
DDP_STAG, DDP_BOUNDS = (1, 1, 0), (1, 1, 1)
RDMAP_STAG, RDMAP_BOUNDS, RDMAP_RIGHTS = (0, 1, 0), (0, 1, 1), (0, 1, 2)
UNEXPECTED = (0, 2, 6)


@dataclass
class Region:
    """A memory region that peers can access with an STag, starting at a tagged offset."""

    base: int
    octets: bytearray
    write: bool = True
    read: bool = True

    def contains(self, to: int, length: int) -> bool:
        """Return whether a range lies completely within the region."""
        return self.base <= to and to + length <= self.base + len(self.octets)


@dataclass
class Request:
    """A request of this end to its peer, with the state of its acknowledgement and its response."""

    kind: str
    queue: int | None = None
    msn: int = 0
    stag: int = 0
    to: int = 0
    unacknowledged: int = 0
    response_due: bool = False
    result: bytearray = field(default_factory=bytearray)
    error: ErrorMessage | None = None
    failed: bool = False

    def is_done(self) -> bool:
        """Return whether the request has completed or failed."""
        return self.failed or not (self.unacknowledged or self.response_due)


@dataclass(frozen=True)
class Arrival:
    """A completed receive or Write-Record at this end of an RD pair."""

    payload: bytes
    immediate: bytes | None = None
    octets: int = 0
    invalidated: int | None = None
    record: WriteRecordHeader | None = None


Push = Callable[[Segment, Request, bool], None]


class Conversation:
    """All messages between this end and one peer during one incarnation.

    ``push(segment, request, response)`` sends a segment; ``response`` is true for segments of Read
    and Atomic Responses and error messages. ``consume_receive`` consumes a posted receive and
    returns whether there was one.
    """

    def __init__(
        self,
        regions: dict[int, Region],
        push: Push,
        consume_receive: Callable[[], bool],
        arrivals: list[Arrival],
        mulpdu: int,
    ) -> None:
        self._regions, self._push, self._arrivals = regions, push, arrivals
        self._consume_receive, self._mulpdu = consume_receive, mulpdu
        self._msn_out = [0, 0, 0, 0]
        self._msn_in = [1, 1, 1, 1]
        self._partial: bytearray | None = None
        self._written = 0
        self._reading: dict[int, Request] = {}
        self._atomics: dict[int, Request] = {}
        self._waiting: deque[tuple[Request, Callable[[], None]]] = deque()
        self._outstanding: list[Request] = []
        self._sent: deque[Request] = deque(maxlen=4096)
        self._refusing: tuple[object, ...] | None = None
        self._record: tuple[WriteRecordHeader, int] | None = None
        self._next = 1
        self.peer_ird = 1
        self.refused: list[ErrorMessage] = []

    # Methods for requests that this end sends.

    def send(
        self,
        payload: bytes,
        *,
        solicited: bool = False,
        immediate: bytes | None = None,
        invalidate: int | None = None,
    ) -> Request:
        """Send a message of any length, optionally with immediate data or with an STag to
        invalidate.
        """
        opcode, payload = make_send(payload, solicited, immediate)
        if invalidate is not None and immediate is None:
            opcode = SEND_SE_INVALIDATE if solicited else SEND_INVALIDATE
        return self._send_untagged("send", Q_SEND, opcode, payload, invalidate or 0)

    def write(
        self, stag: int, to: int, payload: bytes, *, immediate: bytes | None = None
    ) -> Request:
        """Write to the peer's memory, then send the immediate data, if any; return the last
        request.
        """
        request = Request("write", stag=stag, to=to)
        self._queue_segments(
            split_message_into_segments(Tagged(WRITE, stag, to, payload), self._mulpdu - 14),
            request,
        )
        if immediate is None:
            return request
        return self._send_untagged("write", Q_SEND, IMMEDIATE, make_immediate_payload(immediate))

    def write_record(self, message_id: int, stag: int, to: int, payload: bytes) -> Request:
        """Send a Write-Record, which creates a completion at the peer."""
        request = Request("record", stag=stag, to=to)
        header = WriteRecordHeader(message_id, to, len(payload))
        room = self._mulpdu - 14 - RECORD_HEADER.size
        self._queue_segments(split_write_record_into_segments(header, stag, payload, room), request)
        return request

    def read(self, stag: int, to: int, length: int) -> Request:
        """Read the peer's memory; the returned request receives the result."""
        request = Request("read", stag=stag, to=to, response_due=True, result=bytearray(length))
        sink, self._next = self._next << 8, self._next + 1

        def send_read_request() -> None:
            self._reading[sink] = request
            payload = READ.pack(sink, 0, length, stag, to)
            self._send_untagged("read", Q_REQUEST, READ_REQUEST, payload, request=request)

        self._waiting.append((request, send_read_request))
        self.start_queued_read_and_atomic_requests()
        return request

    def atomic(
        self,
        code: int,
        stag: int,
        to: int,
        operand: int,
        *,
        mask: int = ALL_ONES,
        compare: int = 0,
        compare_mask: int = ALL_ONES,
    ) -> Request:
        """Send a FetchAdd or CmpSwap; the request's result is the previous value in native byte
        order.
        """
        request = Request("atomic", stag=stag, to=to, response_due=True)
        identifier, self._next = self._next, self._next + 1

        def send_atomic_request() -> None:
            self._atomics[identifier] = request
            payload = ATOMIC.pack(code, identifier, stag, to, operand, mask, compare, compare_mask)
            self._send_untagged("atomic", Q_REQUEST, ATOMIC_REQUEST, payload, request=request)

        self._waiting.append((request, send_atomic_request))
        self.start_queued_read_and_atomic_requests()
        return request

    def start_queued_read_and_atomic_requests(self) -> None:
        """Send queued Read and Atomic Requests up to the peer's IRD (DGRAM-RDV-9)."""
        self._outstanding = [request for request in self._outstanding if not request.is_done()]
        while self._waiting and len(self._outstanding) < max(self.peer_ird, 1):
            request, begin = self._waiting.popleft()
            self._outstanding.append(request)
            begin()

    def fail_all_requests(self) -> None:
        """Fail all unfinished requests, because the incarnation has ended."""
        for request in [*self._sent, *(request for request, _ in self._waiting)]:
            request.failed = request.failed or not request.is_done()

    def _send_untagged(
        self,
        kind: str,
        queue: int,
        opcode: int,
        payload: bytes,
        word: int = 0,
        request: Request | None = None,
        response: bool = False,
    ) -> Request:
        self._msn_out[queue] += 1
        request = request or Request(kind)
        request.queue, request.msn = queue, self._msn_out[queue]
        message = Untagged(opcode, queue, request.msn, payload=payload, word=word)
        self._queue_segments(
            split_message_into_segments(message, self._mulpdu - 18), request, response
        )
        return request

    def _queue_segments(
        self, segments: list[Segment], request: Request, response: bool = False
    ) -> None:
        request.unacknowledged += len(segments)
        self._sent.append(request)
        for segment in segments:
            self._push(segment, request, response)

    # Methods for requests that the peer sends.

    def process_ddp_segment(self, segment: Segment) -> bool:
        """Process the next received segment; return False if no receive is posted for the
        segment.
        """
        if self._refusing is not None and self._belongs_to_refused_message(segment):
            if segment.last:
                self._refusing = None
            return True
        if isinstance(segment, Tagged):
            self._receive_tagged(segment)
            return True
        if segment.msn != self._msn_in[segment.qn]:
            raise WireError(f"MSN {segment.msn}, not {self._msn_in[segment.qn]}")
        if segment.qn == Q_SEND:
            return self._receive_untagged(segment)
        self._msn_in[segment.qn] += 1
        if segment.qn == Q_REQUEST and segment.opcode == READ_REQUEST:
            self._answer_read(segment)
        elif segment.qn == Q_REQUEST and segment.opcode == ATOMIC_REQUEST:
            self._answer_atomic(segment)
        elif segment.qn == Q_ERROR and segment.opcode == TERMINATE:
            self._fail_request_named_by_error_message(parse_error_message(segment.payload))
        elif segment.qn == Q_ATOMIC_RESPONSE and segment.opcode == ATOMIC_RESPONSE:
            identifier, value = ATOMIC_DONE.unpack(segment.payload)
            request = self._atomics.pop(identifier)
            request.result[:] = value.to_bytes(8, sys.byteorder)
            request.response_due = False
            self.start_queued_read_and_atomic_requests()
        else:
            raise WireError(f"opcode {segment.opcode} on queue {segment.qn}")
        return True

    def _belongs_to_refused_message(self, segment: Segment) -> bool:
        """Return whether a segment belongs to the message that this end is refusing."""
        if isinstance(segment, Tagged):
            return self._refusing == ("tagged", segment.opcode)
        return self._refusing == ("untagged", segment.qn, segment.msn)

    def _receive_untagged(self, segment: Untagged) -> bool:
        if segment.mo == 0:
            if segment.opcode not in (*SENDS, IMMEDIATE, IMMEDIATE_SE):
                raise WireError(f"opcode {segment.opcode} on queue 0")
            if not self._consume_receive():
                return False
            self._partial = bytearray()
        if self._partial is None or segment.mo != len(self._partial):
            raise WireError(f"MO {segment.mo}")
        self._partial += segment.payload
        if not segment.last:
            return True
        whole, self._partial = bytes(self._partial), None
        self._msn_in[Q_SEND] += 1
        immediate, count, invalidated = None, len(whole), None
        if segment.opcode in (IMMEDIATE, IMMEDIATE_SE):
            immediate, whole, count = whole[:4], b"", self._written
        elif segment.opcode == PRIVATE:
            immediate, whole, count = whole[4:8], whole[8:], count - 8
        elif segment.opcode in (SEND_INVALIDATE, SEND_SE_INVALIDATE):
            invalidated = segment.word
            self._regions.pop(invalidated, None)
        self._written = 0
        self._arrivals.append(Arrival(whole, immediate, count, invalidated))
        return True

    def _receive_tagged(self, segment: Tagged) -> None:
        if segment.opcode == READ_RESPONSE:
            request = self._reading.get(segment.stag)
            if request is None or segment.to + len(segment.payload) > len(request.result):
                raise WireError("Read Response for nothing")
            request.result[segment.to : segment.to + len(segment.payload)] = segment.payload
            if segment.last:
                del self._reading[segment.stag]
                request.response_due = False
                self.start_queued_read_and_atomic_requests()
        elif segment.opcode == PRIVATE:
            self._receive_write_record_segment(segment)
        elif segment.opcode == WRITE:
            wrong = self._place_octets(segment.stag, segment.to, segment.payload)
            if wrong:
                self._report_error(segment, wrong)
                return
            self._written += len(segment.payload)
        else:
            raise WireError(f"tagged segment of opcode {segment.opcode}")

    def _receive_write_record_segment(self, segment: Tagged) -> None:
        record, octets = parse_write_record_segment(segment.payload)
        _, at = self._record or (record, 0)
        if segment.to != record.to + at or segment.last != (at + len(octets) == record.length):
            raise WireError("a Write-Record out of order")
        wrong = self._place_octets(segment.stag, segment.to, octets)
        if wrong:
            self._report_error(segment, wrong)
            return
        self._record = (record, at + len(octets))
        if segment.last:
            self._record = None
            self._arrivals.append(Arrival(b"", octets=record.length, record=record))

    def _place_octets(self, stag: int, to: int, octets: bytes) -> tuple[int, int, int] | None:
        region = self._regions.get(stag)
        if region is None:
            return DDP_STAG
        if not region.contains(to, len(octets)):
            return DDP_BOUNDS
        if not region.write:
            return RDMAP_RIGHTS
        region.octets[to - region.base : to - region.base + len(octets)] = octets
        return None

    def _answer_read(self, segment: Untagged) -> None:
        sink, sink_to, length, stag, to = READ.unpack(segment.payload)
        region = self._regions.get(stag)
        wrong = None
        if length and region is None:
            wrong = RDMAP_STAG
        elif region is not None and not region.contains(to, length):
            wrong = RDMAP_BOUNDS
        elif region is not None and not region.read:
            wrong = RDMAP_RIGHTS
        if wrong:
            self._report_error(segment, wrong, segment.payload)
            return
        octets = b""
        if region is not None:
            octets = bytes(region.octets[to - region.base : to - region.base + length])
        response = Tagged(READ_RESPONSE, sink, sink_to, octets)
        self._queue_segments(
            split_message_into_segments(response, self._mulpdu - 14), Request("response"), True
        )

    def _answer_atomic(self, segment: Untagged) -> None:
        code, identifier, stag, to, operand, mask, compare, compare_mask = ATOMIC.unpack(
            segment.payload
        )
        region = self._regions.get(stag)
        wrong = None
        if region is None:
            wrong = RDMAP_STAG
        elif not region.contains(to, 8):
            wrong = RDMAP_BOUNDS
        elif code & 0xF not in (FETCH_ADD, CMP_SWAP):
            wrong = UNEXPECTED
        if wrong or region is None:
            self._report_error(segment, wrong or RDMAP_STAG)
            return
        at = to - region.base
        old = int.from_bytes(region.octets[at : at + 8], sys.byteorder)
        new = old
        if code & 0xF == FETCH_ADD:
            new = sum_by_masked_fields(old, operand, mask)
        elif not (compare ^ old) & compare_mask:
            new = old & ~mask | operand & mask
        region.octets[at : at + 8] = new.to_bytes(8, sys.byteorder)
        payload = ATOMIC_DONE.pack(identifier, old)
        self._send_untagged("response", Q_ATOMIC_RESPONSE, ATOMIC_RESPONSE, payload, response=True)

    def _report_error(
        self, segment: Segment, what: tuple[int, int, int], rdmap_header: bytes = b""
    ) -> None:
        """Report an error once, and ignore the rest of the message (DGRAM-RDV-7, -8)."""
        error = ErrorMessage(*what, len(segment.octets()), segment.header(), rdmap_header)
        self.refused.append(error)
        if not segment.last:
            if isinstance(segment, Tagged):
                self._refusing = ("tagged", segment.opcode)
            else:
                self._refusing = ("untagged", segment.qn, segment.msn)
        self._send_untagged("error", Q_ERROR, TERMINATE, error.payload(), response=True)

    def _fail_request_named_by_error_message(self, error: ErrorMessage) -> None:
        """Fail the request that an error message names by queue and MSN, or by STag and TO."""
        header = error.header
        if header[0] & 0x80:
            stag, to = struct.unpack_from("!IQ", header, 2)
            matches = [r for r in self._sent if r.queue is None and r.stag == stag and r.to <= to]
        else:
            queue, msn = struct.unpack_from("!II", header, 6)
            matches = [r for r in self._sent if (r.queue, r.msn) == (queue, msn)]
        if not matches:
            raise WireError("an error message about nothing")
        request = matches[-1]
        request.error, request.response_due = error, False
        self._reading = {k: r for k, r in self._reading.items() if r is not request}
        self._atomics = {k: r for k, r in self._atomics.items() if r is not request}
        self.start_queued_read_and_atomic_requests()


def sum_by_masked_fields(old: int, operand: int, mask: int) -> int:
    """Return the sum of two 64-bit words, added field by field as the mask says (RFC 7306 section
    5.1.1).
    """
    result = carry = 0
    for bit in range(64):
        total = (old >> bit & 1) + (operand >> bit & 1) + carry
        result |= (total & 1) << bit
        carry = total >> 1 if not mask >> bit & 1 else 0
    return result
