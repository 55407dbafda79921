# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Lengths and numbers of the headers, and parsers for captures, without scapy.

The scapy layers define the same formats to build and to show wire data; a test compares both.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from siwarp.inspect.framing import REQUEST_KEY, STARTUP_HDR_LEN

CRC_LEN = 4
#: Lengths of DDP's headers in octets.
TAGGED_HDR_LEN = 14
UNTAGGED_HDR_LEN = 18
#: Length of the field with IRD, ORD and the bits A to D in a start-up frame's private data.
ENHANCED_LEN = 4

# ---- the LLP header of datagrams

LLP_TYPES = {
    1: "UC",
    2: "RECORD",
    3: "UC_REPORT",
    4: "RD_DATA",
    5: "RD_ACK",
    6: "RD_HELLO",
    7: "RD_CHALLENGE",
    8: "RD_ECHO",
    9: "RD_PROBE",
    10: "RD_BYE",
    11: "RD_VERSIONS",
}
LLP_HDR_LEN = 12
#: Value of the low two bits of an LLP header's first octet; a plain DDP segment has DDP's version
#: in these bits.
LLP_MARK = 2
#: The LLP's version, in the next two bits of the first octet.
LLP_VERSION = 1
RD_HEADER_LEN = 36
#: The flag of RD's header that marks the PSN space of responses.
RD_RESPONSE = 4
REPORT = struct.Struct("!QQI")  # body of a UC report: counts of datagrams and octets, next PSN
RD_ACK = 5
#: The start of an ACK's body: CE count, RNR timer, numbers of request and response ranges, 0.
ACK_HEAD = struct.Struct("!IBBBB")
RANGE = struct.Struct("!HH")  # a range of PSNs in an ACK: the gap before the range, its length

# ---- resolution of UD queue pairs

#: In octets: length of a frame; of its field for private data; maximum private data in an answer.
SIDR_LEN, SIDR_DATA_LEN, SIDR_ANSWER_DATA_LEN = 232, 180, 136


class SIDRType(IntEnum):
    """The types of frames of UD resolution."""

    QUESTION = 1
    ANSWER = 2
    REFUSAL = 3
    COOKIE = 4


# ---- start-up frames


@dataclass(frozen=True)
class Startup:
    """A start-up frame; ``enhanced`` has IRD, ORD and the bits A to D of RFC 6581, if any."""

    asks: bool  # whether the frame is a Request
    m: int
    c: int
    r: int
    s: int
    rev: int
    enhanced: dict[str, int]
    private_data: bytes


def parse_mpa_startup(octets: bytes) -> Startup:
    """Parse a complete frame. In revisions 0 and 1 the S bit is reserved and therefore ignored."""
    flags, rev = octets[16], octets[17]
    data = octets[STARTUP_HDR_LEN:]
    s = flags >> 4 & 1
    enhanced = {}
    if s and rev >= 2 and len(data) >= ENHANCED_LEN:
        ird, ord_ = struct.unpack_from("!HH", data)
        enhanced = {"ird": ird & 0x3FFF, "ord": ord_ & 0x3FFF, "a": ird >> 15, "b": ird >> 14 & 1}
        enhanced |= {"c_rtr": ord_ >> 15, "d_rtr": ord_ >> 14 & 1}
        data = data[ENHANCED_LEN:]
    asks = octets.startswith(REQUEST_KEY)
    return Startup(asks, flags >> 7, flags >> 6 & 1, flags >> 5 & 1, s, rev, enhanced, data)


# ---- headers of RD datagrams

_RD = struct.Struct("!BBBBIIIIIIHHHBB")
_RD_NAMES = (
    "source_epoch", "dest_epoch", "acknowledged", "response_acknowledged", "credit",
    "response_credit", "delay", "ird", "rd_flags",
)  # fmt: skip


def parse_uc_receiver_report(octets: bytes) -> dict[str, int]:
    """Return a UC receiver's report; the names are those of figure 7.2 of the specification."""
    if len(octets) != LLP_HDR_LEN + REPORT.size + 4 + CRC_LEN:
        return {}
    names = ("datagrams", "octets", "next_psn")
    return dict(zip(names, REPORT.unpack_from(octets, LLP_HDR_LEN), strict=True))


def parse_rd_header(octets: bytes) -> dict[str, int]:
    """Parse a datagram's RD header; for an ACK, add the number of requests received after a gap."""
    fields = dict(zip(_RD_NAMES, _RD.unpack_from(octets)[6:], strict=True))
    if octets[0] >> 4 == RD_ACK:
        fields["beyond"] = _count_requests_after_gap(octets[RD_HEADER_LEN:-CRC_LEN])
    return fields


def _count_requests_after_gap(body: bytes) -> int:
    if len(body) < ACK_HEAD.size:
        return 0
    here = ACK_HEAD.unpack_from(body)[2]
    whole = min(here, (len(body) - ACK_HEAD.size) // RANGE.size)
    end = ACK_HEAD.size + whole * RANGE.size
    return sum(length for _, length in RANGE.iter_unpack(body[ACK_HEAD.size : end]))


# ---- headers of Terminates


@dataclass(frozen=True)
class TerminateReport:
    """A Terminate's layer, error type and code, and the octets of the DDP header that it quotes."""

    layer: int
    etype: int
    code: int
    quoted: bytes | None


def parse_terminate(octets: bytes) -> TerminateReport | None:
    """Parse a Terminate's header (RFC 5040 figures 7 and 8); None if it is truncated."""
    if len(octets) < 4:
        return None
    has_length, quotes = octets[2] & 0xC0, octets[2] & 0x40
    if has_length and len(octets) < 6:
        return None
    quoted = octets[6:] if quotes else None
    if quoted is not None:
        tagged = quoted[:1] >= b"\x80"
        if len(quoted) < (TAGGED_HDR_LEN if tagged else UNTAGGED_HDR_LEN):
            return None
    return TerminateReport(octets[0] >> 4, octets[0] & 0xF, octets[1], quoted)
