"""A peer of an RC queue pair, built with scapy on a plain TCP socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from harness.rc_harness import (
    End,
    ListenerAndConnector,
    connect_plain_socket,
    create_plain_listener,
    read_to_end,
)
from harness.verbs_harness import LIMIT
from scapy.packet import Packet

from siwarp.cm import CMID, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import (
    FPDU,
    DDPTagged,
    DDPUntagged,
    Frames,
    MPAReply,
    MPARequest,
    Opcode,
    Queue,
    ReadRequest,
    Terminate,
    mark,
    split_stream,
)

#: Octets of the fixed part of a start-up frame.
FRAME = 20


def build_send(msn: int = 1, **fields: Any) -> DDPUntagged:
    return DDPUntagged(**{"opcode": Opcode.SEND, "qn": Queue.SEND, "msn": msn, **fields})


def build_write(stag: int, to: int, **fields: Any) -> DDPTagged:
    return DDPTagged(**{"opcode": Opcode.RDMA_WRITE, "stag": stag, "to": to, **fields})


def build_read_response(stag: int, to: int = 0, **fields: Any) -> DDPTagged:
    return DDPTagged(**{"opcode": Opcode.RDMA_READ_RESPONSE, "stag": stag, "to": to, **fields})


def build_read_request(
    size: int, stag: int, to: int, *, msn: int = 1, sink: int = 7, sink_to: int = 0, **fields: Any
) -> Packet:
    head = {"opcode": Opcode.RDMA_READ_REQUEST, "qn": Queue.READ_REQUEST, "msn": msn, **fields}
    request = ReadRequest(sink_stag=sink, sink_to=sink_to, size=size, src_stag=stag, src_to=to)
    return DDPUntagged(**head) / request


def build_terminate(layer: int, etype: int, code: int, **fields: Any) -> Packet:
    head = DDPUntagged(opcode=Opcode.TERMINATE, qn=Queue.TERMINATE, msn=1)
    return head / Terminate(layer=layer, etype=etype, code=code, **fields)


def recv_exactly(s: socket.socket, n: int) -> bytes:
    out = bytearray()
    while len(out) < n:
        got = s.recv(n - len(out))
        assert got, f"end of stream after {len(out)} of {n} octets"
        out += got
    return bytes(out)


def recv_startup_frame(s: socket.socket) -> bytes:
    """Return one MPA start-up frame read from a socket."""
    octets = recv_exactly(s, FRAME)
    return octets + recv_exactly(s, int.from_bytes(octets[18:20], "big"))


def _next_event_of_kind(channel: CMEventChannel, kind: CMEventType) -> CMEvent:
    """Return the next connection event of a kind, skipping disconnect events."""
    while True:
        event = channel.get_event(LIMIT)
        assert event is not None, f"no {kind.name}"
        if event.type == kind:
            return event
        assert event.type == CMEventType.DISCONNECTED, event


class ScriptedRCPeer:
    """A peer of an RC queue pair: `sock` is the TCP socket, and `end` is siwarp's endpoint.

    The stream of the peer has Markers if siwarp requested Markers, and the stream of siwarp has
    Markers if the peer requested Markers.
    """

    def __init__(self, sock: socket.socket, end: End, mine: Packet, ours: Packet) -> None:
        self.sock, self.end = sock, end
        self.mine, self.ours = mine, ours
        self._at = 0
        self._got = b""
        self._frames = Frames()
        self._taken = 0

    @classmethod
    def connect_to_siwarp(
        cls,
        connector: ListenerAndConnector,
        request: MPARequest | None = None,
        param: ConnParam | None = None,
        *,
        size: int = 1 << 16,
        before_accept: Callable[[End], object] = lambda end: None,
        established: bool = True,
        **cap: Any,
    ) -> ScriptedRCPeer:
        """Return a peer that has connected to a listener of siwarp.

        established: wait until the queue pair is established before the peer sends (without RTR).
        """
        request = request or MPARequest(rev=2, s=1, ird=4, ord=4)
        sock = connect_plain_socket(connector.address)
        sock.sendall(bytes(request))
        # Disconnect events of earlier connections may still be on the channel.
        request_event = _next_event_of_kind(connector.p_channel, CMEventType.CONNECT_REQUEST)
        end = End(connector.passive, request_event.id, connector.p_channel, size=size, **cap)
        before_accept(end)
        end.id.accept(param)
        reply = MPAReply(recv_startup_frame(sock))
        peer = cls(sock, end, request, reply)
        if established:
            _next_event_of_kind(connector.p_channel, CMEventType.ESTABLISHED)
        return peer

    @classmethod
    def accept_from_siwarp(
        cls,
        connector: ListenerAndConnector,
        reply: MPAReply | None = None,
        param: ConnParam | None = None,
        *,
        size: int = 1 << 16,
        established: bool = True,
        **cap: Any,
    ) -> ScriptedRCPeer:
        """Return a peer that has accepted a connection of siwarp."""
        reply = reply or MPAReply(rev=2, s=1, ird=4, ord=4)
        with create_plain_listener(connector.host) as listener:
            channel = CMEventChannel(connector.active.ctx)
            end = End(connector.active, CMID(channel), channel, size=size, **cap)
            end.id.connect(listener.getsockname()[:2], param)
            sock, _ = listener.accept()
        sock.settimeout(LIMIT)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = MPARequest(recv_startup_frame(sock))
        sock.sendall(bytes(reply))
        peer = cls(sock, end, reply, request)
        if established:
            assert end.next_cm_event().type == CMEventType.ESTABLISHED
        return peer

    # Transmit path.

    def frame_segment(self, segment: Packet | bytes | None, **fields: Any) -> bytes:
        """Return the FPDU of a segment for the current position in the stream of the peer."""
        if isinstance(segment, bytes):
            from scapy.packet import Raw

            segment = Raw(segment)
        fpdu = FPDU(ulpdu=segment, **fields)
        octets = mark(fpdu, self._at) if self.ours.m else bytes(fpdu)
        self._at += len(octets)
        return octets

    def send_segments(self, *segments: Packet | bytes | None, **fields: Any) -> None:
        """Send DDP segments, each in an FPDU; None stands for an empty ULPDU."""
        self.sock.sendall(b"".join(self.frame_segment(s, **fields) for s in segments))

    # Receive path.

    def receive_fpdu(self) -> FPDU:
        """Return the next FPDU that siwarp sends."""
        while len(self._frames.fpdus) == self._taken:
            got = self.sock.recv(1 << 20)
            assert got, "end of stream"
            self._got += got
            self._frames = self._split_received_octets_into_frames()
        self._taken += 1
        return self._frames.fpdus[self._taken - 1]

    def receive_to_end(self) -> Frames:
        """Read up to the end of the stream; return everything that siwarp sent since start-up."""
        self._got += read_to_end(self.sock)
        frames = self._split_received_octets_into_frames()
        assert frames.rest == b""
        assert all(f.crc == f.crc_expected() for f in frames.fpdus)
        assert all(m.agrees for m in frames.markers)
        return frames

    def _split_received_octets_into_frames(self) -> Frames:
        return split_stream(self._got, markers=bool(self.mine.m))

    def receive_terminate(self) -> Terminate:
        """Read up to the end of the stream; return the Terminate, which must be the last FPDU."""
        fpdus = self.receive_to_end().fpdus
        assert fpdus, "end of stream without a Terminate"
        head = fpdus[-1].ulpdu
        assert (head.t, head.l, head.opcode, head.qn) == (0, 1, Opcode.TERMINATE, Queue.TERMINATE)
        assert (head.msn, head.mo, head.inv_stag, head.rv, head.dv) == (1, 0, 0, 1, 1)
        assert all(f.ulpdu is None or f.ulpdu.opcode != Opcode.TERMINATE for f in fpdus[:-1])
        return Terminate(bytes(head.payload))

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> ScriptedRCPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: The function that connects a peer, by the peer's role in the start-up.
CONNECT: dict[str, Any] = {
    "asking": ScriptedRCPeer.connect_to_siwarp,
    "answering": ScriptedRCPeer.accept_from_siwarp,
}

__all__ = [
    "CONNECT",
    "ScriptedRCPeer",
    "build_read_request",
    "build_read_response",
    "build_send",
    "build_terminate",
    "build_write",
    "recv_exactly",
    "recv_startup_frame",
]
