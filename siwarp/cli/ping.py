# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp ping``: measures round trips to a server, or to a peer process that it starts."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Protocol

import typer

from siwarp.base.numeric import numeric
from siwarp.cli import show
from siwarp.cli.peer import Peer, on_stdin_end

#: The default port, the same as perftest's.
PORT = 18515


class QPKind(str, Enum):
    """Values of ``--qp``."""

    ud = "ud"
    uc = "uc"
    rd = "rd"
    rc = "rc"


class Op(str, Enum):
    """Values of ``--op``."""

    send = "send"
    write = "write"
    read = "read"


class PersonaKind(str, Enum):
    """Values of ``--persona``."""

    auto = "auto"
    iwarp = "iwarp"
    roce = "roce"


@dataclass
class Result:
    """The result of a run; round-trip times are in microseconds."""

    peer: str
    qp: str
    op: str
    size: int
    sent: int
    received: int
    lost: int
    wrong: int
    rtt_us: dict[str, float] | None


@dataclass(frozen=True)
class _Output:
    """The output about single round trips, in addition to the summary.

    Attributes:
        percentiles: the percentiles to print; empty for only the summary.
        histogram: whether a histogram is printed.
        file: the file for all round-trip times, in us and in order; empty for none.
    """

    percentiles: tuple[float, ...]
    histogram: bool
    file: str

    @classmethod
    def of(cls, percentiles: str | None, histogram: bool, file: str) -> _Output:
        """Create from the command-line options."""
        if percentiles is None:
            return cls((), histogram, file)
        from siwarp.base.samples import parse_percentiles

        try:
            return cls(parse_percentiles(percentiles), histogram, file)
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint="--percentiles") from None


class _Pinger(Protocol):
    def ping(self, count: int) -> bool | None:
        """Do one round trip: True if good, False if wrong octets came back, None for no answer."""

    def close(self) -> None: ...


def _summary(times: list[int]) -> dict[str, float] | None:
    if not times:
        return None
    import statistics

    from siwarp.base.samples import percentiles

    ordered = sorted(times)
    return {
        "min": ordered[0] / 1000,
        "median": statistics.median(ordered) / 1000,
        "mean": statistics.fmean(ordered) / 1000,
        "p99": percentiles(ordered, (99,))["p99"] / 1000,
        "max": ordered[-1] / 1000,
    }


#: Number of consecutive lost pings after which a run ends, because no server answers. An RC
#: connection never loses one ping and delivers the next.
_LOST_LIMIT = {"ud": 5, "uc": 5, "rd": 1, "rc": 1}


def _run(pinger: _Pinger, iters: int, label: str, hope: int) -> tuple[int, list[int], int]:
    """Return the number of pings sent, the times of the good ones in ns, and how many were wrong.

    Ctrl-C ends the run; the result counts the pings until then.
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
            sent += 1  # only now: a ping that Ctrl-C interrupts does not count as lost
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
) -> tuple[Result, list[int]]:
    """Ping; return the result, and the time of each good round trip in ns, in order."""
    from siwarp.cli.ping_client import PATIENCE, DatagramPinger, RCPinger
    from siwarp.cli.ping_uc import UCPinger

    dest = (numeric(host), port)
    pinger: _Pinger
    if qp == "uc":
        pinger = UCPinger(dest, op, size, device, PATIENCE[qp])
    elif qp == "rc":
        pinger = RCPinger(dest, op, size, device)
    else:
        pinger = DatagramPinger(dest, qp, op, size, device)
    try:
        sent, times, wrong = _run(pinger, iters, f"{qp.upper()} {op}", _LOST_LIMIT[qp])
    finally:
        pinger.close()
    result = Result(
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
    return result, times


def _print_details(told: _Output, result: Result, times: list[int], as_json: bool) -> None:
    """Print the result, and the requested output about single round trips."""
    from siwarp.base import samples

    found = [ns / 1000 for ns in times]
    if told.file:
        samples.write(Path(told.file), found)
    found.sort()
    percentiles = samples.percentiles(found, told.percentiles) if found else {}
    if as_json:
        more: dict[str, Any] = {"percentiles": percentiles} if told.percentiles else {}
        if told.histogram:
            more["histogram"] = samples.histogram(found)
        show.data(asdict(result) | more)
        return
    if percentiles:
        shown = "  ".join(f"{name} {value:.1f}" for name, value in percentiles.items())
        show.line(f"percentiles in us: {shown}")
    if told.histogram:
        for line in samples.lines(found):
            show.line(line)


def _report(result: Result, own: bool) -> None:
    what = {
        "send": "sent and returned",
        "write": "RDMA Write, then RDMA Read of its last octet",
        "read": "RDMA Read",
    }[result.op]
    if (result.qp, result.op) == ("uc", "write"):
        what = "RDMA Write with immediate data, in both directions"
    octets = f"{result.size} octet{'s' if result.size > 1 else ''}"
    whose = "a peer process that it started, " if own else ""
    show.line(f"{result.qp.upper()} {result.op} to {whose}{result.peer}: {octets}, {what}")
    lost = f", {result.wrong} wrong" if result.wrong else ""
    show.line(f"{result.sent} sent, {result.received} back, {result.lost} lost{lost}")
    if not result.received:
        show.line(
            f"no server answers: is `siwarp ping --server --qp {result.qp}` running there, with "
            "the same --crc, and was its --qkey given?"
        )
    if result.rtt_us:
        times = "  ".join(f"{name} {value:.1f}" for name, value in result.rtt_us.items())
        show.line(f"round trip in us: {times}")


def _serve(
    addr: str, port: int, qp: str, device: str | None, as_json: bool, until_eof: bool
) -> None:
    from siwarp.base.stop import Stop
    from siwarp.cli.ping_server import DatagramServer, RCServer
    from siwarp.cli.ping_uc import UCServer
    from siwarp.verbs import Context, QPType
    from siwarp.verbs.qkey import own_qkey

    stop = Stop()
    if until_eof:
        on_stdin_end(stop.set)

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
            qkey = 0 if qp == "rc" else own_qkey()
            if as_json:
                told = {"qp": qp, "addr": host, "port": bound} | ({"qkey": qkey} if qkey else {})
                print(json.dumps(told), flush=True)
            else:
                transport = "TCP" if qp == "rc" else "UDP"
                everyone = ", every address of this machine" if host in ("0.0.0.0", "::") else ""
                if everyone and qp == "rd":  # RD peers identify the server by its address
                    everyone += " (if it has several, select one with --addr)"
                known = f"; clients need --qkey {qkey:#x}" if qkey else ""
                print(
                    f"{qp.upper()} ping server on {host} {transport} port {bound}{everyone}"
                    f"{known}; nothing is encrypted. Ctrl-C ends the server",
                    flush=True,
                )
            server.run(stop)
        finally:
            server.close()


def _judge(
    addr: str | None, server: bool, bind: str | None, qp: QPKind, op: Op, persona: PersonaKind
) -> None:
    """Reject combinations of options that are not possible."""
    if persona is not PersonaKind.auto and qp is not QPKind.rc:
        raise typer.BadParameter("applies only to RC: use --qp rc", param_hint="--persona")
    if server:
        if addr is not None:
            raise typer.BadParameter("give a server's address with --addr", param_hint="ADDR")
        return
    if bind is not None:
        raise typer.BadParameter(
            "applies only to a server: give a client's peer as ADDR", param_hint="--addr"
        )
    if qp is QPKind.ud and op is not Op.send:
        raise typer.BadParameter(
            f"UD has no RDMA {op.value.title()}: use --qp rd or rc", param_hint="--op"
        )
    if qp is QPKind.uc and op is Op.read:
        raise typer.BadParameter("UC has no RDMA Read: use --qp rd or rc", param_hint="--op")


def _apply_qkey(text: str, qp: QPKind) -> None:
    """Set the Q_Key of the queue pairs of this process and of its peer process."""
    from siwarp.cli.main import apply_settings

    if qp is QPKind.rc:
        raise typer.BadParameter("RC has no Q_Key: leave out --qkey", param_hint="--qkey")
    try:
        number = int(text, 0)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 31:
        raise typer.BadParameter(
            f"give a number from 1 to 0x7fffffff, not {text}", param_hint="--qkey"
        )
    apply_settings(["--qkey", str(number)])


def _with_own_peer(
    qp: str, op: str, size: int, iters: int, device: str | None
) -> tuple[Result, list[int]]:
    """Ping a server that is started for this run."""
    with Peer(
        "siwarp.cli", "ping", "--server", "--addr", "127.0.0.1", "--port", "0",
        "--qp", qp, "--json", "--until-eof",
    ) as peer:  # fmt: skip
        return _client("127.0.0.1", peer.hear()["port"], qp, op, size, iters, device)


def _measure(
    addr: str | None, port: int, qp: str, op: str, size: int, iters: int, device: str | None
) -> tuple[Result, list[int]]:
    """Ping the server at ``addr``, or one that this program starts."""
    if addr is None:
        return _with_own_peer(qp, op, size, iters, device)
    return _client(addr, port, qp, op, size, iters, device)


def _take(persona: PersonaKind, qkey: str | None, qp: QPKind, faults: str | None) -> None:
    """Apply the settings that belong to options; the peer process inherits them."""
    if persona is not PersonaKind.auto:
        from siwarp.cli.main import apply_settings

        apply_settings(["--persona", persona.value])
    if qkey is not None:
        _apply_qkey(qkey, qp)
    if faults is not None:
        from siwarp.bench.plan_option import set_plan

        set_plan(faults)


def ping(
    addr: str | None = typer.Argument(
        None, metavar="ADDR", help="The server's address; without it, a peer process is started."
    ),
    server: bool = typer.Option(False, "--server", help="Run the server."),
    bind: str | None = typer.Option(
        None, "--addr", help="Server: the address to listen on; default: every IPv4 address."
    ),
    port: int = typer.Option(
        PORT, "--port", "-p", min=0, max=65535, help="Port; 0 selects a free one (server)."
    ),
    qp: Annotated[QPKind, typer.Option("--qp", help="The kind of queue pair.")] = QPKind.ud,
    op: Annotated[
        Op, typer.Option("--op", help="The operation; UD: only send; UC: no read.")
    ] = Op.send,
    size: int = typer.Option(64, "--size", "-s", help="Octets of a ping."),
    iters: int = typer.Option(1000, "--iters", "-n", min=1, help="Number of pings."),
    persona: Annotated[
        PersonaKind,
        typer.Option(
            "--persona",
            help="RC: whether sends complete when TCP has accepted them "
            "(iwarp) or when the peer has (roce).",
        ),
    ] = PersonaKind.auto,
    device: str | None = typer.Option(
        None, "--device", "-d", help="The device, by name; default: by address."
    ),
    qkey: str | None = typer.Option(
        None, "--qkey", metavar="N", help="UD, UC, RD: the Q_Key that the server prints."
    ),
    faults: str | None = typer.Option(
        None, "--faults", metavar="PLAN", help="Fault plan for packets; see siwarp wan --help."
    ),
    percentiles: str | None = typer.Option(
        None,
        "--percentiles",
        metavar="P",
        help="Print these percentiles of the round trips, for example 50,99,99.9.",
    ),
    histogram: bool = typer.Option(
        False, "--histogram", help="Print a histogram of the round trips."
    ),
    samples: str = typer.Option(
        "", "--samples", metavar="FILE", help="Write each round trip to this file, in us, in order."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    until_eof: bool = typer.Option(False, "--until-eof", hidden=True),
) -> None:
    """Measure round trips to a `siwarp ping --server`, or to a peer process that it starts.

    Options are named as in perftest if it has them. The exit status is 1 if no ping came back
    intact. With UD and UC, a ping without an answer is lost after 1 s, and five consecutive lost
    pings end the run. With RD and RC, one lost ping ends the run, after 15 s and 10 s. An RD server
    that is not ready to receive for 4 s ends the run with an error.
    """
    _judge(addr, server, bind, qp, op, persona)
    _take(persona, qkey, qp, faults)
    told = _Output.of(percentiles, histogram, samples)
    if server:
        _serve(numeric(bind or "0.0.0.0"), port, qp.value, device, as_json, until_eof)
        return
    result, times = _measure(addr, port, qp.value, op.value, size, iters, device)
    if not as_json:
        _report(result, own=addr is None)
    _print_details(told, result, times, as_json)
    if not result.received or result.wrong:
        sys.exit(1)
