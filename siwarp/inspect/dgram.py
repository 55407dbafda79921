# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Datagram-iWARP: the contents of a UDP payload; the last four octets are a CRC32C of the rest.

On UD the contents are one untagged DDP segment. The header is DDP's, except that the four octets of
the Invalidate STag carry the Q_Key, and that QN holds the queue in its low two bits, the
destination's index in bits 8 to 15 and the source's index in bits 16 to 23.

All other datagrams begin with the LLP header. Its first octet has the value 2 in the bits where a
segment has DDP's version, which is 1. The type in the LLP header defines the rest.
"""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    IntField,
    LongField,
    PacketLenField,
    ShortField,
    XByteField,
    XIntField,
    XLEIntField,
    XLongField,
)
from scapy.packet import Packet, bind_top_down

from siwarp.inspect.ddp import DDP, UNTAGGED_HDR_LEN, DDPUntagged, ddp_and_rdmap_control_fields
from siwarp.inspect.layer import DatagramLayer, Layer
from siwarp.inspect.names import Opcode, Queue
from siwarp.inspect.rd import RDDatagram
from siwarp.inspect.rdmap import Terminate
from siwarp.inspect.wire import CRC_LEN, LLP_HDR_LEN, LLP_MARK, LLP_TYPES, LLP_VERSION


def ud_qn(queue: int, dest_index: int = 0, source_index: int = 0) -> int:
    """Return the value of the QN field; raises ValueError if an argument does not fit its bits."""
    if not (0 <= queue <= 3 and 0 <= dest_index <= 0xFF and 0 <= source_index <= 0xFF):
        raise ValueError("queue takes 2 bits, each index 8")
    return source_index << 16 | dest_index << 8 | queue


class DDPDatagram(DDPUntagged):
    """The untagged header as used by UD: 18 octets."""

    name = "DDP datagram"
    fields_desc: ClassVar[list[Any]] = [
        *ddp_and_rdmap_control_fields(0),
        XIntField("q_key", 0),
        XIntField("qn", 0),
        IntField("msn", 1),
        IntField("mo", 0),
    ]

    @property
    def queue(self) -> int:
        """The queue: 0 send, 1 Read Request, 2 error, 3 atomic response."""
        return int(self.qn) & 3

    @property
    def dest_index(self) -> int:
        """Index of the destination QP among the QPs that share its socket."""
        return int(self.qn) >> 8 & 0xFF

    @property
    def source_index(self) -> int:
        """Index of the source QP among the QPs that share its socket."""
        return int(self.qn) >> 16 & 0xFF


def _parse_segment(octets: bytes) -> Packet:
    """Parse the datagram's segment; ValueError (shown as Raw) if it is too short or tagged."""
    if len(octets) < UNTAGGED_HDR_LEN or octets[0] & 0x80:
        raise ValueError("not an untagged DDP segment")
    return DDPDatagram(octets)


def _segment_len(datagram: Packet) -> int:
    return max(len(datagram.original or b"") - CRC_LEN, 0)


class UDDatagram(DatagramLayer):
    """A complete UDP payload of a UD QP.

    `crc` is computed if it is None; a QP without CRC sends zero.
    """

    name = "datagram-iWARP UD"
    fields_desc: ClassVar[list[Any]] = [
        PacketLenField("segment", None, _parse_segment, length_from=_segment_len),  # type: ignore[arg-type]
        XLEIntField("crc", None),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """Return this class; Raw for octets that are too short to hold the CRC."""
        return conf.raw_layer if _pkt is not None and len(_pkt) < CRC_LEN else cls


#: The flag that marks the first datagram of a UC operation.
UC_FIRST = 1


def make_llp_header_fields(kind: int) -> list[Any]:
    """Return the fields of the LLP header, 12 octets."""
    return [
        BitEnumField("type", kind, 4, LLP_TYPES),
        BitField("version", LLP_VERSION, 2),
        BitField("mark", LLP_MARK, 2),
        XByteField("flags", 0),
        ByteField("dest_index", 0),
        ByteField("source_index", 0),
        XIntField("q_key", 0),
        IntField("psn", 0),
    ]


def _llp_body_len(datagram: Packet) -> int:
    return max(len(datagram.original or b"") - LLP_HDR_LEN - CRC_LEN, 0)


class LLPDatagram(UDDatagram):
    """A complete UDP payload that begins with the LLP header.

    ``LLPDatagram(octets)`` returns an object of the class for the type in the header: UCDatagram,
    RecordDatagram, UCReport or RDDatagram. `crc` is computed if it is None.
    """

    name = "datagram-iWARP"
    fields_desc: ClassVar[list[Any]] = [
        *make_llp_header_fields(0),
        PacketLenField("segment", None, DDP, length_from=_llp_body_len),  # type: ignore[arg-type]
        XLEIntField("crc", None),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """Return the class of the datagram's type; Raw for octets that are too short to hold the
        LLP header and the CRC.

        A subclass returns itself, also for octets of another type.
        """
        if _pkt is None:
            return cls
        if len(_pkt) < LLP_HDR_LEN + CRC_LEN:
            return conf.raw_layer
        if cls is not LLPDatagram:
            return cls
        kind = _pkt[0] >> 4
        if LLP_TYPES.get(kind, "").startswith("RD_"):
            return RDDatagram.dispatch_hook(_pkt)
        return {1: UCDatagram, 2: RecordDatagram, 3: UCReport}.get(kind, cls)


class UCDatagram(LLPDatagram):
    """A datagram of an unreliable connection; `psn` numbers the datagrams."""

    name = "datagram-iWARP UC"
    fields_desc: ClassVar[list[Any]] = [*make_llp_header_fields(1), *LLPDatagram.fields_desc[-2:]]


class UCReport(LLPDatagram):
    """A UC receiver's report to its peer: the traffic since it was connected; 40 octets."""

    name = "datagram-iWARP UC report"
    fields_desc: ClassVar[list[Any]] = [
        *make_llp_header_fields(3),
        LongField("datagrams", 0),
        LongField("octets", 0),
        IntField("next_psn", 0),
        IntField("reserved", 0),
        XLEIntField("crc", None),
    ]


class RecordHeader(Layer):
    """RDMAP's header in each segment of a Write-Record, which has the private opcode: 20 octets.

    `to` is the tagged offset of the message's first octet, `length` the message's length in octets.
    """

    name = "Write-Record"
    fields_desc: ClassVar[list[Any]] = [
        ByteField("subcode", 3),
        XByteField("flags", 0),
        ShortField("reserved", 0),
        IntField("message_id", 1),
        XLongField("to", 0),
        IntField("length", 0),
    ]


class RecordDatagram(LLPDatagram):
    """A datagram of a Write-Record on UD."""

    name = "datagram-iWARP Write-Record"
    fields_desc: ClassVar[list[Any]] = [*make_llp_header_fields(2), *LLPDatagram.fields_desc[-2:]]


bind_top_down(DDPDatagram, Terminate, opcode=int(Opcode.TERMINATE), qn=int(Queue.TERMINATE))
