# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""scapy layers for MPA, DDP, RDMAP and datagram-iWARP, and the framing of TCP streams.

Written from the RFCs alone and importing nothing of the stack: tests build octets and judge
octets with this package.

    FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / Raw(b"hello"))    # pad and CRC worked out
    FPDU(octets).ulpdu.msn                                                # and read back
    cut_streams(tcp_streams(rdpcap("file.pcap")))[direction].fpdus        # from a capture
    sniff(offline="file.pcap", session=FPDUSession)                       # the same, by packet
    examine("file.pcap").messages                                         # as siwarp dissect

Captures are read without scapy's readers, which take a millisecond for an FPDU: ``pcap`` (files) ->
``packets`` (segments, datagrams, fragments) -> ``stream`` (connections, octets in order, gaps as
values) -> ``framing`` (FPDUs, Markers) -> ``rc``, ``capture`` (messages, responses, errors with
their clause). Every length is checked against what there is: a hostile file costs a ValueError.
"""

from siwarp.inspect.capture import Dissection, dissect, dissect_packets, examine
from siwarp.inspect.crc import crc32c
from siwarp.inspect.ddp import DDP, DDPTagged, DDPUntagged, DeliveryCount, Requester
from siwarp.inspect.dgram import (
    UC_FIRST,
    DDPDatagram,
    LLPDatagram,
    RecordDatagram,
    RecordHeader,
    UCDatagram,
    UDDatagram,
    ud_qn,
)
from siwarp.inspect.framing import FoundMarker
from siwarp.inspect.limits import Limits, TooMuch
from siwarp.inspect.messages import Message, Stream
from siwarp.inspect.mpa import (
    FPDU,
    MPA,
    Marker,
    MPAReply,
    MPARequest,
    MPAStartup,
    bind_mpa,
    mark,
    mark_stream,
    unbind_mpa,
    unmark,
)
from siwarp.inspect.names import AtomicCode, Opcode, PrivateCode, Queue, TermLayer, term_reason
from siwarp.inspect.rdmap import (
    AtomicRequest,
    AtomicResponse,
    ImmediateData,
    PrivateHead,
    QuotedReadRequest,
    QuotedTagged,
    QuotedUntagged,
    ReadRequest,
    Terminate,
)
from siwarp.inspect.session import FPDUSession
from siwarp.inspect.sidr import SIDR, SIDRType
from siwarp.inspect.stream import Direction, Frames, cut_streams, split_stream, tcp_streams

__all__ = [
    "DDP",
    "FPDU",
    "MPA",
    "SIDR",
    "UC_FIRST",
    "AtomicCode",
    "AtomicRequest",
    "AtomicResponse",
    "DDPDatagram",
    "DDPTagged",
    "DDPUntagged",
    "DeliveryCount",
    "Direction",
    "Dissection",
    "FPDUSession",
    "FoundMarker",
    "Frames",
    "ImmediateData",
    "LLPDatagram",
    "Limits",
    "MPAReply",
    "MPARequest",
    "MPAStartup",
    "Marker",
    "Message",
    "Opcode",
    "PrivateCode",
    "PrivateHead",
    "Queue",
    "QuotedReadRequest",
    "QuotedTagged",
    "QuotedUntagged",
    "ReadRequest",
    "RecordDatagram",
    "RecordHeader",
    "Requester",
    "SIDRType",
    "Stream",
    "TermLayer",
    "Terminate",
    "TooMuch",
    "UCDatagram",
    "UDDatagram",
    "bind_mpa",
    "crc32c",
    "cut_streams",
    "dissect",
    "dissect_packets",
    "examine",
    "mark",
    "mark_stream",
    "split_stream",
    "tcp_streams",
    "term_reason",
    "ud_qn",
    "unbind_mpa",
    "unmark",
]
