"""Two connected UC queue pairs, and a plain UDP socket as the peer of a UC queue pair."""

from __future__ import annotations

import socket
from typing import Any

import crcmod.predefined
import net
from harness.verbs_harness import ALL_ACCESS, LIMIT, Rig, counter_value, poll, wait_until

from siwarp import inspect
from siwarp.verbs import (
    QP,
    WC,
    AccessFlag,
    QPAttr,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    WROpcode,
)

crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
QKEY = 0x11
#: Octets of a message, and messages between two reports, in tests of peers that send loss reports.
SIZE = 1000
ROUND = 100


def connect_qps(a: QP, b: QP, **attrs: Any) -> None:
    """Move two UC queue pairs to RTS, each with the other as its peer."""
    for one, other in ((a, b), (b, a)):
        one.to_rts(QPAttr(ah_attr=other.addr, **attrs))


class UCPair:
    """Two connected UC queue pairs of one device; `a` sends, `b` receives, with CQs and memory."""

    def __init__(
        self,
        rig: Rig,
        size: int = 1 << 17,
        host: str = net.HERE,
        *,
        connected: bool = True,
        crc: bool = True,
        attrs: dict[str, Any] | None = None,
        **cap: int,
    ) -> None:
        self.rig, self.size = rig, size
        self.out = rig.reg_mr(bytearray(size), ALL_ACCESS)
        self.into = rig.reg_mr(bytearray(size), ALL_ACCESS)
        self.scq, self.rcq, self.idle = rig.create_cq(1024), rig.create_cq(1024), rig.create_cq()
        kind: dict[str, Any] = {"qp_type": QPType.UC, "crc": crc, "addr": (host, 0), **cap}
        self.a = rig.create_qp(scq=self.scq, rcq=self.idle, **kind)
        self.b = rig.create_qp(scq=self.idle, rcq=self.rcq, **kind)
        if connected:
            connect_qps(self.a, self.b, **(attrs or {}))

    def post_receive(self, wr_id: int = 1, length: int | None = None, offset: int = 0) -> None:
        self.b.post_recv(RecvWR(wr_id, sg=[self.into.sge(offset, length)]))

    def send(self, data: bytes, wr_id: int = 2, flags: int = SendFlag.SIGNALED, **kw: Any) -> None:
        self.out.write(data)
        self.a.post_send(SendWR(wr_id, sg=[self.out.sge(0, len(data))], send_flags=flags, **kw))

    def write(self, data: bytes, to: int = 0, wr_id: int = 3, **kw: Any) -> None:
        """Post an RDMA Write of data to an offset in the memory of `b`."""
        remote = self.into.remote(to, len(data))
        self.send(data, wr_id, opcode=WROpcode.RDMA_WRITE, remote=remote, **kw)

    def poll_sends(self, n: int = 1) -> list[WC]:
        return poll(self.scq, n)

    def poll_receives(self, n: int = 1) -> list[WC]:
        return poll(self.rcq, n)


class PlainUCPeer:
    """A plain socket as the peer of a UC queue pair; `psn` is the PSN of its next datagram."""

    def __init__(self, rig: Rig, *, psn: int = 0, rq_psn: int = 0, **kind: Any) -> None:
        self.sock = net.open_udp_socket()
        if not net.SIMULATED:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.sock.settimeout(LIMIT)
        self.psn, self.msn = psn, 0
        self.rig = rig
        self.cq = rig.create_cq(1024)
        attrs = kind.pop("attrs", {})
        self.memory = rig.reg_mr(
            bytearray(kind.pop("size", 1 << 16)),
            AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE,
        )
        self.qp = rig.create_qp(self.cq, qp_type=QPType.UC, addr=(net.HERE, 0), **kind)
        self.qp.to_rts(
            QPAttr(
                **{
                    "ah_attr": self.sock.getsockname(),
                    "qkey": QKEY,
                    "rq_psn": psn,
                    "sq_psn": rq_psn,
                    **attrs,
                }
            )
        )

    # ---- transmit

    def send_datagrams(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.sock.sendto(datagram, self.qp.addr)

    def build_datagram(self, segment: bytes, *, first: bool = False, **fields: Any) -> bytes:
        """Return a datagram that contains a segment, with the next PSN or the given ``psn``."""
        if "psn" not in fields:
            fields["psn"] = self.psn
            self.psn = (self.psn + 1) % (1 << 32)
        flags = inspect.UC_FIRST if first else 0
        head = {"q_key": QKEY, "flags": flags, **fields}
        return bytes(inspect.UCDatagram(segment=segment, **head))

    def build_send(self, data: bytes, size: int = 1 << 14, **fields: Any) -> list[bytes]:
        """Return the datagrams of a Send, with `size` octets of payload each."""
        self.msn += 1
        found = []
        for at in range(0, max(len(data), 1), size):
            last = at + size >= len(data)
            named = {
                "opcode": inspect.Opcode.SEND,
                "l": int(last),
                "msn": self.msn,
                "mo": at,
                **fields,
            }
            segment = bytes(inspect.DDPUntagged(**named)) + data[at : at + size]
            found.append(self.build_datagram(segment, first=at == 0))
        return found

    def build_write(
        self, data: bytes, stag: int, to: int, size: int = 1 << 14, **fields: Any
    ) -> list[bytes]:
        """Return the datagrams of an RDMA Write, with `size` octets of payload each."""
        found = []
        for at in range(0, max(len(data), 1), size):
            last = at + size >= len(data)
            named = {
                "opcode": inspect.Opcode.RDMA_WRITE,
                "l": int(last),
                "stag": stag,
                "to": to + at,
                **fields,
            }
            segment = bytes(inspect.DDPTagged(**named)) + data[at : at + size]
            found.append(self.build_datagram(segment, first=at == 0))
        return found

    # ---- receive

    def receive_datagram(self) -> bytes:
        return self.sock.recv(1 << 16)

    def is_silent(self, seconds: float = 0.05) -> bool:
        return net.receive_within(self.sock, seconds) is None

    def post_receive(self, wr_id: int = 1, offset: int = 0, length: int | None = None) -> None:
        self.qp.post_recv(RecvWR(wr_id, sg=[self.memory.sge(offset, length)]))

    def poll_completions(self, n: int = 1) -> list[WC]:
        return poll(self.cq, n)

    def close(self) -> None:
        self.sock.close()


class LossReporter:
    """Loss reports of a peer: counts of the datagrams and octets that it has received."""

    def __init__(self, peer: PlainUCPeer) -> None:
        self.peer = peer
        self.out = peer.rig.reg_mr(bytearray(SIZE))
        self.psn = self.datagrams = self.octets = 0

    def send_messages_from_qp(self, n: int = ROUND) -> None:
        """Send messages from the queue pair to this peer, and wait for their completions."""
        self.peer.qp.post_send([SendWR(1, sg=[self.out.sge()])] * n)
        assert all(wc.ok for wc in poll(self.peer.cq, n))
        self.psn += n

    def send_loss_report(self, came: int, **fields: int) -> None:
        """Report to siwarp that this peer has received ``came`` more datagrams."""
        self.datagrams += came
        self.octets += came * SIZE
        named = {
            "q_key": QKEY,
            "datagrams": self.datagrams,
            "octets": self.octets,
            "next_psn": self.psn,
            **fields,
        }
        self.peer.send_datagrams(bytes(inspect.UCReport(**named)))


def wait_until_datagrams_processed(peer: PlainUCPeer) -> None:
    """Wait until the queue pair has processed all datagrams that the peer has sent so far."""
    before = counter_value("drop_version")
    peer.send_datagrams(peer.build_datagram(bytes(20), type=15, psn=0))
    wait_until(lambda: peer.cq.poll(1) == [] and counter_value("drop_version") > before)
