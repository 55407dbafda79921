# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The client and the server of ``siwarp ping``, for all types of queue pairs.

The messages are described in spec/datagram-iwarp.md, section 9.3. UD and RD: the server returns a
request, which begins with ``Q``, with an ``A`` in that place. It answers nothing else, so that two
servers cannot keep each other busy. RC: the private data of the client is a Hello, that of the
server a RemoteBuffer for Writes and Reads. UC: both ends first exchange ports and memory over UD.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import typer

from siwarp.aio.shares import Ration, Shares, source_of
from siwarp.base import system
from siwarp.base.closing import Closing
from siwarp.base.stop import Stopping
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
    PeerGone,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    Timeout,
    WCOpcode,
    WROpcode,
    source_toward,
)

__all__ = ["KINDS", "Pinger", "make_server", "serve"]

# ---- messages ----------------------------------------------------------------------------------

#: The first octet of a message on UD and RD. ``M`` and a Hello: a request for memory. Only ``M``:
#: the client returns its memory.
REQUEST, ANSWER, MEMORY = ord("Q"), ord("A"), ord("M")
OPS = ("send", "write", "read")
#: Limits of one ping in octets; the server allocates memory of this size, for UC without a
#: connection.
MAX_SIZE, UC_MAX_SIZE = 64 << 20, 1 << 20

_HELLO, _HELLO_MAGIC = struct.Struct("!8sBxxxQ"), b"siwping1"
#: UC's request: operation, port of the client's queue pair, octets of a ping, and the client's
#: memory. Zeros follow, so that a request is not shorter than its answer.
_UC_REQUEST, _UC_MAGIC = struct.Struct("!8sBxHQ20s24x"), b"siwucpg1"
#: UC's answer: 1, the port of the server's queue pair and the server's memory; or 0 for a refusal.
_UC_ANSWER = struct.Struct("!8sBxH20s")
#: Number of requests that a UC client sends, and seconds that it waits for each answer.
UC_TRIES, UC_WAIT = 20, 0.25

#: An end of UC or RC has memory for what it sends, then this number of places for what arrives.
_PLACES = 4
#: The capacity of the UC queue pairs of both ends, and of the server's RC queue pairs.
_CAP = QPCap(max_send_wr=4 * _PLACES, max_recv_wr=2 * _PLACES)
#: Opcodes of completions: requests that do not end a ping, a Read, a Write with immediate data.
_SENT = (WCOpcode.SEND, WCOpcode.RDMA_WRITE)
_READ, _IMMEDIATE = WCOpcode.RDMA_READ, WCOpcode.RECV_RDMA_WITH_IMM

_ALL_ACCESS = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ
#: RNR settings of an RD queue pair: 6 retries, each after the peer's min_rnr_timer. Value 0 of
#: min_rnr_timer, which these queue pairs use, is the longest: 655 ms.
_RNR = QPAttr(rnr_retry=6, min_rnr_timer=0)


class Hello(NamedTuple):
    """The operation that a client will use, and its number of octets."""

    op: str
    size: int

    def pack(self) -> bytes:
        """Return the Hello in its wire format."""
        return _HELLO.pack(_HELLO_MAGIC, OPS.index(self.op), self.size)

    @classmethod
    def unpack(cls, data: bytes) -> Hello:
        """Parse a Hello.

        Raises:
            ValueError: the octets are not a Hello of ``siwarp ping``, or the size is too large; the
                text is sent to the client.

        """
        if len(data) < _HELLO.size:
            raise ValueError("this is a siwarp ping server")
        magic, op, size = _HELLO.unpack_from(data)
        if magic != _HELLO_MAGIC or op >= len(OPS):
            raise ValueError("this is a siwarp ping server")
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"a ping has from 1 to {MAX_SIZE} octets")
        return cls(OPS[op], size)


def _pattern(size: int) -> bytes:
    """Return the contents of memory that clients read."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


# ---- the client --------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What a client of one type of queue pair does differently."""

    #: Seconds without an answer after which a ping is lost.
    patience: float
    #: Number of consecutive lost pings after which a run ends, because no server answers. RD and
    #: RC never lose one ping and deliver the next.
    lost_limit: int
    #: Number of places for messages that arrive.
    places: int


KINDS = {
    "ud": Kind(1.0, 5, 8),
    "uc": Kind(1.0, 5, _PLACES),
    "rd": Kind(15.0, 1, 8),
    "rc": Kind(10.0, 1, 1),
}

#: Seconds that a client polls before it yields to other processes, for example the server. On one
#: CPU the server runs only once the client yields, so the client yields at once.
YIELD_AFTER = 0.0 if len(os.sched_getaffinity(0)) == 1 else 0.0002


class _PortProbe:
    """Finds out whether a program has a UDP port, with an empty datagram, which the program drops.

    The socket of a queue pair has many peers, so the kernel does not report ICMP errors on it. The
    kernel does report them on a socket that is connected to one peer.
    """

    #: Seconds after which the port is probed.
    AFTER = 0.5

    def __init__(self, dest: Address) -> None:
        self._dest = dest
        family = socket.AF_INET6 if ":" in dest[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._due = time.monotonic() + self.AFTER

    def refused(self) -> bool:
        """Return, without waiting, whether the machine there has reported that the port is free."""
        try:
            if time.monotonic() > self._due:
                self._due = math.inf
                self._socket.connect(self._dest)
                self._socket.send(b"")
            elif self._due == math.inf:
                self._socket.recv(1)
        except OSError as e:  # other errors, for example no answer yet, prove nothing
            return isinstance(e, ConnectionRefusedError)
        return False

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Pinger(Closing):
    """A client.

    Its memory has ``size`` octets to send, then places of that size for what arrives. A Send comes
    back as a Send, and on UC a Write with immediate data as such a Write to the place that the
    immediate data name. Any other Write is followed by a Read of its last octet, which returns
    after the peer has all octets.

    Raises:
        BadParameter: the type of queue pair does not support this size.
        PeerGone, Timeout: no server answers.
        OSError: the server is full, or is another program.

    """

    def __init__(
        self, dest: Address, kind: str, op: str, size: int, device: str | None = None
    ) -> None:
        self._dest, self._kind, self._op, self._size = dest, kind, op, size
        self._there = f"{dest[0]} port {dest[1]}"
        self._source = source_toward(dest)
        self._any_port = None if device else (self._source, 0)
        self._patience, self._answered = KINDS[kind].patience, kind == "rc"
        self._id: CMID | None = None
        self._return: SendWR | None = None
        self._parts = contextlib.ExitStack()
        try:
            self._context = self._parts.enter_context(Context(device or self._source))
            self._probe = self._parts.enter_context(contextlib.closing(_PortProbe(dest)))
            self._make()
        except BaseException as e:
            self.close()
            if isinstance(e, ValueError):  # a message of the server is too short
                raise OSError(
                    f"{self._there} is not a siwarp ping server: start `siwarp ping --server` "
                    "there, with the same --qp"
                ) from None
            raise

    def _make(self) -> None:
        kind, op, size = self._kind, self._op, self._size
        lettered = kind in ("ud", "rd") and op == "send"
        most = UC_MAX_SIZE if kind == "uc" else MAX_SIZE
        if lettered:
            most = self._context.query_device().max_ud_msg
        if not 1 <= size <= most:
            a = "an" if kind.startswith("r") else "a"
            raise typer.BadParameter(
                f"the size of {a} {kind.upper()} ping must be from 1 to {most} octets",
                param_hint="--size",
            )
        self._pd, self._cq = PD(self._context), CQ(self._context, 64)
        self._places = KINDS[kind].places
        access = _ALL_ACCESS if kind == "uc" else AccessFlag.LOCAL_WRITE
        self._mr = mr = MR(self._pd, (1 + self._places) * size, access)
        mr.view[:size] = _pattern(size)
        sgs = [[mr.sge((1 + i) * size, size)] for i in range(self._places)]
        self._recvs = [RecvWR(i, sg=sg if op == "send" else []) for i, sg in enumerate(sgs)]
        if lettered:
            mr.view[0] = REQUEST
        meet = {"rc": self._meet_rc, "uc": self._meet_uc}.get(kind, self._meet_datagram)
        there, ah = meet()

        # What comes back: ``_prefix``, then this part of what is sent. The part begins with the
        # number of the ping.
        self._prefix, first, last = bytes([ANSWER]) if lettered else b"", int(lettered), size
        #: The requests of a ping; ping n uses element n modulo their number.
        self._requests: list[SendWR | list[SendWR]]
        own = [mr.sge(0, size)]
        if op == "send":
            self._requests = [SendWR(sg=own, ah=ah)]
        elif kind == "uc":
            write, places = WROpcode.RDMA_WRITE_WITH_IMM, range(_PLACES)
            remotes = [there.part((1 + i) * size, size) for i in places]
            self._requests = [
                SendWR(0, write, sg=own, remote=remotes[i], imm_data=i) for i in places
            ]
        elif op == "write":
            first = size - 1
            self._requests = [
                [
                    SendWR(0, WROpcode.RDMA_WRITE, send_flags=0, sg=own, remote=there, ah=ah),
                    self._read(there.part(first, 1), ah),
                ]
            ]
        else:
            self._prefix, last = _pattern(size), 0
            self._requests = [self._read(there.part(0, size), ah)]
        self._digits = min(8, last - first) if op != "read" else 0
        self._part, self._number = slice(first, last), slice(first, first + self._digits)

    def _read(self, remote: RemoteBuffer, ah: AH | None) -> SendWR:
        """Return a request that reads into the first place."""
        sg = [self._mr.sge(self._size, remote.length)]
        return SendWR(0, WROpcode.RDMA_READ, sg=sg, remote=remote, ah=ah)

    def _meet_rc(self) -> tuple[RemoteBuffer, AH | None]:
        """Connect, and return the server's memory."""
        self._qp = QP(self._pd, QPInitAttr(QPType.RC, scq=self._cq))
        events = CMEventChannel(self._context)
        self._id = CMID(events)
        self._id.bind_qp(self._qp)
        self._qp.post_recv(self._recvs)
        self._id.connect(self._dest, ConnParam(private_data=Hello(self._op, self._size).pack()))
        event = events.get_event(30)
        if event is None:
            raise Timeout(errno.ETIMEDOUT, f"connecting to {self._there}: no answer")
        return RemoteBuffer.unpack(event.check().private_data), None

    def _meet_uc(self) -> tuple[RemoteBuffer, AH | None]:
        """Exchange ports and memory with the server over UD, connect, and return its memory."""
        init = QPInitAttr(QPType.UC, scq=self._cq, cap=_CAP, addr=(self._source, 0))
        self._qp = QP(self._pd, init)
        self._qp.to_init()
        self._qp.post_recv(self._recvs)
        op, port = OPS.index(self._op), self._qp.addr[1]
        asked = _UC_REQUEST.pack(_UC_MAGIC, op, port, self._size, self._mr.remote().pack())
        ud, ah = self._bind(QPType.UD)
        for host, answer in self._ask(ud, ah, asked, UC_TRIES, UC_WAIT):
            if len(answer) != _UC_ANSWER.size or not answer.startswith(_UC_MAGIC):
                continue
            _, good, port, memory = _UC_ANSWER.unpack(answer)
            if not good:
                raise OSError(f"the server at {self._there} is full: try again later")
            ud.close()
            self._qp.to_rts(QPAttr(ah_attr=(host, port)))
            return RemoteBuffer.unpack(memory), None
        raise Timeout(
            errno.ETIMEDOUT,
            f"connecting to {self._there}: no reply: start `siwarp ping --server --qp uc` there",
        )

    def _meet_datagram(self) -> tuple[RemoteBuffer, AH | None]:
        """Bind the queue pair; return the memory that the server lends for Writes and Reads."""
        self._qp, ah = self._bind(QPType[self._kind.upper()])
        if self._op == "send":
            self._qp.post_recv(self._recvs)
            return RemoteBuffer(0, 0, 0), ah
        asked = bytes([MEMORY]) + Hello(self._op, self._size).pack()
        for _, answer in self._ask(self._qp, ah, asked, 1, self._patience):
            if len(answer) <= 1:
                raise OSError("the ping server has no memory left: try again later")
            self._return = SendWR(sg=[MR(self._pd, asked[:1], AccessFlag(0)).sge()], ah=ah)
            return RemoteBuffer.unpack(answer[1:]), ah
        raise Timeout(
            errno.ETIMEDOUT,
            f"requesting memory from {self._there}: no reply: start `siwarp ping --server --qp "
            "rd` there, with the same --crc",
        )

    def _bind(self, kind: QPType) -> tuple[QP, AH]:
        """Return a UD or RD queue pair that is ready, and the address handle of the server."""
        policy = ErrorPolicy.MESSAGE
        qp = QP(self._pd, QPInitAttr(kind, scq=self._cq, addr=self._any_port, error_policy=policy))
        # The default rnr_retry waits forever for a server that is not ready to receive.
        qp.to_rts(_RNR if kind == QPType.RD else None)
        return qp, AH(self._pd, self._dest)

    def _ask(
        self, qp: QP, ah: AH, asked: bytes, tries: int, seconds: float
    ) -> Iterator[tuple[str, bytes]]:
        """Send a request up to ``tries`` times, once in ``seconds``; yield each answer, and from
        which host it came.
        """
        mr = MR(self._pd, bytearray(asked.ljust(128, b"\0")))
        for _ in range(tries):
            qp.post_recv(RecvWR(sg=[mr.sge(64, 64)]))
            qp.post_send(SendWR(sg=[mr.sge(0, len(asked))], ah=ah))
            wc = self._next(time.monotonic() + seconds)
            if wc is not None and wc.source is not None:
                yield wc.source[0], mr.read(wc.byte_len, 64)

    def _next(self, end: float) -> WC | None:
        """Return the next completion that is not that of a Send or Write; None at ``end``."""
        poll = self._cq.poll
        polite = time.monotonic() + YIELD_AFTER
        while True:
            for wc in poll():
                if wc.status:
                    self._fail(wc)
                if wc.opcode not in _SENT:
                    return wc
            now = time.monotonic()
            if now > polite:
                os.sched_yield()
                if not self._answered and self._probe.refused():
                    raise PeerGone(
                        errno.ECONNREFUSED,
                        f"{self._dest[0]} refuses UDP port {self._dest[1]}: start `siwarp ping "
                        f"--server --qp {self._kind}` there, or correct the port",
                    )
            if now > end:
                return None

    def _fail(self, wc: WC) -> None:
        try:
            wc.check()
        except PeerGone as e:
            if self._answered:
                raise
            raise PeerGone(
                e.errno,
                f"{self._there}: no answer; is `siwarp ping --server --qp {self._kind}` running "
                "there, with the same --crc, and was its --qkey given?",
            ) from None

    def ping(self, count: int) -> bool | None:
        """Do one round trip: True if good, False if wrong octets came back, None for no answer."""
        view, size, digits = self._mr.view, self._size, self._digits
        if digits:
            view[self._number] = (count % (1 << 8 * digits)).to_bytes(digits, "little")
        want = self._prefix + view[self._part]
        if self._op == "write":
            view[size] = ~want[-1] & 0xFF
        self._qp.post_send(self._requests[count % len(self._requests)])
        end = time.monotonic() + self._patience
        while (wc := self._next(end)) is not None:
            place = wc.imm_data % self._places if wc.opcode == _IMMEDIATE else wc.wr_id
            at = (1 + place) * size
            got = bytes(view[at : at + wc.byte_len])
            self._answered = True
            if wc.opcode != _READ:
                self._qp.post_recv(self._recvs[wc.wr_id])
            if got == want:
                return True
            earlier = len(got) == size and got[self._number] != want[self._number]
            if self._kind == "rc" or wc.opcode == _READ or not earlier:
                return False
            # the answer to an earlier ping, which counts as lost
        return None

    def close(self) -> None:
        """Return the server's memory, disconnect, and free everything."""
        with contextlib.suppress(Error):  # the server no longer exists
            if self._return is not None:
                self._qp.post_send(self._return)
            if self._id is not None:
                self._id.disconnect()
        self._return = self._id = None
        self._parts.close()


# ---- the server --------------------------------------------------------------------------------

#: Seconds that a server polls after the last message before it sleeps, and the number of empty
#: polls after which it looks for other work.
_BUSY, _LOOK = 0.002, 64
#: The bit of a request's id that marks a send.
_SEND = 1 << 32


def serve(cq: CQ, handle: Callable[[list[WC]], float | None], stop: Stopping, *others: int) -> None:
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

    def __init__(self, pd: PD, cq: CQ, hello: Hello, host: str, cm_id: CMID | None = None) -> None:
        """Create the queue pair: for UC at ``host``, for RC on the connection request ``cm_id``."""
        op, size = hello
        uc = cm_id is None
        self.id, self.seen, self._size = cm_id, time.monotonic(), size
        #: UC: the client's queue pair, and the answer to its request.
        self.peer: Address | None = None
        self.answer = b""
        n = _PLACES if uc or op == "send" else 0
        self.mr = MR(pd, (1 + n) * size, _ALL_ACCESS)
        if op == "read":
            self.mr.write(_pattern(size))
        kind, addr = (QPType.UC, (host, 0)) if uc else (QPType.RC, None)
        self.qp = QP(pd, QPInitAttr(kind, scq=cq, cap=_CAP, addr=addr))
        if cm_id is None:
            self.qp.to_init()
        else:
            cm_id.bind_qp(self.qp)
        self._sgs = [[self.mr.sge((1 + i) * size, size)] for i in range(n)]
        self._recvs = [RecvWR(i, sg=sg if op == "send" else []) for i, sg in enumerate(self._sgs)]
        self._sends = [SendWR(_SEND | i, sg=sg) for i, sg in enumerate(self._sgs)]
        self.qp.post_recv(self._recvs)
        self.number = self.qp.qp_num

    def connect_uc(self, peer: Address, hello: Hello, memory: RemoteBuffer) -> None:
        """Connect to a client's UC queue pair, and set ``answer``.

        Raises:
            ValueError: the peer's memory is too small for its Writes.

        """
        self.qp.to_rts(QPAttr(ah_attr=peer))
        self.peer = peer
        self.answer = _UC_ANSWER.pack(_UC_MAGIC, 1, self.qp.addr[1], self.mr.remote().pack())
        if hello.op == "write":
            write = WROpcode.RDMA_WRITE_WITH_IMM
            remotes = [memory.part((1 + i) * hello.size, hello.size) for i in range(_PLACES)]
            self._sends = [
                SendWR(_SEND | i, write, sg=sg, remote=remotes[i], imm_data=i)
                for i, sg in enumerate(self._sgs)
            ]

    def serve(self, wc: WC) -> None:
        """Return a message that has arrived, from the place where it is.

        Raises:
            Error: the queue pair has failed.

        """
        self.seen = time.monotonic()
        if wc.status and self.qp.qp_state == QPState.ERR:
            wc.check()
        if wc.wr_id & _SEND or wc.status:
            self.qp.post_recv(self._recvs[wc.wr_id & ~_SEND])
            return
        wr = self._sends[wc.imm_data % _PLACES if wc.opcode == _IMMEDIATE else wc.wr_id]
        wr.sg[0].length = min(wc.byte_len, self._size)
        self.qp.post_send(wr)

    def close(self) -> None:
        """Disconnect, and free everything."""
        if self.id is not None:
            with contextlib.suppress(Error):
                self.id.disconnect()
            self.id.close()
            self.id.context = None
        self.qp.close()
        self.mr.close()


class _Server:
    """What the servers have in common: clients with their own queue pairs."""

    CLIENTS = 64
    #: Octets of memory for all clients together.
    MEMORY = 2 * (1 + _PLACES) * MAX_SIZE
    #: Seconds without a message after which a client may be disconnected to admit a new one.
    SILENT = 30.0

    #: The address at which the server listens.
    address: Address
    #: Descriptors that are readable when ``handle`` has something to do besides completions.
    _fds: tuple[int, ...] = ()

    def __init__(self, context: Context, address: Address, entries: int) -> None:
        self._host = address[0]
        self._pd = PD(context)
        self.cq = CQ(context, entries, channel=CompChannel(context))
        #: By queue pair number.
        self._clients: dict[int, _Client] = {}

    def run(self, stop: Stopping) -> None:
        """Serve clients until ``stop`` is set."""
        serve(self.cq, self.handle, stop, *self._fds)

    def handle(self, wcs: list[WC]) -> float | None:
        """Process completions; return the seconds until the next call is necessary, or None."""
        raise NotImplementedError

    def _admit(self, hello: Hello, cm_id: CMID | None = None) -> _Client:
        """Add a client. If there is no room, disconnect clients that were silent for ``SILENT``.

        Raises:
            ValueError: there is no room.
            Error: the queue pair cannot be created.

        """
        octets = (1 + _PLACES) * hello.size
        for client in sorted(self._clients.values(), key=lambda client: client.seen):
            used = sum(one.mr.length for one in self._clients.values())
            if len(self._clients) < self.CLIENTS and used + octets <= self.MEMORY:
                break
            if time.monotonic() - client.seen < self.SILENT:
                raise ValueError("the server is full: try again later")
            self._drop(client)
        client = _Client(self._pd, self.cq, hello, self._host, cm_id)
        self._clients[client.number] = client
        return client

    def _serve_client(self, wc: WC) -> None:
        client = self._clients.get(wc.qp_num)
        if client is not None:
            try:
                client.serve(wc)
            except Error:  # the connection broke, or the client broke the rules
                self._drop(client)

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.number, None)
        client.close()


class RCServer(_Server):
    """Answers RC pings."""

    def __init__(self, context: Context, address: Address) -> None:
        super().__init__(context, address, 8 * _PLACES * self.CLIENTS)
        self._events = CMEventChannel(context)
        self._listener = CMID(self._events)
        self._listener.listen(address)
        self.address = self._listener.local_addr
        self._fds = (self._events.fileno(),)
        self._turn = 0

    def handle(self, wcs: list[WC]) -> None:
        """Process completions, and now and then connection events."""
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
                self._welcome(event)
            elif event.type != CMEventType.ESTABLISHED and event.id.context is not None:
                self._drop(event.id.context)

    def _welcome(self, event: CMEvent) -> None:
        client = None
        try:
            client = event.id.context = self._admit(Hello.unpack(event.private_data), event.id)
            event.id.accept(ConnParam(private_data=client.mr.remote().pack()))
        except (ValueError, Error) as e:  # no ping, no room, or the client has left
            if client is not None:
                self._drop(client)
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
        self._ration = Ration(self.RATE, self.AT_ONCE)
        #: The memory of each client.
        self._lent: dict[Address, MR] = {}
        #: For each client, the last octet at the last check, and the time when it last changed.
        self._used: dict[Address, tuple[int, float]] = {}
        self._due = 0.0

    @functools.cached_property
    def _readable(self) -> MR:
        """The memory that all clients read."""
        access = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ
        return MR(self._pd, bytearray(_pattern(MAX_SIZE)), access)

    def lend(self, client: Address, asked: bytes) -> bytes:
        """Return the address and key of memory for a client, or no octets if the request is
        refused.
        """
        if not asked:
            self._end(client)
        if not asked or not self._ration.take(client):
            return b""
        try:
            op, size = Hello.unpack(asked)
            if op == "read":
                return self._readable.remote(0, size).pack()
            self._end(client)
            if not self._fits(client, size):
                self._check()
                now = system.monotonic()
                for idle in [who for who, (_, at) in self._used.items() if now - at >= self.IDLE]:
                    self._end(idle)
                if not self._fits(client, size):
                    return b""
            mr = self._lent[client] = MR(self._pd, size, _ALL_ACCESS)
        except (ValueError, Error):
            return b""
        self._used[client] = 0, system.monotonic()
        return mr.remote().pack()

    def look(self) -> float | None:
        """Check which loans are used; return the seconds until the next check, or None without
        loans.
        """
        if not self._lent:
            return None
        now = system.monotonic()
        if now >= self._due:
            self._due = now + self.CHECK_INTERVAL
            self._check()
        return self._due - now

    def _check(self) -> None:
        for client, mr in self._lent.items():
            last = mr.view[-1]
            if last != self._used[client][0]:
                self._used[client] = last, system.monotonic()

    def _end(self, client: Address) -> None:
        if client in self._lent:
            self._lent.pop(client).close()
            del self._used[client]

    def _fits(self, client: Address, size: int) -> bool:
        own = [mr.length for who, mr in self._lent.items() if source_of(who) == source_of(client)]
        octets_left = self.MEMORY + sum(own) - sum(mr.length for mr in self._lent.values())
        clients_left = self.CLIENTS + len(own) - len(self._lent)
        return 2 * (sum(own) + size) <= octets_left and 2 * (len(own) + 1) <= clients_left + 1


class DatagramServer(_Server):
    """Answers UD and RD pings on one queue pair, and on it admits UC clients.

    A request is answered from the buffer in which it arrived, and another buffer receives in its
    place. Clients that do not acknowledge their answers hold buffers, which are shared fairly:
    requests of a client that has its share are dropped. With RD, a client that has no buffer waits,
    and displaces the client that has held one longest.
    """

    #: Number of buffers that receive, and that clients may hold.
    RECVS, ANSWERS = 64, 256

    def __init__(self, context: Context, address: Address, kind: str) -> None:
        n = self.RECVS + self.ANSWERS
        super().__init__(context, address, n + (8 * _PLACES * self.CLIENTS if kind == "uc" else n))
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
        #: The clients of the answers in flight, by buffer.
        self._holders: dict[int, Address] = {}
        #: The clients that wait for a buffer, and their requests.
        self._waiting: dict[Address, WC] = {}
        # RD: a client that is not ready to receive for the time of _RNR loses its answers.
        self._qp.to_rts(_RNR if kind == "rd" else None)
        self._qp.post_recv(self._recvs[: self.RECVS])

    def handle(self, wcs: list[WC]) -> float | None:
        """Process completions; return the seconds until the next call is necessary, or None."""
        asked = list(self._waiting.items())
        self._waiting.clear()
        for wc in wcs:
            if wc.qp_num != self._number:
                self._serve_client(wc)
            elif wc.wr_id & _SEND:
                self._release(wc.wr_id & ~_SEND)
            elif wc.ok and wc.byte_len and (client := wc.source) is not None:
                asked.append((client, wc))
            else:
                self._qp.post_recv(self._recvs[wc.wr_id])
        for client, wc in asked:
            if self._shares.may_take(client):
                self._answer(client, wc)
            elif self._kind != "rd" or self._shares.held(client) or client in self._waiting:
                self._qp.post_recv(self._recvs[wc.wr_id])
            else:
                self._waiting[client] = wc
        waits = self._loans.look(), self._displace() if self._waiting else None
        return min((wait for wait in waits if wait is not None), default=None)

    def _release(self, buffer: int) -> None:
        self._shares.give(self._holders.pop(buffer))
        self._free.append(buffer)

    def _displace(self) -> float | None:
        """Make the client release its buffers that has held one longest, if it is not too early.

        Return the seconds until then, or None.
        """
        longest = self._shares.longest_held()
        if longest is None:
            return None
        client, safe_until = longest
        if (left := safe_until - system.monotonic()) > 0:
            return left
        self._qp.end_peer(client)  # its sends complete at a later poll
        return None

    def _answer(self, client: Address, wc: WC) -> None:
        recv, length = wc.wr_id, self._write_answer(client, wc)
        if length:
            wr = self._sends[recv]
            wr.sg[0].length = length
            self._shares.take(client)
            self._holders[recv] = client
            try:
                # Several queue pairs may share the client's socket.
                wr.set_wr_ud(self._handle_to(client), wc.src_qp)
                self._qp.post_send(wr)
            except Error:  # only this client's answer is lost, as a datagram may be
                self._release(recv)
            recv = self._free.pop()
        self._qp.post_recv(self._recvs[recv])

    def _write_answer(self, client: Address, wc: WC) -> int:
        """Replace a request by its answer; return the octets of the answer, 0 for none."""
        at, view = wc.wr_id * self._size, self._mr.view
        if self._kind == "uc":
            answer = self._admit_uc(client, bytes(view[at : at + wc.byte_len]))
        elif view[at] == REQUEST:
            view[at] = ANSWER
            return wc.byte_len
        elif view[at] == MEMORY and self._kind == "rd":
            answer = bytes([ANSWER]) + self._loans.lend(
                client, bytes(view[at + 1 : at + wc.byte_len])
            )
            if wc.byte_len == 1:
                return 0  # the client only returned its memory
        else:
            return 0
        view[at : at + len(answer)] = answer
        return len(answer)

    def _admit_uc(self, source: Address, asked: bytes) -> bytes:
        """Return the answer to a UC client's request, or no octets if it is not one."""
        if len(asked) != _UC_REQUEST.size:
            return b""
        magic, op, port, size, memory = _UC_REQUEST.unpack(asked)
        if magic != _UC_MAGIC or op > 1 or not 1 <= size <= UC_MAX_SIZE or not port:
            return b""
        peer, hello = (source[0], port), Hello(OPS[op], size)
        for known in self._clients.values():
            if known.peer == peer:  # the client repeats its request: the answer was lost
                return known.answer
        client = None
        try:
            client = self._admit(hello)
            client.connect_uc(peer, hello, RemoteBuffer.unpack(memory))
        except (Error, ValueError):
            if client is not None:
                self._drop(client)
            return _UC_ANSWER.pack(_UC_MAGIC, 0, 0, bytes(20))
        return client.answer


def make_server(context: Context, address: Address, kind: str) -> _Server:
    """Return a server for this type of queue pair, which ends when ``context`` is closed."""
    if kind == "rc":
        return RCServer(context, address)
    return DatagramServer(context, address, kind)
