# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""DDP segments (RFC 5041 sections 4.1 to 4.3) as scapy layers.

`DDP(octets)` looks at the T bit and gives a `DDPTagged` or a `DDPUntagged`; build with the
two classes themselves. The field that DDP leaves to its upper layer (RsvdULP: 8 bits in a
tagged header, 40 in an untagged one) is shown as what RDMAP makes of it, the control octet
(`rv`, `rdmap_rsvd`, `opcode`) and the Invalidate STag (RFC 5040 figure 3).

A segment has no field for its length: the FPDU or datagram that carries it gives exactly its
octets, and what follows the header is the upper layer's.
"""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import BitEnumField, BitField, Field, IntField, XIntField, XLongField
from scapy.packet import Packet

from siwarp.inspect.names import OPCODES

#: Octets of the two headers: RFC 5041 figures 4 and 5.
TAGGED_HDR_LEN = 14
UNTAGGED_HDR_LEN = 18

T_BIT = 0x80


def control_fields(tagged: int) -> list[Field[Any, Any]]:
    """The DDP control octet, then the RDMAP control octet."""
    return [
        BitField("t", tagged, 1),
        BitField("l", 1, 1),
        BitField("ddp_rsvd", 0, 4),
        BitField("dv", 1, 2),
        BitField("rv", 1, 2),
        BitField("rdmap_rsvd", 0, 2),
        BitEnumField("opcode", 0 if tagged else 3, 4, OPCODES),
    ]


class DDP(Packet):
    """Base of both headers, and the way in for octets whose T bit is not known yet."""

    name = "DDP"

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """The header class that the T bit names; Raw when the octets cannot hold that header."""
        if cls is not DDP:
            return cls
        if not _pkt:
            return conf.raw_layer
        tagged = bool(_pkt[0] & T_BIT)
        if len(_pkt) < (TAGGED_HDR_LEN if tagged else UNTAGGED_HDR_LEN):
            return conf.raw_layer
        return DDPTagged if tagged else DDPUntagged


class DDPTagged(DDP):
    """Header of a segment for a tagged buffer: 14 octets."""

    name = "DDP tagged"
    fields_desc: ClassVar[list[Any]] = [
        *control_fields(1),
        XIntField("stag", 0),
        XLongField("to", 0),
    ]


class DDPUntagged(DDP):
    """Header of a segment for an untagged buffer: 18 octets."""

    name = "DDP untagged"
    fields_desc: ClassVar[list[Any]] = [
        *control_fields(0),
        XIntField("inv_stag", 0),
        IntField("qn", 0),
        IntField("msn", 1),
        IntField("mo", 0),
    ]


__all__ = ["DDP", "TAGGED_HDR_LEN", "UNTAGGED_HDR_LEN", "DDPTagged", "DDPUntagged"]
