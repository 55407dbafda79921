"""The header and bodies of RD datagrams, from section 9 of the datagram-iWARP specification."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from peer.wire import (
    LlpHeader,
    WireError,
    append_crc,
    is_psn_at_or_after,
    parse_llp_header,
    verify_and_strip_crc,
)

DATA, ACK, HELLO, CHALLENGE, ECHO, PROBE, BYE, VERSIONS = range(4, 12)
PROBED, ANSWER, RESPONSE, NOT_READY = 0x01, 0x02, 0x04, 0x08
CLOSES, UNKNOWN_PAIR, WRONG_MSN = 0, 1, 2

REQUESTS, RESPONSES = 0, 1

REST = struct.Struct("!IIIIHHHBB")
ACK_HEAD = struct.Struct("!IBBBB")
RANGE = struct.Struct("!HH")
HEADER_OCTETS = 36
#: The longest segment: 1200 octets minus the RD header and the CRC (DGRAM-RD-29).
SEGMENT_OCTETS = 1200 - HEADER_OCTETS - 4
MOST_RANGES = 256

# The head and options of HELLO, CHALLENGE, ECHO and VERSIONS (section 9.1).
HEAD = struct.Struct("!BBH")
OPTION_HEAD = struct.Struct("!BB")
OUR_VERSIONS = 1 << 1
LONGEST_SEGMENT, WINDOW, FEATURES, INSTANCE = 1, 2, 3, 4
OPTION_OCTETS = {LONGEST_SEGMENT: 4, WINDOW: 4, FEATURES: 4, INSTANCE: 8}
GREETING_OCTETS = 64
LEAST_SEGMENT, LEAST_WINDOW = 1160, 64
NEXT = 1 << 32


def count_credit_units(segment: bytes) -> int:
    """Return how many credit units a segment of RD uses."""
    return max((len(segment) + 1023) // 1024, 1)


@dataclass(frozen=True)
class Datagram:
    """An RD datagram; each tuple has a value for the request space and one for the response
    space.
    """

    type: int
    qkey: int
    source: int
    dest: int
    psn: int = 0
    acknowledged: tuple[int, int] = (0, 0)
    credit: tuple[int, int] = (0, 0)
    delay: int = 0
    ird_or_reason: int = 0
    flags: int = 0
    body: bytes = b""

    def octets(self) -> bytes:
        """Return the datagram in its wire format."""
        head = LlpHeader(self.type, self.qkey, self.psn).octets()
        rest = REST.pack(
            self.source,
            self.dest,
            *self.acknowledged,
            *self.credit,
            self.delay,
            self.ird_or_reason,
            self.flags,
        )
        return append_crc(head + rest + self.body)


def parse_datagram(datagram: bytes) -> Datagram:
    """Parse the octets of an RD datagram."""
    header, rest = parse_llp_header(verify_and_strip_crc(datagram))
    if not DATA <= header.type <= VERSIONS:
        raise WireError("type")
    if header.dest:
        raise WireError("destination index")
    if len(rest) < REST.size:
        raise WireError("RD header: length")
    source, dest, ack, response_ack, credit, response_credit, delay, ird, flags = REST.unpack_from(
        rest
    )
    return Datagram(
        header.type,
        header.qkey,
        source,
        dest,
        header.psn,
        (ack, response_ack),
        (credit, response_credit),
        delay,
        ird,
        flags,
        rest[REST.size :],
    )


@dataclass(frozen=True)
class AckBody:
    """The body of an ACK (figure 9.2); ranges are (gap, length), of requests and of responses."""

    ranges: tuple[list[tuple[int, int]], list[tuple[int, int]]] = field(
        default_factory=lambda: ([], [])
    )
    ce_count: int = 0
    rnr_timer: int = 0

    def octets(self) -> bytes:
        """Return the body of the ACK in its wire format."""
        counts = [len(ranges) for ranges in self.ranges]
        head = ACK_HEAD.pack(self.ce_count, self.rnr_timer, *counts, 0)
        return head + b"".join(RANGE.pack(*r) for ranges in self.ranges for r in ranges)


def parse_ack(body: bytes) -> AckBody:
    """Parse the body of an ACK."""
    if len(body) < ACK_HEAD.size:
        raise WireError("ACK: length")
    ce_count, rnr_timer, requests, responses, _ = ACK_HEAD.unpack_from(body)
    if len(body) != ACK_HEAD.size + RANGE.size * (requests + responses):
        raise WireError("ACK: number of ranges")
    found = list(RANGE.iter_unpack(body[ACK_HEAD.size :]))
    return AckBody((found[:requests], found[requests:]), ce_count, rnr_timer)


def ack_ranges_of_psns(acknowledged: int, stored: list[int]) -> list[tuple[int, int]]:
    """Return the ACK ranges for stored PSNs beyond the acknowledged PSN."""
    ranges: list[tuple[int, int]] = []
    at = 0
    for distance in sorted((psn - acknowledged) % NEXT for psn in stored):
        if ranges and distance == at:
            gap, length = ranges[-1]
            ranges[-1] = (gap, length + 1)
        else:
            ranges.append((distance - at, 1))
        at = distance + 1
    return ranges


def psns_of_ranges(acknowledged: int, ranges: list[tuple[int, int]]) -> list[int]:
    """Return the PSNs that the ranges of an ACK acknowledge."""
    found, at = [], acknowledged
    for gap, length in ranges:
        at = (at + gap) % NEXT
        found += [(at + i) % NEXT for i in range(length)]
        at = (at + length) % NEXT
    return found


def psn_within(psn: int, first: int, after: int) -> bool:
    """Return whether a PSN is in the range from ``first`` up to but excluding ``after``."""
    return is_psn_at_or_after(psn, first) and (psn - first) % NEXT < (after - first) % NEXT


def encode_handshake_body(options: dict[int, bytes], versions: int = OUR_VERSIONS) -> bytes:
    """Return the head and options of a handshake datagram in wire format."""
    packed = b"".join(OPTION_HEAD.pack(t, len(value)) + value for t, value in options.items())
    return HEAD.pack(versions, 0, len(packed)) + packed


@dataclass(frozen=True)
class Greeting:
    """The parsed head and options of a handshake datagram, and their octets."""

    octets: bytes
    versions: int
    longest_segment: int = LEAST_SEGMENT
    window: int = LEAST_WINDOW
    instance: int = 0


def parse_handshake_body(body: bytes) -> tuple[Greeting, bytes]:
    """Parse the head and options at the beginning of a body; return them and the rest
    (DGRAM-EXT-2).
    """
    if len(body) < HEAD.size:
        raise WireError("head: length")
    versions, _, length = HEAD.unpack_from(body)
    end = HEAD.size + length
    if end > len(body) or not versions & OUR_VERSIONS:
        raise WireError("head: options go past the datagram, or versions")
    found, at = {LONGEST_SEGMENT: LEAST_SEGMENT, WINDOW: LEAST_WINDOW}, HEAD.size
    told = False
    while at < end:
        if at + OPTION_HEAD.size > end:
            raise WireError("option: head")
        kind, size = OPTION_HEAD.unpack_from(body, at)
        value = body[at + OPTION_HEAD.size : at + OPTION_HEAD.size + size]
        at += OPTION_HEAD.size + size
        if at > end or OPTION_OCTETS.get(kind, size) != size:
            raise WireError("option: length")
        found[kind] = int.from_bytes(value, "big")
        told |= kind == INSTANCE
    if told and not found[INSTANCE]:
        raise WireError("option: instance")
    if found[LONGEST_SEGMENT] < LEAST_SEGMENT or not found[WINDOW]:
        raise WireError("option: value")
    return Greeting(
        body[:end], versions, found[LONGEST_SEGMENT], found[WINDOW], found.get(INSTANCE, 0)
    ), body[end:]


def unused_fields_are_zero(datagram: Datagram) -> bool:
    """Return whether all fields that are unused in this type of datagram are zero
    (DGRAM-MEET-6).
    """
    rest = (datagram.psn, datagram.delay, datagram.flags, datagram.ird_or_reason)
    counts = (*datagram.acknowledged, *datagram.credit)
    if datagram.type == HELLO:
        return not any((*rest, *counts, datagram.dest))
    if datagram.type in (CHALLENGE, VERSIONS):
        return not any((*rest, *counts))
    if datagram.type == BYE and datagram.ird_or_reason == UNKNOWN_PAIR:
        return not any((*rest[:3], *counts))
    return datagram.type != ECHO or not any(rest)
