"""For the tests of Write-Record: a target, and senders whose datagrams siwarp.inspect builds."""

from __future__ import annotations

from typing import Any

import net
from harness.verbs_harness import Rig, poll

from siwarp import inspect
from siwarp.verbs import WC, AccessFlag, ErrorPolicy, QPAttr, Record, WCOpcode

QKEY = 0x2345
CUT = 50
GRANTED = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE
PRIVATE = 15


class PlainUDPSender:
    """A plain UDP socket that sends to a single address."""

    def __init__(self, to: tuple[str, int]) -> None:
        self.sock, self.to = net.open_udp_socket(), to

    def send(self, octets: bytes) -> None:
        self.sock.sendto(octets, self.to)

    def getsockname(self) -> tuple[str, int]:
        host, port = self.sock.getsockname()
        return host, port

    def close(self) -> None:
        self.sock.close()


class WriteRecordTarget:
    """A UD queue pair that accepts Write-Records, and plain sockets that send them."""

    def __init__(
        self,
        rig: Rig,
        max_write_records: int = 16,
        size: int = 1 << 16,
        error_policy: ErrorPolicy = ErrorPolicy.MESSAGE,
    ) -> None:
        self.rig = rig
        self.cq = rig.create_cq(1024)
        self.memory = rig.reg_mr(bytearray(size), GRANTED)
        self.qp = rig.create_qp(
            self.cq,
            max_write_records=max_write_records,
            addr=(net.HERE, 0),
            error_policy=error_policy,
        )
        self.qp.to_rts(QPAttr(qkey=QKEY))
        self.socks: list[PlainUDPSender] = []

    def create_sender(self) -> PlainUDPSender:
        """Return a new plain UDP socket that sends to the target."""
        self.socks.append(PlainUDPSender(self.qp.addr))
        return self.socks[-1]

    def build_message(self, data: bytes, at: int, number: int, size: int = CUT) -> list[bytes]:
        """Return the datagrams of a Write-Record message, with `size` octets of data each."""
        return [
            self.build_segment(data[i : i + size], at, number, len(data), i)
            for i in range(0, max(len(data), 1), size)
        ]

    def build_segment(
        self, data: bytes, at: int, number: int, length: int, i: int, **fields: Any
    ) -> bytes:
        base = self.memory.addr + at
        last = int(i + len(data) == length)
        ddp: dict[str, Any] = {"l": last, "stag": self.memory.rkey, "to": base + i}
        head: dict[str, Any] = {"message_id": number, "to": base, "length": length}
        llp: dict[str, Any] = {"q_key": QKEY}
        for name, value in fields.items():
            kind, _, field = name.partition("_")
            {"ddp": ddp, "head": head, "llp": llp}[kind][field] = value
        segment = bytes(inspect.DDPTagged(opcode=ddp.pop("opcode", PRIVATE), **ddp))
        return bytes(
            inspect.RecordDatagram(
                segment=segment + bytes(inspect.RecordHeader(**head)) + data, **llp
            )
        )

    def poll_write_records(self, n: int = 1) -> list[tuple[WC, Record]]:
        found = []
        for wc in poll(self.cq, n) if n else ():
            assert (wc.status, wc.opcode) == (0, WCOpcode.RECV_WRITE_RECORD)
            found.append((wc, self.qp.record(wc)))
        return found

    def close(self) -> None:
        for one in self.socks:
            one.close()
