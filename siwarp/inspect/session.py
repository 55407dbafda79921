# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A scapy session that yields the MPA frames in TCP streams.

    for packet in sniff(offline="file.pcap", session=FPDUSession):
        if MPA in packet:
            packet[MPA].frames

Unlike scapy's TCPSession, FPDUSession needs no bound port, distinguishes connections by addresses,
ports and SYN, accepts segments in any order and more than once, and removes Markers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scapy.layers.inet import TCP
from scapy.packet import Packet as ScapyPacket
from scapy.sessions import DefaultSession

from siwarp.inspect.framing import KEY_LEN, iterate_complete_fpdus, mpa_startup_frame_end_offset
from siwarp.inspect.mpa import FPDU, MPA, MPAStartup
from siwarp.inspect.packets import Fragments, packet_from_scapy
from siwarp.inspect.stream import Connection, Connections, Direction, HalfConnection, direction_of

#: Limit of segments stored after a gap; with more, the gap is considered permanent.
EARLY_MAX = 4096


@dataclass
class _State:
    """State of one direction of a connection."""

    startup: ScapyPacket | None = None
    origin: int = 0  # offset of the direction's first FPDU
    other: bool = False  # the direction is ignored: it is not iWARP, or too many octets are missing


class FPDUSession(DefaultSession):
    """Yields each packet that completes frames, with an MPA layer of those frames as its payload.

    A packet of an iWARP connection that completes no frame is omitted. Packets of other connections
    and protocols are yielded unchanged, and so are those after a gap that is never filled. FPDUs
    are without Markers; `FPDU.marked` has the octets with them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = Connections()
        self._fragments = Fragments()
        self._states: dict[tuple[int, Direction], _State] = {}
        self._number = 0

    def process(self, pkt: ScapyPacket) -> ScapyPacket | None:
        """Process one packet of the capture; scapy calls this method for each packet."""
        self._number += 1
        packet = packet_from_scapy(pkt, self._number, self._fragments) if pkt else None
        if packet is None or not packet.tcp or TCP not in pkt:
            return pkt
        connection, direction = self._connections.find_or_add(packet), direction_of(packet)
        state = self._direction_state(connection, direction)
        if state.other:
            return pkt
        connection.add_segment(packet)
        if not packet.payload:
            return pkt
        half = connection.half_connection(direction)
        frames = self._take_complete_frames(connection, direction, half, state)
        if half.segment_count_after_gap > EARLY_MAX:
            state.other = True
        if state.other:
            return pkt
        if not frames:
            return None
        pkt[TCP].remove_payload()
        return pkt / MPA(frames=frames)

    def _direction_state(self, connection: Connection, direction: Direction) -> _State:
        return self._states.setdefault((id(connection), direction), _State())

    def _take_complete_frames(
        self, connection: Connection, direction: Direction, half: HalfConnection, state: _State
    ) -> list[ScapyPacket]:
        """Return the frames that are now complete, and discard their octets."""
        octets, at = bytes(half.octets), 0
        frames: list[ScapyPacket] = []
        if state.startup is None:
            end = mpa_startup_frame_end_offset(octets)
            if end == 0 and len(octets) >= KEY_LEN:
                state.other = True
            if not end:
                return frames
            state.startup = MPAStartup(octets[:end])
            state.origin = at = end
            frames.append(state.startup)
        asked = self._direction_state(connection, direction.reverse()).startup
        marked = asked is not None and bool(asked.m)
        for span in iterate_complete_fpdus(
            octets, at, state.origin - half.forgotten if marked else None
        ):
            frames.append(FPDU(span.octets, marked=span.marked))
            at = span.end
        half.discard(at)
        return frames
