# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The server of ``siwarp ping``: answers any number of clients, whatever one of them does."""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Iterator

from siwarp.aio.shares import Ration, Shares, source_of
from siwarp.base.stop import Stop
from siwarp.cli.ping_loop import BUSY, Sleeper, serve
from siwarp.cli.ping_wire import ANSWER, MAX_SIZE, MEMORY, REQUEST, Hello, pattern
from siwarp.cm import CMID, CMEvent, CMEventChannel, CMEventType, ConnParam
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
    LimitError,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    StateError,
    WCOpcode,
    WCStatus,
)

__all__ = ["DatagramServer", "RCServer"]

_SEND_ID = 1 << 32
#: Places for messages of an RC client: one for the message that is being answered, one for the
#: next, and one more, since the completion of an answer may come after the message that follows it.
_SLOTS = 3


def _memory(pd: PD, hello: Hello) -> MR:
    """Register what a client will write to, or read."""
    access = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ
    if hello.op == "write":
        access |= AccessFlag.REMOTE_WRITE
    mr = MR(pd, hello.size, access)
    if hello.op == "read":
        mr.write(pattern(hello.size))
    return mr


class DatagramServer:
    """Answers UD or RD pings on one queue pair.

    An answer has a place of its own, so that who takes none keeps no receive. Places are given by
    shares: a request whose client may have none is dropped.
    """

    SLOTS = 64
    #: Answers that clients have not taken yet.
    ANSWERS = 256
    #: How many clients' address handles are stored.
    CLIENTS = 256
    #: RD: octets of memory for all clients together that write, and half of it for one source. The
    #: one that asked first loses its memory to a new one, of its own source if that has its share.
    MEMORY = 4 * MAX_SIZE
    #: How often a second, and how often at once, a source is lent memory.
    LOANS, LOANS_AT_ONCE = 4, 8

    def __init__(self, context: Context, address: Address, kind: QPType = QPType.UD) -> None:
        self._context = context
        self.dropped = 0
        parts = contextlib.ExitStack()
        self._parts = parts
        try:
            self._pd = parts.enter_context(PD(context))
            self._cq = parts.enter_context(
                CQ(
                    context,
                    2 * (self.SLOTS + self.ANSWERS),
                    channel=parts.enter_context(CompChannel(context)),
                )
            )
            self._size = context.query_device().max_ud_msg
            self._mr = parts.enter_context(MR(self._pd, self._size * (self.SLOTS + self.ANSWERS)))
            self._qp = parts.enter_context(
                QP(
                    self._pd,
                    QPInitAttr(
                        kind,
                        scq=self._cq,
                        cap=QPCap(max_send_wr=self.ANSWERS, max_recv_wr=self.SLOTS),
                        addr=address,
                        error_policy=ErrorPolicy.MESSAGE,
                    ),
                )
            )
        except BaseException:
            parts.close()
            raise
        self.address = self._qp.addr
        self._ahs: OrderedDict[tuple[Address | None, int], AH] = OrderedDict()
        self._lent: OrderedDict[Address, MR] = OrderedDict()
        self._loans = Ration(self.LOANS, self.LOANS_AT_ONCE)
        self._readable: MR | None = None
        self._kind = kind
        sges = [self._mr.sge(i * self._size, self._size) for i in range(self.SLOTS + self.ANSWERS)]
        self._recvs = [RecvWR(i, sg=[sge]) for i, sge in enumerate(sges[: self.SLOTS])]
        self._sends = [SendWR(_SEND_ID | i, sg=[sge]) for i, sge in enumerate(sges[self.SLOTS :])]
        self._begin()

    def _begin(self) -> None:
        self._shares = Shares(self.ANSWERS)
        self._free = list(range(self.ANSWERS))
        #: The clients whose answers are under way.
        self._whose: dict[int, Address] = {}
        self._qp.to_rts()
        self._qp.post_recv(self._recvs)

    def run(self, stop: Stop) -> None:
        """Serve until ``stop`` is set."""
        serve(self._cq, self._serve, stop)

    def _serve(self, wcs: list[WC]) -> None:
        for wc in wcs:
            # RD: the loss of a client flushes only the requests to that client.
            if wc.status == WCStatus.WR_FLUSH_ERR and self._qp.qp_state == QPState.ERR:
                self._restart()
                return
            if wc.wr_id & _SEND_ID:
                self._give(wc.wr_id & ~_SEND_ID)
                continue
            if not wc.ok or not self._answer(wc):
                self.dropped += 1
            # In the error state the queue pair refuses: the flush that follows restarts it.
            with contextlib.suppress(Error):
                self._qp.post_recv(self._recvs[wc.wr_id])

    def _give(self, place: int) -> None:
        self._shares.give(self._whose.pop(place))
        self._free.append(place)

    def _answer(self, wc: WC) -> bool:
        if wc.source is None or wc.byte_len == 0 or not self._shares.may_take(wc.source):
            return False
        at = wc.wr_id * self._size
        kind = self._mr.view[at]
        answer: bytes | memoryview
        if self._kind == QPType.RD and kind == MEMORY:
            answer = self._lend(wc.source, self._mr.read(wc.byte_len - 1, at + 1))
        elif kind == REQUEST:
            answer = self._mr.view[at + 1 : at + wc.byte_len]
        else:
            return False
        place = self._free.pop()
        self._shares.take(wc.source)
        self._whose[place] = wc.source
        to = (self.SLOTS + place) * self._size
        self._mr.view[to] = ANSWER
        self._mr.view[to + 1 : to + 1 + len(answer)] = answer
        wr = self._sends[place]
        wr.sg[0].length = 1 + len(answer)
        try:
            wr.set_wr_ud(self._to(wc))
            self._qp.post_send(wr)
        except Error:  # that client's answer is lost, as datagrams are; the others' are not
            self._give(place)
            return False
        return True

    def _lend(self, source: Address, asked: bytes) -> bytes:
        """Return the address and key of a client's memory, or no octets if it gets none."""
        if not self._loans.take(source):
            return b""
        try:
            hello = Hello.unpack(asked)
            if hello.op == "read":
                return self._pattern().remote().part(0, hello.size).pack()
            self._return(source)
            self._make_room(source, hello.size)
            mr = self._lent[source] = _memory(self._pd, hello)
        except (ValueError, Error):
            return b""
        return mr.remote().pack()

    def _pattern(self) -> MR:
        """Return what every client reads, made when the first one asks."""
        if self._readable is None:
            self._readable = _memory(self._pd, Hello("read", MAX_SIZE))
        return self._readable

    def _return(self, client: Address) -> None:
        if client in self._lent:
            self._lent.pop(client).close()

    def _make_room(self, client: Address, octets: int) -> None:
        """Take memory back: the oldest of the client's source, or the oldest of all."""
        own = source_of(client)
        of_source = [one for one in self._lent if source_of(one) == own]
        while of_source and (
            len(of_source) >= self.CLIENTS // 2
            or sum(self._lent[one].length for one in of_source) + octets > self.MEMORY // 2
        ):
            self._return(of_source.pop(0))
        while self._lent and (
            len(self._lent) >= self.CLIENTS
            or sum(mr.length for mr in self._lent.values()) + octets > self.MEMORY
        ):
            self._return(next(iter(self._lent)))

    def _to(self, wc: WC) -> AH:
        who = (wc.source, wc.src_qp)  # several may share a socket
        ah = self._ahs.get(who)
        if ah is None:
            while len(self._ahs) >= self.CLIENTS:
                self._ahs.popitem(last=False)[1].close()
            ah = self._ahs[who] = AH(self._pd, wc=wc)
        else:
            self._ahs.move_to_end(who)
        return ah

    def _restart(self) -> None:
        """Bring the queue pair back from the error state; its outstanding requests are dropped."""
        self._qp.modify(QPAttr(qp_state=QPState.RESET))
        while self._cq.poll(64):
            pass
        self._begin()

    def close(self) -> None:
        """Free everything."""
        for ah in self._ahs.values():
            ah.close()
        for client in list(self._lent):
            self._return(client)
        if self._readable is not None:
            self._readable.close()
        self._parts.close()


class _Client:
    """One RC client's queue pair and memory."""

    def __init__(self, server: RCServer, cm_id: CMID, hello: Hello) -> None:
        self.id = cm_id
        self.hello = hello
        self.seen = time.monotonic()
        self.parts = contextlib.ExitStack()
        part = self.parts.enter_context
        try:
            self.qp = part(
                QP(
                    server.pd,
                    QPInitAttr(QPType.RC, scq=server.cq, cap=QPCap(max_send_wr=4, max_recv_wr=4)),
                )
            )
            cm_id.bind_qp(self.qp)
            part(cm_id)
            sends = hello.op == "send"
            self.octets = _SLOTS * hello.size if sends else hello.size
            self.mr = part(MR(server.pd, self.octets) if sends else _memory(server.pd, hello))
            self.recvs: list[RecvWR] = []
            self.sends: list[SendWR] = []
            if hello.op == "send":
                for slot in range(_SLOTS):
                    sge = self.mr.sge(slot * hello.size, hello.size)
                    self.recvs.append(RecvWR(slot, sg=[sge]))
                    self.sends.append(SendWR(_SEND_ID | slot, sg=[sge]))
                self.qp.post_recv(self.recvs)
            self.number = self.qp.qp_num
        except BaseException:
            self.close()
            raise

    def serve(self, wc: WC) -> None:
        """Process one of its completions; an error means that the client is gone."""
        self.seen = time.monotonic()
        if wc.wr_id & _SEND_ID:
            self.qp.post_recv(self.recvs[wc.wr_id & ~_SEND_ID])
        elif wc.opcode == WCOpcode.RECV:
            wr = self.sends[wc.wr_id]
            wr.sg[0].length = wc.byte_len
            self.qp.post_send(wr)

    def close(self) -> None:
        with contextlib.suppress(Error):
            self.id.disconnect()
        self.id.close()
        self.parts.close()


class RCServer:
    """Answers RC pings, each client on a queue pair of its own."""

    CLIENTS = 64
    #: Octets of memory for all clients together.
    MEMORY = 2 * _SLOTS * MAX_SIZE
    #: Seconds after which a silent client may lose its place to a new one.
    SILENT = 30.0

    def __init__(self, context: Context, address: Address) -> None:
        self._parts = contextlib.ExitStack()
        part = self._parts.enter_context
        self._clients: dict[CMID, _Client] = {}
        try:
            self.pd = part(PD(context))
            self.cq = part(CQ(context, 16 * self.CLIENTS, channel=part(CompChannel(context))))
            self._events = part(CMEventChannel(context))
            self._listener = part(CMID(self._events))
            self._listener.listen(address)
            self.address = self._listener.local_addr
        except BaseException:
            self._parts.close()
            raise

    def run(self, stop: Stop) -> None:
        """Serve until ``stop`` is set."""
        sleeper = Sleeper(self.cq, stop, self._events.fileno())
        active = time.monotonic()
        turn = 0
        while not stop.is_set():
            turn += 1
            wcs = self.cq.poll(16)
            if not wcs:
                if time.monotonic() - active > BUSY:
                    wcs = sleeper.sleep()
                    turn = 0
                else:
                    os.sched_yield()
            if wcs:
                active = time.monotonic()
                self._serve(wcs)
            if turn % 64 == 0:
                for event in self._pending():
                    active = time.monotonic()
                    self._happened(event)

    def _pending(self) -> Iterator[CMEvent]:
        for _ in range(64):
            event = self._events.get_event(0)
            if event is None:
                return
            yield event

    def _serve(self, wcs: list[WC]) -> None:
        by_number = {client.number: client for client in self._clients.values()}
        for wc in wcs:
            client = by_number.get(wc.qp_num)
            if client is None or client.id not in self._clients:
                continue
            try:
                if not wc.ok:
                    self._drop(client)
                else:
                    client.serve(wc)
            except Error:  # its connection broke meanwhile
                self._drop(client)

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.id, None)
        client.close()

    def _happened(self, event: CMEvent) -> None:
        if event.type == CMEventType.CONNECT_REQUEST:
            self._welcome(event)
        elif event.type != CMEventType.ESTABLISHED:
            client = self._clients.get(event.id)
            if client is not None:
                self._drop(client)

    def _welcome(self, event: CMEvent) -> None:
        client = None
        try:
            hello = Hello.unpack(event.private_data)
            self._make_room(_SLOTS * hello.size)
            client = _Client(self, event.id, hello)
            answer = client.mr.remote().pack()
            event.id.accept(ConnParam(private_data=answer))
            self._clients[event.id] = client
        except (ValueError, LimitError, StateError) as e:
            if client is not None:
                client.close()
            elif not event.id.closed:
                with contextlib.suppress(Error):
                    event.id.reject(str(e).encode()[:200])
                event.id.close()
        except Error:  # the client left while it was let in
            if client is not None:
                client.close()
            event.id.close()

    def _make_room(self, octets: int) -> None:
        """Disconnect clients that have been silent for long, if there is no place for one more."""
        by_age = sorted(self._clients.values(), key=lambda client: client.seen)
        for client in by_age:
            used = sum(one.octets for one in self._clients.values())
            if len(self._clients) < self.CLIENTS and used + octets <= self.MEMORY:
                return
            if time.monotonic() - client.seen < self.SILENT:
                raise ValueError("the server is full: try again later")
            self._drop(client)

    def close(self) -> None:
        """Disconnect all clients and free everything."""
        for client in list(self._clients.values()):
            self._drop(client)
        self._parts.close()
