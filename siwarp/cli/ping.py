# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp ping``: measures round trips to a server, or to a peer process that it starts."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siwarp.base.numeric import resolve_to_numeric
from siwarp.cli import show
from siwarp.cli.peer import Peer, call_at_stdin_end

if TYPE_CHECKING:
    from siwarp.cli.ping_client import Pinger

#: The default port of the ping server, the same as perftest's.
PORT = 18515

QPKind = Enum("QPKind", {"ud": "ud", "uc": "uc", "rd": "rd", "rc": "rc"}, type=str)
Op = Enum("Op", {"send": "send", "write": "write", "read": "read"}, type=str)
PersonaKind = Enum("PersonaKind", {"auto": "auto", "iwarp": "iwarp", "roce": "roce"}, type=str)


def _run_pings(
    pinger: Pinger, iters: int, label: str, lost_limit: int
) -> tuple[int, list[int], int]:
    """Return the number of pings sent, the times of the good pings in ns, and the number of wrong
    pings.

    Ctrl-C ends the run; the result counts the pings until then.
    """
    times: list[int] = []
    wrong = sent = pending = silent = 0
    clock = time.perf_counter_ns
    with contextlib.suppress(KeyboardInterrupt), show.progress_bar(label, iters) as step:
        shown = clock()
        for i in range(iters):
            began = clock()
            answer = pinger.ping(i)
            ended = clock()
            sent += 1  # counted here, so that a ping that Ctrl-C interrupts is not counted
            if answer:
                times.append(ended - began)
            elif answer is not None:
                wrong += 1
            silent = silent + 1 if answer is None else 0
            if silent >= lost_limit:
                break
            pending += 1
            if ended - shown > 100_000_000:
                step(pending)
                pending = 0
                shown = clock()
    return sent, times, wrong


def _measure_round_trips(
    addr: str | None, port: int, qp: str, op: str, size: int, iters: int, device: str | None
) -> tuple[dict[str, Any], list[float]]:
    """Ping the server at ``addr``, or a server started for this run if ``addr`` is None.

    Return the result, and the time of each good round trip in us, in order.
    """
    from siwarp.cli.ping_client import KINDS, Pinger

    if addr is None:
        with Peer(
            "siwarp.cli", "ping", "--server", "--addr", "127.0.0.1", "--port", "0",
            "--qp", qp, "--json", "--until-eof",
        ) as peer:  # fmt: skip
            return _measure_round_trips(
                "127.0.0.1", peer.receive_value()["port"], qp, op, size, iters, device
            )
    with Pinger((resolve_to_numeric(addr), port), qp, op, size, device) as pinger:
        label = f"{qp.upper()} {op}"
        sent, times, wrong = _run_pings(pinger, iters, label, KINDS[qp].lost_limit)
    result = {
        "peer": f"{addr}:{port}" if ":" not in addr else f"[{addr}]:{port}",
        "qp": qp,
        "op": op,
        "size": size,
        "sent": sent,
        "received": len(times),
        "lost": sent - len(times) - wrong,
        "wrong": wrong,
        "rtt_us": _summarize_times(times),
    }
    return result, [ns / 1000 for ns in times]


def _summarize_times(times: list[int]) -> dict[str, float] | None:
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


def _print_result(result: dict[str, Any], own: bool) -> None:
    qp, op, size = result["qp"], result["op"], result["size"]
    what = {
        "send": "sent and returned",
        "write": "RDMA Write, then RDMA Read of its last octet",
        "read": "RDMA Read",
    }[op]
    if (qp, op) == ("uc", "write"):
        what = "RDMA Write with immediate data, in both directions"
    whose = "a peer process that it started, " if own else ""
    octets = f"{size} octet{'s' if size > 1 else ''}"
    show.print_line(f"{qp.upper()} {op} to {whose}{result['peer']}: {octets}, {what}")
    wrong = f", {result['wrong']} wrong" if result["wrong"] else ""
    show.print_line("{sent} sent, {received} back, {lost} lost".format(**result) + wrong)
    if not result["received"]:
        show.print_line(
            f"no server answers: is `siwarp ping --server --qp {qp}` running there, with "
            "the same --crc, and was its --qkey given?"
        )
    if result["rtt_us"]:
        times = "  ".join(f"{name} {value:.1f}" for name, value in result["rtt_us"].items())
        show.print_line(f"round trip in us: {times}")


def _run_server(
    addr: str, port: int, qp: str, device: str | None, as_json: bool, until_eof: bool
) -> None:
    from siwarp.base.stop import StopEvent
    from siwarp.cli.ping_server import make_ping_server
    from siwarp.verbs import Context
    from siwarp.verbs.qkey import default_qkey

    stop = StopEvent()
    if until_eof:
        call_at_stdin_end(stop.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with Context(device or addr) as context:
        server = make_ping_server(context, (addr, port), qp)
        host, bound = server.address
        qkey = 0 if qp == "rc" else default_qkey()
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


def _check_options(
    addr: str | None, server: bool, bind: str | None, qp: str, op: str, persona: str
) -> None:
    """Reject combinations of options that are not possible."""
    if persona != "auto" and qp != "rc":
        raise typer.BadParameter("applies only to RC: use --qp rc", param_hint="--persona")
    if server and addr is not None:
        raise typer.BadParameter("give a server's address with --addr", param_hint="ADDR")
    if server:
        return
    if bind is not None:
        raise typer.BadParameter(
            "applies only to a server: give a client's peer as ADDR", param_hint="--addr"
        )
    if qp == "ud" and op != "send":
        raise typer.BadParameter(
            f"UD has no RDMA {op.title()}: use --qp rd or rc", param_hint="--op"
        )
    if qp == "uc" and op == "read":
        raise typer.BadParameter("UC has no RDMA Read: use --qp rd or rc", param_hint="--op")


def _apply_options(persona: str, qkey: str | None, qp: str, faults: str | None) -> None:
    """Apply the settings that belong to options; the peer process inherits them."""
    from siwarp.cli.main import apply_settings

    if persona != "auto":
        apply_settings(["--persona", persona])
    if qkey is not None:
        if qp == "rc":
            raise typer.BadParameter("RC has no Q_Key: leave out --qkey", param_hint="--qkey")
        try:
            number = int(qkey, 0)
        except ValueError:
            number = 0
        if not 0 < number < 1 << 31:
            raise typer.BadParameter(
                f"give a number from 1 to 0x7fffffff, not {qkey}", param_hint="--qkey"
            )
        apply_settings(["--qkey", str(number)])
    if faults is not None:
        from siwarp.bench.plan_option import set_process_fault_plan

        set_process_fault_plan(faults)


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
    file: str = typer.Option(
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
    from siwarp.base import samples

    _check_options(addr, server, bind, qp.value, op.value, persona.value)
    _apply_options(persona.value, qkey, qp.value, faults)
    try:
        wanted = samples.parse_percentiles(percentiles) if percentiles is not None else ()
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--percentiles") from None
    if server:
        _run_server(
            resolve_to_numeric(bind or "0.0.0.0"), port, qp.value, device, as_json, until_eof
        )
        return
    result, times = _measure_round_trips(addr, port, qp.value, op.value, size, iters, device)
    if not as_json:
        _print_result(result, own=addr is None)
    if file:
        samples.write_samples(Path(file), times)
    times.sort()
    found = samples.percentiles(times, wanted) if times else {}
    if as_json:
        more: dict[str, Any] = {"percentiles": found} if wanted else {}
        if histogram:
            more["histogram"] = samples.histogram(times)
        show.print_json(result | more)
    else:
        if found:
            shown = "  ".join(f"{name} {value:.1f}" for name, value in found.items())
            show.print_line(f"percentiles in us: {shown}")
        for line in samples.histogram_lines(times) if histogram else ():
            show.print_line(line)
    if not result["received"] or result["wrong"]:
        sys.exit(1)
