# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The messages of a capture, their streams, and their errors.

The two DDP headers are parsed here with struct and not with the scapy layers: a capture has
hundreds of thousands of headers, and scapy takes a millisecond for each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from siwarp.inspect.names import (
    OPCODES,
    PRIVATE_CODES,
    Opcode,
    Queue,
    TaggedPrivateCode,
    TermLayer,
    term_reason,
)
from siwarp.inspect.packets import Packet
from siwarp.inspect.wire import parse_terminate

#: The clause that lists the errors of each layer that a Terminate can name.
TERM_CLAUSES = {
    TermLayer.RDMA: "RFC5040-4.8-03",
    TermLayer.DDP: "RFC5041-7.2-01",
    TermLayer.LLP: "RFC5044-8-01",
}
#: Error codes of the LLP that MPA's enhanced start-up added.
ENHANCED_CODES = (5, 6, 7)
ENHANCED_CLAUSE = "RFC6581-8"
#: First word of a capture's comment on a dropped datagram -> clause that the datagram violates.
DROP_CLAUSES = {
    "drop_short": "RFC5041-4.3-01",
    "drop_crc": "RFC5041-3-07",
    "drop_version": "RFC5041-4.1-09",
    "drop_header": "RFC5041-7.1-01",
    "drop_qn": "RFC5041-7.1-01",
    "drop_opcode": "RFC5040-7.2-07",
    "drop_qkey": "DGRAM-UD-4",
    "drop_no_buffer": "RFC5041-7.1-01",
    "drop_too_long": "RFC5041-7.1-01",
    "err_stale": "DGRAM-ERR-9",
    "err_malformed": "DGRAM-ERR-12",
}
RDMAP_VERSION_CLAUSE = "RFC5040-7.2-08"
#: The clause for the fields of RFC 7306's message headers.
EXTENSION_CLAUSE = "RFC7306-4.1-01"
#: Kinds of messages in addition to the opcodes' names.
REQUEST, REPLY, GAP, PART, BROKEN = "MPA_REQUEST", "MPA_REPLY", "GAP", "PART", "BROKEN"
RTR = "RTR"

_TAGGED = struct.Struct(">BBIQ")
_UNTAGGED = struct.Struct(">BBIIII")
_READ_REQUEST = struct.Struct(">IQIIQ")
_ATOMIC_REQUEST = struct.Struct(">IIIQQQQQ")
_ATOMIC_RESPONSE = struct.Struct(">IQ")
_IMMEDIATE = struct.Struct(">II")
_PRIVATE = struct.Struct(">B3xI")
READ_REQUEST_FIELDS = ("sink_stag", "sink_to", "size", "src_stag", "src_to")
ATOMIC_FIELDS = ("code", "request", "stag", "to", "data", "mask", "compare", "compare_mask")
#: opcode -> the struct of the header that follows the DDP header, and the names of its fields.
_OWN_HEADERS: dict[int, tuple[struct.Struct, tuple[str, ...]]] = {
    Opcode.RDMA_READ_REQUEST: (_READ_REQUEST, READ_REQUEST_FIELDS),
    Opcode.ATOMIC_REQUEST: (_ATOMIC_REQUEST, ATOMIC_FIELDS),
    Opcode.ATOMIC_RESPONSE: (_ATOMIC_RESPONSE, ("request", "old")),
    Opcode.IMMEDIATE: (_IMMEDIATE, ("data", "rest")),
    Opcode.IMMEDIATE_SE: (_IMMEDIATE, ("data", "rest")),
    Opcode.PRIVATE: (_PRIVATE, ("subcode", "data")),
}
_QUEUES: dict[int, int] = {
    Opcode.RDMA_READ_REQUEST: Queue.READ_REQUEST,
    Opcode.ATOMIC_REQUEST: Queue.READ_REQUEST,
    Opcode.ATOMIC_RESPONSE: Queue.ATOMIC_RESPONSE,
    Opcode.TERMINATE: Queue.TERMINATE,
}
_TAGGED_OPCODES = (Opcode.RDMA_WRITE, Opcode.RDMA_READ_RESPONSE)


@dataclass(slots=True)
class Message:
    """A message, complete or in part. Times are in seconds since 1970, lengths in octets.

    `kind` is an opcode's name, or MPA_REQUEST or MPA_REPLY (the length is that of the private
    data), RTR (the empty FPDU that may open a peer-to-peer connection), PART (a part of a frame at
    the end of a stream, or of a datagram whose first fragment is missing), BROKEN (no header
    matches), or GAP: octets that the capture lacks, which is not an error of the peers.
    """

    number: int = 0
    stream: int = 0
    time: float = 0.0  # arrival of the message's last octet
    when_ns: int = 0  # `time` in ns, which a float cannot hold exactly
    began_ns: int = 0
    frame: int = 0  # number, from 1, of the packet with the last octet
    first_frame: int = 0
    transport: str = "rc"
    source: str = ""
    dest: str = ""
    kind: str = ""
    length: int = 0
    segments: int = 1
    whole: bool = True
    fields: dict[str, int | str] = field(default_factory=dict)
    answers: int | None = None  # in a response: number of its request
    answered_by: int | None = None
    latency: float | None = None  # in a response: seconds since the end of its request
    about: int | None = None  # in a Terminate: number of the message whose header it quotes
    retransmitted: int = 0  # number of packets that retransmitted octets of the message
    retransmits: int | None = None  # RD: number of the message that this datagram retransmits
    dropped: str | None = None  # the receiver's reason for dropping the message
    error: str | None = None
    clause: str | None = None
    note: str | None = None  # remark about the capture, not about the message

    def record_error(self, error: str, clause: str | None) -> None:
        """Record an error of the message, unless an earlier error is recorded."""
        if self.error is None:
            self.error, self.clause = error, clause


@dataclass
class Stream:
    """A connection, or the datagrams between two UD addresses; times in seconds."""

    number: int = 0
    transport: str = "rc"
    source: str = ""  # address of the initiator
    dest: str = ""
    first_frame: int = 0
    time: float = 0.0
    seconds: float = 0.0
    request: dict[str, int | str] | None = None  # fields of the MPA start-up frames
    reply: dict[str, int | str] | None = None
    crc: bool | None = None  # whether CRC is in use; None: unknown
    markers: dict[str, bool] = field(default_factory=dict)  # whether Markers are used, by sender
    messages: dict[str, int] = field(default_factory=dict)  # number of messages by kind
    octets: dict[str, int] = field(default_factory=dict)
    read_latency: dict[str, float] | None = None  # minimum, median and maximum in seconds
    errors: int = 0
    retransmitted: int = 0
    missing: int = 0  # number of octets that the capture lacks
    ended: str | None = None


class Header(NamedTuple):
    """A DDP header, including RDMAP's fields."""

    tagged: bool
    last: bool
    dv: int
    rv: int
    opcode: int
    ddp_rsvd: int
    size: int  # length of the header in octets
    a: int  # tagged header: STag; untagged header: the field for Invalidate STag or Q_Key
    b: int  # TO of a tagged header, QN of an untagged one
    msn: int
    mo: int


def parse_header(octets: bytes) -> Header | None:
    """Return the header at the start of a segment; None if the segment is too short."""
    if not octets:
        return None
    msn = mo = 0
    tagged = bool(octets[0] & 0x80)
    layout = _TAGGED if tagged else _UNTAGGED
    if len(octets) < layout.size:
        return None
    if tagged:
        control, rdmap, a, b = _TAGGED.unpack_from(octets)
    else:
        control, rdmap, a, b, msn, mo = _UNTAGGED.unpack_from(octets)
    return Header(
        tagged=tagged,
        last=bool(control & 0x40),
        dv=control & 3,
        rv=rdmap >> 6,
        opcode=rdmap & 0xF,
        ddp_rsvd=control >> 2 & 0xF,
        size=layout.size,
        a=a,
        b=b,
        msn=msn,
        mo=mo,
    )


def message_kind(header: Header | None) -> str:
    """Return the name of the kind of message to which a DDP header belongs."""
    if header is None:
        return BROKEN
    return OPCODES.get(header.opcode, f"opcode {header.opcode:#x}")


def _parse_tagged_private_fields(header: Header) -> dict[str, int | str]:
    """Return the fields of a tagged private message without payload (spec/delivery-counts.md)."""
    subcode, to = header.a >> 24, header.b
    found: dict[str, int | str] = {"subcode": subcode}
    if subcode == TaggedPrivateCode.DELIVERY_COUNT:
        found.update(sends=to >> 32, writes=to & 0xFFFFFFFF)
    elif subcode == TaggedPrivateCode.REQUESTER:
        found.update(wants_counts=to >> 8 & 1, rnr_retry=to & 0xFF)
    return found


def header_fields(header: Header, payload: bytes, ud: bool = False) -> dict[str, int | str]:
    """Return a message's header fields by name, including those of the message's own header."""
    if header.tagged:
        tagged_private = header.opcode == Opcode.PRIVATE and not payload
        return (
            _parse_tagged_private_fields(header)
            if tagged_private
            else {"stag": header.a, "to": header.b}
        )
    found: dict[str, int | str] = {"qn": header.b, "msn": header.msn}
    found["q_key" if ud else "inv_stag"] = header.a
    if ud:  # which of the queue pairs that share a socket is the destination, and the source
        found["dest_index"] = header.b >> 8 & 0xFF
        found["source_index"] = header.b >> 16 & 0xFF
    layout, names = _OWN_HEADERS.get(header.opcode, (None, ()))
    if layout is not None and len(payload) >= layout.size:
        found.update(zip(names, layout.unpack_from(payload), strict=True))
    if "code" in found:  # the upper four bits of the octet are reserved
        found["code"] = int(found["code"]) & 0xF
    return found


def expected_ddp_queue(opcode: int) -> int | None:
    """Return the queue for a message with this opcode; None for tagged and unknown opcodes."""
    if opcode in _TAGGED_OPCODES or opcode not in OPCODES:
        return None
    return int(_QUEUES.get(opcode, Queue.SEND))


def check_header(message: Message, header: Header | None) -> None:
    """Record in a message the errors of its header that every receiver would reject."""
    if header is None:
        message.record_error("no DDP header", "RFC5041-4.3-01")
    elif header.dv != 1:
        message.record_error(f"DDP version {header.dv}", "RFC5041-4.1-09")
    elif header.rv > 1:
        message.record_error(f"RDMAP version {header.rv}", "RFC5040-7.2-03")
    elif header.opcode not in OPCODES:
        message.record_error(f"unknown opcode {header.opcode:#x}", "RFC5040-7.2-02")
    elif header.opcode == Opcode.PRIVATE:
        pass  # the subcode in the payload determines the message's kind and its queue
    elif header.tagged != (expected_ddp_queue(header.opcode) is None):
        word = "tagged" if header.tagged else "untagged"
        clause = EXTENSION_CLAUSE if header.opcode > Opcode.TERMINATE else "RFC5040-4.1-05"
        message.record_error(f"{message_kind(header)} in {word} segments", clause)


def check_ud_segment(message: Message, header: Header) -> None:
    """Record in a message the errors of its DDP segment that apply only to UD."""
    private = header.opcode == Opcode.PRIVATE and message.fields.get("subcode") in PRIVATE_CODES
    if header.opcode not in (Opcode.SEND, Opcode.SEND_SE, Opcode.TERMINATE) and not private:
        message.record_error(f"{message_kind(header)} on UD", "DGRAM-UD-2")
    elif not header.last or header.mo:
        message.record_error("a part of a message on UD", "DGRAM-UD-1")


def record_terminate_fields(message: Message, payload: bytes) -> Header | None:
    """Record a Terminate's numbers, as fields and in words; return the header that it quotes."""
    found = parse_terminate(payload)
    if found is None:
        message.record_error("a truncated Terminate", "RFC5040-4.8-01")
        return None
    layer, code = found.layer, found.code
    message.fields.update(layer=layer, etype=found.etype, code=code)
    clause = TERM_CLAUSES.get(TermLayer(layer)) if layer <= TermLayer.LLP else None
    if layer == TermLayer.LLP and code in ENHANCED_CODES:
        clause = ENHANCED_CLAUSE
    message.record_error(term_reason(layer, found.etype, code), clause)
    return parse_header(found.quoted) if found.quoted else None


def is_quoted_header_of(quoted: Header, message: Message) -> bool:
    """Return whether the header that a Terminate quotes belongs to ``message``."""
    named = message.fields
    if not quoted.tagged:
        return (named.get("qn"), named.get("msn")) == (quoted.b, quoted.msn)
    first = named.get("to")
    if named.get("stag") != quoted.a or not isinstance(first, int):
        return False
    return first <= quoted.b <= first + message.length


@lru_cache(maxsize=4096)
def address_text(host: str, port: int) -> str:
    """Return an IP address and port as text, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def message_of_datagram(
    packet: Packet, transport: str, *, kind: str, length: int, fields: dict[str, int | str]
) -> Message:
    """Return the message of a UDP datagram, without a check for errors.

    The message is not whole if the capture lacks octets of the datagram.
    """
    return Message(
        when_ns=packet.when,
        began_ns=packet.when,
        frame=packet.frame,
        first_frame=packet.frame,
        transport=transport,
        source=address_text(packet.source, packet.source_port),
        dest=address_text(packet.dest, packet.dest_port),
        kind=kind,
        length=length,
        fields=fields,
        whole=not packet.missing,
        dropped=packet.comment,
        note=packet.missing_description if packet.missing else None,
    )
