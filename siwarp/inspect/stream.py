# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Converts captured packets to frames.

Finds the TCP connections, puts each direction's octets in order, and splits them into the start-up
frame and the FPDUs, with or without Markers.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from siwarp.inspect.framing import (
    FoundMarker,
    is_plausible_fpdu,
    iterate_complete_fpdus,
    mpa_startup_frame_end_offset,
    next_fpdu_with_markers,
    next_fpdu_without_markers,
    read_fpdu_crc_field,
)
from siwarp.inspect.packets import ACK, FIN, RST, SYN, Packet, packets_from_scapy
from siwarp.inspect.wire import parse_mpa_startup

if TYPE_CHECKING:
    from scapy.packet import Packet as ScapyPacket

    from siwarp.inspect.mpa import FPDU

SEQ_SPACE = 1 << 32


class Direction(NamedTuple):
    """One direction of a TCP connection: source and destination."""

    source: str
    source_port: int
    dest: str
    dest_port: int

    def reverse(self) -> Direction:
        """Return the opposite direction of the same TCP connection."""
        return Direction(self.dest, self.dest_port, self.source, self.source_port)


# ---- reassembly of octets ------------------------------------------------------------------------


class PacketRange(NamedTuple):
    """The packet that carried a stream's octets from `start` to before `end`; `when` is in ns."""

    start: int
    end: int
    frame: int
    when: int


@dataclass
class HalfConnection:
    """One direction of a connection during reassembly; offsets are relative to its first octet.

    `octets` has the octets from the start to the first gap, `places` records which packet carried
    which octets, and `again` lists the packets that repeated octets.
    """

    base: int | None = None
    octets: bytearray = field(default_factory=bytearray)
    forgotten: int = 0  # number of octets before `octets`, removed by discard()
    places: list[PacketRange] = field(default_factory=list)
    again: list[PacketRange] = field(default_factory=list)
    _early: list[tuple[int, int, bytes, PacketRange]] = field(default_factory=list)
    _top: int = 0

    def set_first_seq(self, seq: int) -> None:
        """Set the sequence number of the first octet, from a SYN."""
        if self.base is None:
            self.base = seq % SEQ_SPACE

    def add_segment(self, seq: int, payload: bytes, frame: int = 0, when: int = 0) -> bool:
        """Add a segment's octets. Return True if `octets` became longer."""
        if self.base is None:
            self.base = seq
        offset = self._stream_offset(seq)
        place = PacketRange(offset, offset + len(payload), frame, when)
        if place.end <= self.end:
            self.again.append(place)
            return False
        heapq.heappush(self._early, (offset, frame, payload, place))
        self._top = max(self._top, place.end)
        before = self.end
        self._append_stored_segments(self.octets, self.forgotten)
        return self.end > before

    def _stream_offset(self, seq: int) -> int:
        """Return the offset, nearest the stream's end, of an octet with this sequence number."""
        assert self.base is not None
        low = (seq - self.base) % SEQ_SPACE
        lap = round((max(self._top, self.end) - low) / SEQ_SPACE)
        return low + lap * SEQ_SPACE

    def _append_stored_segments(self, octets: bytearray, origin: int) -> None:
        """Append the stored segments that continue `octets`, which start at offset `origin`."""
        while self._early and self._early[0][0] <= origin + len(octets):
            offset, _, payload, place = heapq.heappop(self._early)
            have = origin + len(octets)
            if offset < have:
                self.again.append(place)
            if place.end > have:
                octets += payload[have - offset :]
                self.places.append(place)

    def contiguous_runs(self) -> list[tuple[int, bytes]]:
        """Return (offset, octets) of each range without a gap. Call it last: it consumes them."""
        found = [(self.forgotten, bytes(self.octets))] if self.octets else []
        while self._early:
            origin = max(self._early[0][0], 0)
            run = bytearray()
            self._append_stored_segments(run, origin)
            found.append((origin, bytes(run)))
        return found

    def discard(self, size: int) -> None:
        """Discard the first `size` octets, and the records of which packet carried which octets."""
        del self.octets[:size]
        self.forgotten += size
        self.places.clear()
        self.again.clear()

    @property
    def end(self) -> int:
        """The offset of the first gap, or of the end of the stream."""
        return self.forgotten + len(self.octets)

    @property
    def segment_count_after_gap(self) -> int:
        """Number of segments after the first gap."""
        return len(self._early)


@dataclass
class Connection:
    """A TCP connection; `first` is the initiator's direction if that is known."""

    first: Direction
    first_frame: int = 0
    when: int = 0
    halves: dict[Direction, HalfConnection] = field(default_factory=dict)
    ended: str | None = None  # how the connection ended: "closed" or "reset"; None: it has not
    last: int = 0
    cut: int = 0  # number of octets that the capture truncated

    def half_connection(self, direction: Direction) -> HalfConnection:
        """Return the octets of one direction."""
        return self.halves.setdefault(direction, HalfConnection())

    def add_segment(self, packet: Packet) -> bool:
        """Add a segment. Return True if the part of a direction without gaps became longer."""
        half = self.half_connection(direction_of(packet))
        if packet.flags & SYN:
            half.set_first_seq(packet.seq + 1)
        seq = (packet.seq + bool(packet.flags & SYN)) % SEQ_SPACE
        longer = bool(packet.payload) and half.add_segment(
            seq, packet.payload, packet.frame, packet.when
        )
        if packet.flags & RST:
            self.ended = "reset"
        elif packet.flags & FIN and self.ended is None:
            self.ended = "closed"
        self.last = packet.when
        self.cut += packet.missing
        return longer

    @property
    def is_ended_or_has_data(self) -> bool:
        """Whether a SYN now starts a new connection with the same addresses and ports."""
        return self.ended is not None or any(
            h.end or h.segment_count_after_gap for h in self.halves.values()
        )


def direction_of(packet: Packet) -> Direction:
    """Return the direction of a connection to which a TCP segment belongs."""
    return Direction(packet.source, packet.source_port, packet.dest, packet.dest_port)


class Connections:
    """Sorts segments into connections; a SYN after data, a FIN or a reset starts a new one."""

    def __init__(self) -> None:
        self.all: list[Connection] = []
        self._now: dict[Direction, Connection] = {}

    def find_or_add(self, packet: Packet) -> Connection:
        """Return the connection to which a segment belongs; create it if necessary."""
        direction = direction_of(packet)
        found = self._now.get(direction)
        asks = packet.flags & (SYN | ACK) == SYN
        if found is None or (
            found.is_ended_or_has_data and (asks or (packet.flags & SYN and found.ended))
        ):
            answers = packet.flags & (SYN | ACK) == SYN | ACK
            first = direction.reverse() if answers else direction
            found = Connection(first, packet.frame, packet.when)
            self._now[direction] = self._now[direction.reverse()] = found
            self.all.append(found)
        return found


def tcp_connections(packets: Iterable[Packet]) -> list[Connection]:
    """Return the TCP connections of a capture in the order of their first segments."""
    found = Connections()
    for packet in packets:
        if packet.tcp:
            found.find_or_add(packet).add_segment(packet)
    return found.all


def tcp_streams(packets: Iterable[ScapyPacket]) -> dict[Direction, bytes]:
    """Return the octets of every direction that carries data, in order and without retransmissions.

    `packets` are scapy's. A direction starts at its SYN, or at its first segment if the capture has
    no SYN. Raises ValueError if octets are missing in the middle, because frames cannot be found
    after a gap, and if a pair of ports has several connections; `tcp_connections` separates these.
    """
    streams: dict[Direction, bytes] = {}
    for connection in tcp_connections(packets_from_scapy(packets)):
        for direction, half in connection.halves.items():
            if half.segment_count_after_gap:
                raise ValueError(
                    f"octets are missing after {len(half.octets)} of {direction}: "
                    "use examine(), which continues after a gap"
                )
            if half.octets and direction in streams:
                raise ValueError(
                    f"more than one connection used the ports of {direction}: use "
                    "examine(), which separates them"
                )
            if half.octets:
                streams[direction] = bytes(half.octets)
    return streams


# ---- splitting octets into frames ----------------------------------------------------------------


@dataclass
class Frames:
    """A stream split into frames, in the stream's order.

    `rest` is the incomplete frame at the end; empty if the stream ends at a frame boundary.
    `markers` are the Markers of the complete FPDUs.
    """

    startup: ScapyPacket | None = None
    fpdus: list[FPDU] = field(default_factory=list)
    rest: bytes = b""
    markers: list[FoundMarker] = field(default_factory=list)


def cut_streams(streams: dict[Direction, bytes]) -> dict[Direction, Frames]:
    """Split the streams of `tcp_streams`, with Markers if the other side's start-up frame requests
    them.
    """
    asks = {d: _requests_markers(octets) for d, octets in streams.items()}
    return {
        d: split_stream(octets, markers=asks.get(d.reverse(), False))
        for d, octets in streams.items()
    }


def _requests_markers(octets: bytes) -> bool:
    end = mpa_startup_frame_end_offset(octets)
    return bool(end and parse_mpa_startup(octets[:end]).m)


def split_stream(octets: bytes, *, markers: bool = False) -> Frames:
    """Split one direction's octets, from the first octet, into start-up frame and FPDUs.

    markers: there is a Marker before the first FPDU and every 512 octets from there (RFC 5044
    section 4.3). The Markers are removed from the FPDUs; `Frames.markers` lists them.
    """
    from siwarp.inspect.mpa import FPDU, MPAStartup

    frames = Frames()
    end = mpa_startup_frame_end_offset(octets)
    if end is None:
        return Frames(rest=octets)
    if end:
        frames.startup = MPAStartup(octets[:end])
    at = end
    for span in iterate_complete_fpdus(octets, at, end if markers else None):
        frames.fpdus.append(FPDU(span.octets, marked=span.marked))
        frames.markers += span.markers
        at = span.end
    frames.rest = octets[at:]
    return frames


# ---- resynchronization ---------------------------------------------------------------------------


def find_fpdu_start(
    octets: bytes, offset: int, places: list[PacketRange], crc: bool, origin: int | None
) -> int | None:
    """Find the start of an FPDU after a gap, or in a stream whose start is missing.

    The first octet of each segment is tried. A valid CRC (`crc`) confirms the start; if CRC is
    known to be off, a header that is valid for RDMAP confirms it. Returns None if no start is
    found. Offsets refer to `octets`, which begins at `offset` of the stream.
    """
    first = bisect.bisect_right(places, offset, key=lambda place: place.end)
    for i in range(first, len(places)):  # a slice would make the search quadratic with many gaps
        at = places[i].start - offset
        if at < 0:
            continue
        if at >= len(octets):
            return None
        span = (
            next_fpdu_without_markers(octets, at)
            if origin is None
            else next_fpdu_with_markers(octets, at, origin)
        )
        if span is None or not is_plausible_fpdu(span.octets):
            continue
        if span.crc_good or (not crc and read_fpdu_crc_field(span.octets) == 0):
            return at
    return None


__all__ = [
    "Connection",
    "Connections",
    "Direction",
    "Frames",
    "HalfConnection",
    "PacketRange",
    "cut_streams",
    "direction_of",
    "find_fpdu_start",
    "split_stream",
    "tcp_connections",
    "tcp_streams",
]
