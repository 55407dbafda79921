# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The server of ``siwarp ping`` for all types of queue pairs.

The server answers any number of clients, and tolerates clients that violate the protocol.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import time
from collections.abc import Callable

from siwarp.aio.shares import RateLimit, Shares, ipv4_address_or_ipv6_prefix
from siwarp.base import system
from siwarp.base.stop import StopRequest
from siwarp.cli.ping_client import (
    ANSWER,
    CAP,
    MAX_SIZE,
    MEMORY,
    OPS,
    PLACES,
    REQUEST,
    RNR,
    UC_ANSWER,
    UC_MAGIC,
    UC_MAX_SIZE,
    UC_REQUEST,
    PingRequest,
    make_memory_pattern,
)
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
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    WCOpcode,
    WROpcode,
)

#: Seconds that a server polls after the last message before it sleeps, and the number of empty
#: polls after which it looks for other work.
_BUSY, _LOOK = 0.002, 64
_ALL_ACCESS = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ
_IMMEDIATE = WCOpcode.RECV_RDMA_WITH_IMM
#: The bit of a request's id that marks a send.
_SEND = 1 << 32


def handle_completions(
    cq: CQ, handle: Callable[[list[WC]], float | None], stop: StopRequest, *others: int
) -> None:
    """Pass completions to ``handle`` until ``stop`` is set: poll, and sleep if nothing arrives.

    ``cq`` must have a completion channel. ``handle`` is also called without completions: often
    while polling, before each sleep, when one of the descriptors ``others`` has become readable,
    and if its last call before the sleep returned a number, after that many seconds.
    """
    channel = cq.channel
    assert channel is not None
    sleeper = select.poll()
    for fd in (channel.fileno(), stop.fileno(), *others):
        sleeper.register(fd, select.POLLIN)
    busy_until, polls = 0.0, 0
    while not stop.is_set():
        if wcs := cq.poll(16):
            handle(wcs)
            busy_until = time.monotonic() + _BUSY
        elif time.monotonic() < busy_until:
            os.sched_yield()
            polls += 1
            if polls % _LOOK == 0:
                handle([])
        else:
            wait = handle([])
            cq.req_notify()
            if not cq.pending:
                sleeper.poll(None if wait is None else 1000 * max(0.0, wait))
            while (ready := channel.get_cq_event(0)) is not None:
                ready.ack_events(1)


class _Client:
    """The queue pair of a UC or RC client, and memory for the client."""

    def __init__(
        self, pd: PD, cq: CQ, hello: PingRequest, host: str, cm_id: CMID | None = None
    ) -> None:
        """Create the queue pair: a UC one at the local address ``host``, or an RC one for the
        connection request ``cm_id``.
        """
        op, size = hello
        uc = cm_id is None
        self.id, self.seen, self._size = cm_id, time.monotonic(), size
        #: UC: the address of the client's queue pair, and the answer to the client's request.
        self.peer: Address | None = None
        self.answer = b""
        n = PLACES if uc or op == "send" else 0
        self.mr = MR(pd, (1 + n) * size, _ALL_ACCESS)
        if op == "read":
            self.mr.write(make_memory_pattern(size))
        kind, addr = (QPType.UC, (host, 0)) if uc else (QPType.RC, None)
        self.qp = QP(pd, QPInitAttr(kind, scq=cq, cap=CAP, addr=addr))
        if cm_id is None:
            self.qp.to_init()
        else:
            cm_id.bind_qp(self.qp)
        self._sgs = [[self.mr.sge((1 + i) * size, size)] for i in range(n)]
        self._recvs = [RecvWR(i, sg=sg if op == "send" else []) for i, sg in enumerate(self._sgs)]
        self._sends = [SendWR(_SEND | i, sg=sg) for i, sg in enumerate(self._sgs)]
        self.qp.post_recv(self._recvs)
        self.number = self.qp.qp_num

    def connect_uc(self, peer: Address, hello: PingRequest, memory: RemoteBuffer) -> None:
        """Connect to a client's UC queue pair, and set ``answer``.

        Raises:
            ValueError: the peer's memory is too small for its Writes.

        """
        self.qp.to_rts(QPAttr(ah_attr=peer))
        self.peer = peer
        self.answer = UC_ANSWER.pack(UC_MAGIC, 1, self.qp.addr[1], self.mr.remote().pack())
        if hello.op == "write":
            write = WROpcode.RDMA_WRITE_WITH_IMM
            remotes = [memory.part((1 + i) * hello.size, hello.size) for i in range(PLACES)]
            self._sends = [
                SendWR(_SEND | i, write, sg=sg, remote=remotes[i], imm_data=i)
                for i, sg in enumerate(self._sgs)
            ]

    def handle_completion(self, wc: WC) -> None:
        """Send a received message back to the client, from the memory in which it was received.

        Raises:
            Error: the queue pair has failed.

        """
        self.seen = time.monotonic()
        if wc.status and self.qp.qp_state == QPState.ERR:
            wc.check()
        if wc.wr_id & _SEND or wc.status:
            self.qp.post_recv(self._recvs[wc.wr_id & ~_SEND])
            return
        wr = self._sends[wc.imm_data % PLACES if wc.opcode == _IMMEDIATE else wc.wr_id]
        wr.sg[0].length = min(wc.byte_len, self._size)
        self.qp.post_send(wr)

    def close(self) -> None:
        """Disconnect the client, and free its resources."""
        if self.id is not None:
            with contextlib.suppress(Error):
                self.id.disconnect()
            self.id.close()
            self.id.context = None
        self.qp.close()
        self.mr.close()


class _Server:
    """The base class of the ping servers; manages the clients that have their own queue pairs."""

    CLIENTS = 64
    #: Octets of memory for all clients together.
    MEMORY = 2 * (1 + PLACES) * MAX_SIZE
    #: Seconds without a message after which a client may be disconnected to admit a new one.
    SILENT = 30.0

    #: The address at which the server listens.
    address: Address
    #: Descriptors that are readable when ``handle`` has other work than completions.
    _fds: tuple[int, ...] = ()

    def __init__(self, context: Context, address: Address, entries: int) -> None:
        self._host = address[0]
        self._pd = PD(context)
        self.cq = CQ(context, entries, channel=CompChannel(context))
        #: The clients. The keys are the numbers of their queue pairs.
        self._clients: dict[int, _Client] = {}

    def run(self, stop: StopRequest) -> None:
        """Serve clients until ``stop`` is set."""
        handle_completions(self.cq, self.process_completions, stop, *self._fds)

    def process_completions(self, wcs: list[WC]) -> float | None:
        """Process completions; return the seconds until the next call is necessary, or None."""
        raise NotImplementedError

    def _admit_client(self, hello: PingRequest, cm_id: CMID | None = None) -> _Client:
        """Add a client. If there is no room, disconnect clients that were silent for ``SILENT``.

        Raises:
            ValueError: there is no room.
            Error: the queue pair cannot be created.

        """
        octets = (1 + PLACES) * hello.size
        for client in sorted(self._clients.values(), key=lambda client: client.seen):
            used = sum(one.mr.length for one in self._clients.values())
            if len(self._clients) < self.CLIENTS and used + octets <= self.MEMORY:
                break
            if time.monotonic() - client.seen < self.SILENT:
                raise ValueError("the server is full: try again later")
            self._disconnect_client(client)
        client = _Client(self._pd, self.cq, hello, self._host, cm_id)
        self._clients[client.number] = client
        return client

    def _serve_client(self, wc: WC) -> None:
        client = self._clients.get(wc.qp_num)
        if client is not None:
            try:
                client.handle_completion(wc)
            except Error:  # the connection failed, or the client violated the protocol
                self._disconnect_client(client)

    def _disconnect_client(self, client: _Client) -> None:
        self._clients.pop(client.number, None)
        client.close()


class RCServer(_Server):
    """The ping server for RC queue pairs."""

    def __init__(self, context: Context, address: Address) -> None:
        super().__init__(context, address, 8 * PLACES * self.CLIENTS)
        self._events = CMEventChannel(context)
        self._listener = CMID(self._events)
        self._listener.listen(address)
        self.address = self._listener.local_addr
        self._fds = (self._events.fileno(),)
        self._turn = 0

    def process_completions(self, wcs: list[WC]) -> None:
        """Process completions, and from time to time connection events."""
        for wc in wcs:
            self._serve_client(wc)
        self._turn += 1
        if wcs and self._turn % _LOOK:
            return
        for _ in range(_LOOK):
            event = self._events.get_event(0)
            if event is None:
                return
            if event.type == CMEventType.CONNECT_REQUEST:
                self._accept_request(event)
            elif event.type != CMEventType.ESTABLISHED and event.id.context is not None:
                self._disconnect_client(event.id.context)

    def _accept_request(self, event: CMEvent) -> None:
        client = None
        try:
            client = event.id.context = self._admit_client(
                PingRequest.unpack(event.private_data), event.id
            )
            event.id.accept(ConnParam(private_data=client.mr.remote().pack()))
        except (ValueError, Error) as e:  # not a ping client, or no room, or disconnected
            if client is not None:
                self._disconnect_client(client)
            else:
                with contextlib.suppress(Error):
                    event.id.reject(str(e).encode()[:200])
                event.id.close()


class Loans:
    """Lends memory to RD clients that use RDMA Write.

    One source address may hold at most half of the memory and of the places that other sources
    leave, so that many greedy sources still leave some for the next. A loan ends when the client
    returns it or requests another one, and may end when the client has not written for ``IDLE``
    seconds. A ping changes the last octet, which shows that the loan is used.
    """

    #: Limits of the memory lent to all clients together: octets, and number of clients.
    MEMORY, CLIENTS = 4 * MAX_SIZE, 256
    #: Limits on the memory requests of one source address: per second, and in one burst.
    RATE, AT_ONCE = 4, 8
    #: Seconds without a Write after which a client's memory may be lent to another client.
    IDLE = 30.0
    #: Seconds between two checks whether clients use the lent memory.
    CHECK_INTERVAL = 1.0

    def __init__(self, pd: PD) -> None:
        self._pd = pd
        self._ration = RateLimit(self.RATE, self.AT_ONCE)
        #: The memory that is lent to each client.
        self._lent: dict[Address, MR] = {}
        #: For each client, the last octet of its memory at the last check, and the time when that
        #: octet last changed.
        self._used: dict[Address, tuple[int, float]] = {}
        self._due = 0.0

    @functools.cached_property
    def _shared_read_memory(self) -> MR:
        """The memory region that clients access by RDMA Read."""
        access = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ
        return MR(self._pd, bytearray(make_memory_pattern(MAX_SIZE)), access)

    def lend_memory(self, client: Address, asked: bytes) -> bytes:
        """Return the address and key of memory for a client, or no octets if the request is
        refused.
        """
        if not asked:
            self._end_loan(client)
        if not asked or not self._ration.try_consume(client):
            return b""
        try:
            op, size = PingRequest.unpack(asked)
            if op == "read":
                return self._shared_read_memory.remote(0, size).pack()
            self._end_loan(client)
            if not self._is_within_share(client, size):
                self._update_usage()
                now = system.monotonic()
                for idle in [who for who, (_, at) in self._used.items() if now - at >= self.IDLE]:
                    self._end_loan(idle)
                if not self._is_within_share(client, size):
                    return b""
            mr = self._lent[client] = MR(self._pd, size, _ALL_ACCESS)
        except (ValueError, Error):
            return b""
        self._used[client] = 0, system.monotonic()
        return mr.remote().pack()

    def check_loans_when_due(self) -> float | None:
        """Check which clients use their lent memory; return the seconds until the next check, or
        None if no memory is lent.
        """
        if not self._lent:
            return None
        now = system.monotonic()
        if now >= self._due:
            self._due = now + self.CHECK_INTERVAL
            self._update_usage()
        return self._due - now

    def _update_usage(self) -> None:
        for client, mr in self._lent.items():
            last = mr.view[-1]
            if last != self._used[client][0]:
                self._used[client] = last, system.monotonic()

    def _end_loan(self, client: Address) -> None:
        if client in self._lent:
            self._lent.pop(client).close()
            del self._used[client]

    def _is_within_share(self, client: Address, size: int) -> bool:
        own = [
            mr.length
            for who, mr in self._lent.items()
            if ipv4_address_or_ipv6_prefix(who) == ipv4_address_or_ipv6_prefix(client)
        ]
        octets_left = self.MEMORY + sum(own) - sum(mr.length for mr in self._lent.values())
        clients_left = self.CLIENTS + len(own) - len(self._lent)
        return 2 * (sum(own) + size) <= octets_left and 2 * (len(own) + 1) <= clients_left + 1


class DatagramServer(_Server):
    """The ping server for UD, RD and UC; on its queue pair it answers pings and admits UC clients.

    A request is answered from the buffer in which it arrived, and another buffer receives in its
    place. Clients that do not acknowledge their answers hold buffers, which are shared fairly:
    requests of a client that has its share are dropped. With RD, a client that has no buffer waits,
    and displaces the client that has held one longest.
    """

    #: Number of buffers that are posted as receives, and number of buffers that clients may hold.
    RECVS, ANSWERS = 64, 256

    def __init__(self, context: Context, address: Address, kind: str) -> None:
        n = self.RECVS + self.ANSWERS
        super().__init__(context, address, n + (8 * PLACES * self.CLIENTS if kind == "uc" else n))
        self._kind = kind
        self._size = size = context.query_device().max_ud_msg
        self._mr = MR(self._pd, size * n)
        init = QPInitAttr(
            QPType.RD if kind == "rd" else QPType.UD,
            scq=self.cq,
            cap=QPCap(max_send_wr=self.ANSWERS, max_recv_wr=self.RECVS),
            addr=address,
            error_policy=ErrorPolicy.MESSAGE,
        )
        self._qp = QP(self._pd, init)
        self.address, self._number = self._qp.addr, self._qp.qp_num
        sgs = [[self._mr.sge(i * size, size)] for i in range(n)]
        self._recvs = [RecvWR(i, sg=sg) for i, sg in enumerate(sgs)]
        self._sends = [SendWR(_SEND | i, sg=sg) for i, sg in enumerate(sgs)]
        self._handle_to = functools.lru_cache(256)(lambda client: AH(self._pd, client))
        self._loans = Loans(self._pd)
        self._shares = Shares(self.ANSWERS)
        self._free = list(range(self.RECVS, n))
        #: For each buffer with an answer in flight, the client to which the answer is sent.
        self._holders: dict[int, Address] = {}
        #: The clients that wait for a buffer, and their requests.
        self._waiting: dict[Address, WC] = {}
        # RD: a client that is not ready to receive for the time that RNR permits loses its answers.
        self._qp.to_rts(RNR if kind == "rd" else None)
        self._qp.post_recv(self._recvs[: self.RECVS])

    def process_completions(self, wcs: list[WC]) -> float | None:
        """Process completions; return the seconds until the next call is necessary, or None."""
        asked = list(self._waiting.items())
        self._waiting.clear()
        for wc in wcs:
            if wc.qp_num != self._number:
                self._serve_client(wc)
            elif wc.wr_id & _SEND:
                self._release_buffer(wc.wr_id & ~_SEND)
            elif wc.ok and wc.byte_len and (client := wc.source) is not None:
                asked.append((client, wc))
            else:
                self._qp.post_recv(self._recvs[wc.wr_id])
        for client, wc in asked:
            if self._shares.may_acquire(client):
                self._answer_request(client, wc)
            elif self._kind != "rd" or self._shares.held_count(client) or client in self._waiting:
                self._qp.post_recv(self._recvs[wc.wr_id])
            else:
                self._waiting[client] = wc
        waits = (
            self._loans.check_loans_when_due(),
            self._displace_longest_holder() if self._waiting else None,
        )
        return min((wait for wait in waits if wait is not None), default=None)

    def _release_buffer(self, buffer: int) -> None:
        self._shares.release(self._holders.pop(buffer))
        self._free.append(buffer)

    def _displace_longest_holder(self) -> float | None:
        """Make the client that has held a buffer longest release its buffers, if its time is over.

        Return the seconds until the client may be displaced, or None.
        """
        longest = self._shares.longest_holder()
        if longest is None:
            return None
        client, safe_until = longest
        if (left := safe_until - system.monotonic()) > 0:
            return left
        self._qp.end_peer(client)  # the sends to the client complete at a later poll
        return None

    def _answer_request(self, client: Address, wc: WC) -> None:
        recv, length = wc.wr_id, self._write_answer(client, wc)
        if length:
            wr = self._sends[recv]
            wr.sg[0].length = length
            self._shares.acquire(client)
            self._holders[recv] = client
            try:
                # Several queue pairs may share the client's socket.
                wr.set_wr_ud(self._handle_to(client), wc.src_qp)
                self._qp.post_send(wr)
            except Error:  # only this client's answer is lost, as a datagram may be
                self._release_buffer(recv)
            recv = self._free.pop()
        self._qp.post_recv(self._recvs[recv])

    def _write_answer(self, client: Address, wc: WC) -> int:
        """Replace a request by its answer; return the octets of the answer, 0 for none."""
        at, view = wc.wr_id * self._size, self._mr.view
        if self._kind == "uc":
            answer = self._admit_uc_client(client, bytes(view[at : at + wc.byte_len]))
        elif view[at] == REQUEST:
            view[at] = ANSWER
            return wc.byte_len
        elif view[at] == MEMORY and self._kind == "rd":
            answer = bytes([ANSWER]) + self._loans.lend_memory(
                client, bytes(view[at + 1 : at + wc.byte_len])
            )
            if wc.byte_len == 1:
                return 0  # the client returned its memory, which has no answer
        else:
            return 0
        view[at : at + len(answer)] = answer
        return len(answer)

    def _admit_uc_client(self, source: Address, request: bytes) -> bytes:
        """Return the answer to a UC client's request, or no octets if ``request`` is no such
        request.
        """
        if len(request) != UC_REQUEST.size:
            return b""
        magic, op, port, size, memory = UC_REQUEST.unpack(request)
        if magic != UC_MAGIC or op > 1 or not 1 <= size <= UC_MAX_SIZE or not port:
            return b""
        peer, hello = (source[0], port), PingRequest(OPS[op], size)
        for known in self._clients.values():
            if known.peer == peer:  # the client repeats its request: the answer was lost
                return known.answer
        client = None
        try:
            client = self._admit_client(hello)
            client.connect_uc(peer, hello, RemoteBuffer.unpack(memory))
        except (Error, ValueError):
            if client is not None:
                self._disconnect_client(client)
            return UC_ANSWER.pack(UC_MAGIC, 0, 0, bytes(20))
        return client.answer


def make_ping_server(context: Context, address: Address, kind: str) -> _Server:
    """Return a server for this type of queue pair, which ends when ``context`` is closed."""
    if kind == "rc":
        return RCServer(context, address)
    return DatagramServer(context, address, kind)
