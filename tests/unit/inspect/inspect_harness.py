"""Functions that build captures: connections split into chosen segments, and files."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import crcmod.predefined
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.sendrecv import sniff
from scapy.sessions import DefaultSession
from scapy.utils import wrpcap, wrpcapng

from siwarp.inspect import (
    FPDU,
    MPA,
    DDPDatagram,
    DDPTagged,
    DDPUntagged,
    Dissection,
    MPAReply,
    MPARequest,
    Opcode,
    ReadRequest,
    Terminate,
    UDDatagram,
    split_stream,
    tcp_streams,
)

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
RECORDED = sorted(CAPTURES.glob("*.pcap"))
READ_RESPONSE = Opcode.RDMA_READ_RESPONSE
# The addresses are set explicitly, because scapy would look up unset addresses in the network.
LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
A, B = ("10.1.0.1", 4000), ("10.1.0.2", 5000)

crc32c_oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def build_ip_header(source: str, dest: str) -> Packet:
    return IPv6(src=source, dst=dest) if ":" in source else IP(src=source, dst=dest)


class TCPConversation:
    """The packets of a synthetic TCP connection from A to B, from which a capture is written."""

    def __init__(
        self,
        a: tuple[str, int] = A,
        b: tuple[str, int] = B,
        isn: int = 1000,
        packets: list[Packet] | None = None,
    ) -> None:
        self.ends = (a, b)
        self.next = [isn, isn + 7]
        self.packets = [] if packets is None else packets

    def make_segment(
        self, who: int, payload: bytes = b"", flags: str = "A", seq: int = 0
    ) -> Packet:
        (host, port), (to, to_port) = self.ends[who], self.ends[1 - who]
        tcp = TCP(sport=port, dport=to_port, seq=seq % (1 << 32), flags=flags)
        packet = Ether(bytes(LINK / build_ip_header(host, to) / tcp / Raw(payload)))
        packet.time = 1_700_000_000 + Decimal(len(self.packets)) / 1000
        return packet

    def add_handshake(self) -> TCPConversation:
        self.packets.append(self.make_segment(0, flags="S", seq=self.next[0]))
        self.packets.append(self.make_segment(1, flags="SA", seq=self.next[1]))
        self.next = [n + 1 for n in self.next]
        self.packets.append(self.make_segment(0, seq=self.next[0]))
        return self

    def add_data(self, who: int, octets: bytes, sizes: Iterable[int] = ()) -> TCPConversation:
        """Add `octets` in segments of the given sizes, and the rest in one more segment."""
        at = 0
        for size in [*sizes, len(octets)]:
            piece = octets[at : at + size]
            if piece:
                self.packets.append(self.make_segment(who, piece, "PA", self.next[who]))
                self.next[who] += len(piece)
                at += len(piece)
        return self

    def add_fins(self) -> TCPConversation:
        for who in (0, 1):
            self.packets.append(self.make_segment(who, flags="FA", seq=self.next[who]))
            self.next[who] += 1
        return self


def make_send_fpdu(msn: int, payload: bytes = b"", opcode: int = Opcode.SEND, **more: Any) -> bytes:
    return bytes(FPDU(ulpdu=DDPUntagged(opcode=int(opcode), msn=msn, **more) / Raw(payload)))


def make_tagged_fpdu(opcode: int, stag: int, to: int, payload: bytes, last: int = 1) -> bytes:
    header = DDPTagged(opcode=int(opcode), stag=stag, to=to, l=last)
    return bytes(FPDU(ulpdu=header / Raw(payload)))


def make_read_request_fpdu(msn: int, stag: int, size: int) -> bytes:
    wanted = ReadRequest(sink_stag=stag, sink_to=0, size=size, src_stag=0x99, src_to=8)
    return bytes(FPDU(ulpdu=DDPUntagged(opcode=1, qn=1, msn=msn) / wanted))


def add_startup_frames(link: TCPConversation, **request: Any) -> TCPConversation:
    """Add both start-up frames; keywords are fields of the Request, or `reply_` and a field."""
    reply = {k[6:]: v for k, v in request.items() if k.startswith("reply_")}
    asked = {k: v for k, v in request.items() if not k.startswith("reply_")}
    link.add_data(0, bytes(MPARequest(**asked)))
    return link.add_data(1, bytes(MPAReply(**reply)))


def make_stream_with_markers(fpdus: list[bytes]) -> bytes:
    """Return FPDUs as a stream with Markers, which the CRC of each FPDU covers (RFC 5044)."""
    stream = bytearray()
    for fpdu in fpdus:
        start = len(stream)
        head = start + (4 if start % 512 == 0 else 0)
        for i in range(0, len(fpdu), 4):
            at = len(stream)
            if at % 512 == 0:
                stream += (at - head if at > head else 0).to_bytes(4, "big")
            if i == len(fpdu) - 4:
                stream += crc32c_oracle(bytes(stream[start:])).to_bytes(4, "little")
            else:
                stream += fpdu[i : i + 4]
    return bytes(stream)


def make_udp_packet(octets: bytes, a: tuple[str, int] = A, b: tuple[str, int] = B) -> Packet:
    return Ether(
        bytes(LINK / build_ip_header(a[0], b[0]) / UDP(sport=a[1], dport=b[1]) / Raw(octets))
    )


def write_capture(packets: list[Packet], path: Path) -> Path:
    """Write the packets to a file whose suffix selects the format pcapng or pcap."""
    (wrpcapng if path.suffix == ".pcapng" else wrpcap)(str(path), packets)
    return path


def sniff_offline(packets: list[Packet] | Path, session: type[DefaultSession]) -> list[Packet]:
    if isinstance(packets, Path):
        return list(sniff(offline=str(packets), session=session, quiet=True))
    return list(sniff(offline=packets, session=session, quiet=True))


def frames_from_port(packets: list[Packet], source_port: int) -> list[bytes]:
    """Return the octets of all frames that were sent from a TCP port."""
    found = []
    for packet in packets:
        if MPA in packet and packet[TCP].sport == source_port:
            found += [bytes(frame) for frame in packet[MPA].frames]
    return found


def frames_by_port(file: Path) -> dict[int, list[bytes]]:
    """Return the frames by source port, split from the complete streams without scapy sessions."""
    found = {}
    for direction, octets in tcp_streams(sniff_offline(file, DefaultSession)).items():
        cut = split_stream(octets)
        assert cut.startup is not None and cut.rest == b""
        found[direction.source_port] = [bytes(cut.startup), *map(bytes, cut.fpdus)]
    return found


def message_kinds(found: Dissection) -> list[str]:
    return [message.kind for message in found.messages]


def make_terminate_fpdu(quoted: Any, layer: int = 1, etype: int = 1, code: int = 0) -> bytes:
    body = Terminate(
        layer=layer, etype=etype, code=code, m=1, d=1, ddp_seg_len=9, quoted_ddp=quoted
    )
    return bytes(FPDU(ulpdu=DDPUntagged(opcode=7, qn=2) / body))


def make_ud_datagram(msn: int = 1, payload: bytes = b"", **more: int) -> bytes:
    return bytes(UDDatagram(segment=DDPDatagram(msn=msn, q_key=5, **more) / Raw(payload)))
