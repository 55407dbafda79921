"""A peer on plain sockets that sends arbitrary octets, built with scapy."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time

from harness.rc_harness import SEND, End, ListenerAndConnector, connect_plain_socket
from harness.verbs_harness import LIMIT, octet_pattern, poll
from scapy.packet import Packet

from siwarp.cm import CMEventType, ConnParam
from siwarp.inspect import FPDU, DDPTagged, MPAReply, MPARequest, Opcode, Terminate, split_stream
from siwarp.inspect.mpa import fpdu_len


class RawPeer:
    """The peer's end of a connection: a TCP socket, before or after the MPA start-up."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.got = b""

    def send(self, *what: Packet | bytes) -> None:
        self.sock.sendall(b"".join(bytes(x) for x in what))

    def send_fpdus(self, *segments: Packet) -> None:
        self.send(*[FPDU(ulpdu=s) for s in segments])

    def count_unread_octets(self) -> int:
        """Return the number of received octets that have not been read."""
        room = fcntl.ioctl(self.sock, termios.FIONREAD, b"\0\0\0\0")
        return int(struct.unpack("i", room)[0])

    def read_exactly(self, n: int, limit: float = LIMIT) -> bytes:
        """Read exactly ``n`` octets."""
        self.sock.settimeout(limit)
        octets = b""
        while len(octets) < n:
            part = self.sock.recv(n - len(octets))
            assert part, f"the stream ended after {len(octets)} of {n} octets"
            octets += part
        return octets

    def read_reply(self) -> MPAReply:
        """Read the MPA Reply Frame."""
        head = self.read_exactly(20)
        return MPAReply(head + self.read_exactly(int.from_bytes(head[18:20], "big")))

    def read_fpdu(self) -> FPDU:
        """Read one FPDU (without Markers)."""
        head = self.read_exactly(2)
        return FPDU(head + self.read_exactly(fpdu_len(int.from_bytes(head, "big")) - 2))

    def read_until_end(self, limit: float = LIMIT) -> bytes:
        """Return all octets up to the end of the stream or a reset."""
        end = time.monotonic() + limit
        octets = b""
        while time.monotonic() < end:
            self.sock.settimeout(max(0.001, end - time.monotonic()))
            try:
                part = self.sock.recv(1 << 16)
            except (ConnectionResetError, BrokenPipeError):
                return octets
            except TimeoutError:
                break
            if not part:
                return octets
            octets += part
        raise AssertionError(f"the stream did not end within {limit} s, after {octets[-64:]!r}")

    def discard_until_end(self, limit: float = LIMIT) -> None:
        """Read and discard all octets up to the end of the stream."""
        end = time.monotonic() + limit
        self.sock.settimeout(limit)
        while time.monotonic() < end:
            try:
                if not self.sock.recv(1 << 20):
                    return
            except (ConnectionResetError, BrokenPipeError):
                return
        raise AssertionError(f"the stream did not end within {limit} s")

    def read_terminate(self, limit: float = LIMIT) -> tuple[int, int, int] | None:
        """Return layer, type and code of the Terminate at the end of the stream, or ``None``."""
        fpdus = split_stream(self.read_until_end(limit)).fpdus
        ends = [f.ulpdu for f in fpdus if f.ulpdu.opcode == Opcode.TERMINATE]
        assert len(ends) <= 1, "more than one Terminate"
        if not ends:
            return None
        assert fpdus[-1].ulpdu is ends[0] and fpdus[-1].crc == fpdus[-1].crc_expected()
        found = ends[0][Terminate]
        return int(found.layer), int(found.etype), int(found.code)

    def close(self, reset: bool = False) -> None:
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def build_mpa_request_frame(rev: int = 1, **fields: object) -> MPARequest:
    return MPARequest(rev=rev, c=1, **fields)


#: The first FPDU of an initiator that has no data to send: an RDMA Write of length 0.
HELLO = FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE, l=1, stag=1))


def connect_raw_peer(address: tuple[str, int]) -> RawPeer:
    return RawPeer(connect_plain_socket(address))


def accept_raw_initiator(
    connector: ListenerAndConnector, size: int = 1 << 16, hello: bool = True, **cap: int
) -> tuple[RawPeer, End]:
    """Connect a raw initiator, and return it and the siwarp end that accepted the connection.

    With ``hello``, the initiator also sends its first FPDU.
    """
    peer = connect_raw_peer(connector.address)
    peer.send(build_mpa_request_frame())
    request = connector.next_connection_request()
    end = End(connector.passive, request.id, connector.p_channel, size=size, **cap)
    end.id.accept()
    assert end.next_cm_event().type == CMEventType.ESTABLISHED
    assert not peer.read_reply().r
    if hello:
        peer.send(HELLO)
    return peer, end


def accept_raw_initiator_with_params(
    connector: ListenerAndConnector, answer: ConnParam | None = None, **request: object
) -> tuple[RawPeer, End]:
    """Return a raw initiator that has sent no FPDU, and the siwarp end without memory that accepted
    it.
    """
    peer = connect_raw_peer(connector.address)
    peer.send(build_mpa_request_frame(**request))  # type: ignore[arg-type]
    event = connector.next_connection_request()
    end = End(connector.passive, event.id, connector.p_channel)
    end.id.accept(answer)
    assert end.next_cm_event().type == CMEventType.ESTABLISHED
    assert not peer.read_reply().r
    return peer, end


def check_that_new_connections_work(connector: ListenerAndConnector, *ended: End) -> None:
    """Close these ends, and show that both devices still set up connections and transfer data."""
    for end in ended:
        end.close()
    a, b = connector.connect(size=4096)
    a.mem.write(octet_pattern(1000, 3))
    b.post_receive(1, 0, 1000)
    a.post(SEND, 2, length=1000)
    assert poll(b.rcq)[0].ok and b.mem.read(1000) == octet_pattern(1000, 3)
    a.close()
    b.close()


__all__ = [
    "HELLO",
    "RawPeer",
    "accept_raw_initiator",
    "accept_raw_initiator_with_params",
    "build_mpa_request_frame",
    "check_that_new_connections_work",
    "connect_raw_peer",
]
