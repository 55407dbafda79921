# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp ping --qp uc``: the client and the server.

A UC queue pair has one peer, so client and server first exchange addresses over UD: the client
sends the port and the memory of its UC queue pair in a request; the server creates a UC queue pair
for this client and answers with its port and memory. A Send is returned as a Send. A Write carries
immediate data, whose completion signals its arrival, and is returned as such a Write.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time

import typer

from siwarp.base.stop import Stop
from siwarp.cli.ping_loop import YIELD_AFTER, serve
from siwarp.cli.ping_probe import PortProbe
from siwarp.cli.ping_wire import OPS, number, pattern
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    WC,
    AccessFlag,
    Address,
    CompChannel,
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
    Timeout,
    WCOpcode,
    WROpcode,
    source_toward,
)

__all__ = ["MOST", "UCPinger", "UCServer"]

#: Limit of a UC ping in octets, because the server allocates memory for any client.
MOST = 1 << 20
#: Number of UD requests that a client sends, and seconds that it waits for each answer.
TRIES, EACH = 20, 0.25

_MAGIC = b"siwucpg1"
#: The request: operation, port of the client's queue pair, octets of a ping, and the client's
#: memory. Zeros follow, so that a request is not shorter than its answer.
_ASK = struct.Struct("!8sBxHQ20s24x")
#: The answer: 1, the port of the server's queue pair and the server's memory; or 0 for a refusal.
_ANSWER = struct.Struct("!8sBxH20s")
_MEET_ID = 1 << 40
#: Number of slots for received messages; a message never overwrites the one before it.
_PLACES = 4


class _UCEndpoint:
    """A UC queue pair with its memory: ``size`` octets to send, then the slots for received
    messages.
    """

    def __init__(self, pd: PD, cq: CQ, host: str, op: str, size: int, ident: int) -> None:
        self.op, self.size, self._id = op, size, ident
        self._parts = contextlib.ExitStack()
        part = self._parts.enter_context
        try:
            access = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE
            self.mr = part(MR(pd, (1 + _PLACES) * size, access))
            cap = QPCap(max_send_wr=16, max_recv_wr=2 * _PLACES)
            self.qp = part(QP(pd, QPInitAttr(QPType.UC, scq=cq, cap=cap, addr=(host, 0))))
            self.qp.to_init()
            for place in range(_PLACES):
                self.recv(place)
        except BaseException:
            self._parts.close()
            raise

    def recv(self, place: int) -> None:
        """Post the receive of a slot; it is posted again after the slot was read."""
        sg = [self.mr.sge((1 + place) * self.size, self.size)] if self.op == "send" else []
        self.qp.post_recv(RecvWR(self._id * _PLACES + place, sg=sg))

    def meet(self, peer: Address, memory: RemoteBuffer) -> None:
        """Connect to the peer.

        Raises:
            ValueError: the peer's memory is too small for the Writes.

        """
        self.qp.to_rts(QPAttr(ah_attr=peer))
        write = self.op == "write"
        self._wrs = [
            SendWR(
                self._id * _PLACES,
                WROpcode.RDMA_WRITE_WITH_IMM if write else WROpcode.SEND,
                sg=[self.mr.sge(0, self.size)],
                remote=memory.part((1 + place) * self.size, self.size) if write else None,
                imm_data=place if write else 0,
            )
            for place in range(_PLACES)
        ]

    def send(self, place: int) -> None:
        """Send the first ``size`` octets of the memory, or write them to this slot of the peer."""
        self.qp.post_send(self._wrs[place % _PLACES])

    def place(self, wc: WC) -> int:
        """Return the slot of a message; for a Write it is in the immediate data."""
        return (wc.imm_data if self.op == "write" else wc.wr_id) % _PLACES

    def came(self, wc: WC) -> memoryview:
        """Return the octets in a message's slot."""
        at = (1 + self.place(wc)) * self.size
        return self.mr.view[at : at + self.size]

    def back(self, wc: WC) -> None:
        """Return a message to the peer."""
        self.mr.view[: self.size] = self.came(wc)
        self.send(self.place(wc))

    def close(self) -> None:
        self._parts.close()


def is_message(wc: WC) -> bool:
    """Whether a completion belongs to a received message, not to one that was sent."""
    return wc.opcode in (WCOpcode.RECV, WCOpcode.RECV_RDMA_WITH_IMM)


class UCPinger:
    """The client of a UC ping."""

    def __init__(self, dest: Address, op: str, size: int, device: str | None, wait: float) -> None:
        if not 1 <= size <= MOST:
            raise typer.BadParameter(
                f"the size of a UC ping must be from 1 to {MOST} octets", param_hint="--size"
            )
        self._wait, self._size = wait, size
        self._parts = contextlib.ExitStack()
        part = self._parts.enter_context
        try:
            source = source_toward(dest)
            context = part(Context(device or source))
            pd = part(PD(context))
            self._cq = part(CQ(context, 64))
            self._half = half = _UCEndpoint(pd, self._cq, source, op, size, 0)
            self._parts.callback(half.close)
            half.mr.view[:size] = pattern(size)
            half.meet(*self._meet(pd, dest, source, half))
        except BaseException:
            self._parts.close()
            raise

    def _meet(
        self, pd: PD, dest: Address, source: str, half: _UCEndpoint
    ) -> tuple[Address, RemoteBuffer]:
        """Request a queue pair until the server answers with its port and its memory."""
        ask = _ASK.pack(
            _MAGIC, OPS.index(half.op), half.qp.addr[1], half.size, half.mr.remote().pack()
        )
        with contextlib.ExitStack() as stack:
            part = stack.enter_context
            mr = part(MR(pd, bytearray(ask) + bytearray(_ASK.size)))
            ah = part(AH(pd, dest))
            init = QPInitAttr(
                QPType.UD, scq=self._cq, addr=(source, 0), error_policy=ErrorPolicy.MESSAGE
            )
            qp = part(QP(pd, init))
            qp.to_rts()
            probe = PortProbe(dest, "uc")
            stack.callback(probe.close)
            for _ in range(TRIES):
                probe.look()
                qp.post_recv(RecvWR(_MEET_ID, sg=[mr.sge(_ASK.size, _ASK.size)]))
                qp.post_send(SendWR(sg=[mr.sge(0, _ASK.size)], ah=ah))
                wc = self._completion(EACH)
                if wc is None or wc.source is None or wc.byte_len != _ANSWER.size:
                    continue
                magic, good, port, memory = _ANSWER.unpack(mr.read(_ANSWER.size, _ASK.size))
                if magic != _MAGIC:
                    continue
                if not good:
                    raise OSError(
                        f"the server at {dest[0]} port {dest[1]} is full: try again later"
                    )
                return (wc.source[0], port), RemoteBuffer.unpack(memory)
        raise Timeout(
            110,
            f"connecting to {dest[0]} port {dest[1]}: no reply: start `siwarp ping --server --qp "
            "uc` there",
        )

    def _completion(self, seconds: float) -> WC | None:
        end = time.monotonic() + seconds
        polite = time.monotonic() + YIELD_AFTER
        while True:
            for wc in self._cq.poll():
                if is_message(wc.check()):
                    return wc
            now = time.monotonic()
            if now > polite:
                os.sched_yield()  # let other processes run, for example the peer
            if now > end:
                return None

    def ping(self, count: int) -> bool | None:
        """Do one round trip: True if good, False if wrong octets came back, None for no answer."""
        half, size = self._half, self._size
        tag = number(count, size)
        view = half.mr.view
        view[: len(tag)] = tag
        half.send(count)
        end = time.monotonic() + self._wait
        while (left := end - time.monotonic()) > 0:
            wc = self._completion(left)
            if wc is None:
                return None
            back = half.came(wc)
            same = back == view[:size]
            late = back[: len(tag)] != tag
            half.recv(wc.wr_id % _PLACES)
            if same or not late:
                return bool(same) and wc.byte_len == size
            # otherwise it answers an earlier ping, which counts as lost
        return None

    def close(self) -> None:
        """Free all resources."""
        self._parts.close()


class UCServer:
    """Accepts clients on a UD queue pair and creates a UC queue pair for each."""

    CLIENTS = 64
    #: Seconds without a message after which a client may be disconnected to admit a new one.
    SILENT = 30.0
    SLOTS = 16

    def __init__(self, context: Context, address: Address) -> None:
        self._host = address[0]
        self._parts = contextlib.ExitStack()
        part = self._parts.enter_context
        self._clients: dict[Address, tuple[_UCEndpoint, bytes]] = {}
        self._by_id: dict[int, Address] = {}
        self._seen: dict[Address, float] = {}
        self._next = 1
        try:
            self._pd = part(PD(context))
            entries = 32 * self.CLIENTS + 4 * self.SLOTS
            self._cq = part(CQ(context, entries, channel=part(CompChannel(context))))
            self._mr = part(MR(self._pd, _ASK.size * self.SLOTS + _ANSWER.size))
            init = QPInitAttr(
                QPType.UD,
                scq=self._cq,
                cap=QPCap(max_send_wr=self.SLOTS, max_recv_wr=self.SLOTS),
                addr=address,
                error_policy=ErrorPolicy.MESSAGE,
            )
            self._qp = part(QP(self._pd, init))
            self.address = self._qp.addr
            self._qp.to_rts()
            for slot in range(self.SLOTS):
                self._recv(slot)
        except BaseException:
            self._parts.close()
            raise

    def _recv(self, slot: int) -> None:
        sg = [self._mr.sge(slot * _ASK.size, _ASK.size)]
        self._qp.post_recv(RecvWR(_MEET_ID | slot, sg=sg))

    def run(self, stop: Stop) -> None:
        """Answer requests until ``stop`` is set."""
        serve(self._cq, self._serve, stop)

    def _serve(self, wcs: list[WC]) -> None:
        for wc in wcs:
            self._serve_one(wc)

    def _serve_one(self, wc: WC) -> None:
        if wc.wr_id & _MEET_ID:
            if wc.ok and wc.source is not None and wc.byte_len == _ASK.size:
                self._meet(wc.source, self._mr.read(_ASK.size, (wc.wr_id & 0xFF) * _ASK.size))
            self._recv(wc.wr_id & 0xFF)
            return
        who = self._by_id.get(wc.wr_id // _PLACES)
        if who is None or not is_message(wc):
            return
        half = self._clients[who][0]
        self._seen[who] = time.monotonic()
        if wc.ok and wc.byte_len == half.size:
            half.back(wc)
        half.recv(wc.wr_id % _PLACES)

    def _meet(self, source: Address, asked: bytes) -> None:
        magic, op, port, size, memory = _ASK.unpack(asked)
        if magic != _MAGIC or OPS[op : op + 1] not in (("send",), ("write",)):
            return
        if not 1 <= size <= MOST or not port:
            return
        known = self._clients.get((source[0], port))
        if known is None:
            answer = self._welcome((source[0], port), OPS[op], size, RemoteBuffer.unpack(memory))
        else:
            answer = known[1]  # the client repeats its request because the first answer was lost
        at = _ASK.size * self.SLOTS
        self._mr.write(answer, offset=at)
        # A client's mistake, for example an impossible address, must not end the server.
        with contextlib.suppress(Error), AH(self._pd, source) as ah:
            self._qp.post_send(SendWR(sg=[self._mr.sge(at, _ANSWER.size)], ah=ah, send_flags=0))

    def _welcome(self, who: Address, op: str, size: int, memory: RemoteBuffer) -> bytes:
        full = _ANSWER.pack(_MAGIC, 0, 0, bytes(20))
        if not self._make_room():
            return full
        try:
            half = _UCEndpoint(self._pd, self._cq, self._host, op, size, self._next)
        except Error:
            return full
        try:
            half.meet(who, memory)
        except (Error, ValueError):
            half.close()
            return full
        self._by_id[self._next] = who
        self._next += 1
        self._seen[who] = time.monotonic()
        answer = _ANSWER.pack(_MAGIC, 1, half.qp.addr[1], half.mr.remote().pack())
        self._clients[who] = half, answer
        return answer

    def _make_room(self) -> bool:
        """Disconnect the client that has been silent longest, if there is no room for a new one."""
        if len(self._clients) < self.CLIENTS:
            return True
        who = min(self._seen, key=lambda one: self._seen[one])
        if time.monotonic() - self._seen[who] < self.SILENT:
            return False
        self._drop(who)
        return True

    def _drop(self, who: Address) -> None:
        half, _ = self._clients.pop(who)
        del self._seen[who]
        self._by_id = {i: other for i, other in self._by_id.items() if other != who}
        half.close()

    def close(self) -> None:
        """Free all resources."""
        for who in list(self._clients):
            self._drop(who)
        self._parts.close()
