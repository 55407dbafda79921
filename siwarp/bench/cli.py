# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp bench``: one measurement beside its floor, as words or as JSON."""

from __future__ import annotations

import contextlib
import inspect
import json
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from siwarp.base.output import unbroken
from siwarp.bench import abi, compare, memory, personas, translation, wan
from siwarp.bench import table as figures
from siwarp.bench.mpi import command as mpi
from siwarp.bench.mpi import hybrid as mpi_hybrid
from siwarp.bench.plan import RD_FLOOR, UsageError
from siwarp.bench.runner import BenchError, run
from siwarp.bench.runner import Progress as Step
from siwarp.bench.table import figure

__all__ = ["app", "bar", "main"]

app = typer.Typer(no_args_is_help=True)

#: The options of measurements, each once: its type, and what typer is to know of it.
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "qp": (str, typer.Option("ud", "--qp", help="ud, uc, rd or rc.")),
    "op": (
        str,
        typer.Option("send", "--op", help="send; rc: write, read, too; uc, bw on rd: write, too."),
    ),
    "size": (
        int | None,
        typer.Option(None, "-s", "--size", min=1, help="Octets of a message; reg: of the region."),
    ),
    "iters": (
        int | None,
        typer.Option(
            None,
            "-n",
            "--iters",
            min=1,
            help="Messages of one run; without it, a sixth of a second's.",
        ),
    ),
    "depth": (
        int | None,
        typer.Option(
            None,
            "-t",
            "--depth",
            "--tx-depth",
            min=1,
            help="Messages outstanding; of sends, the window.",
        ),
    ),
    "post_list": (
        int,
        typer.Option(1, "-l", "--post-list", min=1, max=32, help="Requests posted as one list."),
    ),
    "wait": (
        str,
        typer.Option("poll", "--wait", help="poll, or event: sleep on a completion channel."),
    ),
    "api": (
        str,
        typer.Option("c", "--api", help="c, or python: then the floor is the same run in C."),
    ),
    "rounds": (
        int,
        typer.Option(7, "--rounds", min=1, help="How often the raw socket and siwarp take turns."),
    ),
    "markers": (
        bool,
        typer.Option(
            False, "--markers", help="RC: ours with MPA's Markers both ways, too, beside without."
        ),
    ),
    "persona": (
        str,
        typer.Option(
            "auto",
            "--persona",
            help="RC: iwarp, roce, or both: ours as iwarp, and as roce beside it.",
        ),
    ),
    "faults": (
        str | None,
        typer.Option(
            None,
            "--faults",
            metavar="PLAN",
            help="What goes wrong on ours' way; see siwarp wan --help.",
        ),
    ),
    "only": (str, typer.Option("", "--only", help="Rows whose name has these words.")),
    "output": (
        str,
        typer.Option("", "-o", "--output", help="Also write everything to this file."),
    ),
    "as_json": (
        bool,
        typer.Option(False, "--json", help="Print everything, each round too, as JSON."),
    ),
}

#: Those of a stream of messages.
_STREAM = "qp op size iters depth post_list wait api rounds markers persona faults"

Command = Callable[..., None]


def _takes(names: str) -> Callable[[Command], Command]:
    """Add these options, and --json, to a command, after those that it declares itself."""

    def give(command: Command) -> Command:
        taken = (*names.split(), "as_json")
        own = inspect.signature(command, eval_str=True).parameters.values()
        given = [p for p in own if p.name not in taken and p.kind != p.VAR_KEYWORD]
        given += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=_OPTIONS[name][0],
                default=_OPTIONS[name][1],
            )
            for name in taken
        ]
        command.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in given}
        return command

    return give


@contextlib.contextmanager
def bar(text: str) -> Iterator[Step | None]:
    """Show a progress bar in a terminal; yields None if the output goes elsewhere."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _describe(result: dict[str, Any]) -> str:
    what = f"{result['qp'].upper()} {result['op']} {result['size']} octets"
    if result["kind"] == "reg":
        what = f"register + deregister {result['size']} octets"
    elif result["kind"] == "done":
        what += ", from posting to completion"
    elif result["kind"] == "answer":
        what += ", one way, each completion awaited"
    elif result["kind"] == "watched":
        what += ", one way, into memory that is only looked at"
    elif result["kind"] == "fair":
        what = f"{result['qp'].upper()} round trip of 64 octets on one of 200 quiet QPs, "
        what += f"beside a flood of {result['size']} octets, {result['depth']} outstanding"
    elif result["kind"] == "crowd":
        what += " beside 1,000 idle QPs"
    elif result["kind"] == "lat":
        what += ", there and back" if result["op"] == "read" else ", one way"
    else:
        what += f", {result['depth']} outstanding"
    if result["wait"] == "event":
        what += ", sleeping on a completion channel"
    if result["api"] == "python":
        what += ", Python API"
    if result["faults"]:
        what += f", siwarp's line under {result['faults']}"
    rounds = len(result["rounds"])
    times = f"{rounds} rounds, medians" if rounds > 1 else "1 round"
    return f"{what}: {result['iters']} a run, {times}"


_FLOORS = {
    "unconnected": "raw UDP, unconnected, polling",
    "connected": "raw UDP, connected, polling",
    "mmsg": "raw UDP, sendmmsg and recvmmsg",
    "blocking-mmsg": "raw UDP, sendmmsg and recvmmsg, blocking",
    "gso": "raw UDP, batches by GSO and GRO",
    "coalesced": "raw TCP, 64 KiB a send",
    "c": "the same in C",
    "ud": "siwarp, UD",
    "quiet": "the same without the flood",
    "alone": "the same with one QP",
}


def floor_words(name: str, qp: str) -> str:
    """Return what a floor is, in words."""
    if name in _FLOORS:
        return _FLOORS[name]
    words = {"single": "one send a message", "polling": "polling", "blocking": "blocking"}[name]
    return f"raw {'TCP' if qp == 'rc' else 'UDP'}, {words}"


def show(result: dict[str, Any]) -> None:
    """Print a result in a few lines."""
    unit = result["unit"]
    print(_describe(result))
    print(f"  {'siwarp':<42} {figure(result['ours'], unit):>16}")
    if result["floor"] is not None:
        words = floor_words(result["floor_name"], result["qp"])
        if (result["qp"], result["kind"]) == ("rd", "bw"):
            words += f", {RD_FLOOR // 1000} KB"
        good = "less" if result["less_is_better"] else "more"
        print(
            f"  {words:<42} {figure(result['floor'], unit):>16}   "
            f"ratio {result['ratio']:.3f} ({good} is better)"
        )
    if result["with_markers"] is not None:
        print(
            f"  {'siwarp, Markers both ways':<42} {figure(result['with_markers'], unit):>16}   "
            f"{result['markers_ratio']:.3f} of without"
        )
    if result["as_roce"] is not None:
        print(
            f"  {'siwarp, persona roce':<42} {figure(result['as_roce'], unit):>16}   "
            f"{result['roce_ratio']:.3f} of iwarp"
        )
    if result["kind"] == "watched":
        for name in sorted(result["rounds"][0]["p99"]):
            late = statistics.median(each["p99"][name] for each in result["rounds"])
            words = f"99 of 100 of {'persona roce' if name == 'roce' else 'these'} within"
            print(f"  {words:<42} {figure(late, unit):>16}")
    if result["lossless"] is not None:
        words = "siwarp, the same without the losses"
        print(
            f"  {words:<42} {figure(result['lossless'], unit):>16}   "
            f"the losses leave {result['lossless_ratio']:.3f} of it"
        )
    for name, value in result["floors"].items():
        print(f"  {floor_words(name, result['qp']):<42} {figure(value, unit):>16}")


def _plan(faults: str | None) -> dict[str, str]:
    """Return the environment variables that set a plan of faults at the client."""
    if faults is None:
        return {}
    from siwarp.bench.plan_option import check_plan

    check_plan(faults)
    return {"SIWARP_FAULTS": faults}


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """End the program with the message of a measurement that failed."""
    try:
        yield
    except (BenchError, FileNotFoundError) as e:
        typer.echo(f"siwarp bench: {e}", err=True)
        raise typer.Exit(1) from None


def _do(kind: str, *, as_json: bool, faults: str | None = None, **options: Any) -> None:
    """Measure and print it; the options are those of ``siwarp.bench.run``, by their names there."""
    try:
        with bar(f"bench {kind}") as progress, _reported():
            result = run(kind, progress=progress, env=_plan(faults), **options)
    except UsageError as e:
        raise typer.BadParameter(str(e)) from None
    result["faults"] = faults
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        show(result)


def _end(number: int, _frame: FrameType | None) -> None:
    """End by a signal as by an exception: the programs that measure are ended on the way."""
    raise SystemExit(128 + number)


@app.callback(invoke_without_command=True)
def compare_with(
    context: typer.Context,
    program: str | None = typer.Option(
        None,
        "--program",
        metavar="OTHER",
        help="Compare this build with another siwarp, both in turn: a path such as "
        ".venv/bin/siwarp of a checkout. Exit status 1 if this one is slower for certain: "
        "by 2% (latency), 5% (bandwidth).",
    ),
    rounds: int | None = typer.Option(
        None,
        "--rounds",
        min=compare.LEAST_ROUNDS,
        help=f"With --program: how often the two take turns ({compare.ROUNDS} if not given).",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="With --program: print everything, each round too, as JSON."
    ),
) -> None:
    """Latency, bandwidth, message rate, registration: beside the raw socket, round by round."""
    signal.signal(signal.SIGTERM, _end)
    if context.invoked_subcommand is not None:
        if program is not None or rounds is not None or as_json:
            raise typer.BadParameter(
                f"--program has no command beside it: give the options of "
                f"{context.invoked_subcommand} behind that word"
            )
        return
    if program is None:
        raise typer.BadParameter(
            "--rounds and --json belong to --program or to a command: give one"
        )
    with bar("both programs") as progress, _reported():
        compared = compare.compare(program, rounds or compare.ROUNDS, progress)
    if as_json:
        print(json.dumps(compared, indent=2))
    else:
        compare.show(compared)
    raise typer.Exit(1 if compare.has_loss(compared) else 0)


@app.command()
@_takes("qp op size iters wait api depth rounds markers persona faults")
def lat(**options: Any) -> None:
    """One-way latency: half a round trip, or all of it for a Read. One message at a time."""
    if options.pop("depth") not in (None, 1):
        raise typer.BadParameter("latency has one message under way: --depth 1")
    _do("lat", **options)


@app.command()
@_takes(_STREAM)
def bw(**options: Any) -> None:
    """Bandwidth in GB/s (10^9 octets a second)."""
    _do("bw", **options)


@app.command()
@_takes(_STREAM)
def rate(**options: Any) -> None:
    """Messages a second."""
    _do("rate", **options)


@app.command()
@_takes("size iters api rounds")
def reg(**options: Any) -> None:
    """Register and deregister memory, 1 GiB by default, the probe of its pages included."""
    _do("reg", **options)


@app.command()
@_takes("size iters wait rounds persona")
def done(**options: Any) -> None:
    """From posting an RDMA Write to its completion here: roce awaits the peer, iwarp does not."""
    _do("done", **options)


@app.command()
@_takes("size iters wait rounds persona")
def answer(**options: Any) -> None:
    """Half a round trip of Sends: each end awaits its Send's completion, then the answer."""
    _do("answer", **options)


@app.command()
@_takes("size iters rounds persona")
def watched(**options: Any) -> None:
    """One-way latency of Writes between programs that spin on memory and poll once a Write."""
    _do("watched", **options)


@app.command()
@_takes("qp size iters depth rounds")
def fair(**options: Any) -> None:
    """Round trips on 200 quiet QPs while another one floods; --size is the flood's."""
    _do("fair", **options)


@app.command()
@_takes("size iters rounds")
def crowd(**options: Any) -> None:
    """One-way latency of UD beside 1,000 idle QPs."""
    _do("crowd", **options)


@app.command("memory")
@_takes("")
def of_peers(
    qp: str = typer.Option(",".join(memory.QPS), "--qp", help="Kinds of queue pairs, with commas."),
    peers: str = typer.Option(
        ",".join(map(str, memory.PEERS)), "--peers", help="Numbers of peers, with commas."
    ),
    *,
    as_json: bool,
) -> None:
    """Memory of a process, and the kernel's for its sockets, by the number of its peers."""
    qps = tuple(qp.split(","))
    if unknown := [name for name in qps if name not in memory.QPS]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(memory.QPS)}")
    if not all(word.isdecimal() and 0 < int(word) <= 16_000 for word in peers.split(",")):
        raise typer.BadParameter("numbers from 1 to 16000, with commas", param_hint="--peers")
    with bar("memory") as progress, _reported():
        found = memory.measure(qps, tuple(map(int, peers.split(","))), progress)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    _show_memory(found)


def _show_memory(found: dict[str, Any]) -> None:
    """Print a line for each point: the memory in all, and what a further peer costs."""
    print("octets                  in all: process, kernel's buffers   of each further peer")
    for qp, points in found.items():
        for point in points:
            per_peer = "".join(
                f"{state} {point[f'{state}_per_peer']:>7,}   "
                for state in ("idle", "loaded")
                if f"{state}_per_peer" in point
            )
            print(
                f"{qp.upper()} {point['peers']:>7,} peers {point['idle']:>16,} "
                f"{point['idle_kernel']:>14,}   {per_peer}".rstrip()
            )
    if any(point["kernel_objects"] is None for points in found.values() for point in points):
        print("without the kernel's own objects for sockets: /proc/slabinfo is root's to read")


@app.command("wan")
@_takes("")
def over_wan(
    flows: str = typer.Option("rd,tcp", "--flows", help="rd, tcp, or both with a comma."),
    seconds: float | None = typer.Option(
        None, "--seconds", min=1, max=600, help="How long they run: 60, in a matrix 3."
    ),
    faults: str = typer.Option(
        "rate=50Mbit,delay=20ms", "--faults", metavar="PLAN", help="Of the line; see siwarp wan."
    ),
    congestion: str = typer.Option(
        "", "--tcp", metavar="NAME", help="TCP's congestion control; else the kernel's choice."
    ),
    matrix: bool = typer.Option(
        False, "--matrix", help="Bottlenecks of many rates, queues and round trips. Takes root."
    ),
    cells: str = typer.Option(
        "", "--cells", metavar="NAMES", help="Of the matrix only these, as 20M/15000/4ms; or short."
    ),
    results: str = typer.Option(
        "", "--results", metavar="FILE", help="Keeps what is measured; goes on where it ended."
    ),
    *,
    as_json: bool,
) -> None:
    """Reliable datagrams and a kernel TCP flow that share a bad line: who gets how much of it.

    With --matrix each cell has a rate, a queue and a round trip, and runs of RD alone, of the
    kernel's CUBIC and BBR alone, of two CUBIC flows, of RD beside CUBIC, and of two RD flows.
    """
    from siwarp.bench.plan_option import check_plan_of_line

    if matrix:
        _matrix(cells, seconds or 3.0, results, as_json=as_json)
        return
    seconds = seconds or 60.0
    kinds = tuple(flows.split(","))
    if len(set(kinds)) < len(kinds) or set(kinds) - {"rd", "tcp"}:
        raise typer.BadParameter("rd, tcp, or rd,tcp", param_hint="--flows")
    check_plan_of_line(faults)
    with _reported():
        found = wan.measure(kinds, seconds, faults, congestion)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{faults}, {seconds:g} s; the kernel's TCP has {found['congestion_control']}")
    for kind, flow in found["flows"].items():
        print(
            f"  {kind}  {flow['mbit_s']:8.2f} Mbit/s   {flow['share']:.2f} of both   "
            f"{_spark(flow['steps'])}"
        )


def _matrix(cells: str, seconds: float, results: str, *, as_json: bool) -> None:
    from siwarp.bench import wan_matrix

    names = wan_matrix.choose(cells)
    if names is None:
        raise typer.BadParameter(f"of {', '.join(wan_matrix.CELLS)}", param_hint="--cells")

    def say(done: int, total: int, what: str) -> None:
        print(f"{done + 1} of {total}: {what}", file=sys.stderr, flush=True)

    with _reported():
        found = wan_matrix.matrix(names, seconds, Path(results) if results else None, progress=say)
    if as_json:
        print(json.dumps(wan_matrix.as_json(found), indent=2))
    else:
        print(*wan_matrix.table(found), sep="\n")
    if not wan_matrix.kept(found):
        raise typer.Exit(1)


#: Bars of eight heights, for a line that shows how a flow went.
_BARS = " ▁▂▃▄▅▆▇█"
_SPARK = 60


def _spark(steps: list[int]) -> str:
    """Draw numbers as a line of bars, at most so many; the highest one is full."""
    width = -(-len(steps) // _SPARK)
    sums = [sum(steps[i : i + width]) for i in range(0, len(steps) - width + 1, width)]
    most = max([*sums, 1])
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // most)] for value in sums)


@app.command("personas")
@_takes("rounds iters only output")
def both_personas(rounds: int, iters: int | None, only: str, output: str, *, as_json: bool) -> None:
    """Latency and bandwidth of RC with both personas; exit status 1 if a row failed."""
    rows = [row for row in personas.ROWS if only.lower() in row.name.lower()]
    if not rows:
        raise typer.BadParameter(f"no row has {only!r} in its name")
    with bar("both personas") as progress:
        results = personas.measure(rows, rounds, progress, iters=iters)
    figures.write(results, output)
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        personas.show(results)
    raise typer.Exit(0 if all(result["error"] is None for result in results) else 1)


@app.command("abi")
@_takes("rounds only output")
def unmodified(rounds: int, only: str, output: str, *, as_json: bool) -> None:
    """What perftest and UCX reach on siwarp, beside raw sockets.

    Exit status 1 if a promise is missed or could not be shown.
    """
    rows = [row for row in abi.ROWS if only.lower() in row.name.lower()]
    if not rows:
        raise typer.BadParameter(f"no row has {only!r} in its name")
    for program in abi.missing(rows):
        package = abi.PACKAGES[program]
        typer.echo(f"siwarp bench: {program} is missing: install the package {package}", err=True)
    with bar("programs on siwarp") as progress, _reported():
        results = abi.measure(rows, rounds, progress)
    figures.write(results, output)
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        abi.show(results)
    measured = [result["measured"] for result in results]
    raise typer.Exit(0 if all(of is not None and of["kept"] for of in measured) else 1)


def _numbers(words: str, least: int, most: int) -> tuple[int, ...] | None:
    """Return numbers that commas separate, none if there are no words; None if one is wrong."""
    said = words.split(",") if words else []
    if not all(word.isdecimal() and least <= int(word) <= most for word in said):
        return None
    return tuple(map(int, said))


@app.command("mpi")
@_takes("output")
def by_mpi(
    parts: str = typer.Option(",".join(mpi.PARTS), "--part", help="What is measured, with commas."),
    rounds: int = typer.Option(5, "--rounds", min=1, help="How often the transports take turns."),
    sizes: str = typer.Option(
        "", "--sizes", metavar="OCTETS", help="Sizes of the messages, with commas."
    ),
    ranks: str = typer.Option(
        "", "--ranks", metavar="N", help="Numbers of ranks, with commas; wire has two."
    ),
    netif: str = typer.Option(
        "", "--netif", help="Network interface; without it, the first that is up and not lo."
    ),
    limit: int = typer.Option(
        mpi_hybrid.LIMIT, "--limit", min=1, max=256, help="Of hybrid: RC connections of a rank."
    ),
    mpich: str = typer.Option(
        "",
        "--mpich",
        metavar="FOLDER",
        help="Of an MPICH, with bin/mpicc; without it, that of this Python.",
    ),
    plot: str = typer.Option(
        "", "--plot", metavar="FOLDER", help="Draw the curves there; needs matplotlib."
    ),
    *,
    output: str,
    as_json: bool,
) -> None:
    """MPICH over siwarp's UD and RC, and over its own TCP, in turn; needs PyPI's mpich.

    Part hybrid is a channel of siwarp's own, and needs none.

    Exit status 1 if a promise is missed or could not be shown.
    """
    wanted = tuple(parts.split(","))
    if unknown := [name for name in wanted if name not in mpi.PARTS]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is none of {', '.join(mpi.PARTS)}", param_hint="--part"
        )
    octets = _numbers(sizes, 8, 1 << 30)
    if octets is None:
        raise typer.BadParameter("octets from 8 to 2**30, with commas", param_hint="--sizes")
    numbers = _numbers(ranks, 2, 256)
    if numbers is None:
        raise typer.BadParameter("ranks from 2 to 256, with commas", param_hint="--ranks")
    with bar("MPI") as progress:
        options = mpi.Options(wanted, rounds, octets, numbers, netif, mpich, limit, progress)
        status = mpi.run(options, as_json=as_json, plot=plot, output=output)
    raise typer.Exit(status)


@app.command("translation")
@_takes("rounds")
def translated(rounds: int, *, as_json: bool) -> None:
    """Cycles that libibverbs.so.1 adds to a post or a poll; exit status 1 if they are too many."""
    with _reported():
        found = translation.measure(rounds)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        translation.show(found)
    raise typer.Exit(0 if all(way["kept"] for way in found.values()) else 1)


@app.command()
@_takes("rounds only output")
def table(rounds: int, only: str, output: str, *, as_json: bool) -> None:
    """All figures that siwarp promises, with what each must be; exit status 1 if one is missed."""
    rows = [row for row in figures.ROWS if only.lower() in row.name.lower()]
    if not rows:
        raise typer.BadParameter(f"no row has {only!r} in its name")
    with bar("the figures") as progress:
        results = figures.measure(rows, rounds, progress)
    figures.write(results, output)
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        figures.show(results)
    raise typer.Exit(0 if all(result["verdict"] != "missed" for result in results) else 1)


def _words(words: list[str]) -> list[str]:
    """Return the command line with ``table`` in front of it, if it names no other command."""
    named = ((c.name, c.callback) for c in app.registered_commands)
    commands = {name or (call.__name__ if call else "") for name, call in named}
    named_one = bool(words) and words[0] in (*commands, "-h", "--help")
    compared = any(word.partition("=")[0] == "--program" for word in words)
    return words if named_one or compared else ["table", *words]


def main() -> int:
    """``python -m siwarp.bench``: all figures, unless another command is named."""
    return unbroken(lambda: app(args=_words(sys.argv[1:]), prog_name="siwarp bench") or 0)
