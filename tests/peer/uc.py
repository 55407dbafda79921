"""Both halves of a UC queue pair, as section 7 of the datagram-iWARP specification says."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from peer.link import Address, receive_waiting_datagrams
from peer.wire import (
    IMMEDIATE,
    IMMEDIATE_SE,
    PRIVATE,
    SEND,
    SEND_IMM,
    SEND_IMM_SE,
    SEND_SE,
    UC,
    WRITE,
    LlpHeader,
    Segment,
    Tagged,
    Untagged,
    WireError,
    append_crc,
    is_psn_at_or_after,
    make_immediate_payload,
    make_send,
    parse_llp_header,
    parse_segment,
    split_message_into_segments,
    verify_and_strip_crc,
)

FIRST = 0x01


@dataclass
class UcSender:
    """The sending half of a UC queue pair; PSN and MSN continue from operation to operation."""

    sock: socket.socket
    to: Address
    qkey: int
    psn: int
    mtu: int
    _msn: int = 0

    def send(
        self, payload: bytes, *, solicited: bool = False, immediate: bytes | None = None
    ) -> None:
        """Send an untagged message of any length, optionally with immediate data."""
        opcode, payload = make_send(payload, solicited, immediate)
        self._send_segments_of_operation(
            split_message_into_segments(self._build_next_untagged(opcode, payload), self.mtu)
        )

    def write(self, stag: int, to: int, payload: bytes, *, immediate: bytes | None = None) -> None:
        """Write to the other end's memory, and then send the immediate data, if any."""
        segments = split_message_into_segments(Tagged(WRITE, stag, to, payload), self.mtu)
        if immediate is not None:
            segments.append(self._build_next_untagged(IMMEDIATE, make_immediate_payload(immediate)))
        self._send_segments_of_operation(segments)

    def _build_next_untagged(self, opcode: int, payload: bytes) -> Untagged:
        self._msn += 1
        return Untagged(opcode, 0, self._msn, payload=payload)

    def _send_segments_of_operation(self, segments: Iterable[Segment]) -> None:
        flags = FIRST
        for segment in segments:
            header = LlpHeader(UC, self.qkey, self.psn, flags)
            self.sock.sendto(append_crc(header.octets() + segment.octets()), self.to)
            self.psn = (self.psn + 1) % (1 << 32)
            flags = 0


@dataclass(frozen=True)
class Delivery:
    """A completion of a receive; ``octets`` is the length that the completion reports."""

    payload: bytes
    immediate: bytes | None
    octets: int


@dataclass
class UcReceiver:
    """The receiving half of a UC queue pair, with receives that fit any message.

    ``memory`` is the area that a Write with ``stag`` can access, starting at the tagged offset
    ``base``.
    """

    qkey: int
    psn: int
    stag: int = 0
    base: int = 0
    memory: bytearray = field(default_factory=bytearray)
    delivered: list[Delivery] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    _whole: bool = False
    _message: bytearray | None = None
    _written: int | None = None

    def process_datagrams(self, sock: socket.socket) -> None:
        """Process all datagrams that are queued at the socket."""
        for datagram, _ in receive_waiting_datagrams(sock):
            self.process_datagram(datagram)

    def process_datagram(self, datagram: bytes) -> None:
        """Process a datagram according to the table of section 7 of the specification."""
        try:
            header, rest = parse_llp_header(verify_and_strip_crc(datagram))
            segment = parse_segment(rest)
        except WireError as error:
            self._count_dropped_datagram(str(error))
            return
        if header.type != UC or header.dest or header.source or header.qkey != self.qkey:
            self._count_dropped_datagram("not credible")
            return
        if isinstance(segment, Untagged) and segment.qn:
            self._count_dropped_datagram("queue")
            return
        if not is_psn_at_or_after(header.psn, self.psn):
            self._count_dropped_datagram("late")
            return
        if header.psn != self.psn:
            self.missing += 1
            self._discard_partial_message()
        self.psn = (header.psn + 1) % (1 << 32)
        if header.flags & FIRST:
            self._discard_partial_message()
            self._whole = True
        if isinstance(segment, Tagged):
            self._place_tagged_segment(segment)
        elif not self._whole:
            self._count_dropped_datagram("partial")
        elif segment.opcode in (IMMEDIATE, IMMEDIATE_SE):
            self._deliver_immediate(segment)
        elif segment.opcode in (SEND, SEND_SE, PRIVATE):
            self._reassemble_send(segment)
        else:
            self._drop_message("opcode")

    def _discard_partial_message(self) -> None:
        self._whole, self._message, self._written = False, None, None

    def _count_dropped_datagram(self, why: str) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + 1

    def _drop_message(self, why: str) -> None:
        self._count_dropped_datagram(why)
        self._discard_partial_message()

    def _place_tagged_segment(self, segment: Tagged) -> None:
        at = segment.to - self.base
        end = at + len(segment.payload)
        if segment.opcode != WRITE:
            self._drop_message("opcode")
        elif segment.stag != self.stag or at < 0 or end > len(self.memory):
            self._drop_message("access")
        else:
            self.memory[at:end] = segment.payload
            if self._whole:
                self._written = (self._written or 0) + len(segment.payload)

    def _deliver_immediate(self, segment: Untagged) -> None:
        if len(segment.payload) != 8:
            self._drop_message("header")
            return
        self.delivered.append(Delivery(b"", segment.payload[:4], self._written or 0))
        self._discard_partial_message()

    def _reassemble_send(self, segment: Untagged) -> None:
        if self._message is None:
            self._message = bytearray()
        if segment.mo != len(self._message):
            self._drop_message("header")
            return
        self._message += segment.payload
        if not segment.last:
            return
        whole, immediate = bytes(self._message), None
        if segment.opcode == PRIVATE:
            if len(whole) < 8 or whole[0] not in (SEND_IMM, SEND_IMM_SE):
                self._drop_message("opcode")
                return
            immediate, whole = whole[4:8], whole[8:]
        self.delivered.append(Delivery(whole, immediate, len(whole)))
        self._discard_partial_message()
