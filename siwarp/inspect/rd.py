# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reliable datagrams (RD) of datagram-iWARP: the LLP header, RD's further fields, the body that the
type defines, CRC32C.

    RDDatagram(type=RDType.DATA, psn=7, source_epoch=1, dest_epoch=2, body=segment)
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
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

from siwarp.inspect.crc import crc32c
from siwarp.inspect.dgram import LLP_VERSION

RD_HEADER_LEN = 28
CRC_LEN = 4
COOKIE_LEN = 20


class RDType(IntEnum):
    """The types of the LLP header that RD uses."""

    DATA = 4
    ACK = 5
    HELLO = 6
    CHALLENGE = 7
    ECHO = 8
    PROBE = 9
    BYE = 10


def _body_len(datagram: Packet) -> int:
    return max(len(datagram.original or b"") - RD_HEADER_LEN - CRC_LEN, 0)


class RDDatagram(Packet):
    """A whole UDP payload of an RD QP. `crc` is worked out when left None; a QP without CRC sends
    zero there. `body` is the segment, the bitmap, the cookie or padding, by `type`."""

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
        ShortField("credit", 0),
        ByteField("ird", 0),
        FlagsField("rd_flags", 0, 8, ["PROBED", "UNKNOWN"]),
        StrLenField("body", b"", length_from=_body_len),
        XLEIntField("crc", None),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """Raw if there are too few octets."""
        short = _pkt is not None and len(_pkt) < RD_HEADER_LEN + CRC_LEN
        return conf.raw_layer if short else cls

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Insert the CRC that was left open."""
        if self.crc is None:
            pkt = pkt[:-CRC_LEN] + crc32c(pkt[:-CRC_LEN]).to_bytes(CRC_LEN, "little")
        return pkt + pay

    def crc_expected(self) -> int:
        """CRC32C over all before it; equal to `crc` in a sound datagram."""
        return crc32c(bytes(self)[:-CRC_LEN])

    def received(self) -> set[int]:
        """The PSNs in an ACK's bitmap: bit i, from an octet's lowest on, is acknowledged + i."""
        return {
            (self.acknowledged + i) & 0xFFFFFFFF
            for i in range(8 * len(self.body))
            if self.body[i // 8] >> i % 8 & 1
        }


def bitmap(first: int, psns: Iterable[int]) -> bytes:
    """An ACK's bitmap of these PSNs, from `first` on."""
    places = [(psn - first) & 0xFFFFFFFF for psn in psns]
    out = bytearray((max(places, default=-1) + 8) // 8)
    for i in places:
        out[i // 8] |= 1 << i % 8
    return bytes(out)
