# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""From a capture to messages: what was asked, what answered it, and what went wrong.

Works on captures of siwarp's own (``siwarp capture``) and on those of tcpdump: TCP connections that
begin with an MPA start-up frame are cut into FPDUs, UDP payloads with a sound CRC are taken
for datagram-iWARP, and so is one that a comment says was dropped.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet
from scapy.utils import PcapReader

from siwarp.inspect.ddp import DDPTagged, DDPUntagged
from siwarp.inspect.dgram import DDPDatagram, UDDatagram
from siwarp.inspect.mpa import FPDU, MPARequest
from siwarp.inspect.names import OPCODES, Opcode, TermLayer
from siwarp.inspect.rdmap import ReadRequest, Terminate
from siwarp.inspect.stream import SEQ_SPACE, Direction, Frames, cut_streams, tcp_streams

#: The clause that lists the errors of the layer that a Terminate blames.
TERM_CLAUSES = {
    TermLayer.RDMA: "RFC5040-4.8-03",
    TermLayer.DDP: "RFC5041-7.2-01",
    TermLayer.LLP: "RFC5044-8-01",
}
#: The LLP's codes that MPA's enhanced start-up added.
ENHANCED_CODES = (5, 6, 7)
ENHANCED_CLAUSE = "RFC6581-8"
#: The first word of a drop's comment -> the clause that the datagram does not keep.
DROP_CLAUSES = {
    "drop_short": "RFC5041-4.3-01",
    "drop_crc": "RFC5041-3-07",
    "drop_version": "RFC5041-4.1-09",
    "drop_header": "RFC5041-7.1-01",
    "drop_qn": "RFC5041-7.1-01",
    "drop_opcode": "RFC5040-7.2-07",
    "drop_no_buffer": "RFC5041-7.1-01",
    "drop_too_long": "RFC5041-7.1-01",
}
RDMAP_VERSION_CLAUSE = "RFC5040-7.2-08"
#: Octets of a captured frame.
FRAME_MAX = 1 << 18


@dataclass
class Message:
    """One message, whole or what there is of it. Times are seconds since 1970, lengths octets."""

    number: int = 0
    time: float = 0.0
    frame: int = 0  # of its last octet's packet in the file, from 1 on
    transport: str = "rc"
    source: str = ""
    dest: str = ""
    kind: str = ""
    length: int = 0
    segments: int = 1
    whole: bool = True
    fields: dict[str, int] = field(default_factory=dict)
    answers: int | None = None  # number of the request that this one answers
    answered_by: int | None = None
    dropped: str | None = None  # why the receiver dropped it
    error: str | None = None
    clause: str | None = None

    def blame(self, error: str, clause: str | None) -> None:
        """Note an error; the first one stays."""
        if self.error is None:
            self.error, self.clause = error, clause


@dataclass
class _Place:
    """Which packet brought the octets of a stream up to `end`."""

    end: int
    frame: int
    time: float


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _comment(packet: Packet) -> str | None:
    """The packet's comment, whatever scapy's release calls and types it."""
    found = getattr(packet, "comments", None) or getattr(packet, "comment", None)
    if isinstance(found, list):
        found = b"; ".join(x if isinstance(x, bytes) else str(x).encode() for x in found)
    if isinstance(found, bytes):
        found = found.decode(errors="replace")
    return str(found) if found else None


def _ip(packet: Packet) -> Any:
    return packet.getlayer(IP) or packet.getlayer(IPv6)


# ---- TCP --------------------------------------------------------------------------------------


def _places(packets: list[Packet]) -> dict[Direction, list[_Place]]:
    """For each direction, which packet first brought which octets, in the stream's order."""
    base: dict[Direction, int] = {}
    places: dict[Direction, list[_Place]] = {}
    for frame, packet in enumerate(packets, 1):
        ip, tcp = _ip(packet), packet.getlayer(TCP)
        if ip is None or tcp is None:
            continue
        direction = Direction(ip.src, tcp.sport, ip.dst, tcp.dport)
        if tcp.flags.S:
            base[direction] = (tcp.seq + 1) % SEQ_SPACE
        if not len(tcp.payload):
            continue
        start = (tcp.seq - base.setdefault(direction, tcp.seq)) % SEQ_SPACE
        place = _Place(start + len(tcp.payload), frame, float(packet.time))
        places.setdefault(direction, []).append(place)
    for found in places.values():
        found.sort(key=lambda place: (place.end, place.frame))
    return places


def _what(fpdu: FPDU) -> tuple[Any, ...]:
    """What the segments of one message have in common."""
    ddp = fpdu.ulpdu
    if isinstance(ddp, DDPTagged):
        return ("tagged", ddp.opcode, ddp.stag)
    if isinstance(ddp, DDPUntagged):
        return ("untagged", ddp.opcode, ddp.qn, ddp.msn)
    return ("broken",)


def _fields(ddp: Packet) -> dict[str, int]:
    names = ("stag", "to") if isinstance(ddp, DDPTagged) else ("qn", "msn", "inv_stag", "q_key")
    found = {name: int(getattr(ddp, name)) for name in names if hasattr(ddp, name)}
    request = ddp.getlayer(ReadRequest)
    if request is not None:
        for name in ("sink_stag", "sink_to", "size", "src_stag", "src_to"):
            found[name] = int(getattr(request, name))
    return found


def _kind(ddp: Packet | None) -> str:
    opcode = getattr(ddp, "opcode", None)
    return "broken" if opcode is None else OPCODES.get(opcode, f"opcode {opcode:#x}")


def _judge(message: Message, ddp: Packet | None) -> None:
    """Note what a Terminate says, and what no receiver could read."""
    if ddp is None or not isinstance(ddp, (DDPTagged, DDPUntagged)):
        message.blame("no DDP header", "RFC5041-4.3-01")
        return
    terminate = ddp.getlayer(Terminate)
    if terminate is not None:
        clause = TERM_CLAUSES.get(terminate.layer)
        if terminate.layer == TermLayer.LLP and terminate.code in ENHANCED_CODES:
            clause = ENHANCED_CLAUSE
        message.blame(terminate.reason(), clause)


def _messages_of(direction: Direction, frames: Frames, places: list[_Place]) -> Iterator[Message]:
    """The messages of one direction, in its order."""
    ends = [place.end for place in places]
    crc = _crc_in_use(frames)
    at = len(bytes(frames.startup)) if frames.startup is not None else 0

    def new(kind: str, length: int) -> Message:
        place = places[min(bisect.bisect_left(ends, at), len(places) - 1)]
        return Message(
            time=place.time,
            frame=place.frame,
            source=_name(direction.source, direction.source_port),
            dest=_name(direction.dest, direction.dest_port),
            kind=kind,
            length=length,
        )

    if frames.startup is not None:
        asks = isinstance(frames.startup, MPARequest)
        message = new("MPA_REQUEST" if asks else "MPA_REPLY", len(frames.startup.private_data))
        message.fields = {name: int(getattr(frames.startup, name)) for name in ("rev", "m", "c")}
        if frames.startup.r and not asks:
            message.blame("the connection was rejected", None)
        yield message
    open_: Message | None = None
    before: tuple[Any, ...] = ()
    for fpdu in frames.fpdus:
        at += fpdu.wire_len()
        ddp, what = fpdu.ulpdu, _what(fpdu)
        payload = len(ddp.payload) if ddp is not None else 0
        if open_ is not None and what != before:
            open_.whole = False
            open_.blame("its last segment is missing", "RFC5041-4.1-03")
            yield open_
            open_ = None
        message = new(_kind(ddp), payload)
        if open_ is None:
            message.fields = _fields(ddp) if ddp is not None else {}
            open_ = message
        else:
            open_.length += payload
            open_.segments += 1
            open_.time, open_.frame = message.time, message.frame
        _judge(open_, ddp)
        if crc and fpdu.crc != fpdu.crc_expected():
            open_.blame("wrong CRC", TERM_CLAUSES[TermLayer.LLP])
        before = what
        if getattr(ddp, "l", 1):
            yield open_
            open_ = None
    if open_ is not None:
        open_.whole = False
        yield open_
    if frames.rest:
        at += len(frames.rest)
        cut = new("part of an FPDU", len(frames.rest))
        cut.whole = False
        yield cut


def _crc_in_use(frames: Frames) -> bool:
    """Whether the CRC fields mean something: a sender without CRC leaves them all zero."""
    return any(fpdu.crc for fpdu in frames.fpdus)


def _match_reads(requests: list[Message], responses: list[Message]) -> None:
    """Pair the Read Requests of one end with the Read Responses of the other: in order."""
    waiting = deque(m for m in requests if m.kind == Opcode.RDMA_READ_REQUEST.name)
    for response in responses:
        if response.kind != Opcode.RDMA_READ_RESPONSE.name:
            continue
        asked = waiting.popleft() if waiting else None
        if asked is None:
            response.blame("a Read Response that nobody asked for", "RFC5040-5.2-01")
            continue
        response.answers, asked.answered_by = asked.number, response.number
        if response.fields.get("stag") != asked.fields.get("sink_stag") or (
            response.whole and response.length != asked.fields.get("size")
        ):
            response.blame("not what the Read Request asked for", "RFC5040-5.2.2-07")


def _match_startup(requests: list[Message], replies: list[Message]) -> None:
    for asked in requests[:1]:
        for answer in replies[:1]:
            if (asked.kind, answer.kind) == ("MPA_REQUEST", "MPA_REPLY"):
                answer.answers, asked.answered_by = asked.number, answer.number


# ---- UDP --------------------------------------------------------------------------------------


def _datagram(frame: int, packet: Packet) -> Message | None:
    """The message in a UDP packet; None for what is no datagram-iWARP."""
    ip, udp = _ip(packet), packet.getlayer(UDP)
    if ip is None or udp is None:
        return None
    comment = _comment(packet)
    octets = bytes(udp.payload)[: max(udp.len - 8, 0)]
    datagram = UDDatagram(octets)
    segment: Any = getattr(datagram, "segment", None)
    known = isinstance(segment, DDPDatagram)
    sound = known and datagram.crc in (0, datagram.crc_expected()) and segment.dv == 1
    if not sound and comment is None:
        return None
    message = Message(
        time=float(packet.time),
        frame=frame,
        transport="ud",
        source=_name(ip.src, udp.sport),
        dest=_name(ip.dst, udp.dport),
        kind=_kind(segment) if known else "broken",
        length=len(segment.payload) if known else len(octets),
        fields=_fields(segment) if known else {},
    )
    if comment is not None:
        word = comment.partition(":")[0]
        message.dropped = comment
        clause = DROP_CLAUSES.get(word)
        if word == "drop_version" and known and segment.dv == 1:
            clause = RDMAP_VERSION_CLAUSE
        message.blame(f"dropped by the receiver: {comment}", clause)
    return message


# ---- all of it --------------------------------------------------------------------------------


def dissect_packets(packets: Iterable[Packet]) -> list[Message]:
    """The messages of a capture, numbered from 1 on in the order in which they were complete.

    ValueError when octets of a TCP stream are missing in the middle.
    """
    packets = list(packets)
    places = _places(packets)
    halves: dict[Direction, list[Message]] = {}
    for direction, frames in cut_streams(tcp_streams(packets)).items():
        if frames.startup is not None:
            halves[direction] = list(_messages_of(direction, frames, places[direction]))
    datagrams = [m for i, p in enumerate(packets, 1) if (m := _datagram(i, p)) is not None]
    everything = [message for half in halves.values() for message in half] + datagrams
    everything.sort(key=lambda message: message.frame)
    for number, message in enumerate(everything, 1):
        message.number = number
    for direction, half in halves.items():
        other = halves.get(direction.reverse(), [])
        _match_reads(half, other)
        _match_startup(half, other)
    return everything


def _packets(reader: Any) -> Iterator[Packet]:
    """All packets; scapy's own iterator cuts them at 65,535 octets, which a datagram can exceed."""
    while True:
        try:
            yield reader.read_packet(size=FRAME_MAX)
        except EOFError:
            return


def dissect(path: str | Path) -> list[Message]:
    """The messages of a pcapng or pcap file: `dissect_packets` of its packets.

    OSError when it cannot be read; ValueError when it is no capture, or has a gap.
    """
    from scapy.error import Scapy_Exception

    try:
        with PcapReader(str(path)) as reader:
            return dissect_packets(_packets(reader))
    except (Scapy_Exception, EOFError) as e:
        raise ValueError(f"{path} is not a pcapng or pcap file ({e})") from None


__all__ = ["Message", "dissect", "dissect_packets"]
