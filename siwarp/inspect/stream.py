# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""From captured packets to frames: put a TCP direction's octets in order, then cut them
into the start-up frame and the FPDUs. `cut_streams` knows from the start-up frames which
directions have Markers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet

from siwarp.inspect.mpa import (
    FPDU,
    LENGTH_LEN,
    MARKER_LEN,
    MARKER_SPACING,
    STARTUP_HDR_LEN,
    FoundMarker,
    MPAStartup,
    fpdu_len,
    frame_class,
    unmark,
)

SEQ_SPACE = 1 << 32


class Direction(NamedTuple):
    """One half of a TCP connection: who sends to whom."""

    source: str
    source_port: int
    dest: str
    dest_port: int

    def reverse(self) -> Direction:
        """The other half."""
        return Direction(self.dest, self.dest_port, self.source, self.source_port)


@dataclass
class Frames:
    """A stream cut into frames, in the stream's order.

    `rest` is the incomplete frame at the end, empty when the stream ends at a boundary.
    `markers` are those of the whole FPDUs.
    """

    startup: Packet | None = None
    fpdus: list[FPDU] = field(default_factory=list)
    rest: bytes = b""
    markers: list[FoundMarker] = field(default_factory=list)


@dataclass
class _Half:
    """Octets of one direction while its segments come in, `base` the first one's number."""

    base: int | None = None
    octets: bytearray = field(default_factory=bytearray)
    early: dict[int, bytes] = field(default_factory=dict)

    def add(self, seq: int, payload: bytes) -> None:
        if self.base is None:
            self.base = seq
        offset = self._offset(seq)
        if len(payload) > len(self.early.get(offset, b"")):
            self.early[offset] = payload
        self._join()

    def _offset(self, seq: int) -> int:
        """Place of a sequence number in the stream: the candidate nearest to its end."""
        assert self.base is not None
        low = (seq - self.base) % SEQ_SPACE
        lap = round((len(self.octets) - low) / SEQ_SPACE)
        return low + lap * SEQ_SPACE

    def _join(self) -> None:
        for offset in sorted(self.early):
            if offset > len(self.octets):
                break
            self.octets += self.early.pop(offset)[len(self.octets) - offset :]


def tcp_streams(packets: Iterable[Packet]) -> dict[Direction, bytes]:
    """The octets of every direction that carries data, retransmissions and disorder mended.

    A direction starts at its SYN, or at its first segment when the capture has none.
    Raises ValueError when octets are missing in the middle: nothing can be cut after a gap.
    """
    halves: dict[Direction, _Half] = {}
    for packet in packets:
        ip = packet.getlayer(IP) or packet.getlayer(IPv6)
        tcp = packet.getlayer(TCP)
        if ip is None or tcp is None:
            continue
        half = halves.setdefault(Direction(ip.src, tcp.sport, ip.dst, tcp.dport), _Half())
        if tcp.flags.S:
            half.base = (tcp.seq + 1) % SEQ_SPACE
        payload = _payload(ip, tcp)
        if payload:
            half.add(tcp.seq, payload)
    for direction, half in halves.items():
        if half.early:
            raise ValueError(f"octets missing after {len(half.octets)} of {direction}")
    return {d: bytes(h.octets) for d, h in halves.items() if h.octets}


def _payload(ip: Packet, tcp: Packet) -> bytes:
    """TCP's octets by IP's length: link-layer padding behind them is not theirs."""
    if isinstance(ip, IPv6):
        return bytes(tcp.payload)
    return bytes(tcp.payload)[: ip.len - ip.ihl * 4 - tcp.dataofs * 4]


def cut_streams(streams: dict[Direction, bytes]) -> dict[Direction, Frames]:
    """Cut what `tcp_streams` gave: with Markers where the other end's start-up frame asks."""
    asks = {d: _asks_for_markers(octets) for d, octets in streams.items()}
    return {
        d: split_stream(octets, markers=asks.get(d.reverse(), False))
        for d, octets in streams.items()
    }


def _asks_for_markers(octets: bytes) -> bool:
    if not issubclass(frame_class(octets), MPAStartup) or len(octets) < STARTUP_HDR_LEN:
        return False
    return bool(MPAStartup(octets[: _startup_end(octets) or len(octets)]).m)


def split_stream(octets: bytes, *, markers: bool = False) -> Frames:
    """Cut one direction's octets, from its first on, into start-up frame and FPDUs.

    markers: there is one before the first FPDU and at every 512th octet from there (RFC 5044
    section 4.3). FPDUs come without them; what they said is in `Frames.markers`.
    """
    frames = Frames()
    at = 0
    if issubclass(frame_class(octets), MPAStartup):
        end = _startup_end(octets)
        if end is None:
            return Frames(rest=octets)
        frames.startup = MPAStartup(octets[:end])
        at = end
    (_cut_marked if markers else _cut_plain)(frames, octets, at)
    return frames


def _cut_plain(frames: Frames, octets: bytes, at: int) -> None:
    while (end := _fpdu_end(octets, at)) is not None:
        frames.fpdus.append(FPDU(octets[at:end]))
        at = end
    frames.rest = octets[at:]


def _cut_marked(frames: Frames, octets: bytes, base: int) -> None:
    at = base
    while True:
        here = at - base
        first = here + (MARKER_LEN if here % MARKER_SPACING == 0 else 0)
        length = octets[base + first : base + first + LENGTH_LEN]
        end = base + _marked_end(here, int.from_bytes(length, "big"))
        if len(length) < LENGTH_LEN or end > len(octets):
            frames.rest = octets[at:]
            return
        marked = octets[at:end]
        plain, found = unmark(marked, here)
        frames.fpdus.append(FPDU(plain, marked=marked))
        frames.markers += [FoundMarker(p, ptr, max(p - first, 0)) for p, ptr in found]
        at = end


def _marked_end(at: int, ulpdu_length: int) -> int:
    """Where an FPDU ends that begins at `at`: its octets and the Markers that fall among them."""
    left = fpdu_len(ulpdu_length)
    while left:
        if at % MARKER_SPACING == 0:
            at += MARKER_LEN
        now = min(left, MARKER_SPACING - at % MARKER_SPACING)
        at, left = at + now, left - now
    return at


def _startup_end(octets: bytes) -> int | None:
    if len(octets) < STARTUP_HDR_LEN:
        return None
    pd_length = int.from_bytes(octets[STARTUP_HDR_LEN - 2 : STARTUP_HDR_LEN], "big")
    end = STARTUP_HDR_LEN + pd_length
    return end if end <= len(octets) else None


def _fpdu_end(octets: bytes, at: int) -> int | None:
    if len(octets) - at < LENGTH_LEN:
        return None
    end = at + fpdu_len(int.from_bytes(octets[at : at + LENGTH_LEN], "big"))
    return end if end <= len(octets) else None
