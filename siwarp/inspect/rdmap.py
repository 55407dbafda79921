# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The RDMAP messages with their own header: RFC 5040 sections 4.4 and 4.8, RFC 7306.

All other messages consist of a DDP header, whose `opcode` defines the message, and the user's
octets (Raw). Only the opcode selects the layer, not the queue number, so that a wrong queue number
is shown together with its header.
"""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    IntField,
    PacketField,
    ShortField,
    X3BytesField,
    XIntField,
    XLongField,
)
from scapy.packet import Packet, Raw, bind_bottom_up, bind_top_down

from siwarp.inspect.ddp import (
    TAGGED_HDR_LEN,
    UNTAGGED_HDR_LEN,
    DDPTagged,
    DDPUntagged,
)
from siwarp.inspect.layer import Layer
from siwarp.inspect.names import (
    ATOMIC_CODES,
    PRIVATE_CODES,
    TERM_LAYERS,
    Opcode,
    Queue,
    term_reason,
)

READ_REQUEST_LEN = 28
ATOMIC_REQUEST_LEN = 52
ATOMIC_RESPONSE_LEN = 12
IMMEDIATE_LEN = 8


class ReadRequest(Layer):
    """RDMA Read Request header, 28 octets (RFC 5040 figure 6)."""

    name = "RDMAP Read Request"
    fields_desc: ClassVar[list[Any]] = [
        XIntField("sink_stag", 0),
        XLongField("sink_to", 0),
        IntField("size", 0),
        XIntField("src_stag", 0),
        XLongField("src_to", 0),
    ]


class AtomicRequest(Layer):
    """Atomic Operation Request header, 52 octets (RFC 7306 figure 4).

    The default values of fields that FetchAdd does not use are those to be sent: compare data 0,
    compare mask all ones.
    """

    name = "RDMAP Atomic Request"
    fields_desc: ClassVar[list[Any]] = [
        BitField("reserved", 0, 28),
        BitEnumField("code", 0, 4, ATOMIC_CODES),
        IntField("request", 0),
        XIntField("stag", 0),
        XLongField("to", 0),
        XLongField("data", 0),
        XLongField("mask", 0),
        XLongField("compare", 0),
        XLongField("compare_mask", (1 << 64) - 1),
    ]


class AtomicResponse(Layer):
    """Atomic Operation Response header, 12 octets (RFC 7306 figure 6)."""

    name = "RDMAP Atomic Response"
    fields_desc: ClassVar[list[Any]] = [
        IntField("request", 0),
        XLongField("old", 0),
    ]


class ImmediateData(Layer):
    """Immediate Data, 8 octets (RFC 7306 figure 7); verbs use only the first four."""

    name = "RDMAP Immediate Data"
    fields_desc: ClassVar[list[Any]] = [
        XIntField("data", 0),
        XIntField("rest", 0),
    ]


class PrivateHead(Layer):
    """The first 8 octets of an untagged private message, before the user's octets.

    Used by Send with Immediate; spec/datagram-iwarp.md section 10.
    """

    name = "siwarp private message"
    fields_desc: ClassVar[list[Any]] = [
        ByteEnumField("subcode", 1, PRIVATE_CODES),
        X3BytesField("zero", 0),
        XIntField("data", 0),
    ]


class _HeaderOnly:
    """A header quoted by a Terminate; octets after it belong to the Terminate."""

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


class QuotedTagged(_HeaderOnly, DDPTagged):
    """A tagged DDP header inside a Terminate."""

    name = "quoted DDP tagged"


class QuotedUntagged(_HeaderOnly, DDPUntagged):
    """An untagged DDP header inside a Terminate."""

    name = "quoted DDP untagged"


class QuotedReadRequest(_HeaderOnly, ReadRequest):
    """A Read Request header inside a Terminate."""

    name = "quoted RDMAP Read Request"


def _parse_quoted_ddp(octets: bytes) -> Packet:
    """Parse the quoted DDP header by its T bit; ValueError (shown as Raw) if it is truncated."""
    tagged = bool(octets and octets[0] & 0x80)
    if len(octets) < (TAGGED_HDR_LEN if tagged else UNTAGGED_HDR_LEN):
        raise ValueError("the quoted DDP header is truncated")
    return QuotedTagged(octets) if tagged else QuotedUntagged(octets)


def _parse_quoted_read_request(octets: bytes) -> Packet:
    """Parse the quoted Read Request header; Raw if it is truncated."""
    whole = len(octets) >= len(QuotedReadRequest())
    return QuotedReadRequest(octets) if whole else Raw(octets)


class Terminate(Layer):
    """Terminate header (RFC 5040 figures 7 and 8).

    `m`, `d` and `r` define the rest. The length field is present if M or D is set: M marks it as
    valid, and D requires its presence. To build a Terminate, set `quoted_ddp` to a QuotedTagged or
    QuotedUntagged, `quoted_rdma` to a QuotedReadRequest, and the bits accordingly.
    """

    name = "RDMAP Terminate"
    fields_desc: ClassVar[list[Any]] = [
        BitEnumField("layer", 0, 4, TERM_LAYERS),
        BitField("etype", 0, 4),
        ByteField("code", 0),
        BitField("m", 0, 1),
        BitField("d", 0, 1),
        BitField("r", 0, 1),
        BitField("reserved", 0, 13),
        ConditionalField(ShortField("ddp_seg_len", 0), lambda p: bool(p.m or p.d)),
        ConditionalField(
            PacketField("quoted_ddp", QuotedUntagged(), _parse_quoted_ddp), lambda p: bool(p.d)
        ),
        ConditionalField(
            PacketField("quoted_rdma", QuotedReadRequest(), _parse_quoted_read_request),
            lambda p: bool(p.r),
        ),
    ]

    def reason(self) -> str:
        """Return the layer, error type and code of the Terminate in words."""
        return term_reason(self.layer, self.etype, self.code)

    def mysummary(self) -> str:
        """Return the Terminate's reason as scapy's one-line summary."""
        return f"Terminate {self.reason()}"


bind_bottom_up(DDPUntagged, ReadRequest, opcode=int(Opcode.RDMA_READ_REQUEST), mo=0)
bind_bottom_up(DDPUntagged, Terminate, opcode=int(Opcode.TERMINATE), mo=0)
bind_top_down(
    DDPUntagged, ReadRequest, opcode=int(Opcode.RDMA_READ_REQUEST), qn=int(Queue.READ_REQUEST)
)
bind_top_down(DDPUntagged, Terminate, opcode=int(Opcode.TERMINATE), qn=int(Queue.TERMINATE))
for _layer, _opcode, _queue in (
    (AtomicRequest, Opcode.ATOMIC_REQUEST, Queue.READ_REQUEST),
    (AtomicResponse, Opcode.ATOMIC_RESPONSE, Queue.ATOMIC_RESPONSE),
    (PrivateHead, Opcode.PRIVATE, Queue.SEND),
    (ImmediateData, Opcode.IMMEDIATE_SE, Queue.SEND),
    (ImmediateData, Opcode.IMMEDIATE, Queue.SEND),
):
    bind_bottom_up(DDPUntagged, _layer, opcode=int(_opcode), mo=0)
    bind_top_down(DDPUntagged, _layer, opcode=int(_opcode), qn=int(_queue))
