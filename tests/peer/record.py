"""Both ends of Write-Record over UD, as section 8 of the datagram-iWARP specification says."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field

from peer.link import Address, receive_waiting_datagrams
from peer.wire import (
    PRIVATE,
    RECORD,
    WRITE_RECORD,
    LlpHeader,
    Tagged,
    WireError,
    append_crc,
    parse_llp_header,
    parse_segment,
    verify_and_strip_crc,
)

# Fields: subcode, flags, zero, message id, TO, and length of the message in octets.
HEADER = struct.Struct("!BBHIQI")
SOLICITED = 1


@dataclass(frozen=True)
class WriteRecordHeader:
    """The RDMAP header of a Write-Record segment (figure 8.1)."""

    message_id: int
    to: int
    length: int
    solicited: bool = False

    def octets(self) -> bytes:
        """Return the 20 octets of the header."""
        flags = SOLICITED if self.solicited else 0
        return HEADER.pack(WRITE_RECORD, flags, 0, self.message_id, self.to, self.length)


def parse_write_record_segment(payload: bytes) -> tuple[WriteRecordHeader, bytes]:
    """Return the header of a Write-Record segment, and the octets of the message that follow it."""
    if len(payload) < HEADER.size:
        raise WireError("Write-Record: length")
    subcode, flags, _, message_id, to, length = HEADER.unpack_from(payload)
    if subcode != WRITE_RECORD:
        raise WireError("Write-Record: subcode")
    header = WriteRecordHeader(message_id, to, length, bool(flags & SOLICITED))
    return header, payload[HEADER.size :]


def split_write_record_into_segments(
    header: WriteRecordHeader, stag: int, payload: bytes, size: int
) -> list[Tagged]:
    """Return the segments of a Write-Record message, each with at most ``size`` octets of its
    data.
    """
    head = header.octets()
    return [
        Tagged(
            PRIVATE,
            stag,
            header.to + at,
            head + payload[at : at + size],
            at + size >= len(payload),
        )
        for at in range(0, max(len(payload), 1), size)
    ]


@dataclass
class WriteRecordSource:
    """The end that sends Write-Records; its PSN counts datagrams from 0."""

    sock: socket.socket
    to: Address
    qkey: int
    message_id: int
    size: int = 1024
    index: int = 0
    psn: int = 0

    def write(self, stag: int, to: int, payload: bytes, *, solicited: bool = False) -> int:
        """Send a Write-Record, and return its message id."""
        header = WriteRecordHeader(self.message_id, to, len(payload), solicited)
        for segment in split_write_record_into_segments(header, stag, payload, self.size):
            self.send_segment(segment)
        self.message_id = (self.message_id + 1) % (1 << 32)
        return header.message_id

    def send_segment(self, segment: Tagged) -> None:
        """Send one segment of a Write-Record message."""
        header = LlpHeader(RECORD, self.qkey, self.psn, source=self.index)
        self.sock.sendto(append_crc(header.octets() + segment.octets()), self.to)
        self.psn += 1


@dataclass
class ReceivedParts:
    """The received parts of one Write-Record message."""

    header: WriteRecordHeader
    ranges: list[tuple[int, int]] = field(default_factory=list)
    last_seen: bool = False

    def add_range(self, start: int, end: int) -> None:
        """Add a range of received octets; adjacent ranges are merged."""
        joined = []
        for a, b in sorted([*self.ranges, (start, end)]):
            if joined and a <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(b, joined[-1][1]))
            else:
                joined.append((a, b))
        self.ranges = joined

    def is_complete(self) -> bool:
        """Return whether every octet of the message has arrived."""
        return self.ranges == [(0, self.header.length)]


@dataclass
class WriteRecordTarget:
    """The end whose memory is written; it keeps all messages, and incomplete ones do not expire."""

    qkey: int
    stag: int
    base: int
    memory: bytearray
    messages: dict[int, ReceivedParts] = field(default_factory=dict)
    psns: list[int] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def process_datagrams(self, sock: socket.socket) -> None:
        """Process all datagrams that are queued at the socket."""
        for datagram, _ in receive_waiting_datagrams(sock):
            self.process_datagram(datagram)

    def process_datagram(self, datagram: bytes) -> None:
        """Check and place the segment of a datagram according to table 8.2."""
        try:
            header, rest = parse_llp_header(verify_and_strip_crc(datagram))
            segment = parse_segment(rest)
            if header.type != RECORD or header.dest or header.qkey != self.qkey:
                raise WireError("not credible")
            if not isinstance(segment, Tagged) or segment.opcode != PRIVATE:
                raise WireError("no Write-Record")
            record, octets = parse_write_record_segment(segment.payload)
        except WireError as error:
            self.dropped.append(str(error))
            return
        self.psns.append(header.psn)
        start = segment.to - record.to
        end = start + len(octets)
        message = self.messages.get(record.message_id)
        if start < 0 or end > record.length or segment.last != (end == record.length):
            self.dropped.append("does not lie in its message")
        elif not octets and record.length:
            self.dropped.append("empty")
        elif message is not None and message.header != record:
            self.dropped.append("contradicts")
        elif segment.stag != self.stag or not self._contains(segment.to, len(octets)):
            self.dropped.append("STag")
        else:
            message = self.messages.setdefault(record.message_id, ReceivedParts(record))
            message.add_range(start, end)
            message.last_seen |= segment.last
            at = segment.to - self.base
            self.memory[at : at + len(octets)] = octets

    def _contains(self, to: int, length: int) -> bool:
        return self.base <= to and to + length <= self.base + len(self.memory)
