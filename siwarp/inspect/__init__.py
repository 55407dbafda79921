# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""scapy layers for MPA, DDP, RDMAP and datagram-iWARP, and the cutting of TCP streams.

Written from the RFCs alone and importing nothing of the stack: tests build octets and judge
octets with this package.

    FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / Raw(b"hello"))    # pad and CRC worked out
    FPDU(octets).ulpdu.msn                                                # and read back
    cut_streams(tcp_streams(rdpcap("file.pcap")))[direction].fpdus        # from a capture
"""

from siwarp.inspect.capture import Message, dissect, dissect_packets
from siwarp.inspect.crc import crc32c
from siwarp.inspect.ddp import DDP, DDPTagged, DDPUntagged
from siwarp.inspect.dgram import DDPDatagram, UDDatagram, ud_qn
from siwarp.inspect.mpa import (
    FPDU,
    MPA,
    FoundMarker,
    Marker,
    MPAReply,
    MPARequest,
    MPAStartup,
    mark,
    mark_stream,
    unmark,
)
from siwarp.inspect.names import Opcode, Queue, TermLayer, term_reason
from siwarp.inspect.rdmap import (
    QuotedReadRequest,
    QuotedTagged,
    QuotedUntagged,
    ReadRequest,
    Terminate,
)
from siwarp.inspect.stream import Direction, Frames, cut_streams, split_stream, tcp_streams

__all__ = [
    "DDP",
    "FPDU",
    "MPA",
    "DDPDatagram",
    "DDPTagged",
    "DDPUntagged",
    "Direction",
    "FoundMarker",
    "Frames",
    "MPAReply",
    "MPARequest",
    "MPAStartup",
    "Marker",
    "Message",
    "Opcode",
    "Queue",
    "QuotedReadRequest",
    "QuotedTagged",
    "QuotedUntagged",
    "ReadRequest",
    "TermLayer",
    "Terminate",
    "UDDatagram",
    "crc32c",
    "cut_streams",
    "dissect",
    "dissect_packets",
    "mark",
    "mark_stream",
    "split_stream",
    "tcp_streams",
    "term_reason",
    "ud_qn",
    "unmark",
]
