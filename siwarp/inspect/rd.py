# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reliable datagrams (RD) of datagram-iWARP as a scapy layer.

A datagram consists of the LLP header, RD's further fields, a body that the type defines, and
CRC32C.

    RDDatagram(type=RDType.DATA, psn=7, source_epoch=1, dest_epoch=2, body=segment)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum, IntFlag
from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    FlagsField,
    ShortField,
    StrLenField,
    XByteField,
    XIntField,
    XLEIntField,
)
from scapy.packet import Packet

from siwarp.inspect.layer import DatagramLayer
from siwarp.inspect.wire import ACK_HEAD, CRC_LEN, LLP_VERSION, RANGE, RD_HEADER_LEN

COOKIE_LEN = 20
MAX_RANGES = 256
#: Minimum length of a HELLO's body in octets; a CHALLENGE's body is never longer.
HELLO_LEAST = 64


class RDType(IntEnum):
    """The types of the LLP header that RD uses."""

    DATA = 4
    ACK = 5
    HELLO = 6
    CHALLENGE = 7
    ECHO = 8
    PROBE = 9
    BYE = 10
    VERSIONS = 11


class RDOption(IntEnum):
    """Properties announced in HELLO and CHALLENGE: four octets each, except INSTANCE with eight."""

    LONGEST = 1
    WINDOW = 2
    FEATURES = 3
    INSTANCE = 4


class RDReason(IntEnum):
    """The reason in a BYE, which ends the incarnation."""

    CLOSED = 0
    UNKNOWN = 1
    SEQUENCE = 2
    IDLE = 3
    REFUSED = 4
    NOT_READY = 5


class RDFlag(IntFlag):
    """The flags of RD's header."""

    PROBED = 1
    ANSWER = 2
    RESPONSE = 4
    NOT_READY = 8


def _body_len(datagram: Packet) -> int:
    return max(len(datagram.original or b"") - RD_HEADER_LEN - CRC_LEN, 0)


class RDDatagram(DatagramLayer):
    """A complete UDP payload of an RD QP.

    `crc` is computed if it is None; a QP without CRC sends zero. `body` is the segment, the ranges,
    the cookie or padding, depending on `type`. In a BYE `ird` is the reason.
    """

    name = "datagram-iWARP RD"
    fields_desc: ClassVar[list[Any]] = [
        BitEnumField("type", int(RDType.DATA), 4, {int(t): t.name for t in RDType}),
        BitField("version", LLP_VERSION, 2),
        BitField("mark", 2, 2),
        XByteField("flags", 0),
        ByteField("dest_index", 0),
        ByteField("source_index", 0),
        XIntField("q_key", 0),
        XIntField("psn", 0),
        XIntField("source_epoch", 0),
        XIntField("dest_epoch", 0),
        XIntField("acknowledged", 0),
        XIntField("response_acknowledged", 0),
        ShortField("credit", 0),
        ShortField("response_credit", 0),
        ShortField("delay", 0),
        ByteField("ird", 0),
        FlagsField("rd_flags", 0, 8, [str(f.name) for f in RDFlag]),
        StrLenField("body", b"", length_from=_body_len),
        XLEIntField("crc", None),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """Return this class; Raw for octets that are too short for RD's header and the CRC."""
        short = _pkt is not None and len(_pkt) < RD_HEADER_LEN + CRC_LEN
        return conf.raw_layer if short else cls

    def _psn_ranges(self, responses: bool) -> Iterator[range]:
        """Yield the ranges of one PSN space in an ACK's body, as PSNs that do not wrap."""
        if len(self.body) < ACK_HEAD.size:
            return
        _, _, requests, of_responses, _ = ACK_HEAD.unpack_from(self.body)
        at = ACK_HEAD.size + (requests * RANGE.size if responses else 0)
        psn = self.response_acknowledged if responses else self.acknowledged
        for _ in range(of_responses if responses else requests):
            if at + RANGE.size > len(self.body):
                return
            gap, length = RANGE.unpack_from(self.body, at)
            yield range(psn + gap, psn + gap + length)
            psn += gap + length
            at += RANGE.size

    def received(self, responses: bool = False) -> set[int]:
        """Return the PSNs of one space that are in an ACK's ranges."""
        return {psn & 0xFFFFFFFF for span in self._psn_ranges(responses) for psn in span}

    @property
    def ce(self) -> int:
        """Number of datagrams received with CE, from an ACK's body."""
        return int.from_bytes(self.body[:4], "big")

    @property
    def rnr_timer(self) -> int:
        """The 5-bit code of the receiver's RNR timer, from an ACK's body."""
        return int(self.body[4]) if len(self.body) > 4 else 0


def _pack_psn_ranges(first: int, psns: Iterable[int]) -> list[bytes]:
    """Return the ranges of an ACK for these PSNs, relative to `first`."""
    out: list[tuple[int, int]] = []
    end = 0
    for at in sorted({(psn - first) & 0xFFFFFFFF for psn in psns}):
        if out and at == end:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((at - end, 1))
        end = at + 1
    return [RANGE.pack(*each) for each in out]


def make_ack_body(
    first: int = 0,
    psns: Iterable[int] = (),
    *,
    first_response: int = 0,
    responses: Iterable[int] = (),
    ce: int = 0,
    rnr_timer: int = 0,
) -> bytes:
    """Return an ACK's body: these PSNs arrived after the first missing PSN, for requests and
    responses.
    """
    one, other = _pack_psn_ranges(first, psns), _pack_psn_ranges(first_response, responses)
    return ACK_HEAD.pack(ce, rnr_timer, len(one), len(other), 0) + b"".join(one + other)


def make_handshake_offer(
    options: dict[int, int] | None = None, versions: int = 1 << LLP_VERSION, extra: bytes = b""
) -> bytes:
    """Return head and options of a HELLO or CHALLENGE; `extra` is appended to the options."""
    found = b"".join(
        bytes([kind, size := 8 if kind == RDOption.INSTANCE else 4]) + value.to_bytes(size, "big")
        for kind, value in (options or {}).items()
    )
    return bytes([versions, 0]) + (len(found) + len(extra)).to_bytes(2, "big") + found + extra


def handshake_offer_len(body: bytes) -> int:
    """Return the octets of the head and the options at the start of a handshake's body."""
    return 4 + int.from_bytes(body[2:4], "big")


def parse_handshake_options(body: bytes) -> dict[int, bytes]:
    """Return the options of a handshake's body by type; truncated options are left out."""
    found: dict[int, bytes] = {}
    at, end = 4, min(handshake_offer_len(body), len(body))
    while at + 2 <= end and at + 2 + body[at + 1] <= end:
        found[body[at]] = body[at + 2 : at + 2 + body[at + 1]]
        at += 2 + body[at + 1]
    return found


def cookie_in_handshake_body(body: bytes) -> bytes:
    """Return the octets after the options of a CHALLENGE or an ECHO."""
    return body[handshake_offer_len(body) :]
