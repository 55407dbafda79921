"""A plain TCP socket as the peer of an RC queue pair; it sends any message that a test builds."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import net
from harness.rc_harness import End, ListenerAndConnector, create_plain_listener
from harness.verbs_harness import LIMIT, wait_until
from scapy.packet import Raw

from siwarp.cm import CMID, CMEventType, ConnParam
from siwarp.inspect import (
    DDP,
    FPDU,
    DDPTagged,
    DDPUntagged,
    MPAReply,
    MPARequest,
    Opcode,
    Queue,
    ReadRequest,
    Terminate,
)
from siwarp.inspect.rdmap import QuotedTagged, QuotedUntagged


class PlainPeer:
    """The plain TCP socket of a peer, with the message sequence numbers of its messages."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self._came: bytes | None = None  # octets received but not yet read by the test
        sock.settimeout(LIMIT)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sends = 0
        self.reads = 0

    # ---- transmit

    def send_segments(self, *segments: bytes) -> None:
        """Send DDP segments, each in an FPDU, with one send call."""
        self.sock.sendall(b"".join(map(self.frame_segment, segments)))

    @staticmethod
    def frame_segment(segment: bytes) -> bytes:
        """Return an FPDU that contains a DDP segment."""
        return bytes(FPDU(ulpdu=Raw(segment)))

    def build_send(self, payload: bytes = b"", **fields: Any) -> bytes:
        self.sends += 1
        head: dict[str, Any] = {
            "qn": Queue.SEND,
            "opcode": Opcode.SEND,
            "msn": self.sends,
            **fields,
        }
        return bytes(DDPUntagged(**head)) + payload

    @staticmethod
    def build_write(payload: bytes, stag: int, to: int, **fields: Any) -> bytes:
        return bytes(DDPTagged(opcode=Opcode.RDMA_WRITE, stag=stag, to=to, **fields)) + payload

    def build_read_request(self, size: int, stag: int, to: int) -> bytes:
        self.reads += 1
        head = DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=Queue.READ_REQUEST, msn=self.reads)
        return bytes(head) + bytes(ReadRequest(sink_stag=0x77, size=size, src_stag=stag, src_to=to))

    @staticmethod
    def build_read_response(request: ReadRequest, payload: bytes = b"") -> bytes:
        head = DDPTagged(
            opcode=Opcode.RDMA_READ_RESPONSE, stag=request.sink_stag, to=request.sink_to
        )
        return bytes(head) + payload

    @staticmethod
    def build_terminate(layer: int, etype: int, code: int, quoted: bytes = b"") -> bytes:
        """Return a Terminate that quotes the header of the segment ``quoted``."""
        head = DDPUntagged(opcode=Opcode.TERMINATE, qn=Queue.TERMINATE)
        told: dict[str, Any] = {"layer": layer, "etype": etype, "code": code}
        if quoted:
            kind = QuotedTagged if quoted[0] & 0x80 else QuotedUntagged
            size = 14 if quoted[0] & 0x80 else 18
            told |= {"m": 1, "d": 1, "ddp_seg_len": len(quoted), "quoted_ddp": kind(quoted[:size])}
        return bytes(head) + bytes(Terminate(**told))

    # ---- receive

    def receive_segment_octets(self) -> bytes:
        """Read one FPDU; return the octets of its DDP segment."""
        length = self._read_exactly(2)
        ulpdu = int.from_bytes(length, "big")
        frame: Any = FPDU(length + self._read_exactly(ulpdu + -(2 + ulpdu) % 4 + 4))
        assert frame.crc == frame.crc_expected()
        return bytes(frame)[2 : 2 + ulpdu]

    def receive_segment(self) -> tuple[Any, bytes]:
        """Read one FPDU; return the header (a scapy packet) and the payload of its segment."""
        segment = self.receive_segment_octets()
        head: Any = DDP(segment).copy()
        head.remove_payload()
        return head, segment[len(bytes(head)) :]

    def receive_read_request(self) -> ReadRequest:
        """Read messages, skipping Sends and Writes, up to a Read Request; return it."""
        while True:
            head, rest = self.receive_segment()
            if head.opcode == Opcode.RDMA_READ_REQUEST:
                assert head.qn == Queue.READ_REQUEST
                return ReadRequest(rest)
            assert head.opcode in (Opcode.SEND, Opcode.SEND_SE, Opcode.RDMA_WRITE)

    def receive_terminate(self) -> Terminate:
        """Read messages up to a Terminate; return it."""
        while True:
            head, rest = self.receive_segment()
            if head.opcode == Opcode.TERMINATE:
                return Terminate(rest)

    def receive_until_silent(self, seconds: float = 0.02) -> list[bytes]:
        """Return all segments that arrive, until none has arrived for `seconds`."""
        found = []
        while self.has_input(seconds):
            found.append(self.receive_segment_octets())
        return found

    def is_silent(self, seconds: float = 0.05) -> bool:
        """Return whether neither data nor the end of the stream arrives within `seconds`."""
        return not self.has_input(seconds)

    def has_input(self, seconds: float) -> bool:
        """Return whether data or the end of the stream arrives within `seconds`."""
        if self._came is None:
            self._came = net.receive_within(self.sock, seconds)
        return self._came is not None

    def read_at_most(self, n: int) -> bytes:
        """Read at most n octets from the socket; return b"" at the end of the stream."""
        came, self._came = self._came, None
        if came is None:
            return bytes(self.sock.recv(n))
        if len(came) > n:
            self._came = came[n:]
        return came[:n]

    def _read_exactly(self, n: int) -> bytes:
        octets = b""
        while len(octets) < n:
            part = self.read_at_most(n - len(octets))
            assert part, f"end of stream after {octets!r}"
            octets += part
        return octets


@contextlib.contextmanager
def connected_plain_peer(
    connector: ListenerAndConnector,
    *,
    ird: int = 4,
    ord: int = 4,
    rev: int = 2,
    ask: ConnParam | None = None,
    gone: bool = False,
    **end: Any,
) -> Iterator[tuple[End, PlainPeer]]:
    """Connect an RC queue pair to a plain peer that accepts with the given IRD and ORD.

    At the end of the block the peer closes the connection, and the queue pair must report the
    disconnect, unless the test passes ``gone`` because the queue pair no longer exists then.
    """
    size = end.pop("size", 1 << 16)
    with create_plain_listener() as s:
        a = End(connector.active, CMID(connector.a_channel), connector.a_channel, size, **end)
        a.id.connect(s.getsockname(), ask)
        sock, _ = s.accept()
        with sock:
            peer = PlainPeer(sock)
            # Poll while waiting, because a device without a progress thread sends only during a
            # poll.
            wait_until(lambda: a.rcq.poll(1) or peer.has_input(0))
            request: Any = MPARequest(peer.read_at_most(1000))
            enhanced: dict[str, Any] = {"s": 1, "ird": ird, "ord": ord} if rev == 2 else {}
            assert request.rev == rev
            sock.sendall(bytes(MPAReply(rev=rev, **enhanced)))
            assert a.next_cm_event().type == CMEventType.ESTABLISHED
            yield a, peer
        if not gone:
            a.wait_for_error_state()
