# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The client of ``siwarp ping`` for all types of queue pairs, and the messages of both ends.

The messages are described in spec/datagram-iwarp.md, section 9.3.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time

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
    Address,
    CompChannel,
    Context,
    Error,
    ErrorPolicy,
    PeerGone,
    QPAttr,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    Timeout,
    WCOpcode,
    source_toward,
)

__all__ = [
    "ANSWER",
    "LOST_LIMIT",
    "PATIENCE",
    "REQUEST",
    "Pinger",
    "explain_missing_answer",
    "pack_hello",
    "unpack_hello",
]

#: The first octet of a ping, and of its answer. The server answers no other message, so that two
#: servers cannot keep each other busy.
REQUEST, ANSWER = b"Q", b"A"
#: The start-up message, the same in both directions: on RC the private data of Request and Reply,
#: on UC a message over UD. The port is that of the sender's UC queue pair; 0 on RC, and in the
#: answer of a UC server that is full.
_HELLO, _MAGIC = struct.Struct("!8sH"), b"siwping2"

#: Seconds without an answer after which a ping is lost.
PATIENCE = {"ud": 1.0, "uc": 1.0, "rd": 15.0, "rc": 10.0}
#: Number of consecutive lost pings after which a run ends, because no server answers. RD and RC
#: never lose one ping and deliver the next.
LOST_LIMIT = {"ud": 5, "uc": 5, "rd": 1, "rc": 1}
#: UC: number of start-up messages, and seconds that the client waits for each answer.
UC_TRIES, UC_WAIT = 20, 0.25
#: Seconds that a client without any answer waits for the error that reports an unused UDP port.
_PROBE_WAIT = 0.5
#: Number of receives; late answers of UD use the additional ones.
_RECVS = 8
#: RNR settings of RD: 6 retries, each after the peer's min_rnr_timer. Value 0 of min_rnr_timer,
#: which these queue pairs use, is the longest: 655 ms. The default waits without a limit for a
#: server that is not ready to receive.
_RNR = QPAttr(rnr_retry=6, min_rnr_timer=0)


def pack_hello(port: int = 0) -> bytes:
    """Return the start-up message in its wire format."""
    return _HELLO.pack(_MAGIC, port)


def unpack_hello(data: bytes) -> int | None:
    """Return the port in a start-up message, or None if ``data`` is no such message."""
    if len(data) != _HELLO.size:
        return None
    magic, port = _HELLO.unpack(data)
    return int(port) if magic == _MAGIC else None


def explain_missing_answer(dest: Address, kind: str) -> str:
    """Return what to check if the server at ``dest`` has not answered.

    An empty datagram, which a program drops, finds out whether a UDP port is in use. It needs its
    own socket: that of a queue pair has many peers, so the kernel reports no ICMP errors on it.
    """
    command = f"`siwarp ping --server --qp {kind}`"
    family = socket.AF_INET6 if ":" in dest[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_PROBE_WAIT)
        try:
            if kind != "rc":
                sock.connect(dest)
                sock.send(b"")
                sock.recv(1)
        except ConnectionRefusedError:
            return (
                f"{dest[0]} refuses UDP port {dest[1]}: start {command} there, or correct the port"
            )
        except OSError:
            pass  # other errors, such as a missing answer, do not show whether a server runs
    return f"is {command} running there, with the same --crc, and was its --qkey given?"


class Pinger(Closing):
    """A client of ``siwarp ping`` with its queue pair, connected to a server.

    Raises:
        BadParameter: a ping cannot have this size.
        PeerGone, Timeout: no server answers.
        OSError: the server is full, or is another program.

    """

    def __init__(self, dest: Address, kind: str, size: int, device: str | None = None) -> None:
        self._dest, self._kind, self._size = dest, kind, size
        self._there = f"{dest[0]} port {dest[1]}"
        source = source_toward(dest)
        self._any_port = None if device else (source, 0)
        self._answered = kind == "rc"
        self._id: CMID | None = None
        self._parts = contextlib.ExitStack()
        self._context = self._parts.enter_context(Context(device or source))
        try:
            self._create_resources()
        except BaseException:
            self.close()
            raise

    def _create_resources(self) -> None:
        """Create the memory, the queue pair and its requests, and connect to the server."""
        kind, size, context = self._kind, self._size, self._context
        most = context.query_device().max_ud_msg
        if not 1 <= size <= most:
            raise typer.BadParameter(
                f"the size of a ping must be from 1 to {most} octets", param_hint="--size"
            )
        self._pd = PD(context)
        self._cq = CQ(context, 64, channel=CompChannel(context))
        self._mr = MR(self._pd, (1 + _RECVS) * size)
        self._mr.write((REQUEST + bytes(range(251)) * (size // 251 + 1))[:size])
        #: The octets of a ping that contain its number.
        self._number = slice(1, min(9, size))
        sgs = [[self._mr.sge((1 + i) * size, size)] for i in range(_RECVS)]
        self._recvs = [RecvWR(i, sg=sg) for i, sg in enumerate(sgs)]
        ah = None
        if kind == "rc":
            self._connect_rc()
        elif kind == "uc":
            self._connect_uc()
        else:
            self._qp, ah = self._create_datagram_qp(QPType[kind.upper()])
            self._qp.post_recv(self._recvs)
        self._request = SendWR(sg=[self._mr.sge(0, size)], ah=ah)

    def _create_datagram_qp(self, kind: QPType) -> tuple[QP, AH]:
        """Return a UD or RD queue pair that is ready, and the address handle of the server."""
        policy = ErrorPolicy.MESSAGE
        qp = QP(self._pd, QPInitAttr(kind, scq=self._cq, addr=self._any_port, error_policy=policy))
        qp.to_rts(_RNR if kind == QPType.RD else None)
        return qp, AH(self._pd, self._dest)

    def _connect_rc(self) -> None:
        self._qp = QP(self._pd, QPInitAttr(QPType.RC, scq=self._cq))
        events = CMEventChannel(self._context)
        self._id = CMID(events)
        self._id.bind_qp(self._qp)
        self._qp.post_recv(self._recvs)
        self._id.connect(self._dest, ConnParam(private_data=pack_hello()))
        event = events.get_event(30)
        if event is None:
            raise Timeout(
                errno.ETIMEDOUT, f"connecting to {self._dest[0]} port {self._dest[1]}: no answer"
            )
        if unpack_hello(event.check().private_data) is None:
            raise OSError(
                f"{self._there} is not a siwarp ping server of this release: start `siwarp ping "
                "--server --qp rc` there"
            )

    def _connect_uc(self) -> None:
        """Exchange ports with the server over UD, and connect."""
        self._qp = QP(self._pd, QPInitAttr(QPType.UC, scq=self._cq, addr=self._any_port))
        self._qp.to_init()
        self._qp.post_recv(self._recvs)
        hello = pack_hello(self._qp.addr[1])
        ud, ah = self._create_datagram_qp(QPType.UD)
        mr = MR(self._pd, bytearray(hello * 2))
        for _ in range(UC_TRIES):
            ud.post_recv(RecvWR(sg=[mr.sge(len(hello), len(hello))]))
            ud.post_send(SendWR(sg=[mr.sge(0, len(hello))], ah=ah))
            wc = self._wait_for_receive(time.monotonic() + UC_WAIT)
            if wc is None or wc.source is None:
                continue
            port = unpack_hello(mr.read(wc.byte_len, len(hello)))
            if port == 0:
                raise OSError(f"the server at {self._there} is full: try again later")
            if port is not None:
                ud.close()
                self._qp.to_rts(QPAttr(ah_attr=(wc.source[0], port)))
                return
        advice = explain_missing_answer(self._dest, self._kind)
        raise Timeout(errno.ETIMEDOUT, f"{self._there}: no answer: {advice}")

    def _wait_for_receive(self, end: float) -> WC | None:
        """Return the next completion of a receive; None after the time ``end``.

        Raises:
            PeerGone: the server is gone, or does not exist.
            Error: the ping or the connection failed.

        """
        while wcs := self._cq.wait(max(0.0, end - time.monotonic()), 1):
            try:
                wc = wcs[0].check()
            except PeerGone as e:
                if self._answered:
                    raise
                advice = explain_missing_answer(self._dest, self._kind)
                raise PeerGone(e.errno, f"{self._there}: no answer: {advice}") from None
            if wc.opcode != WCOpcode.SEND:
                return wc
        return None

    def ping(self, count: int) -> bool | None:
        """Do one round trip; return True if it is good, False for wrong octets, None for no
        answer.
        """
        view, size, number = self._mr.view, self._size, self._number
        digits = number.stop - number.start
        view[number] = (count % (1 << 8 * digits)).to_bytes(digits, "little")
        want = ANSWER + bytes(view[1:size])
        self._qp.post_send(self._request)
        end = time.monotonic() + PATIENCE[self._kind]
        while (wc := self._wait_for_receive(end)) is not None:
            at = (1 + wc.wr_id) * size
            got = bytes(view[at : at + wc.byte_len])
            self._answered = True
            self._qp.post_recv(self._recvs[wc.wr_id])
            if got == want:
                return True
            if len(got) != size or got[number] == want[number]:
                return False
            # The answer belongs to an earlier ping, which counts as lost.
        return None

    def close(self) -> None:
        """Disconnect, and free all resources."""
        if self._id is not None:
            with contextlib.suppress(Error):  # the server may no longer exist
                self._id.disconnect()
            self._id = None
        self._parts.close()
