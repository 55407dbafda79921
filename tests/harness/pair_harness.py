"""RC queue pairs that connect by GID and QPN, in this process and in child processes."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import net
from harness.verbs_harness import ALL_ACCESS, LIMIT, Rig, poll

from siwarp import inspect
from siwarp.verbs import (
    CQ,
    MR,
    WC,
    AHAttr,
    Error,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WROpcode,
)
from siwarp.verbs import QP as QueuePair

HOST = net.HERE
SIZE = 1 << 16
CAP = QPCap(max_send_wr=32, max_recv_wr=32)
#: Time limit of a blocking wait in seconds. In a simulated network the limit is longer than any
#: wait of a test.
LONG = 10_000.0 if net.SIMULATED else LIMIT


class End:
    """An RC queue pair with CQs and memory; ``one_cq``: sends and receives share one CQ."""

    def __init__(
        self,
        rig: Rig,
        host: str = HOST,
        size: int = SIZE,
        *,
        cap: QPCap = CAP,
        one_cq: bool = True,
        by_qpn: bool = True,
        **init: Any,
    ) -> None:
        self.rig, self.host = rig, host
        self.cq: CQ = rig.create_cq(256, rig.create_channel())
        self.rcq: CQ = self.cq if one_cq else rig.create_cq(256, rig.create_channel())
        self.mr: MR = rig.reg_mr(bytearray(size), ALL_ACCESS)
        attr = QPInitAttr(QPType.RC, scq=self.cq, rcq=self.rcq, cap=cap, by_qpn=by_qpn, **init)
        self.qp = QueuePair(rig.pd, attr)

    @property
    def host_and_qpn(self) -> tuple[str, int]:
        return self.host, self.qp.qp_num

    @property
    def state(self) -> QPState:
        return self.qp.qp_state

    def to_init_with_receives(self, receives: int = 8) -> None:
        """Move the queue pair to INIT and post receives of 1 KiB with wr_ids from 100 on."""
        self.qp.to_init()
        for i in range(receives):
            self.post_receive(100 + i, i << 10, 1 << 10)

    def to_rts(self, peer: tuple[str, int], **attr: Any) -> None:
        where = AHAttr(peer[0], source=self.host)
        self.qp.to_rts(QPAttr(ah_attr=where, dest_qp_num=peer[1], **attr))

    # ---- work

    def post_receive(self, wr_id: int = 1, offset: int = 0, length: int | None = None) -> None:
        self.qp.post_recv(RecvWR(wr_id, sg=[self.mr.sge(offset, length)]))

    def post(
        self,
        opcode: WROpcode,
        wr_id: int = 1,
        *,
        offset: int = 0,
        length: int = 0,
        remote: RemoteBuffer | None = None,
    ) -> None:
        sg = [self.mr.sge(offset, length)] if length else []
        wr = SendWR(wr_id, opcode, sg=sg, remote=remote, send_flags=SendFlag.SIGNALED)
        self.qp.post_send(wr)

    def send(self, data: bytes, wr_id: int = 1, at: int | None = None) -> None:
        """Send data from offset ``at`` of the memory, by default from its upper half."""
        at = self.mr.length // 2 if at is None else at
        self.mr.write(data, len(data), at)
        self.post(WROpcode.SEND, wr_id, offset=at, length=len(data))

    def write(self, data: bytes, to: End, offset: int, wr_id: int = 1) -> None:
        """Post an unsignaled Write of data into the memory of another end."""
        at = self.mr.length // 2
        self.mr.write(data, len(data), at)
        remote = RemoteBuffer(to.mr.addr + offset, to.mr.length - offset, to.mr.rkey)
        sg = [self.mr.sge(at, len(data))]
        self.qp.post_send(SendWR(wr_id, WROpcode.RDMA_WRITE, sg=sg, remote=remote))

    def poll(self, n: int = 1, limit: float = LIMIT) -> list[WC]:
        return poll(self.cq, n, limit)

    def wait_for_sends(self, n: int = 1, limit: float = LONG) -> list[WC]:
        """Return the next n completions of the send CQ, which may also be the receive CQ."""
        return _wait_for_completions(self.cq, n, limit)

    def wait_for_receives(self, n: int = 1, limit: float = LONG) -> list[WC]:
        """Return the next n completions of the receive CQ, which may also be the send CQ."""
        return _wait_for_completions(self.rcq, n, limit)

    def close(self) -> None:
        self.qp.close()


def _wait_for_completions(cq: CQ, n: int, limit: float) -> list[WC]:
    found: list[WC] = []
    while len(found) < n:
        came = cq.wait(limit, n - len(found))
        assert came, f"{len(found)} of {n} completions within {limit} s"
        found += came
    return found


def connect_pair_by_qpn(a: End, b: End, **attr: Any) -> None:
    """Move both queue pairs to RTS, `a` first, so that they connect by address and QPN."""
    a.to_rts(b.host_and_qpn, **attr)
    b.to_rts(a.host_and_qpn, **attr)


def exchange_sends(a: End, b: End) -> None:
    """Exchange a Send in each direction and check the data; needs ``to_init_with_receives``."""
    a.send(b"there")
    b.send(b"and back")
    for end, text in ((a, b"and back"), (b, b"there")):
        done = (
            end.wait_for_sends(2)
            if end.rcq is end.cq
            else end.wait_for_sends() + end.wait_for_receives()
        )
        assert all(wc.ok for wc in done), done
        came = next(wc for wc in done if wc.wr_id >= 100)
        assert end.mr.read(came.byte_len, (came.wr_id - 100) << 10) == text


def build_private_data(
    own: tuple[bytes, int],
    peer: tuple[bytes, int],
    magic: bytes = b"SIWP",
    version: int = 1,
    features: int = 1,
    rnr_retry: int = 7,
) -> bytes:
    """Return private data of spec/rc-pairing.md, encoded independently of the library."""
    head = magic + bytes([version, rnr_retry, 0, features])
    numbers = own[1].to_bytes(4, "big") + peer[1].to_bytes(4, "big")
    return head + numbers + own[0] + peer[0]


def gid_of_host(host: str) -> bytes:
    if ":" in host:
        return socket.inet_pton(socket.AF_INET6, host)
    return bytes(10) + b"\xff\xff" + socket.inet_aton(host)


def build_mpa_request(private: bytes, **fields: Any) -> bytes:
    """Return an MPA Request of revision 2 that offers Write or Read as RTR."""
    given = {"rev": 2, "s": 1, "a": 1, "c_rtr": 1, "ird": 16, "ord": 16, "private_data": private}
    return bytes(inspect.MPARequest(**{**given, **fields}))


US = gid_of_host(HOST)
#: A QPN below all others at the same address; the queue pair with the lower QPN connects.
LOW = 0x010001


def tcp_connect_to(end: End, source: str = HOST) -> Any:
    return net.tcp_connect((HOST, end.qp.qp_num & 0xFFFF), source, LIMIT)


def build_valid_mpa_request(end: End, qpn: int = LOW, **fields: int) -> bytes:
    return build_mpa_request(build_private_data((US, qpn), (US, end.qp.qp_num)), **fields)


class Process:
    """A child process that runs pair_child.py, which executes commands."""

    def __init__(self, *arguments: str, **kwargs: Any) -> None:
        child = Path(__file__).with_name("pair_child.py")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", child, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **kwargs,
        )

    def run_command(self, *words: Any) -> Any:
        """Send a command to the child process; return the answer."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the child process ended at {words}"
        return json.loads(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def has_connection(end: End) -> bool:
    """Return whether the queue pair has a connection."""
    with contextlib.suppress(Error):
        return bool(end.qp.peer)
    return False


def is_in_state(end: End, state: QPState) -> bool:
    return end.qp.qp_state == state
