# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp ping``: round trips to a server, or to a peer process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from siwarp.cli import show
from siwarp.cli.peer import Peer, when_starter_is_gone
from siwarp.cli.ping_wire import ANSWER, MAX_SIZE, MEMORY, REQUEST, Hello, number, numeric, pattern

if TYPE_CHECKING:
    from siwarp.cli.ping_probe import PortProbe
    from siwarp.verbs import AH, CQ, MR, PD, QP, RemoteBuffer, SendWR, WCOpcode

#: The default port, as of perftest.
PORT = 18515
#: Seconds without an answer after which a UD ping is lost and an RC connection given up.
PATIENCE = {"ud": 1.0, "uc": 1.0, "rd": 15.0, "rc": 10.0}


class QPKind(str, Enum):
    """What ``--qp`` takes."""

    ud = "ud"
    uc = "uc"
    rd = "rd"
    rc = "rc"


class Op(str, Enum):
    """What ``--op`` takes."""

    send = "send"
    write = "write"
    read = "read"


class PersonaKind(str, Enum):
    """What ``--persona`` takes."""

    auto = "auto"
    iwarp = "iwarp"
    roce = "roce"


@dataclass
class Result:
    """What came of a run; times of a round trip are in microseconds."""

    peer: str
    qp: str
    op: str
    size: int
    sent: int
    received: int
    lost: int
    wrong: int
    rtt_us: dict[str, float] | None


class _Pinger(Protocol):
    def ping(self, count: int) -> bool | None:
        """Do one round trip: True, False if wrong octets came back, None if nothing did."""

    def close(self) -> None: ...


def _summary(times: list[int]) -> dict[str, float] | None:
    if not times:
        return None
    import statistics

    ordered = sorted(times)
    return {
        "min": ordered[0] / 1000,
        "median": statistics.median(ordered) / 1000,
        "mean": statistics.fmean(ordered) / 1000,
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1000,
        "max": ordered[-1] / 1000,
    }


#: How many pings in a row may be lost before the run ends: after that nobody is there. An RC
#: connection does not lose one and deliver the next.
_HOPE = {"ud": 5, "uc": 5, "rd": 1, "rc": 1}

#: Seconds of polling after which another process may need the core more, the peer perhaps.
_POLITE = 0.0002


def _deadline(qp: str) -> tuple[float, float]:
    now = time.monotonic()
    return now + _POLITE, now + PATIENCE[qp]


def _over(deadline: tuple[float, float]) -> bool:
    """Say whether waiting is over; let others run if it is not so short any more."""
    now = time.monotonic()
    if now > deadline[0]:
        os.sched_yield()
    return now > deadline[1]


class _OneSided:
    """Writes and Reads of the peer's memory; what comes back lies behind what goes."""

    _size: int
    _mr: MR
    _qp: QP
    _cq: CQ
    _wr: SendWR
    #: Completions of this kind end no round trip.
    _sent: WCOpcode
    #: Of queue pair, as ``--qp`` has it.
    _kind: str

    def _aim(self, there: RemoteBuffer, op: str, ah: AH | None = None) -> None:
        from siwarp.verbs import SendWR, WROpcode

        size = self._size
        self._wr = SendWR(
            opcode=WROpcode.RDMA_WRITE,
            sg=[self._mr.sge(0, size)],
            remote=there,
            send_flags=0,
            ah=ah,
        )
        # A Read behind the Write brings its last octet back: then the peer has it all.
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


class _DatagramPinger(_OneSided):
    """Of UD and RD: one queue pair, on which the answers come back."""

    def __init__(
        self, dest: tuple[str, int], kind: str, op: str, size: int, device: str | None
    ) -> None:
        from siwarp.cli.ping_probe import PortProbe
        from siwarp.verbs import (
            AH,
            CQ,
            MR,
            PD,
            QP,
            Context,
            ErrorPolicy,
            QPInitAttr,
            QPType,
            RecvWR,
            SendWR,
            WCOpcode,
            source_toward,
        )

        self._kind = kind
        self._size = size
        self._parts = contextlib.ExitStack()
        part = self._parts.enter_context
        try:
            source = source_toward(dest)
            context = part(Context(device or source))
            pd = part(PD(context))
            cq = part(CQ(context, 64))
            most = context.query_device().max_ud_msg if op == "send" else MAX_SIZE
            if not 1 <= size <= most:
                raise typer.BadParameter(
                    f"a {kind.upper()} ping has 1 to {most} octets", param_hint="--size"
                )
            addr = None if device else (source, 0)
            policy = ErrorPolicy.MESSAGE
            kind_of = QPType[kind.upper()]
            slots = 8 if op == "send" else 1  # what is read lies behind what is written
            # Before the queue pair, so that they are closed after it: it may be using them still.
            self._mr = part(MR(pd, size * (slots + 1)))
            ah = part(AH(pd, dest))
            qp = part(QP(pd, QPInitAttr(kind_of, scq=cq, addr=addr, error_policy=policy)))
            qp.to_rts()
            recvs = [RecvWR(i, sg=[self._mr.sge((i + 1) * size, size)]) for i in range(slots)]
            if op == "send":
                qp.post_recv(recvs)
        except BaseException:
            self._parts.close()
            raise
        self._recvs = recvs
        self._qp = qp
        self._cq = cq
        #: Whether anybody is there; none once something came.
        self._probe: PortProbe | None = PortProbe(dest, kind)
        self._parts.callback(self._probe.close)
        self._wr = SendWR(sg=[self._mr.sge(0, size)], ah=ah)
        self._sent = WCOpcode.SEND
        self._mr.view[:size] = bytes([REQUEST]) + pattern(size - 1)
        self.ping = {"send": self._send, "write": self._write, "read": self._read}[op]
        if op != "send":
            try:
                self._aim(self._ask(dest, Hello(op, size), pd, ah), op, ah)
            except BaseException:
                self._parts.close()
                raise

    def _ask(self, dest: tuple[str, int], hello: Hello, pd: PD, ah: AH) -> RemoteBuffer:
        """Have the server lend memory."""
        from siwarp.verbs import MR, RecvWR, RemoteBuffer, SendWR, Timeout

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
                    raise OSError(
                        "the ping server has no memory to lend: try again later"
                    ) from None
        raise Timeout(110, f"asking {dest[0]} port {dest[1]} for memory: no answer")

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
                # else it answers an earlier ping, which counts as lost
            if self._probe is not None:
                self._probe.look()
            if _over(deadline):
                return None

    def close(self) -> None:
        self._parts.close()


class _RCPinger(_OneSided):
    _kind = "rc"

    def __init__(self, dest: tuple[str, int], op: str, size: int, device: str | None) -> None:
        from siwarp.cm import CMID, CMEventChannel, ConnParam
        from siwarp.verbs import (
            CQ,
            MR,
            PD,
            QP,
            Context,
            QPInitAttr,
            QPType,
            RecvWR,
            RemoteBuffer,
            SendWR,
            Timeout,
            WCOpcode,
        )

        if not 1 <= size <= MAX_SIZE:
            raise typer.BadParameter(f"an RC ping has 1 to {MAX_SIZE} octets", param_hint="--size")
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
            raise OSError(f"{dest[0]} port {dest[1]} is no siwarp ping server") from None
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
        with contextlib.suppress(OSError):
            self._id.disconnect()
        self._parts.close()


def _run(pinger: _Pinger, iters: int, label: str, hope: int) -> tuple[int, list[int], int]:
    """Return how many pings were sent, the times of the good ones in ns, and how many were wrong.

    Ctrl-C ends the run, not the account of it.
    """
    times: list[int] = []
    wrong = sent = pending = silent = 0
    clock = time.perf_counter_ns
    with contextlib.suppress(KeyboardInterrupt), show.bar(label, iters) as step:
        shown = clock()
        for i in range(iters):
            began = clock()
            answer = pinger.ping(i)
            ended = clock()
            sent += 1  # not before: one that Ctrl-C broke off is not lost
            if answer:
                times.append(ended - began)
            elif answer is not None:
                wrong += 1
            silent = silent + 1 if answer is None else 0
            if silent >= hope:
                break
            pending += 1
            if ended - shown > 100_000_000:
                step(pending)
                pending = 0
                shown = clock()
    return sent, times, wrong


def _client(
    host: str, port: int, qp: str, op: str, size: int, iters: int, device: str | None
) -> Result:
    dest = (numeric(host), port)
    pinger: Any
    if qp == "uc":
        from siwarp.cli.ping_uc import UCPinger

        pinger = UCPinger(dest, op, size, device, PATIENCE[qp])
    elif qp == "rc":
        pinger = _RCPinger(dest, op, size, device)
    else:
        pinger = _DatagramPinger(dest, qp, op, size, device)
    try:
        sent, times, wrong = _run(pinger, iters, f"{qp.upper()} {op}", _HOPE[qp])
    finally:
        pinger.close()
    return Result(
        peer=f"{host}:{port}" if ":" not in host else f"[{host}]:{port}",
        qp=qp,
        op=op,
        size=size,
        sent=sent,
        received=len(times),
        lost=sent - len(times) - wrong,
        wrong=wrong,
        rtt_us=_summary(times),
    )


def _report(result: Result, own: bool) -> None:
    what = {
        "send": "sent and sent back",
        "write": "RDMA Write, its last octet fetched by RDMA Read",
        "read": "RDMA Read",
    }[result.op]
    if (result.qp, result.op) == ("uc", "write"):
        what = "RDMA Write with immediate data, and one back"
    octets = f"{result.size} octet{'s' if result.size > 1 else ''}"
    whose = "a peer process of its own, " if own else ""
    show.line(f"{result.qp.upper()} {result.op} to {whose}{result.peer}: {octets}, {what}")
    lost = f", {result.wrong} wrong" if result.wrong else ""
    show.line(f"{result.sent} sent, {result.received} back, {result.lost} lost{lost}")
    if not result.received:
        show.line(
            f"nobody answers: is `siwarp ping --server --qp {result.qp}` running there, with the "
            "same --crc?"
        )
    if result.rtt_us:
        times = "  ".join(f"{name} {value:.1f}" for name, value in result.rtt_us.items())
        show.line(f"round trip in us: {times}")


def _serve(
    addr: str, port: int, qp: str, device: str | None, as_json: bool, until_eof: bool
) -> None:
    from siwarp.cli.ping_loop import Stop
    from siwarp.cli.ping_server import DatagramServer, RCServer
    from siwarp.cli.ping_uc import UCServer
    from siwarp.verbs import Context, QPType

    stop = Stop()
    if until_eof:
        when_starter_is_gone(stop.set)

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    with Context(device or addr) as context:
        where = (addr, port)
        server: Any
        if qp == "rc":
            server = RCServer(context, where)
        elif qp == "uc":
            server = UCServer(context, where)
        else:
            server = DatagramServer(context, where, QPType[qp.upper()])
        try:
            host, bound = server.address
            if as_json:
                print(f'{{"qp": "{qp}", "addr": "{host}", "port": {bound}}}', flush=True)
            else:
                transport = "TCP" if qp == "rc" else "UDP"
                everyone = ", every address of this machine" if host in ("0.0.0.0", "::") else ""
                if everyone and qp == "rd":  # its peers know it by address
                    everyone += " (if it has several, name one by --addr)"
                print(
                    f"{qp.upper()} ping server on {host} {transport} port {bound}{everyone}; "
                    "nothing is encrypted. Ctrl-C ends it",
                    flush=True,
                )
            server.run(stop)
        finally:
            server.close()


def _judge(
    addr: str | None, server: bool, bind: str | None, qp: QPKind, op: Op, persona: PersonaKind
) -> None:
    """Refuse options that do not go together."""
    if persona is not PersonaKind.auto and qp is not QPKind.rc:
        raise typer.BadParameter("is RC's: use --qp rc", param_hint="--persona")
    if server:
        if addr is not None:
            raise typer.BadParameter("a server's address is given by --addr", param_hint="ADDR")
        return
    if bind is not None:
        raise typer.BadParameter("is for a server; a client's is ADDR", param_hint="--addr")
    if qp is QPKind.ud and op is not Op.send:
        raise typer.BadParameter(
            f"UD has no RDMA {op.value.title()}: use --qp rd or rc", param_hint="--op"
        )
    if qp is QPKind.uc and op is Op.read:
        raise typer.BadParameter("UC has no RDMA Read: use --qp rd or rc", param_hint="--op")


def _with_own_peer(qp: str, op: str, size: int, iters: int, device: str | None) -> Result:
    """Ping a server that is made for it."""
    with Peer(
        "siwarp.cli", "ping", "--server", "--addr", "127.0.0.1", "--port", "0",
        "--qp", qp, "--json", "--until-eof",
    ) as peer:  # fmt: skip
        return _client("127.0.0.1", peer.hear()["port"], qp, op, size, iters, device)


def ping(
    addr: str | None = typer.Argument(
        None, metavar="ADDR", help="The server's address; without it, a peer process is made."
    ),
    server: bool = typer.Option(False, "--server", help="Be the server."),
    bind: str | None = typer.Option(
        None, "--addr", help="Server: the address to be at; default: every IPv4 address."
    ),
    port: int = typer.Option(
        PORT, "--port", "-p", min=0, max=65535, help="Port; 0 takes a free one (server)."
    ),
    qp: Annotated[QPKind, typer.Option("--qp", help="The kind of queue pair.")] = QPKind.ud,
    op: Annotated[
        Op, typer.Option("--op", help="What a ping is; UD: send only; UC: no read.")
    ] = Op.send,
    size: int = typer.Option(64, "--size", "-s", help="Octets of a ping."),
    iters: int = typer.Option(1000, "--iters", "-n", min=1, help="How many pings."),
    persona: Annotated[
        PersonaKind,
        typer.Option("--persona", help="RC: when sends complete, TCP or the peer has them."),
    ] = PersonaKind.auto,
    device: str | None = typer.Option(
        None, "--device", "-d", help="The device, by name; default: by address."
    ),
    faults: str | None = typer.Option(
        None, "--faults", metavar="PLAN", help="What goes wrong on the way; see siwarp wan --help."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    until_eof: bool = typer.Option(False, "--until-eof", hidden=True),
) -> None:
    """Time round trips to a `siwarp ping --server`, or to a peer process of its own.

    The options are perftest's where it has them. The exit status is 1 if no ping came back whole.
    """
    _judge(addr, server, bind, qp, op, persona)
    if persona is not PersonaKind.auto:
        from siwarp.cli.main import take_settings

        take_settings(["--persona", persona.value])  # of the peer process, too
    if faults is not None:
        from siwarp.bench.plan_option import set_plan

        set_plan(faults)
    if server:
        _serve(numeric(bind or "0.0.0.0"), port, qp.value, device, as_json, until_eof)
        return
    if addr is None:
        result = _with_own_peer(qp.value, op.value, size, iters, device)
    else:
        result = _client(addr, port, qp.value, op.value, size, iters, device)
    if as_json:
        show.data(asdict(result))
    else:
        _report(result, own=addr is None)
    if not result.received or result.wrong:
        sys.exit(1)
