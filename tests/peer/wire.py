"""The formats of datagram-iWARP, written only from spec/datagram-iwarp.md and its RFCs.

The modules of tests/peer demonstrate that the specification is complete: only the tests, and
ours.py for the siwarp end, import siwarp.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import crc32c

# LLP types (section 2).
UC, RECORD = 1, 2

# RDMAP opcodes (RFC 5040 figure 3, RFC 7306 figure 2, section 10).
WRITE, READ_REQUEST, READ_RESPONSE = 0, 1, 2
SEND, SEND_INVALIDATE, SEND_SE, SEND_SE_INVALIDATE = 3, 4, 5, 6
TERMINATE, IMMEDIATE, IMMEDIATE_SE = 7, 8, 9
ATOMIC_REQUEST, ATOMIC_RESPONSE, PRIVATE = 10, 11, 15

# Subcodes of the messages with the opcode PRIVATE.
SEND_IMM, SEND_IMM_SE, WRITE_RECORD = 1, 2, 3

TAGGED_HEADER, UNTAGGED_HEADER, CRC_OCTETS = 14, 18, 4


class WireError(Exception):
    """Received octets that are not a datagram or segment of datagram-iWARP."""


def append_crc(octets: bytes) -> bytes:
    """Return a datagram: the octets and their CRC32C, least significant octet first."""
    return octets + struct.pack("<I", crc32c.crc32c(octets))


def verify_and_strip_crc(datagram: bytes) -> bytes:
    """Return a datagram without its CRC; raise WireError if the CRC is wrong."""
    body = datagram[:-CRC_OCTETS]
    if len(datagram) <= CRC_OCTETS or append_crc(body) != datagram:
        raise WireError("CRC")
    return body


@dataclass(frozen=True)
class Untagged:
    """An untagged segment (RFC 5041 section 4.2); ``word`` is the 32-bit part of RsvdULP."""

    opcode: int
    qn: int
    msn: int
    mo: int = 0
    payload: bytes = b""
    last: bool = True
    word: int = 0

    def header(self) -> bytes:
        """Return the 18 octets of the header."""
        control = 0x01 | (0x40 if self.last else 0)
        return struct.pack(
            "!BBIIII", control, 0x40 | self.opcode, self.word, self.qn, self.msn, self.mo
        )

    def octets(self) -> bytes:
        """Return the octets of the segment."""
        return self.header() + self.payload


@dataclass(frozen=True)
class Tagged:
    """A tagged segment (RFC 5041 section 4.1)."""

    opcode: int
    stag: int
    to: int
    payload: bytes = b""
    last: bool = True

    def header(self) -> bytes:
        """Return the 14 octets of the header."""
        control = 0x81 | (0x40 if self.last else 0)
        return struct.pack("!BBIQ", control, 0x40 | self.opcode, self.stag, self.to)

    def octets(self) -> bytes:
        """Return the octets of the segment."""
        return self.header() + self.payload


Segment = Untagged | Tagged


def parse_segment(octets: bytes, rdmap_versions: tuple[int, ...] = (1,)) -> Segment:
    """Parse a DDP segment; only the versions in its header are checked."""
    if len(octets) < TAGGED_HEADER:
        raise WireError("segment: length")
    ddp, rdmap = octets[0], octets[1]
    if ddp & 3 != 1:
        raise WireError("DDP version")
    last, opcode = bool(ddp & 0x40), rdmap & 0xF
    if ddp & 0x80:
        stag, to = struct.unpack_from("!IQ", octets, 2)
        segment: Segment = Tagged(opcode, stag, to, octets[TAGGED_HEADER:], last)
    else:
        if len(octets) < UNTAGGED_HEADER:
            raise WireError("untagged segment: length")
        word, qn, msn, mo = struct.unpack_from("!IIII", octets, 2)
        segment = Untagged(opcode, qn, msn, mo, octets[UNTAGGED_HEADER:], last, word)
    if rdmap >> 6 not in rdmap_versions:
        raise WireError("RDMAP version")
    return segment


LLP = struct.Struct("!BBBBII")


@dataclass(frozen=True)
class LlpHeader:
    """The LLP header, which every datagram has except a plain DDP segment."""

    type: int
    qkey: int
    psn: int
    flags: int = 0
    dest: int = 0
    source: int = 0

    def octets(self) -> bytes:
        """Return the 12 octets of the header; octet 0 has version 1 and kind 10 (DGRAM-LLP-1)."""
        first = self.type << 4 | 1 << 2 | 2
        return LLP.pack(first, self.flags, self.dest, self.source, self.qkey, self.psn)


def parse_llp_header(body: bytes) -> tuple[LlpHeader, bytes]:
    """Return the LLP header of a datagram without its CRC, and the octets that follow the
    header.
    """
    if len(body) < LLP.size:
        raise WireError("LLP header: length")
    first, flags, dest, source, qkey, psn = LLP.unpack_from(body)
    if first & 3 != 2:
        raise WireError("no LLP header")
    if first >> 2 & 3 != 1:
        raise WireError("LLP version")
    return LlpHeader(first >> 4, qkey, psn, flags, dest, source), body[LLP.size :]


@dataclass(frozen=True)
class ErrorMessage:
    """The contents of a Terminate Message (figure 6.1); M and D are always 1 in datagram-iWARP."""

    layer: int
    type: int
    code: int
    seg_len: int
    header: bytes
    rdmap_header: bytes = b""

    def payload(self) -> bytes:
        """Return the Terminate header and the quoted headers in wire format."""
        bits = 0xC0 | (0x20 if self.rdmap_header else 0)
        head = struct.pack("!BBBBH", self.layer << 4 | self.type, self.code, bits, 0, self.seg_len)
        return head + self.header + self.rdmap_header


def parse_error_message(payload: bytes) -> ErrorMessage:
    """Parse the payload of a Terminate as an error message (DGRAM-ERR-12)."""
    if len(payload) < 6 or len(payload) > 52 or payload[2] & 0xC0 != 0xC0:
        raise WireError("error message without M and D, or its length")
    first, code, bits, _, seg_len = struct.unpack_from("!BBBBH", payload)
    quoted = payload[6:]
    size = TAGGED_HEADER if quoted[:1] and quoted[0] & 0x80 else UNTAGGED_HEADER
    if len(quoted) < size:
        raise WireError("error message: the quoted header is not whole")
    rdmap_header = quoted[size:] if bits & 0x20 else b""
    return ErrorMessage(first >> 4, first & 0xF, code, seg_len, quoted[:size], rdmap_header)


def make_immediate_payload(data: bytes) -> bytes:
    """Return the payload of an Immediate Data message (figure 10.1)."""
    return data + bytes(4)


def make_immediate_send_head(subcode: int, immediate: bytes) -> bytes:
    """Return the private head of a Send with Immediate (figure 10.2)."""
    return struct.pack("!Bxxx4s", subcode, immediate)


def make_send(payload: bytes, solicited: bool, immediate: bytes | None) -> tuple[int, bytes]:
    """Return opcode and payload of a Send, which with immediate data is a private message."""
    if immediate is None:
        return SEND_SE if solicited else SEND, payload
    subcode = SEND_IMM_SE if solicited else SEND_IMM
    return PRIVATE, make_immediate_send_head(subcode, immediate) + payload


def split_message_into_segments(message: Untagged | Tagged, size: int) -> list[Segment]:
    """Return the segments of a message, each with at most ``size`` octets of payload."""
    parts: list[Segment] = []
    whole = message.payload
    for at in range(0, max(len(whole), 1), size):
        payload, last = whole[at : at + size], at + size >= len(whole)
        if isinstance(message, Tagged):
            parts.append(replace(message, to=message.to + at, payload=payload, last=last))
        else:
            parts.append(replace(message, mo=message.mo + at, payload=payload, last=last))
    return parts


def is_psn_at_or_after(psn: int, than: int) -> bool:
    """Return whether a 32-bit serial number is equal to or later than another one (RFC 1982)."""
    return (psn - than) % (1 << 32) < 1 << 31
