# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The server of ``siwarp ping``: answers any number of clients and survives faulty ones."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator

from siwarp.aio.shares import Ration, Shares, source_of
from siwarp.base import system
from siwarp.base.stop import Stop
from siwarp.cli.ping_loop import BUSY, RNR, Sleeper, serve
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
#: Message slots of an RC client: one for the message that is being answered, one for the next, and
#: one more because the completion of an answer may arrive after the message that follows it.
_SLOTS = 3


def _memory(pd: PD, hello: Hello) -> MR:
    """Register memory that a client will write to or read."""
    access = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ
    if hello.op == "write":
        access |= AccessFlag.REMOTE_WRITE
    mr = MR(pd, hello.size, access)
    if hello.op == "read":
        mr.write(pattern(hello.size))
    return mr


class _Loan:
    """Memory that a client writes to. Each ping changes the last octet, which shows that it is
    used.
    """

    def __init__(self, mr: MR) -> None:
        self.mr = mr
        self._last = self._octet()
        self.used = system.monotonic()

    def _octet(self) -> int:
        return self.mr.view[self.mr.length - 1]

    def look(self, now: float) -> None:
        """Record whether the client has written since the last check."""
        if (last := self._octet()) != self._last:
            self._last, self.used = last, now


class Loans:
    """Lends memory to clients that use RDMA Write.

    One source address may hold at most half of the memory and of the places that other sources
    leave, so that many greedy sources still leave some for the next. A loan ends when the client
    returns it, requests another one, or has not written for ``IDLE`` seconds.
    """

    #: Limits of all loans together: octets of memory, and number of clients.
    MEMORY, CLIENTS = 4 * MAX_SIZE, 256
    #: Limits on loans to one source: per second, and in one burst.
    RATE, AT_ONCE = 4, 8
    #: Seconds without a Write after which a loan may be given to another client.
    IDLE = 30.0
    #: Seconds between two checks of the loans.
    CHECK_INTERVAL = 1.0

    def __init__(self, pd: PD) -> None:
        self._pd = pd
        self._lent: dict[Address, _Loan] = {}
        self._ration = Ration(self.RATE, self.AT_ONCE)
        self._readable: MR | None = None
        self._looked = 0.0

    def lend(self, client: Address, asked: bytes) -> bytes:
        """Return the address and key of memory for a client, or no octets if the request is
        refused.
        """
        if not asked:
            self.end_loan(client)
            return b""
        if not self._ration.take(client):
            return b""
        try:
            hello = Hello.unpack(asked)
            if hello.op == "read":
                return self._pattern().remote().part(0, hello.size).pack()
            self.end_loan(client)
            if not self._has_room(client, hello.size):
                return b""
            mr = _memory(self._pd, hello)
        except (ValueError, Error):
            return b""
        self._lent[client] = _Loan(mr)
        return mr.remote().pack()

    def look(self) -> float | None:
        """Check which loans are in use; return the seconds until the next check, or None without
        loans.
        """
        now = system.monotonic()
        if now - self._looked >= self.CHECK_INTERVAL:
            self._looked = now
            for loan in self._lent.values():
                loan.look(now)
        return self._looked + self.CHECK_INTERVAL - now if self._lent else None

    def _pattern(self) -> MR:
        """Return the memory that all clients read; it is created at the first request."""
        if self._readable is None:
            self._readable = _memory(self._pd, Hello("read", MAX_SIZE))
        return self._readable

    def end_loan(self, client: Address) -> None:
        """End a client's loan if there is one."""
        if client in self._lent:
            self._lent.pop(client).mr.close()

    def _fits(self, client: Address, octets: int) -> bool:
        own = source_of(client)
        mine = [loan.mr.length for who, loan in self._lent.items() if source_of(who) == own]
        all_octets = sum(loan.mr.length for loan in self._lent.values())
        octets_left = self.MEMORY - (all_octets - sum(mine))
        clients_left = self.CLIENTS - (len(self._lent) - len(mine))
        return 2 * (sum(mine) + octets) <= octets_left and 2 * (len(mine) + 1) <= clients_left + 1

    def _has_room(self, client: Address, octets: int) -> bool:
        """Whether there is room for another loan; idle loans are ended first if necessary."""
        if self._fits(client, octets):
            return True
        now = system.monotonic()
        for loan in self._lent.values():
            loan.look(now)
        for who in [who for who, loan in self._lent.items() if now - loan.used >= self.IDLE]:
            self.end_loan(who)
        return self._fits(client, octets)

    def close(self) -> None:
        """End all loans and free the memory."""
        for client in list(self._lent):
            self.end_loan(client)
        if self._readable is not None:
            self._readable.close()


class DatagramServer:
    """Answers UD or RD pings on one queue pair.

    Answers have separate send buffers, so that a client that does not acknowledge its answers does
    not block receives. The buffers are shared fairly among clients. With RD, a request whose client
    may not have a buffer yet waits in its receive; a client without a buffer displaces the client
    that has left its answer unacknowledged for the longest time.
    """

    SLOTS = 64
    #: Number of buffers for answers that clients have not acknowledged.
    ANSWERS = 256
    #: Number of clients whose address handles are cached.
    CLIENTS = 256

    def __init__(self, context: Context, address: Address, kind: QPType = QPType.UD) -> None:
        self._context = context
        parts = contextlib.ExitStack()
        self._parts = parts
        try:
            self._pd = parts.enter_context(PD(context))
            self.cq = parts.enter_context(
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
                        scq=self.cq,
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
        self._loans = Loans(self._pd)
        self._kind = kind
        sges = [self._mr.sge(i * self._size, self._size) for i in range(self.SLOTS + self.ANSWERS)]
        self._recvs = [RecvWR(i, sg=[sge]) for i, sge in enumerate(sges[: self.SLOTS])]
        self._sends = [SendWR(_SEND_ID | i, sg=[sge]) for i, sge in enumerate(sges[self.SLOTS :])]
        self._begin()

    def _begin(self) -> None:
        self._shares = Shares(self.ANSWERS)
        self._free = list(range(self.ANSWERS))
        #: The clients of the answers in flight, by buffer.
        self._whose: dict[int, Address] = {}
        #: Requests that wait, in their receives, for a buffer.
        self._waiting: list[WC] = []
        #: Clients that were displaced and whose answers have not completed yet.
        self._ended: set[Address] = set()
        # RD: a client that is not ready to receive for the time of RNR loses its answers.
        self._qp.to_rts(RNR if self._kind == QPType.RD else None)
        self._qp.post_recv(self._recvs)

    def run(self, stop: Stop) -> None:
        """Answer requests until ``stop`` is set."""
        serve(self.cq, self.handle, stop)

    def handle(self, wcs: list[WC]) -> float | None:
        """Process completions; return the seconds until the next call is necessary, or None."""
        for wc in wcs:
            # RD: when a client is lost, only the requests to that client are flushed.
            if wc.status == WCStatus.WR_FLUSH_ERR and self._qp.qp_state == QPState.ERR:
                self._restart()
                return None
            if wc.wr_id & _SEND_ID:
                self._release_buffer(wc.wr_id & ~_SEND_ID)
            elif not wc.ok or wc.source is None:
                self._receive(wc)
            else:
                self._waiting.append(wc)
        wait = self._answer_all()
        look = self._loans.look()
        return min((one for one in (wait, look) if one is not None), default=None)

    def _receive(self, wc: WC) -> None:
        """Post the receive of a request again."""
        # In the error state posting is refused; the flushed completions then restart the queue
        # pair.
        with contextlib.suppress(Error):
            self._qp.post_recv(self._recvs[wc.wr_id])

    def _release_buffer(self, place: int) -> None:
        client = self._whose.pop(place)
        self._shares.give(client)
        self._free.append(place)
        if not self._shares.held(client):
            self._ended.discard(client)

    def _answer_all(self) -> float | None:
        """Answer the requests that may have a buffer; return the seconds until the next attempt, or
        None.
        """
        waiting, self._waiting = self._waiting, []
        for wc in waiting:
            assert wc.source is not None
            if self._shares.may_take(wc.source) and wc.source not in self._ended:
                self._answer(wc)
                self._receive(wc)
            elif self._kind == QPType.RD:
                self._waiting.append(wc)
            else:
                self._receive(wc)
        if not self._waiting:
            return None
        return self._displace()

    def _displace(self) -> float | None:
        """Displace clients so that others get buffers or receives; return the seconds to the next
        attempt.
        """
        clients = Counter(wc.source for wc in self._waiting)
        now = system.monotonic()
        wait = None
        if any(not self._shares.held(client) for client in clients if client is not None):
            longest = self._shares.longest_held()
            if longest is not None and longest[0] not in self._ended:
                if now >= longest[1]:
                    self._end(longest[0])
                else:
                    wait = longest[1] - now
        ((most, n),) = clients.most_common(1)
        if len(self._waiting) > self.SLOTS // 2 and n > 1 and most is not None:
            self._end(most)
        return wait

    def _end(self, client: Address) -> None:
        """End communication with a client and drop its requests."""
        self._qp.end_peer(client)
        if self._shares.held(client):
            self._ended.add(client)
        waiting, self._waiting = self._waiting, []
        for wc in waiting:
            if wc.source == client:
                self._receive(wc)
            else:
                self._waiting.append(wc)

    def _answer(self, wc: WC) -> None:
        if wc.source is None or wc.byte_len == 0:
            return
        at = wc.wr_id * self._size
        kind = self._mr.view[at]
        answer: bytes | memoryview
        if self._kind == QPType.RD and kind == MEMORY:
            answer = self._loans.lend(wc.source, self._mr.read(wc.byte_len - 1, at + 1))
            if wc.byte_len == 1:
                return  # the client only returned its memory
        elif kind == REQUEST:
            answer = self._mr.view[at + 1 : at + wc.byte_len]
        else:
            return
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
        except Error:  # only this client's answer is lost, as a datagram may be
            self._release_buffer(place)

    def _to(self, wc: WC) -> AH:
        who = (wc.source, wc.src_qp)  # several queue pairs may share one socket
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
        while self.cq.poll(64):
            pass
        self._begin()

    def close(self) -> None:
        """Free all resources."""
        for ah in self._ahs.values():
            ah.close()
        self._loans.close()
        self._parts.close()


class _Client:
    """The queue pair and the memory of one RC client."""

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
        """Process one completion of this client. An error means that the connection has failed."""
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
    """Answers RC pings; each client has a queue pair."""

    CLIENTS = 64
    #: Octets of memory for all clients together.
    MEMORY = 2 * _SLOTS * MAX_SIZE
    #: Seconds without a message after which a client may be disconnected to admit a new one.
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
        """Answer requests until ``stop`` is set."""
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
                    self._handle_event(event)

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
            except Error:  # the connection broke meanwhile
                self._drop(client)

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.id, None)
        client.close()

    def _handle_event(self, event: CMEvent) -> None:
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
        except Error:  # the client left during the connection set-up
            if client is not None:
                client.close()
            event.id.close()

    def _make_room(self, octets: int) -> None:
        """Disconnect clients that were silent for ``SILENT`` seconds if there is no room for a new
        one.
        """
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
