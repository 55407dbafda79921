# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""scapy layers for MPA, DDP, RDMAP and datagram-iWARP, and the framing of TCP streams.

The package is written from the RFCs alone, without any import from the stack, so that tests can use
it to build wire data and to check the stack's wire data.

    FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / Raw(b"hello"))    # pad and CRC worked out
    FPDU(octets).ulpdu.msn                                                # and read back
    cut_streams(tcp_streams(rdpcap("file.pcap")))[direction].fpdus        # from a capture
    sniff(offline="file.pcap", session=FPDUSession)                       # the same, by packet
    examine("file.pcap").messages                                         # as siwarp dissect

Captures are read without scapy's readers, which take a millisecond per FPDU: ``pcap`` (files) ->
``packets`` (segments, datagrams, fragments) -> ``stream`` (connections, octets in order, gaps as
values) -> ``framing`` (FPDUs, Markers) -> ``rc``, ``capture`` (messages, responses, errors with
their clause). Every length is checked against the octets present: a malformed file raises a
ValueError.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from siwarp.inspect.capture import Dissection, dissect, dissect_packets, examine
from siwarp.inspect.crc import crc32c
from siwarp.inspect.framing import FoundMarker
from siwarp.inspect.limits import Limits, TooMuch
from siwarp.inspect.messages import Message, Stream
from siwarp.inspect.names import AtomicCode, Opcode, PrivateCode, Queue, TermLayer, term_reason
from siwarp.inspect.stream import Direction, Frames, cut_streams, split_stream, tcp_streams
from siwarp.inspect.wire import SIDRType

if TYPE_CHECKING:
    from siwarp.inspect.ddp import DDP, DDPTagged, DDPUntagged, DeliveryCount, Requester
    from siwarp.inspect.dgram import (
        UC_FIRST,
        DDPDatagram,
        LLPDatagram,
        RecordDatagram,
        RecordHeader,
        UCDatagram,
        UCReport,
        UDDatagram,
        ud_qn,
    )
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
    from siwarp.inspect.rd import RDDatagram, RDFlag, RDOption, RDReason, RDType
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
    from siwarp.inspect.sidr import SIDR

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
    "RDDatagram",
    "RDFlag",
    "RDOption",
    "RDReason",
    "RDType",
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
    "UCReport",
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


#: The modules with the scapy layers. They are all imported when the first of them is used, because
#: each finds its upper layer by the bindings of the others; reading captures needs no scapy layer.
_LAYERS = ("ddp", "dgram", "mpa", "rd", "rdmap", "session", "sidr")


def _import_layer_modules() -> list[ModuleType]:
    try:
        return [importlib.import_module(f"siwarp.inspect.{layer}") for layer in _LAYERS]
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] != "scapy":
            raise
        raise ImportError(
            "the scapy layers of siwarp.inspect need scapy: pip install 'siwarp[inspect]', or pip "
            "install scapy",
            name="scapy",
        ) from None


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _import_layer_modules():
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
