# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Extracts TCP segments and UDP datagrams from frames.

Parses link headers, IPv4, IPv6 and its extension headers, and reassembles fragments. Other packets
and damaged ones are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from siwarp.inspect.limits import count_against_limits
from siwarp.inspect.pcap import SECOND, Frame

if TYPE_CHECKING:
    from scapy.packet import Packet as ScapyPacket

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
TCP, UDP = 6, 17
IPV4_TYPE, IPV6_TYPE = 0x0800, 0x86DD
VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
#: IPv6 extension headers with the usual start: next header, length in units of 8 octets minus one.
EXTENSIONS = (0, 43, 60, 135, 139, 140)
FRAGMENT = 44
#: Link types, each with a different header before IP.
ETHERNET, RAW_IPV4, RAW_IPV6, SLL, SLL2 = 1, 228, 229, 113, 276
RAW = (12, 14, 101)
NULL = (0, 108)  # BSD loopback: an address family precedes IP
#: Source, destination, protocol and identification of a fragmented datagram.
FragmentKey = tuple[str, str, int, int]
#: Limit of fragmented datagrams that are stored at a time.
FRAGMENTS_MAX = 256
#: Limit of stored fragments of one datagram, in octets: twice IP's maximum, to allow duplicates.
DATAGRAM_MAX = 2 * 65_536


@dataclass(frozen=True, slots=True)
class Packet:
    """A TCP segment or a UDP datagram.

    `missing`: octets at the end of the payload that the capture lacks. `fragmented`: these octets
    were in IP fragments that the capture lacks; without the first fragment the ports are 0.
    """

    frame: int
    when: int  # time stamp: nanoseconds since 1970
    source: str
    source_port: int
    dest: str
    dest_port: int
    payload: bytes
    missing: int = 0
    comment: str | None = None
    tcp: bool = False
    seq: int = 0
    flags: int = 0
    fragmented: bool = False

    @property
    def missing_description(self) -> str:
        """A description of the octets that are missing in the packet."""
        if self.fragmented:
            return f"{self.missing} of its octets were in IP fragments that the capture lacks"
        return f"the capture truncated it by {self.missing} octets"


def _strip_link_header(link: int, octets: bytes) -> bytes:
    """Return the octets after the link header; empty if they are not an IP packet."""
    if link == ETHERNET:
        at = 12
        while len(octets) >= at + 2:
            kind = int.from_bytes(octets[at : at + 2], "big")
            if kind not in VLAN_TYPES:
                return octets[at + 2 :] if kind in (IPV4_TYPE, IPV6_TYPE) else b""
            at += 4
        return b""
    if link == SLL:
        return octets[16:]
    if link == SLL2:
        return octets[20:]
    if link in NULL:
        return octets[4:]
    return octets if link in (*RAW, RAW_IPV4, RAW_IPV6) else b""


class Fragments:
    """Reassembles fragmented datagrams; UDP datagrams that stay incomplete become packets with
    missing octets.
    """

    def __init__(self) -> None:
        self._parts: dict[FragmentKey, dict[int, bytes]] = {}
        self._ends: dict[FragmentKey, int] = {}
        self._last: dict[FragmentKey, Frame] = {}
        self._incomplete: list[Packet] = []

    def add(
        self, key: FragmentKey, offset: int, more: bool, part: bytes, frame: Frame
    ) -> bytes | None:
        """Add a fragment. Return the datagram when it is complete, otherwise None."""
        if key not in self._parts and len(self._parts) >= FRAGMENTS_MAX:
            self._emit_truncated_datagram(next(iter(self._parts)))
        parts = self._parts.setdefault(key, {})
        parts[offset] = part
        self._last[key] = frame
        if sum(map(len, parts.values())) > DATAGRAM_MAX:
            self._remove_datagram(key)
            return None
        if not more:
            self._ends[key] = offset + len(part)
        end = self._ends.get(key)
        if end is None or sum(map(len, parts.values())) < end:
            return None
        whole = self._join_fragments_before_gap(parts)
        if len(whole) < end:
            return None
        self._remove_datagram(key)
        return whole[:end]

    def take_incomplete(self) -> list[Packet]:
        """Return the datagrams that stayed incomplete, and forget them."""
        for key in list(self._parts):
            self._emit_truncated_datagram(key)
        found, self._incomplete = self._incomplete, []
        return found

    @staticmethod
    def _join_fragments_before_gap(parts: dict[int, bytes]) -> bytes:
        """Return the octets of a datagram before the first missing fragment."""
        whole = bytearray()
        for at in sorted(parts):
            if at > len(whole):
                break
            whole += parts[at][len(whole) - at :]
        return bytes(whole)

    def _remove_datagram(self, key: FragmentKey) -> None:
        del self._parts[key], self._last[key]
        self._ends.pop(key, None)

    def _emit_truncated_datagram(self, key: FragmentKey) -> None:
        """Keep the beginning of a UDP datagram as a packet, and discard the rest."""
        source, dest, protocol, _ = key
        parts, frame = self._parts[key], self._last[key]
        begin = self._join_fragments_before_gap(parts)
        length = self._ends.get(key, max(at + len(part) for at, part in parts.items()))
        self._remove_datagram(key)
        source_port = dest_port = 0
        if len(begin) >= 8:
            source_port, dest_port, said = struct.unpack_from("!HHH", begin)
            length = max(said, length)
        if protocol == UDP:
            self._incomplete.append(
                Packet(
                    frame=frame.number,
                    when=frame.when,
                    source=source,
                    source_port=source_port,
                    dest=dest,
                    dest_port=dest_port,
                    payload=begin[8:],
                    missing=max(length - max(len(begin), 8), 1),
                    comment=frame.comment,
                    fragmented=True,
                )
            )


@dataclass(frozen=True)
class _Ip:
    source: str
    dest: str
    protocol: int
    body: bytes
    length: int  # octets of `body` on the wire, of which the capture may have only the first


def _parse_ipv4(octets: bytes, fragments: Fragments, frame: Frame) -> _Ip | None:
    if len(octets) < 20:
        return None
    head = (octets[0] & 0xF) * 4
    total, ident, where = struct.unpack_from("!HHH", octets, 2)
    if head < 20 or len(octets) < head:
        return None
    # Segmentation offload leaves the total length 0; then the frame's length is used.
    end = total if total >= head else len(octets)
    source, dest = str(IPv4Address(octets[12:16])), str(IPv4Address(octets[16:20]))
    body, length, protocol = octets[head:end], end - head, octets[9]
    offset, more = (where & 0x1FFF) * 8, bool(where & 0x2000)
    if offset or more:
        whole = fragments.add((source, dest, protocol, ident), offset, more, body, frame)
        if whole is None:
            return None
        body, length = whole, len(whole)
    return _Ip(source, dest, protocol, body, length)


def _parse_ipv6_packet(octets: bytes, fragments: Fragments, frame: Frame) -> _Ip | None:
    if len(octets) < 40:
        return None
    length, protocol = int.from_bytes(octets[4:6], "big"), octets[6]
    length = length or len(octets) - 40
    source, dest = str(IPv6Address(octets[8:24])), str(IPv6Address(octets[24:40]))
    body = octets[40 : 40 + length]
    while protocol in EXTENSIONS or protocol == FRAGMENT:
        if len(body) < 8:
            return None
        if protocol == FRAGMENT:
            where, ident = struct.unpack_from("!HI", body, 2)
            protocol = body[0]
            whole = fragments.add(
                (source, dest, protocol, ident), where & 0xFFF8, bool(where & 1), body[8:], frame
            )
            if whole is None:
                return None
            body, length = whole, len(whole)
            continue
        size = (body[1] + 1) * 8
        if len(body) < size:
            return None
        protocol, body, length = body[0], body[size:], length - size
    return _Ip(source, dest, protocol, body, length)


def _parse_ip_packet(frame: Frame, octets: bytes, fragments: Fragments) -> Packet | None:
    version = octets[0] >> 4 if octets else 0
    ip = None
    if version == 4:
        ip = _parse_ipv4(octets, fragments, frame)
    elif version == 6:
        ip = _parse_ipv6_packet(octets, fragments, frame)
    if ip is None or ip.protocol not in (TCP, UDP):
        return None
    body = ip.body
    seq = flags = 0
    if ip.protocol == TCP:
        if len(body) < 20:
            return None
        source_port, dest_port, seq = struct.unpack_from("!HHI", body)
        head, flags, length = (body[12] >> 4) * 4, body[13], ip.length
        if head < 20 or len(body) < head:
            return None
    else:
        if len(body) < 8:
            return None
        source_port, dest_port, said = struct.unpack_from("!HHH", body)
        head, length = 8, said or ip.length
        if not 8 <= length <= ip.length:
            return None
    return Packet(
        frame=frame.number,
        when=frame.when,
        source=ip.source,
        source_port=source_port,
        dest=ip.dest,
        dest_port=dest_port,
        payload=body[head:length],
        missing=max(length - max(len(body), head), 0),
        comment=frame.comment,
        tcp=ip.protocol == TCP,
        seq=seq,
        flags=flags,
    )


def packets_from_scapy(packets: Iterable[ScapyPacket]) -> Iterator[Packet]:
    """Yield the segments and datagrams in scapy's packets, which are numbered from 1."""
    fragments = Fragments()
    for number, packet in enumerate(packets, 1):
        found = packet_from_scapy(packet, number, fragments)
        if found is not None:
            yield found
    yield from fragments.take_incomplete()


def packet_from_scapy(packet: ScapyPacket, number: int, fragments: Fragments) -> Packet | None:
    """Return the segment or datagram in a scapy packet; None for other protocols."""
    from scapy.layers.inet import IP
    from scapy.layers.inet6 import IPv6

    ip = packet.getlayer(IP) or packet.getlayer(IPv6)
    if ip is None:
        return None
    octets, when = bytes(ip), int(packet.time * SECOND)
    frame = Frame(number, when, RAW_IPV4, octets, len(octets), packet_comment(packet))
    return _parse_ip_packet(frame, octets, fragments)


def packet_comment(packet: ScapyPacket) -> str | None:
    """Return a packet's comment; its name and type differ between scapy's releases."""
    found = getattr(packet, "comments", None) or getattr(packet, "comment", None)
    if isinstance(found, list):
        found = b"; ".join(x if isinstance(x, bytes) else str(x).encode() for x in found)
    if isinstance(found, bytes):
        found = found.decode(errors="replace")
    return str(found) if found else None


def packets_from_frames(frames: Iterable[Frame]) -> Iterator[Packet]:
    """Yield the TCP segments and UDP datagrams in frames, in the order of the frames."""
    fragments = Fragments()
    for frame in frames:
        count_against_limits()
        found = _parse_ip_packet(frame, _strip_link_header(frame.link, frame.octets), fragments)
        if found is not None:
            yield found
    yield from fragments.take_incomplete()


__all__ = [
    "ACK",
    "FIN",
    "RST",
    "SYN",
    "Fragments",
    "Packet",
    "packet_comment",
    "packet_from_scapy",
    "packets_from_frames",
    "packets_from_scapy",
]
