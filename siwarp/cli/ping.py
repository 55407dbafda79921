# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp ping``: sends pings to a server, or to a peer process that it starts."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siwarp.base import show
from siwarp.base.numeric import resolve_to_numeric
from siwarp.base.removed_option import declare_removed_option
from siwarp.cli.peer import Peer, call_at_stop_signal

if TYPE_CHECKING:
    from siwarp.cli.ping_client import Pinger
    from siwarp.verbs import Address

#: The default port of the ping server, the same as perftest's.
PORT = 18515

QPKind = Enum("QPKind", {"ud": "ud", "uc": "uc", "rd": "rd", "rc": "rc"}, type=str)

_LATENCY = "siwarp bench lat ADDR"


def _run_pings(pinger: Pinger, iters: int, lost_limit: int) -> tuple[int, list[float], int]:
    """Return the number of pings sent, the times of the good pings in us, and the number of wrong
    pings.

    The run ends after ``lost_limit`` consecutive pings without an answer, and at Ctrl-C.
    """
    times: list[float] = []
    wrong = sent = silent = 0
    with contextlib.suppress(KeyboardInterrupt):
        while sent < iters and silent < lost_limit:
            began = time.perf_counter()
            answer = pinger.ping(sent)
            took = time.perf_counter() - began
            sent += 1  # counted here, so that a ping that Ctrl-C interrupts is not counted
            if answer:
                times.append(took * 1e6)
            wrong += answer is False
            silent = silent + 1 if answer is None else 0
    return sent, times, wrong


def _measure_round_trips(
    addr: str | None, port: int, qp: str, size: int, iters: int, device: str | None
) -> dict[str, Any]:
    """Ping the server at ``addr``, or a server started for this run if ``addr`` is None."""
    from siwarp.cli.ping_client import LOST_LIMIT, Pinger, explain_missing_answer

    if addr is None:
        with Peer(
            "siwarp.cli", "ping", "--server", "--addr", "127.0.0.1", "--port", "0",
            "--qp", qp, "--json", "--until-eof",
        ) as peer:  # fmt: skip
            port = peer.receive_value()["port"]
            return _measure_round_trips("127.0.0.1", port, qp, size, iters, device)
    dest = resolve_to_numeric(addr), port
    with Pinger(dest, qp, size, device) as pinger:
        sent, times, wrong = _run_pings(pinger, iters, LOST_LIMIT[qp])
    return {
        "peer": f"{addr}:{port}" if ":" not in addr else f"[{addr}]:{port}",
        "qp": qp,
        "size": size,
        "sent": sent,
        "received": len(times),
        "lost": sent - len(times) - wrong,
        "wrong": wrong,
        "rtt_us": _summarize_times(times),
        "advice": explain_missing_answer(dest, qp) if sent and not times and not wrong else None,
    }


def _summarize_times(times: list[float]) -> dict[str, float] | None:
    if not times:
        return None
    import statistics

    from siwarp.base.samples import percentiles

    times.sort()
    return {
        "min": times[0],
        "median": statistics.median(times),
        "mean": statistics.fmean(times),
        "p99": percentiles(times, (99,))["p99"],
        "max": times[-1],
    }


def _print_result(result: dict[str, Any], own: bool) -> None:
    whose = "a peer process that it started, " if own else ""
    octets = f"{result['size']} octet{'s' if result['size'] > 1 else ''}"
    show.print_line(f"{result['qp'].upper()} ping of {whose}{result['peer']}: {octets}")
    wrong = f", {result['wrong']} wrong" if result["wrong"] else ""
    show.print_line("{sent} sent, {received} back, {lost} lost".format(**result) + wrong)
    if result["advice"]:
        show.print_line(f"no server answers: {result['advice']}")
    if result["rtt_us"]:
        times = "  ".join(f"{name} {value:.1f}" for name, value in result["rtt_us"].items())
        show.print_line(f"round trip in us: {times}")


def _print_server(qp: str, address: Address, qkey: int, as_json: bool) -> None:
    host, port = address
    if as_json:
        told = {"qp": qp, "addr": host, "port": port} | ({"qkey": qkey} if qkey else {})
        print(json.dumps(told), flush=True)
        return
    transport = "TCP" if qp == "rc" else "UDP"
    everyone = ", every address of this machine" if host in ("0.0.0.0", "::") else ""
    if everyone and qp == "rd":  # RD identifies a peer by its address, so the server has one
        everyone += " (if it has several, select one with --addr)"
    known = f"; clients need --qkey {qkey:#x}" if qkey else ""
    print(
        f"{qp.upper()} ping server on {host} {transport} port {port}{everyone}{known}; nothing is "
        "encrypted. Ctrl-C ends the server",
        flush=True,
    )


def _run_server(address: Address, qp: str, as_json: bool, until_eof: bool) -> None:
    import asyncio

    from siwarp.cli.ping_server import serve_pings

    def print_server(bound: Address, qkey: int) -> None:
        _print_server(qp, bound, qkey, as_json)

    async def serve_until_stopped() -> None:
        serving = asyncio.ensure_future(serve_pings(qp, address, print_server))
        call_at_stop_signal(serving.cancel, until_eof)
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    asyncio.run(serve_until_stopped())


def _check_options(addr: str | None, server: bool, bind: str | None, device: str | None) -> None:
    """Reject combinations of options that are not possible."""
    if server and addr is not None:
        raise typer.BadParameter("give a server's address with --addr", param_hint="ADDR")
    if server and device is not None:
        raise typer.BadParameter(
            "applies only to a client: give a server's address with --addr", param_hint="--device"
        )
    if not server and bind is not None:
        raise typer.BadParameter(
            "applies only to a server: give a client's peer as ADDR", param_hint="--addr"
        )


def _apply_settings_of_options(qkey: str | None, qp: str, faults: str | None) -> None:
    """Apply the settings that belong to options; the peer process inherits them."""
    from siwarp.cli.main import apply_settings

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
    size: int = typer.Option(64, "--size", "-s", help="Octets of a ping, up to 65485."),
    iters: int = typer.Option(1000, "--iters", "-n", min=1, help="Number of pings."),
    device: str | None = typer.Option(
        None, "--device", "-d", help="The client's device, by name; default: by address."
    ),
    qkey: str | None = typer.Option(
        None, "--qkey", metavar="N", help="UD, UC, RD: the Q_Key that the server prints."
    ),
    faults: str | None = typer.Option(
        None, "--faults", metavar="PLAN", help="Fault plan for packets; see siwarp wan --help."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    until_eof: bool = typer.Option(False, "--until-eof", hidden=True),
    _op: str = declare_removed_option(
        "--op", f"a ping is a Send; for Writes and Reads type {_LATENCY} --qp rc --op write (read)"
    ),
    _persona: str = declare_removed_option(
        "--persona", "type siwarp --persona roce ping ... (or iwarp)"
    ),
    _percentiles: str = declare_removed_option(
        "--percentiles", f"type {_LATENCY} --percentiles ..."
    ),
    _histogram: bool = declare_removed_option(
        "--histogram", f"type {_LATENCY} --histogram", flag=True
    ),
    _samples: str = declare_removed_option("--samples", f"type {_LATENCY} --samples FILE"),
) -> None:
    """Send pings to a `siwarp ping --server`, or to a peer process, and print the round trips.

    Options are named as in perftest if it has them. The exit status is 1 if no ping came back
    intact. With UD and UC, a ping without an answer is lost after 1 s, and five consecutive lost
    pings end the run. With RD and RC, one lost ping ends the run, after 15 s and 10 s. An RD server
    that is not ready to receive for 4 s ends the run with an error.

    The round trips contain the time in which both processes wake up. To measure the latency of
    siwarp itself, also of Writes and Reads, use `siwarp bench lat`.
    """
    _check_options(addr, server, bind, device)
    _apply_settings_of_options(qkey, qp.value, faults)
    if server:
        _run_server((resolve_to_numeric(bind or "0.0.0.0"), port), qp.value, as_json, until_eof)
        return
    result = _measure_round_trips(addr, port, qp.value, size, iters, device)
    if as_json:
        show.print_json(result)
    else:
        _print_result(result, own=addr is None)
    if not result["received"] or result["wrong"]:
        sys.exit(1)
