# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The client of ``siwarp ping`` for UD, RD and RC; ping_uc.py has the client for UC."""

from __future__ import annotations

import contextlib
import os
import time

import typer

from siwarp.cli.ping_loop import RNR, YIELD_AFTER
from siwarp.cli.ping_probe import PortProbe
from siwarp.cli.ping_wire import ANSWER, MAX_SIZE, MEMORY, REQUEST, Hello, number, pattern
from siwarp.cm import CMID, CMEventChannel, ConnParam
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    Context,
    Error,
    ErrorPolicy,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    Timeout,
    WCOpcode,
    WROpcode,
    source_toward,
)

__all__ = ["PATIENCE", "DatagramPinger", "RCPinger"]

#: Seconds without an answer after which a ping is lost (UD, UC) or the connection fails (RD, RC).
PATIENCE = {"ud": 1.0, "uc": 1.0, "rd": 15.0, "rc": 10.0}


def _deadline(qp: str) -> tuple[float, float]:
    now = time.monotonic()
    return now + YIELD_AFTER, now + PATIENCE[qp]


def _over(deadline: tuple[float, float]) -> bool:
    """Whether the deadline has passed. After a short time, also let other processes run."""
    now = time.monotonic()
    if now > deadline[0]:
        os.sched_yield()
    return now > deadline[1]


class _OneSided:
    """Writes and Reads of the peer's memory. In local memory, read data follows written data."""

    _size: int
    _mr: MR
    _qp: QP
    _cq: CQ
    _wr: SendWR
    #: The opcode of a completion that does not end a round trip.
    _sent: WCOpcode
    #: The type of queue pair, as ``--qp`` names it.
    _kind: str

    def _aim(self, there: RemoteBuffer, op: str, ah: AH | None = None) -> None:
        size = self._size
        self._wr = SendWR(
            opcode=WROpcode.RDMA_WRITE,
            sg=[self._mr.sge(0, size)],
            remote=there,
            send_flags=0,
            ah=ah,
        )
        # A Read after the Write returns the last octet, so the peer has all octets by then.
        last = 1 if op == "write" else size
        self._fetch = SendWR(
            2,
            opcode=WROpcode.RDMA_READ,
            sg=[self._mr.sge(size, last)],
            remote=there.part(size - last, last),
            ah=ah,
        )
        self._both = [self._wr, self._fetch]
        self._want = pattern(size)

    def _completion(self) -> bool:
        poll = self._cq.poll
        deadline = _deadline(self._kind)
        while True:
            for wc in poll():
                if wc.check().opcode != self._sent:
                    return True
            if _over(deadline):
                return False

    def _write(self, count: int) -> bool | None:
        size = self._size
        view = self._mr.view
        view[size - 1 : size] = number(count, 1)
        view[size] = ~view[size - 1] & 0xFF
        self._qp.post_send(self._both)
        if not self._completion():
            return None
        return view[size] == view[size - 1]

    def _read(self, count: int) -> bool | None:
        self._qp.post_send(self._fetch)
        if not self._completion():
            return None
        return self._mr.view[self._size : 2 * self._size] == self._want


class DatagramPinger(_OneSided):
    """Pings from a UD or RD queue pair, which also receives the answers."""

    def __init__(
        self, dest: tuple[str, int], kind: str, op: str, size: int, device: str | None
    ) -> None:
        self._kind = kind
        self._size = size
        self._sent = WCOpcode.SEND
        self._parts = contextlib.ExitStack()
        try:
            pd, ah = self._open(dest, op, device)
            #: Finds out whether a program has the server's port; None once an answer has arrived.
            self._probe: PortProbe | None = PortProbe(dest, kind)
            self._parts.callback(self._probe.close)
            self._wr = SendWR(sg=[self._mr.sge(0, size)], ah=ah)
            self._mr.view[:size] = bytes([REQUEST]) + pattern(size - 1)
            self.ping = {"send": self._send, "write": self._write, "read": self._read}[op]
            self._return: SendWR | None = None
            if op != "send":
                self._aim(self._ask(dest, Hello(op, size), pd, ah), op, ah)
                self._return = SendWR(sg=[self._mr.sge(0, 1)], ah=ah)
        except BaseException:
            self._parts.close()
            raise

    def _open(self, dest: tuple[str, int], op: str, device: str | None) -> tuple[PD, AH]:
        """Create the queue pair, its memory and, for Sends, the receives for the answers."""
        part = self._parts.enter_context
        size, kind = self._size, self._kind.upper()
        source = source_toward(dest)
        context = part(Context(device or source))
        pd = part(PD(context))
        self._cq = part(CQ(context, 64))
        most = context.query_device().max_ud_msg if op == "send" else MAX_SIZE
        if not 1 <= size <= most:
            raise typer.BadParameter(
                f"the size of a {kind} ping must be from 1 to {most} octets", param_hint="--size"
            )
        slots = 8 if op == "send" else 1  # Sends need slots; read data follows written data
        # The queue pair uses the memory until it is closed, so create it later and close it first.
        self._mr = part(MR(pd, size * (slots + 1)))
        ah = part(AH(pd, dest))
        addr = None if device else (source, 0)
        attr = QPInitAttr(QPType[kind], scq=self._cq, addr=addr, error_policy=ErrorPolicy.MESSAGE)
        self._qp = part(QP(pd, attr))
        # A server that is not ready to receive fails the ping; the default rnr_retry waits for
        # ever.
        self._qp.to_rts(RNR if kind == "RD" else None)
        self._recvs = [RecvWR(i, sg=[self._mr.sge((i + 1) * size, size)]) for i in range(slots)]
        if op == "send":
            self._qp.post_recv(self._recvs)
        return pd, ah

    def _ask(self, dest: tuple[str, int], hello: Hello, pd: PD, ah: AH) -> RemoteBuffer:
        """Request memory from the server; ``close`` returns it."""
        asked = bytes([MEMORY]) + hello.pack()
        mr = self._parts.enter_context(MR(pd, 128))
        mr.write(asked)
        self._qp.post_recv(RecvWR(sg=[mr.sge(64, 64)]))
        self._qp.post_send(SendWR(sg=[mr.sge(0, len(asked))], ah=ah))
        deadline = _deadline(self._kind)
        while not _over(deadline):
            if self._probe is not None:
                self._probe.look()
            for wc in self._cq.poll():
                wc.check() if self._probe is None else self._probe.check(wc)
                if wc.opcode == self._sent:
                    continue
                try:
                    return RemoteBuffer.unpack(mr.read(max(wc.byte_len - 1, 0), 65))
                except ValueError:
                    raise OSError("the ping server has no memory left: try again later") from None
        raise Timeout(
            110,
            f"requesting memory from {dest[0]} port {dest[1]}: no reply: start "
            "`siwarp ping --server --qp rd` there, with the same --crc",
        )

    def _send(self, count: int) -> bool | None:
        size = self._size
        tag = number(count, size - 1)
        view = self._mr.view
        view[1 : 1 + len(tag)] = tag
        want = bytes([ANSWER]) + bytes(view[1:size])
        poll = self._cq.poll
        self._qp.post_send(self._wr)
        deadline = _deadline(self._kind)
        while True:
            for wc in poll():
                wc.check() if self._probe is None else self._probe.check(wc)
                if wc.opcode == self._sent:
                    continue
                at = (wc.wr_id + 1) * size
                got = bytes(view[at : at + wc.byte_len])
                self._probe = None
                self._qp.post_recv(self._recvs[wc.wr_id])
                if got == want:
                    return True
                if len(got) != size or got[1 : 1 + len(tag)] == tag:
                    return False
                # otherwise it answers an earlier ping, which counts as lost
            if self._probe is not None:
                self._probe.look()
            if _over(deadline):
                return None

    def close(self) -> None:
        """Close the queue pair and all that belongs to it, and return the memory lent by the
        server.
        """
        if self._return is not None:
            self._mr.view[0] = MEMORY
            with contextlib.suppress(Error):  # the server no longer exists
                self._qp.post_send(self._return)
        self._parts.close()


class RCPinger(_OneSided):
    """Pings over a connection to the server."""

    _kind = "rc"

    def __init__(self, dest: tuple[str, int], op: str, size: int, device: str | None) -> None:
        if not 1 <= size <= MAX_SIZE:
            raise typer.BadParameter(
                f"the size of an RC ping must be from 1 to {MAX_SIZE} octets", param_hint="--size"
            )
        self._size = size
        self._parts = contextlib.ExitStack()
        part = self._parts.enter_context
        try:
            context = part(Context(device) if device else Context.toward(dest))
            pd = part(PD(context))
            self._cq = part(CQ(context, 64))
            self._qp = part(QP(pd, QPInitAttr(QPType.RC, scq=self._cq)))
            channel = part(CMEventChannel(context))
            self._id = part(CMID(channel))
            self._id.bind_qp(self._qp)
            self._mr = part(MR(pd, 2 * size))
            self._mr.view[:size] = pattern(size)
            self._recv = RecvWR(1, sg=[self._mr.sge(size, size)])
            self._qp.post_recv(self._recv)
            self._id.connect(dest, ConnParam(private_data=Hello(op, size).pack()))
            event = channel.get_event(30)
            if event is None:
                raise Timeout(110, f"connecting to {dest[0]} port {dest[1]}: no answer")
            there = RemoteBuffer.unpack(event.check().private_data)
        except ValueError:
            self._parts.close()
            raise OSError(
                f"{dest[0]} port {dest[1]} is not a siwarp ping server: start `siwarp "
                "ping --server` there, with the same --qp"
            ) from None
        except BaseException:
            self._parts.close()
            raise
        self.ping = {"send": self._send, "write": self._write, "read": self._read}[op]
        self._wr = SendWR(sg=[self._mr.sge(0, size)])
        if op != "send":
            self._aim(there, op)
        self._sent = WCOpcode.SEND

    def _send(self, count: int) -> bool | None:
        size = self._size
        view = self._mr.view
        tag = number(count, size)
        view[: len(tag)] = tag
        self._qp.post_send(self._wr)
        if not self._completion():
            return None
        good = view[size:] == view[:size]
        self._qp.post_recv(self._recv)
        return good

    def close(self) -> None:
        """Disconnect, and close everything that belongs to the connection."""
        with contextlib.suppress(OSError):
            self._id.disconnect()
        self._parts.close()
