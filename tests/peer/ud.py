"""A UD queue pair, as sections 3 to 6 of the datagram-iWARP specification say."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from peer.link import Address, receive_waiting_datagrams
from peer.wire import (
    PRIVATE,
    SEND,
    SEND_IMM,
    SEND_IMM_SE,
    SEND_SE,
    TERMINATE,
    ErrorMessage,
    Untagged,
    WireError,
    append_crc,
    make_send,
    parse_error_message,
    parse_segment,
    verify_and_strip_crc,
)

QUEUE_SENDS, QUEUE_ERRORS = 0, 2


@dataclass(frozen=True)
class Message:
    """A received UD message."""

    payload: bytes
    immediate: bytes | None
    solicited: bool
    source: Address
    source_index: int
    msn: int


@dataclass(frozen=True)
class Report:
    """A received error message, and the index of the queue pair that sent it."""

    error: ErrorMessage
    source: Address
    source_index: int


def build_qn_field(queue: int, dest: int, source: int) -> int:
    """Return the field QN of figure 3.1, which combines a queue and the indices of two queue
    pairs.
    """
    return source << 16 | dest << 8 | queue


@dataclass
class UdPeer:
    """A UD queue pair with error policy *message* and an unlimited number of receives of one
    length.
    """

    sock: socket.socket
    qkey: int
    index: int = 0
    receive_octets: int = 65536
    group: bool = False
    messages: list[Message] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    too_long: int = 0
    _msn: int = 0
    _error_msn: int = 0

    def send(
        self,
        to: Address,
        payload: bytes,
        *,
        dest: int = 0,
        solicited: bool = False,
        immediate: bytes | None = None,
        qkey: int | None = None,
    ) -> Untagged:
        """Send a UD message, and return its segment."""
        opcode, payload = make_send(payload, solicited, immediate)
        self._msn += 1
        segment = Untagged(
            opcode,
            build_qn_field(QUEUE_SENDS, dest, self.index),
            self._msn,
            payload=payload,
            word=self.qkey if qkey is None else qkey,
        )
        self.sock.sendto(append_crc(segment.octets()), to)
        return segment

    def process_datagrams(self) -> None:
        """Process all datagrams that are queued at the socket."""
        for datagram, source in receive_waiting_datagrams(self.sock):
            self.process_datagram(datagram, source)

    def process_datagram(self, datagram: bytes, source: Address) -> None:
        """Apply the checks of table 6.1 in order; the comments name the rows of the table."""
        try:
            segment = parse_segment(verify_and_strip_crc(datagram))  # table 6.1, rows a and c
        except WireError as error:
            self.dropped.append(str(error))
            return
        if not isinstance(segment, Untagged):
            self.dropped.append("tagged")  # table 6.1, row a
        elif segment.qn >> 8 & 0xFF != self.index:
            self.dropped.append("destination")  # table 6.1, row b
        elif segment.qn & 3 == QUEUE_ERRORS and segment.opcode == TERMINATE:
            self._process_error(segment, source)  # table 6.1, row e
        elif segment.qn & 3 != QUEUE_SENDS:
            self.dropped.append("queue")  # table 6.1, row d
        elif segment.word != self.qkey:
            self.dropped.append("Q_Key")  # table 6.1, row f
        elif segment.opcode == TERMINATE:
            self.dropped.append("Terminate")  # table 6.1, row g
        elif not segment.last or segment.mo:
            self._send_error(segment, source, (1, 2, 4))  # table 6.1, row h
        elif segment.opcode not in (SEND, SEND_SE, PRIVATE):
            self._send_error(segment, source, (0, 2, 6))  # table 6.1, row i
        else:
            self._deliver_message(segment, source)

    def _deliver_message(self, segment: Untagged, source: Address) -> None:
        payload, immediate = segment.payload, None
        solicited = segment.opcode == SEND_SE
        if segment.opcode == PRIVATE:
            if len(payload) < 8 or payload[0] not in (SEND_IMM, SEND_IMM_SE):
                self._send_error(segment, source, (0, 2, 6))  # table 6.1, row i
                return
            solicited = payload[0] == SEND_IMM_SE
            immediate, payload = payload[4:8], payload[8:]
        if len(payload) > self.receive_octets:
            self.too_long += 1
            self._send_error(segment, source, (1, 2, 5))  # table 6.1, row k
            return
        index = segment.qn >> 16 & 0xFF
        self.messages.append(Message(payload, immediate, solicited, source, index, segment.msn))

    def _send_error(self, wrong: Untagged, source: Address, what: tuple[int, int, int]) -> None:
        if self.group:
            return
        self._error_msn += 1
        seg_len = len(wrong.header()) + len(wrong.payload)
        segment = Untagged(
            TERMINATE,
            build_qn_field(QUEUE_ERRORS, wrong.qn >> 16 & 0xFF, self.index),
            self._error_msn,
            payload=ErrorMessage(*what, seg_len, wrong.header()).payload(),
            word=wrong.word,
        )
        self.sock.sendto(append_crc(segment.octets()), source)

    def _process_error(self, segment: Untagged, source: Address) -> None:
        try:
            error = parse_error_message(segment.payload)
        except WireError as wrong:
            self.dropped.append(str(wrong))
            return
        self.reports.append(Report(error, source, segment.qn >> 16 & 0xFF))
