# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""MPA as scapy layers: start-up frames, FPDUs and Markers.

Start-up frames: RFC 5044 section 7.1.1, RFC 6581 sections 6 and 9. FPDUs: RFC 5044 section 4.1.
Markers: sections 4.2 and 4.3.

`MPA(octets)` is a list of the start-up frames and FPDUs in contiguous octets without Markers;
stream.py splits a complete TCP stream, with or without Markers.

    bind_mpa(18515)                                      # this TCP port carries MPA
    sniff(offline="file.pcap", session=TCPSession)       # scapy's reassembly
    sniff(offline="file.pcap", session=FPDUSession)      # siwarp's: any port, any order
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import (
    BitField,
    ByteField,
    ConditionalField,
    Field,
    PacketLenField,
    PacketListField,
    ShortField,
    StrFixedLenField,
    StrLenField,
    XLEIntField,
)
from scapy.layers.inet import TCP
from scapy.packet import Packet, bind_layers, split_layers

from siwarp.inspect.crc import crc32c
from siwarp.inspect.ddp import DDP
from siwarp.inspect.framing import (
    CRC_LEN,
    KEY_LEN,
    LENGTH_LEN,
    MARKER_LEN,
    MARKER_SPACING,
    REPLY_KEY,
    REQUEST_KEY,
    STARTUP_HDR_LEN,
    fpdu_len,
    iterate_complete_fpdus,
    mpa_startup_frame_end_offset,
    pad_len,
)
from siwarp.inspect.layer import Layer
from siwarp.inspect.wire import ENHANCED_LEN

#: The M flag in the octet after the key of a start-up frame.
M_FLAG = 0x80


def _has_ird_ord(frame: Packet) -> bool:
    """Return whether a frame's private data starts with IRD/ORD: the S bit is set, the revision is
    2 or later, and the data are long enough.

    In revisions 0 and 1 the S bit is reserved, and receivers ignore it.
    """
    has_room = frame.pd_length is None or frame.pd_length >= ENHANCED_LEN
    return bool(frame.s and frame.rev >= 2 and has_room)


def _ulp_private_len(frame: Packet) -> int:
    return int(frame.pd_length) - (ENHANCED_LEN if _has_ird_ord(frame) else 0)


def _startup_fields(key: bytes) -> list[Field[Any, Any] | ConditionalField]:
    def make_ird_ord_field(name: str, size: int) -> ConditionalField:
        return ConditionalField(BitField(name, 0, size), _has_ird_ord)

    return [
        StrFixedLenField("key", key, KEY_LEN),
        BitField("m", 0, 1),
        BitField("c", 1, 1),
        BitField("r", 0, 1),
        BitField("s", 0, 1),
        BitField("res", 0, 4),
        ByteField("rev", 1),
        ShortField("pd_length", None),
        make_ird_ord_field("a", 1),
        make_ird_ord_field("b", 1),
        make_ird_ord_field("ird", 14),
        make_ird_ord_field("c_rtr", 1),
        make_ird_ord_field("d_rtr", 1),
        make_ird_ord_field("ord", 14),
        StrLenField("private_data", b"", length_from=_ulp_private_len),
    ]


class MPAStartup(Layer):
    """Base class of both start-up frames; `MPAStartup(octets)` selects the class by the key.

    `pd_length` is computed if it is None; it includes IRD/ORD, which `private_data` does not. The
    flags C and D of RFC 6581 section 9 are named `c_rtr` and `d_rtr`, because the CRC bit is also
    named C.
    """

    name = "MPA start-up"

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """Return the class of the start-up frame with this key; Raw for any other key."""
        if cls is not MPAStartup:
            return cls
        key = (_pkt or b"")[:KEY_LEN]
        if key == REQUEST_KEY:
            return MPARequest
        return MPAReply if key == REPLY_KEY else conf.raw_layer

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Insert the length of the private data if the field `pd_length` is None."""
        if self.pd_length is None:
            length = (len(pkt) - STARTUP_HDR_LEN).to_bytes(2, "big")
            pkt = pkt[: STARTUP_HDR_LEN - 2] + length + pkt[STARTUP_HDR_LEN:]
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Return no payload, because the octets after a start-up frame are the next frame."""
        return b"", s


class MPARequest(MPAStartup):
    """MPA Request Frame: the first octets sent by the initiator."""

    name = "MPA Request"
    fields_desc: ClassVar[list[Any]] = _startup_fields(REQUEST_KEY)


class MPAReply(MPAStartup):
    """MPA Reply Frame: the first octets sent by the responder."""

    name = "MPA Reply"
    fields_desc: ClassVar[list[Any]] = _startup_fields(REPLY_KEY)


def _ulpdu_len(fpdu: Packet) -> int:
    return int(fpdu.ulpdu_length)


def _pad_len(fpdu: Packet) -> int:
    return pad_len(fpdu.ulpdu_length)


class FPDU(Layer):
    """A framed ULPDU: length, DDP segment, pad, CRC32C.

    `ulpdu_length`, `pad` and `crc` are computed if they are None; given values are kept, so that
    invalid FPDUs can be built too. A peer without CRC may send any value as the CRC.
    """

    name = "MPA FPDU"
    __slots__ = ("marked",)
    #: The octets of the FPDU with its Markers, if the stream has Markers; otherwise None.
    marked: bytes | None
    fields_desc: ClassVar[list[Any]] = [
        ShortField("ulpdu_length", None),
        PacketLenField("ulpdu", None, DDP, length_from=_ulpdu_len),  # type: ignore[arg-type]
        StrLenField("pad", None, length_from=_pad_len),  # type: ignore[arg-type]
        XLEIntField("crc", None),
    ]

    def __init__(self, *args: Any, marked: bytes | None = None, **fields: Any) -> None:
        self.marked = marked
        super().__init__(*args, **fields)

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Insert the computed length, pad and CRC if their fields are None."""
        length = len(pkt) - LENGTH_LEN - len(self.pad or b"") - CRC_LEN
        if self.ulpdu_length is None:
            pkt = length.to_bytes(LENGTH_LEN, "big") + pkt[LENGTH_LEN:]
        if self.pad is None:
            end = LENGTH_LEN + length
            pkt = pkt[:end] + bytes(pad_len(length)) + pkt[end:]
        if self.crc is None:
            pkt = pkt[:-CRC_LEN] + crc32c(pkt[:-CRC_LEN]).to_bytes(CRC_LEN, "little")
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Return no payload, because the octets after an FPDU are the next frame."""
        return b"", s

    def crc_expected(self) -> int:
        """CRC32C over length, ULPDU, pad and Markers; equal to `crc` in a valid FPDU."""
        return crc32c((self.marked or bytes(self))[:-CRC_LEN])

    def wire_len(self) -> int:
        """Return the number of octets of the FPDU in its stream, including Markers."""
        return len(self.marked or bytes(self))


class Marker(Layer):
    """A Marker (RFC 5044 figure 3); `fpduptr` is the distance from its FPDU's first octet."""

    name = "MPA Marker"
    fields_desc: ClassVar[list[Any]] = [ShortField("reserved", 0), ShortField("fpduptr", 0)]

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Return no payload: the octets after a Marker belong to the FPDU around it."""
        return b"", s


def mark(fpdu: Packet, at: int) -> bytes:
    """Build an FPDU as it appears in a stream with Markers.

    `at` is the position of its first octet, relative to the first Marker's first octet. A Marker
    directly before the FPDU belongs to it. The CRC, unless it was given, covers the Markers.
    """
    plain = bytes(fpdu)
    before_crc = len(plain) - (CRC_LEN if fpdu.crc is None else 0)
    out = bytearray()
    first = at + (MARKER_LEN if at % MARKER_SPACING == 0 else 0)
    done = 0
    while done < len(plain):
        here = at + len(out)
        if here % MARKER_SPACING == 0:
            # The pointer is a 16-bit field.
            out += (max(here - first, 0) % (1 << 16)).to_bytes(MARKER_LEN, "big")
            here += MARKER_LEN
        if done == before_crc:
            out += crc32c(bytes(out)).to_bytes(CRC_LEN, "little")
            break
        end = min(done + MARKER_SPACING - here % MARKER_SPACING, before_crc)
        out += plain[done:end]
        done = end
    return bytes(out)


def mark_stream(fpdus: Iterable[Packet], at: int = 0) -> bytes:
    """Build consecutive FPDUs with Markers; `at`: position of the first FPDU, as in `mark`."""
    out = bytearray()
    for fpdu in fpdus:
        out += mark(fpdu, at + len(out))
    return bytes(out)


def unmark(octets: bytes, at: int = 0) -> tuple[bytes, list[tuple[int, int]]]:
    """Remove the Markers; return the remaining octets, and (position, pointer) pairs.

    `octets` begins at position `at`. A Marker that is truncated at the end is removed, but not
    reported.
    """
    plain = bytearray()
    found = []
    here, end = at, at + len(octets)
    while here < end:
        if here % MARKER_SPACING == 0:
            marker = octets[here - at : here - at + MARKER_LEN]
            if len(marker) == MARKER_LEN:
                found.append((here, Marker(marker).fpduptr))
            here += MARKER_LEN
        stop = min(end, (here // MARKER_SPACING + 1) * MARKER_SPACING)
        plain += octets[here - at : stop - at]
        here = stop
    return bytes(plain), found


def mpa_frame_class(octets: bytes) -> type[Packet]:
    """Return the class of a frame, start-up frame or FPDU, by the key.

    No FPDU of RDMAP looks like a start-up frame: read as an FPDU, a key would be an untagged
    segment with opcode 0, which belongs to tagged segments.
    """
    starts = octets[:KEY_LEN] in (REQUEST_KEY, REPLY_KEY)
    return MPAStartup if starts else FPDU


@dataclass
class _DirectionState:
    """State of one direction of a TCPSession's stream between two packets."""

    started: bool = False  # the start-up frame has been parsed
    asks: bool = False  # the start-up frame requests Markers
    at: int = 0  # position: octets of FPDUs and Markers parsed so far


class MPA(Layer):
    """Contiguous octets that begin with a frame: start-up frames and FPDUs."""

    name = "MPA"
    fields_desc: ClassVar[list[Any]] = [
        PacketListField(
            "frames",
            [],
            next_cls_cb=lambda _pkt, _lst, _cur, rest: mpa_frame_class(rest) if rest else None,
            max_count=1 << 20,
        )
    ]

    @classmethod
    def tcp_reassemble(
        cls, data: bytes, metadata: dict[str, Any], session: dict[Any, Any]
    ) -> Packet | None:
        """Return the complete frames at a stream's start, for TCPSession; None if there is none.

        TCPSession fills a gap with zeros, passes retransmitted octets twice, and takes segments in
        the order of their arrival. FPDUSession has none of these defects.
        """
        ident = metadata.get("ident")
        if ident is None and "relative_seq" in metadata:
            return None  # scapy repeats the call for octets that were incomplete before
        # Different connections may have the same `session`; `ident` distinguishes the connections.
        way = session.setdefault((cls, ident), _DirectionState())
        back = (
            session.get((cls, _session_key_of_other_direction(ident)), _DirectionState())
            if ident
            else _DirectionState()
        )
        frames: list[Packet] = []
        at = 0
        end = 0 if way.started else mpa_startup_frame_end_offset(data)
        if end is None:
            return None
        if end:
            frames.append(MPAStartup(data[:end]))
            way.started, way.asks, at = True, bool(data[KEY_LEN] & M_FLAG), end
        marked = way.started and back.asks
        for span in iterate_complete_fpdus(data, at, at - way.at if marked else None):
            frames.append(FPDU(span.octets, marked=span.marked))
            way.at += span.end - span.start
            at = span.end
        if not frames:
            return None
        found = cls(frames=frames)
        return found / conf.padding_layer(data[at:]) if at < len(data) else found


def _session_key_of_other_direction(ident: bytes) -> bytes:
    """Return TCPSession's key of the other direction: the addresses and ports swapped."""
    half = (len(ident) - 4) // 2
    return ident[half:-4] + ident[:half] + ident[-2:] + ident[-4:-2]


def bind_mpa(port: int) -> None:
    """Make scapy dissect a TCP port's octets as MPA; TCPSession then reassembles them."""
    bind_layers(TCP, MPA, dport=port)
    bind_layers(TCP, MPA, sport=port)


def unbind_mpa(port: int) -> None:
    """Remove the bindings that `bind_mpa` added for a TCP port."""
    split_layers(TCP, MPA, dport=port)
    split_layers(TCP, MPA, sport=port)


__all__ = [
    "CRC_LEN",
    "FPDU",
    "LENGTH_LEN",
    "MPA",
    "REPLY_KEY",
    "REQUEST_KEY",
    "STARTUP_HDR_LEN",
    "MPAReply",
    "MPARequest",
    "MPAStartup",
    "Marker",
    "bind_mpa",
    "fpdu_len",
    "mark",
    "mark_stream",
    "mpa_frame_class",
    "pad_len",
    "unbind_mpa",
    "unmark",
]
