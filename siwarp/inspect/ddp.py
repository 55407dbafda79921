# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""DDP segments (RFC 5041 sections 4.1 to 4.3) as scapy layers.

`DDP(octets)` returns a `DDPTagged` or a `DDPUntagged`, according to the T bit; to build a segment,
use these two classes. DDP reserves a field for its upper layer (RsvdULP: 8 bits in a tagged header,
40 in an untagged one); it is shown as RDMAP defines it, the control octet (`rv`, `rdmap_rsvd`,
`opcode`) and the Invalidate STag (RFC 5040 figure 3).

A segment has no length field: the FPDU or datagram that carries the segment determines its length,
and the octets after the header are the upper layer's payload.
"""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    Field,
    FlagsField,
    IntField,
    X3BytesField,
    XBitField,
    XIntField,
    XLongField,
)
from scapy.packet import Packet

from siwarp.inspect.layer import Layer
from siwarp.inspect.names import OPCODES, TAGGED_PRIVATE_CODES, Opcode, TaggedPrivateCode
from siwarp.inspect.wire import TAGGED_HDR_LEN, UNTAGGED_HDR_LEN

#: The T bit, which distinguishes the two headers (RFC 5041 figures 4 and 5).
T_BIT = 0x80


def ddp_and_rdmap_control_fields(tagged: int) -> list[Field[Any, Any]]:
    """Return the fields of the DDP control octet, then of the RDMAP control octet."""
    return [
        BitField("t", tagged, 1),
        BitField("l", 1, 1),
        BitField("ddp_rsvd", 0, 4),
        BitField("dv", 1, 2),
        BitField("rv", 1, 2),
        BitField("rdmap_rsvd", 0, 2),
        BitEnumField("opcode", 0 if tagged else 3, 4, OPCODES),
    ]


class DDP(Layer):
    """Base class of both headers; parses octets whose T bit is not known yet."""

    name = "DDP"

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """Return the header class for the T bit; Raw if the octets cannot hold that header."""
        if cls is not DDP:
            return cls
        if not _pkt:
            return conf.raw_layer
        tagged = bool(_pkt[0] & T_BIT)
        if len(_pkt) < (TAGGED_HDR_LEN if tagged else UNTAGGED_HDR_LEN):
            return conf.raw_layer
        if not tagged:
            return DDPUntagged
        # A segment of a Write-Record, which only datagrams carry, has the same opcode, but octets
        # after the header.
        is_tagged_private = _pkt[1] & 0xF == Opcode.PRIVATE and len(_pkt) == TAGGED_HDR_LEN
        return TAGGED_PRIVATE.get(_pkt[2], DDPTagged) if is_tagged_private else DDPTagged


class DDPTagged(DDP):
    """Header of a segment for a tagged buffer: 14 octets."""

    name = "DDP tagged"
    fields_desc: ClassVar[list[Any]] = [
        *ddp_and_rdmap_control_fields(1),
        XIntField("stag", 0),
        XLongField("to", 0),
    ]


def tagged_private_header_fields(code: TaggedPrivateCode) -> list[Field[Any, Any]]:
    """Return the header fields of a tagged private message without payload, up to the TO."""
    first = ddp_and_rdmap_control_fields(1)
    first[-1].default = int(Opcode.PRIVATE)
    return [
        *first,
        ByteEnumField("subcode", int(code), TAGGED_PRIVATE_CODES),
        X3BytesField("zero", 0),
    ]


class DeliveryCount(DDP):
    """Number of Sends and Writes that the sender has received (spec/delivery-counts.md)."""

    name = "siwarp delivery count"
    fields_desc: ClassVar[list[Any]] = [
        *tagged_private_header_fields(TaggedPrivateCode.DELIVERY_COUNT),
        IntField("sends", 0),
        IntField("writes", 0),
    ]


class Requester(DDP):
    """Properties that a requester announces (spec/delivery-counts.md)."""

    name = "siwarp requester"
    fields_desc: ClassVar[list[Any]] = [
        *tagged_private_header_fields(TaggedPrivateCode.REQUESTER),
        XBitField("unused", 0, 48),
        FlagsField("flags", 1, 8, ["wants_counts"]),
        ByteField("rnr_retry", 7),
    ]


TAGGED_PRIVATE: dict[int, type[DDP]] = {
    TaggedPrivateCode.DELIVERY_COUNT: DeliveryCount,
    TaggedPrivateCode.REQUESTER: Requester,
}


class DDPUntagged(DDP):
    """Header of a segment for an untagged buffer: 18 octets."""

    name = "DDP untagged"
    fields_desc: ClassVar[list[Any]] = [
        *ddp_and_rdmap_control_fields(0),
        XIntField("inv_stag", 0),
        IntField("qn", 0),
        IntField("msn", 1),
        IntField("mo", 0),
    ]


__all__ = [
    "DDP",
    "TAGGED_HDR_LEN",
    "UNTAGGED_HDR_LEN",
    "DDPTagged",
    "DDPUntagged",
    "DeliveryCount",
    "Requester",
]
