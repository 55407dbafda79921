# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The client of ``siwarp ping`` for all types of queue pairs, and the messages of both ends.

The messages are described in spec/datagram-iwarp.md, section 9.3. UD and RD: the server returns a
request, which begins with ``Q``, with an ``A`` in that place. The server answers no other message,
so that two servers cannot keep each other busy. RC: the private data of the client is a
PingRequest, that of the server a RemoteBuffer for Writes and Reads. UC: both ends first exchange
ports and memory over UD.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

import typer

from siwarp.base.closing import Closing
from siwarp.cm import CMID, CMEventChannel, ConnParam
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    WC,
    AccessFlag,
    Address,
    Context,
    Error,
    ErrorPolicy,
    PeerGone,
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

# ---- messages ----------------------------------------------------------------------------------

#: The first octet of a message on UD and RD. ``M`` followed by a PingRequest requests memory;
#: ``M`` alone returns the client's memory.
REQUEST, ANSWER, MEMORY = ord("Q"), ord("A"), ord("M")
OPS = ("send", "write", "read")
#: Limits of one ping in octets, in general and on UC. The server allocates as much memory; a UC
#: client needs no connection to cause that.
MAX_SIZE, UC_MAX_SIZE = 64 << 20, 1 << 20

_REQUEST_HEAD, _REQUEST_MAGIC = struct.Struct("!8sBxxxQ"), b"siwping1"
#: UC's request: operation, port of the client's queue pair, octets of a ping, and the client's
#: memory. Zeros follow, so that a request is not shorter than its answer.
UC_REQUEST, UC_MAGIC = struct.Struct("!8sBxHQ20s24x"), b"siwucpg1"
#: UC's answer: 1, the port of the server's queue pair and the server's memory; or 0 for a refusal.
UC_ANSWER = struct.Struct("!8sBxH20s")
#: Number of requests that a UC client sends, and seconds that it waits for each answer.
UC_TRIES, UC_WAIT = 20, 0.25

#: Number of places for received messages in the memory of a UC or RC client or server; the places
#: follow the octets to send.
PLACES = 4
#: The capacity of the UC queue pairs of both ends, and of the server's RC queue pairs.
CAP = QPCap(max_send_wr=4 * PLACES, max_recv_wr=2 * PLACES)
#: Opcodes of completions: of Sends and Writes, which do not end a ping; of a Read; of a received
#: Write with immediate data.
_SENT = (WCOpcode.SEND, WCOpcode.RDMA_WRITE)
_READ, _IMMEDIATE = WCOpcode.RDMA_READ, WCOpcode.RECV_RDMA_WITH_IMM
#: RNR settings of an RD queue pair: 6 retries, each after the peer's min_rnr_timer. Value 0 of
#: min_rnr_timer, which these queue pairs use, is the longest: 655 ms.
RNR = QPAttr(rnr_retry=6, min_rnr_timer=0)


class PingRequest(NamedTuple):
    """The operation that a client will use, and its number of octets."""

    op: str
    size: int

    def pack(self) -> bytes:
        """Return the request in its wire format."""
        return _REQUEST_HEAD.pack(_REQUEST_MAGIC, OPS.index(self.op), self.size)

    @classmethod
    def unpack(cls, data: bytes) -> PingRequest:
        """Parse the request with which a client begins.

        Raises:
            ValueError: the octets are not a request of ``siwarp ping``, or the size is too large;
                the text is sent to the client.

        """
        if len(data) < _REQUEST_HEAD.size:
            raise ValueError("this is a siwarp ping server")
        magic, op, size = _REQUEST_HEAD.unpack_from(data)
        if magic != _REQUEST_MAGIC or op >= len(OPS):
            raise ValueError("this is a siwarp ping server")
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"a ping has from 1 to {MAX_SIZE} octets")
        return cls(OPS[op], size)


def make_memory_pattern(size: int) -> bytes:
    """Return the octets with which memory that clients read is filled."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


# ---- the client --------------------------------------------------------------------------------


class KindProperties(NamedTuple):
    """The properties of a ping client that depend on the type of its queue pair."""

    #: Seconds without an answer after which a ping is lost.
    patience: float
    #: Number of consecutive lost pings after which a run ends, because no server answers. RD and
    #: RC never lose one ping and deliver the next.
    lost_limit: int
    #: Number of places for received messages.
    places: int


KINDS = {
    "ud": KindProperties(1.0, 5, 8),
    "uc": KindProperties(1.0, 5, PLACES),
    "rd": KindProperties(15.0, 1, 8),
    "rc": KindProperties(10.0, 1, 1),
}

#: Seconds that a client polls before it yields to other processes, for example the server. On one
#: CPU the server runs only once the client yields, so the client yields immediately.
YIELD_AFTER = 0.0 if len(os.sched_getaffinity(0)) == 1 else 0.0002


class _PortProbe:
    """Finds out whether a UDP port is in use, by an empty datagram, which a program drops.

    The socket of a queue pair has many peers, so the kernel does not report ICMP errors on it. The
    kernel does report them on a socket that is connected to one peer.
    """

    #: Seconds after which the port is probed. A server that is started together with the client
    #: may need seconds on a busy machine before it opens the port.
    AFTER = 3.0

    def __init__(self, dest: Address) -> None:
        self._dest = dest
        family = socket.AF_INET6 if ":" in dest[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._due = time.monotonic() + self.AFTER

    def is_refused(self) -> bool:
        """Return, without waiting, whether the destination has reported that the port is not in
        use.
        """
        try:
            if time.monotonic() > self._due:
                self._due = math.inf
                self._socket.connect(self._dest)
                self._socket.send(b"")
            elif self._due == math.inf:
                self._socket.recv(1)
        except OSError as e:  # other errors, such as a missing answer, prove nothing
            return isinstance(e, ConnectionRefusedError)
        return False

    def close(self) -> None:
        """Close the socket with which the port is probed."""
        self._socket.close()


class Pinger(Closing):
    """A client of ``siwarp ping`` with its queue pair, connected to a server.

    The client's memory has ``size`` octets to send, then places of that size for received messages.
    A Send is answered by a Send, and on UC a Write with immediate data by a Write to the place that
    the immediate data name. Any other Write is followed by a Read of its last octet, which returns
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
            self._create_resources()
        except BaseException as e:
            self.close()
            if isinstance(e, ValueError):  # a server's message is too short
                raise OSError(
                    f"{self._there} is not a siwarp ping server: start `siwarp ping --server` "
                    "there, with the same --qp"
                ) from None
            raise

    def _create_resources(self) -> None:
        """Create the memory, the queue pair and its requests."""
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
        access = AccessFlag.LOCAL_WRITE
        if kind == "uc":
            access |= AccessFlag.REMOTE_WRITE
        self._mr = mr = MR(self._pd, (1 + self._places) * size, access)
        mr.view[:size] = make_memory_pattern(size)
        sgs = [[mr.sge((1 + i) * size, size)] for i in range(self._places)]
        self._recvs = [RecvWR(i, sg=sg if op == "send" else []) for i, sg in enumerate(sgs)]
        if lettered:
            mr.view[0] = REQUEST
        meet = {"rc": self._connect_rc, "uc": self._connect_uc}.get(kind, self._bind_datagram_qp)
        #: The correct answer: ``_prefix``, then ``_part`` of the sent message.
        self._prefix = bytes([ANSWER]) if lettered else b""
        self._make_requests(int(lettered), *meet())

    def _make_requests(self, first: int, there: RemoteBuffer, ah: AH | None) -> None:
        """Create the requests of a ping, whose number begins at octet ``first`` of a message."""
        kind, op, size, last = self._kind, self._op, self._size, self._size
        own = [self._mr.sge(0, size)]
        #: Ping n uses element n modulo the length of the list.
        self._requests: list[SendWR | list[SendWR]]
        if op == "send":
            self._requests = [SendWR(sg=own, ah=ah)]
        elif kind == "uc":
            write, places = WROpcode.RDMA_WRITE_WITH_IMM, range(PLACES)
            remotes = [there.part((1 + i) * size, size) for i in places]
            self._requests = [
                SendWR(0, write, sg=own, remote=remotes[i], imm_data=i) for i in places
            ]
        elif op == "write":
            first = size - 1
            self._requests = [
                [
                    SendWR(0, WROpcode.RDMA_WRITE, send_flags=0, sg=own, remote=there, ah=ah),
                    self._make_read_request(there.part(first, 1), ah),
                ]
            ]
        else:
            self._prefix, last = make_memory_pattern(size), 0
            self._requests = [self._make_read_request(there.part(0, size), ah)]
        self._digits = min(8, last - first) if op != "read" else 0
        self._part, self._number = slice(first, last), slice(first, first + self._digits)

    def _make_read_request(self, remote: RemoteBuffer, ah: AH | None) -> SendWR:
        """Return a request that reads ``remote`` into the first place for received messages."""
        sg = [self._mr.sge(self._size, remote.length)]
        return SendWR(0, WROpcode.RDMA_READ, sg=sg, remote=remote, ah=ah)

    def _connect_rc(self) -> tuple[RemoteBuffer, AH | None]:
        """Connect the RC queue pair, and return the server's memory."""
        self._qp = QP(self._pd, QPInitAttr(QPType.RC, scq=self._cq))
        events = CMEventChannel(self._context)
        self._id = CMID(events)
        self._id.bind_qp(self._qp)
        self._qp.post_recv(self._recvs)
        self._id.connect(
            self._dest, ConnParam(private_data=PingRequest(self._op, self._size).pack())
        )
        event = events.get_event(30)
        if event is None:
            raise Timeout(
                errno.ETIMEDOUT, f"connecting to {self._dest[0]} port {self._dest[1]}: no answer"
            )
        return RemoteBuffer.unpack(event.check().private_data), None

    def _connect_uc(self) -> tuple[RemoteBuffer, AH | None]:
        """Exchange ports and memory with the server over UD, connect, and return the server's
        memory.
        """
        init = QPInitAttr(QPType.UC, scq=self._cq, cap=CAP, addr=(self._source, 0))
        self._qp = QP(self._pd, init)
        self._qp.to_init()
        self._qp.post_recv(self._recvs)
        op, port = OPS.index(self._op), self._qp.addr[1]
        asked = UC_REQUEST.pack(UC_MAGIC, op, port, self._size, self._mr.remote().pack())
        ud, ah = self._create_datagram_qp(QPType.UD)
        for host, answer in self._send_request_and_yield_answers(ud, ah, asked, UC_TRIES, UC_WAIT):
            if len(answer) != UC_ANSWER.size or not answer.startswith(UC_MAGIC):
                continue
            _, good, port, memory = UC_ANSWER.unpack(answer)
            if not good:
                raise OSError(f"the server at {self._there} is full: try again later")
            ud.close()
            self._qp.to_rts(QPAttr(ah_attr=(host, port)))
            return RemoteBuffer.unpack(memory), None
        raise Timeout(
            errno.ETIMEDOUT,
            f"connecting to {self._there}: no reply: start `siwarp ping --server --qp uc` there",
        )

    def _bind_datagram_qp(self) -> tuple[RemoteBuffer, AH | None]:
        """Bind the queue pair; return the memory that the server lends for Writes and Reads."""
        self._qp, ah = self._create_datagram_qp(QPType[self._kind.upper()])
        if self._op == "send":
            self._qp.post_recv(self._recvs)
            return RemoteBuffer(0, 0, 0), ah
        asked = bytes([MEMORY]) + PingRequest(self._op, self._size).pack()
        for _, answer in self._send_request_and_yield_answers(
            self._qp, ah, asked, 1, self._patience
        ):
            if len(answer) <= 1:
                raise OSError("the ping server has no memory left: try again later")
            self._return = SendWR(sg=[MR(self._pd, asked[:1], AccessFlag(0)).sge()], ah=ah)
            return RemoteBuffer.unpack(answer[1:]), ah
        raise Timeout(
            errno.ETIMEDOUT,
            f"requesting memory from {self._there}: no reply: start `siwarp ping --server --qp "
            "rd` there, with the same --crc",
        )

    def _create_datagram_qp(self, kind: QPType) -> tuple[QP, AH]:
        """Return a UD or RD queue pair that is ready, and the address handle of the server."""
        policy = ErrorPolicy.MESSAGE
        qp = QP(self._pd, QPInitAttr(kind, scq=self._cq, addr=self._any_port, error_policy=policy))
        # The default rnr_retry waits forever for a server that is not ready to receive.
        qp.to_rts(RNR if kind == QPType.RD else None)
        return qp, AH(self._pd, self._dest)

    def _send_request_and_yield_answers(
        self, qp: QP, ah: AH, asked: bytes, tries: int, seconds: float
    ) -> Iterator[tuple[str, bytes]]:
        """Send a request up to ``tries`` times, once in ``seconds``; yield the host and the octets
        of each answer.
        """
        mr = MR(self._pd, bytearray(asked.ljust(128, b"\0")))
        for _ in range(tries):
            qp.post_recv(RecvWR(sg=[mr.sge(64, 64)]))
            qp.post_send(SendWR(sg=[mr.sge(0, len(asked))], ah=ah))
            wc = self._next_completion(time.monotonic() + seconds)
            if wc is not None and wc.source is not None:
                yield wc.source[0], mr.read(wc.byte_len, 64)

    def _next_completion(self, end: float) -> WC | None:
        """Return the next completion except of a Send or Write; None after the time ``end``."""
        poll = self._cq.poll
        polite = time.monotonic() + YIELD_AFTER
        while True:
            for wc in poll():
                if wc.status:
                    self._raise_failure(wc)
                if wc.opcode not in _SENT:
                    return wc
            now = time.monotonic()
            if now > polite:
                os.sched_yield()
                if not self._answered and self._probe.is_refused():
                    raise PeerGone(
                        errno.ECONNREFUSED,
                        f"{self._dest[0]} refuses UDP port {self._dest[1]}: start `siwarp ping "
                        f"--server --qp {self._kind}` there, or correct the port",
                    )
            if now > end:
                return None

    def _raise_failure(self, wc: WC) -> None:
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
        """Do one round trip; return True if it is good, False for wrong octets, None for no
        answer.
        """
        view, size, digits = self._mr.view, self._size, self._digits
        if digits:
            view[self._number] = (count % (1 << 8 * digits)).to_bytes(digits, "little")
        want = self._prefix + view[self._part]
        if self._op == "write":
            view[size] = ~want[-1] & 0xFF
        self._qp.post_send(self._requests[count % len(self._requests)])
        end = time.monotonic() + self._patience
        while (wc := self._next_completion(end)) is not None:
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
            # The answer belongs to an earlier ping, which counts as lost.
        return None

    def close(self) -> None:
        """Return the lent memory to the server, disconnect, and free all resources."""
        with contextlib.suppress(Error):  # the server may no longer exist
            if self._return is not None:
                self._qp.post_send(self._return)
            if self._id is not None:
                self._id.disconnect()
        self._return = self._id = None
        self._parts.close()
