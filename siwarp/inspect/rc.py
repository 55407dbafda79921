# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Parses the messages of one direction of an RC connection from its octets, and checks them."""

from __future__ import annotations

import bisect
from typing import Any

from siwarp.inspect.framing import (
    CRC_LEN,
    LENGTH_LEN,
    Span,
    iterate_complete_fpdus,
    mpa_startup_frame_end_offset,
)
from siwarp.inspect.limits import count_against_limits
from siwarp.inspect.messages import (
    EXTENSION_CLAUSE,
    GAP,
    PART,
    REPLY,
    REQUEST,
    RTR,
    TERM_CLAUSES,
    Header,
    Message,
    address_text,
    check_header,
    expected_ddp_queue,
    header_fields,
    message_kind,
    parse_header,
    record_terminate_fields,
)
from siwarp.inspect.names import Opcode, TermLayer
from siwarp.inspect.stream import Direction, HalfConnection, find_fpdu_start
from siwarp.inspect.wire import Startup, parse_mpa_startup

#: Octets of the longest start-up frame.
STARTUP_MAX = 20 + (1 << 16)
LATE = "the capture begins after this connection did"
REST = "its beginning may be missing: the capture lacks what was sent before it"
CUT = "its last segment is not in the capture"


def _startup_fields(frame: Startup) -> dict[str, int | str]:
    found: dict[str, int | str] = {"rev": frame.rev, "m": frame.m, "c": frame.c}
    found |= {"r": frame.r, "s": frame.s, **frame.enhanced}
    found["private_data"] = frame.private_data.hex()
    return found


def startup_frame_of_direction(half: HalfConnection | None) -> Startup | None:
    """Return a direction's start-up frame; None if there is none, or only an incomplete one."""
    octets = bytes(half.octets[:STARTUP_MAX]) if half is not None else b""
    end = mpa_startup_frame_end_offset(octets)
    return parse_mpa_startup(octets[:end]) if end else None


class HalfConnectionReader:
    """Reads the messages of one direction of a connection, in order."""

    def __init__(
        self, direction: Direction, half: HalfConnection, crc: bool | None, marked: bool
    ) -> None:
        self.direction = direction
        self.half = half
        self.crc = crc  # whether the connection uses CRC; None: unknown
        self.marked = marked
        self.messages: list[Message] = []
        self.ends: list[int] = []  # the offset in the stream at which each message ends
        self.quoted: list[tuple[Message, Header | None]] = []
        self.missing = 0
        self._place_ends: list[int] = []
        self._open: Message | None = None
        self._open_end = 0
        self._before: tuple[Any, ...] = ()
        self._next: Header | None = None  # the header that the message's next segment must have
        self._msn: dict[int, int] = {}
        self._over = False  # whether a Terminate was sent
        self._may_be_empty = False  # whether the next FPDU may be empty, as an RTR

    def read(self) -> None:
        """Parse all messages of the direction, and fill ``messages``."""
        startup = startup_frame_of_direction(self.half)
        end = (
            (mpa_startup_frame_end_offset(bytes(self.half.octets[:STARTUP_MAX])) or 0)
            if startup
            else 0
        )
        origin = end if self.marked else None
        runs = self.half.contiguous_runs()
        self._place_ends = [place.end for place in self.half.places]
        for offset, octets in runs:
            if offset == 0 and startup is not None:
                self._add_startup_message(startup, end)
                self._parse_contiguous_octets(offset, octets, end, origin)
            else:
                self._parse_octets_after_gap(offset, octets, origin, startup is not None)

    def _parse_octets_after_gap(
        self, offset: int, octets: bytes, origin: int | None, known: bool
    ) -> None:
        """Parse octets after a gap, or of a stream whose start is not in the capture."""
        self._msn.clear()
        within = origin - offset if origin is not None else None
        at = find_fpdu_start(octets, offset, self.half.places, self.crc is not False, within)
        if known:
            self._add_gap_message(offset + (len(octets) if at is None else at))
        if at is None:
            return
        before = len(self.messages)
        mo = self._segment_mo(octets, at, within)
        self._parse_contiguous_octets(offset, octets, at, origin)
        if len(self.messages) == before:
            return
        first = self.messages[before]
        if not known:
            first.note = first.note or LATE
        elif mo is None or mo:
            first.whole = False
            first.note = first.note or REST

    @staticmethod
    def _segment_mo(octets: bytes, at: int, origin: int | None) -> int | None:
        """Return the MO of the segment at `at`; None for a tagged one, which may be anywhere in a
        message.
        """
        span = next(iter(iterate_complete_fpdus(octets, at, origin)), None)
        header = parse_header(span.octets[LENGTH_LEN : LENGTH_LEN + 18]) if span else None
        return header.mo if header is not None and not header.tagged else None

    def _parse_contiguous_octets(
        self, offset: int, octets: bytes, at: int, origin: int | None
    ) -> None:
        within = origin - offset if origin is not None else None
        for span in iterate_complete_fpdus(octets, at, within):
            count_against_limits()
            self._read_fpdu(span, offset)
            at = span.end
        if at == len(octets):
            self._end_incomplete_message(CUT)
        else:
            part = self._new_message(PART, len(octets) - at, offset + at, offset + len(octets))
            part.whole = False
            self._end_incomplete_message(CUT)
            self._append_message(part, offset + len(octets))

    def _new_message(self, kind: str, length: int, start: int, end: int) -> Message:
        places, ends = self.half.places, self._place_ends
        first = places[min(bisect.bisect_right(ends, start), len(places) - 1)]
        last = places[min(bisect.bisect_left(ends, end), len(places) - 1)]
        return Message(
            when_ns=last.when,
            began_ns=first.when,
            frame=last.frame,
            first_frame=first.frame,
            source=address_text(self.direction.source, self.direction.source_port),
            dest=address_text(self.direction.dest, self.direction.dest_port),
            kind=kind,
            length=length,
        )

    def _append_message(self, message: Message, end: int) -> None:
        count_against_limits(messages=1)
        self.messages.append(message)
        self.ends.append(end)

    def _add_startup_message(self, frame: Startup, end: int) -> None:
        message = self._new_message(
            REQUEST if frame.asks else REPLY, len(frame.private_data), 0, end
        )
        message.fields = _startup_fields(frame)
        self._may_be_empty = frame.asks and bool(message.fields.get("b"))
        if frame.r and not frame.asks:
            message.record_error("the connection was rejected", None)
        self._append_message(message, end)

    def _add_gap_message(self, upto: int) -> None:
        since = self.ends[-1] if self.ends else 0
        self._end_incomplete_message(CUT)
        message = self._new_message(GAP, upto - since, since, upto)
        message.whole = False
        message.note = (
            "octets that the capture lacks, and following octets that cannot be parsed without them"
        )
        self.missing += message.length
        self._append_message(message, upto)

    def _end_incomplete_message(self, note: str) -> None:
        if self._open is not None:
            self._open.whole = False
            self._open.note = note
            self._append_message(self._open, self._open_end)
            self._open = None

    def _read_fpdu(self, span: Span, offset: int) -> None:
        start, end = offset + span.start, offset + span.end
        length = int.from_bytes(span.octets[:LENGTH_LEN], "big")
        ready, self._may_be_empty = self._may_be_empty and not length, False
        if ready:
            self._append_message(self._new_message(RTR, 0, start, end), end)
            return
        header = parse_header(span.octets[LENGTH_LEN : LENGTH_LEN + min(length, 18)])
        payload = span.octets[LENGTH_LEN + header.size : LENGTH_LEN + length] if header else b""
        what = self._shared_header_fields(header)
        if self._open is not None and what != self._before:
            self._open.record_error("its last segment is missing", "RFC5041-4.1-03")
            self._end_incomplete_message("the next message begins before it")
        message = self._new_message(message_kind(header), len(payload), start, end)
        fresh = self._open is None
        if self._open is None:
            if header is not None:
                message.fields = header_fields(header, payload)
            self._open = message
        else:
            self._open.length += len(payload)
            self._open.segments += 1
            self._open.when_ns, self._open.frame = message.when_ns, message.frame
        self._open_end = end
        self._check_segment(self._open, header, payload, fresh)
        if (
            self.crc is not False
            and not span.crc_good
            and (self.crc or any(span.octets[-CRC_LEN:]))
        ):
            self._open.record_error("wrong CRC", TERM_CLAUSES[TermLayer.LLP])
        if not all(marker.agrees for marker in span.markers):
            self._open.record_error("a Marker that does not point to its FPDU", "RFC5044-4.3-03")
        self._before = what
        if header is None or header.last:
            self._append_message(self._open, end)
            self._open = None

    @staticmethod
    def _shared_header_fields(header: Header | None) -> tuple[Any, ...]:
        """Return the header fields that all segments of one message share."""
        if header is None:
            return ()
        if header.tagged:
            return (True, header.opcode, header.a)
        return (False, header.opcode, header.b, header.msn)

    def _check_segment(
        self, message: Message, header: Header | None, payload: bytes, fresh: bool
    ) -> None:
        check_header(message, header)
        if self._over:
            message.record_error("sent after its own Terminate", "RFC5040-5.4-08")
        if header is None:
            return
        before = self._next
        if header.tagged:
            if not fresh and before is not None and header.b != before.b:
                message.record_error(
                    "a segment that does not follow the one before", "RFC5041-5.3-03"
                )
            self._next = header._replace(b=header.b + len(payload))
        else:
            self._check_untagged_segment(message, header, fresh)
            self._next = header._replace(mo=header.mo + len(payload))
        if header.opcode == Opcode.TERMINATE and not header.tagged and fresh:
            quoted = record_terminate_fields(message, payload)
            if not self._over:  # messages after a Terminate have no meaning
                self.quoted.append((message, quoted))
            self._over = True

    def _check_untagged_segment(self, message: Message, header: Header, fresh: bool) -> None:
        due = expected_ddp_queue(header.opcode)
        if due is not None and header.b != due:
            clause = EXTENSION_CLAUSE if header.opcode > Opcode.TERMINATE else "RFC5040-4.1-07"
            message.record_error(f"queue {header.b} instead of {due}", clause)
        if fresh:
            msn = self._msn.get(header.b)
            if msn is not None and header.msn != msn:
                message.record_error(f"MSN {header.msn}, expected {msn}", "RFC5041-4.3-08")
            self._msn[header.b] = (header.msn + 1) % (1 << 32)
        mo = 0 if fresh else self._next.mo if self._next is not None else header.mo
        if header.mo != mo and (not fresh or msn is not None or header.msn == 1):
            message.record_error(f"MO {header.mo}, expected {mo}", "RFC5041-5.2-05")

    def count_retransmissions(self) -> int:
        """Count for each message the packets that retransmitted its octets. Return their total."""
        again = [place for place in self.half.again if place.end - place.start > 1]
        for place in again:
            at = bisect.bisect_right(self.ends, place.start)
            if at < len(self.messages):
                self.messages[at].retransmitted += 1
        return len(again)
