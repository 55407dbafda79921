"""One end of a network path: runs a queue pair as instructed by JSON lines on standard input."""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import socket
import sys
import time
from typing import Any

from siwarp.base.counters import read_counters
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    WC,
    AccessFlag,
    AHAttr,
    Context,
    Error,
    ErrorPolicy,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    WCStatus,
    WROpcode,
)

SIZE = 1 << 20
ALL = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)


class VerbsObjects:
    """The verbs objects of one end of a network path.

    ``out`` is the source of sends; ``into`` is exposed to the peer.
    """

    def __init__(self, kind: str, host: str, timeout: float = 0.0, whole: bool = False) -> None:
        self.context = Context(host)
        self.pd = PD(self.context)
        self.scq, self.rcq = CQ(self.context, 512), CQ(self.context, 512)
        self.out, self.into = (MR(self.pd, bytearray(SIZE), ALL) for _ in range(2))
        self.kind = kind
        init = QPInitAttr(
            QPType[kind],
            scq=self.scq,
            rcq=self.rcq,
            cap=QPCap(256, 256),
            addr=(host, 0),
            error_policy=ErrorPolicy.MESSAGE,
            peer_timeout=timeout if kind == "RD" else 0.0,
            max_write_records=8 if kind == "UD" else 0,
        )
        self.qp = QP(self.pd, init)
        # With `whole`, the queue pair uses a socket of the program that forbids IP fragmentation.
        if whole:
            self.own = socket.socket(
                socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
            )
            if ":" in host:
                # Option IPV6_MTU_DISCOVER, value IPV6_PMTUDISC_DO.
                self.own.setsockopt(socket.IPPROTO_IPV6, 23, 2)
            else:
                # Option IP_MTU_DISCOVER, value IP_PMTUDISC_DO.
                self.own.setsockopt(socket.IPPROTO_IP, 10, 2)
            self.own.bind((host, 0))
            self.qp.to_init(QPAttr(fd=self.own, qkey=7))
        else:
            self.qp.to_init(QPAttr(qkey=7))
        self.ah: AH | None = None
        self.there: RemoteBuffer | None = None
        self.slots: list[int] = []


objects: VerbsObjects


def create_queue_pair(kind: str, host: str, *more: Any) -> list[Any]:
    """Create the queue pair; return its address and port, and the rkey and address of its
    buffer.
    """
    global objects
    objects = VerbsObjects(kind, host, *more)
    remote = objects.into.remote()
    return [objects.qp.addr[0], objects.qp.addr[1], remote.rkey, remote.addr]


def connect_to_peer(host: str, port: int, rkey: int, addr: int, path_mtu: int = 0) -> None:
    """Set the address and remote memory of the peer, and connect the queue pair to the peer."""
    objects.there = RemoteBuffer(addr, SIZE, rkey)
    if objects.kind == "UC":
        objects.qp.to_rts(QPAttr(ah_attr=AHAttr(host, port), path_mtu=path_mtu or None))
    else:
        objects.qp.to_rts()
        objects.ah = AH(objects.pd, (host, port))


def post_receives(sizes: list[int]) -> None:
    """Post one receive for each of these message sizes; the buffers are adjacent in memory."""
    objects.slots = []
    for i, size in enumerate(sizes):
        at = sum(sizes[:i])
        objects.slots.append(at)
        objects.qp.post_recv(RecvWR(i, sg=[objects.into.sge(at, size)]))


def _poll_for_completions(cq: CQ, n: int, seconds: float) -> list[WC]:
    got: list[WC] = []
    end = time.monotonic() + seconds
    while len(got) < n and time.monotonic() < end:
        some = cq.poll(n - len(got))
        got += some
        if not some:
            time.sleep(0.0002)
    return got


def send_and_wait(sizes: list[int], seconds: float = 20.0, opcode: str = "SEND") -> list[str]:
    """Post messages from adjacent buffers, and return the statuses of their completions."""
    for i, size in enumerate(sizes):
        at = sum(sizes[:i])
        objects.out.view[at : at + size] = bytes([size % 251]) * size
        more: dict[str, Any] = {} if objects.ah is None else {"ah": objects.ah}
        if opcode != "SEND":
            more["remote"] = objects.there
        if opcode == "ATOMIC_FETCH_AND_ADD":
            more["compare_add"] = 1
        objects.qp.post_send(SendWR(i, WROpcode[opcode], sg=[objects.out.sge(at, size)], **more))
    got = _poll_for_completions(objects.scq, len(sizes), seconds)
    return [WCStatus(wc.status).name for wc in got]


def wait_for_messages(n: int, seconds: float = 20.0) -> list[int]:
    """Wait for n messages, and return their lengths in octets, or -1 for a message with wrong
    content.
    """
    return [
        wc.byte_len
        if wc.ok
        and objects.into.read(wc.byte_len, objects.slots[wc.wr_id])
        == bytes([wc.byte_len % 251]) * wc.byte_len
        else -1
        for wc in _poll_for_completions(objects.rcq, n, seconds)
    ]


def wait_for_write_records(n: int, seconds: float = 20.0) -> list[list[int]]:
    """Wait for n Write-Records, and return [octets placed, message length] of each record."""
    records = [objects.qp.record(wc) for wc in _poll_for_completions(objects.rcq, n, seconds)]
    return [[record.valid, record.length] for record in records]


def read_memory_exposed_to_peer(first: int, n: int) -> list[int]:
    """Return octets of the memory that is exposed to the peer."""
    return list(objects.into.read(n, first))


def read_source_buffer(first: int, n: int) -> list[int]:
    """Return octets of the source buffer, which is also the destination of RDMA Reads."""
    return list(objects.out.read(n, first))


def queue_pair_address() -> list[Any]:
    return list(objects.qp.addr)


def fill_exposed_memory(octet: int, n: int) -> None:
    """Set the first n octets of the memory that is exposed to the peer to one value."""
    objects.into.write(bytes([octet]) * n)


def queue_pair_state() -> str:
    return objects.qp.qp_state.name


def return_to_rts() -> None:
    """Move the queue pair from SQE to RTS."""
    objects.qp.to_rts()


def poll_for_progress(seconds: float) -> None:
    """Poll the receive completion queue for some seconds, so that the queue pair makes progress."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        objects.rcq.poll(1)
        time.sleep(0.001)


def read_own_counter_values(*names: str) -> list[int]:
    values = read_counters(os.getpid())
    return [values[name] for name in names]


def try_rtr_and_get_errno_name(host: str) -> str:
    """Return the name of the errno with which the transition to RTR for this peer fails."""
    try:
        objects.qp.to_rtr(QPAttr(ah_attr=AHAttr(host, 9)))
    except Error as e:
        return errno.errorcode[e.errno or 0]
    return "nothing"


def main() -> None:
    for line in sys.stdin:
        # The process aborts in a function that takes longer than 90 s, which no function should.
        faulthandler.dump_traceback_later(90, exit=True)
        function, *args = json.loads(line)
        print(json.dumps(globals()[function](*args)), flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
