# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp bench``: a measurement of siwarp and of raw sockets (the floor), as text or as JSON."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from siwarp.bench import compare, memory, threads
from siwarp.bench import table as figures
from siwarp.bench.options import HOSTS, OPTIONS, PORT, SIZES, STREAM, TIMES, with_named_options
from siwarp.bench.plan import UsageError, make_plans
from siwarp.bench.plot import draw_curves_to_file, validate_plot_option
from siwarp.bench.runner import BenchError, SlowError, run
from siwarp.bench.runner import Progress as Step
from siwarp.bench.show import curves_of_results, print_measurement, result_to_csv_dict, write_csv

__all__ = ["app", "exit_on_signal", "exit_with_message_on_bench_error", "show_progress_bar"]

app = typer.Typer(no_args_is_help=True)


@contextlib.contextmanager
def show_progress_bar(text: str) -> Iterator[Step | None]:
    """Show a progress bar on a terminal; yields None if the output is not a terminal."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _make_fault_plan_environment(faults: str | None) -> dict[str, str]:
    """Return the environment variables that set a fault plan for the client."""
    if faults is None:
        return {}
    from siwarp.bench.plan_option import check_and_normalize_fault_plan

    check_and_normalize_fault_plan(faults)
    return {"SIWARP_FAULTS": faults}


@contextlib.contextmanager
def exit_with_message_on_bench_error(program: str = "siwarp bench") -> Iterator[None]:
    """End the program with the error message if a measurement fails."""
    try:
        yield
    except (BenchError, FileNotFoundError) as e:
        typer.echo(f"{program}: {e}", err=True)
        raise typer.Exit(1) from None


#: Time limit of a measurement in seconds, unless the number of messages is given: on a busy machine
#: the measurement does fewer rounds.
LIMIT_S = 60.0


def _check_result_files_are_writable(csv: str, plot: str, *others: str) -> None:
    """Refuse files that cannot be written, before the measurement."""
    if plot:
        validate_plot_option(Path(plot))
    for name in filter(None, (csv, plot, *others)):
        _check_writable(Path(name))


def _measure_and_print(
    kind: str,
    *,
    qp: Sequence[str],
    op: str,
    sizes: str | None,
    faults: str | None = None,
    csv: str,
    plot: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure and print each result; ``options`` are the arguments of ``siwarp.bench.run``.

    For one kind of queue pair and one size --json prints an object, otherwise a list. A measurement
    that a busy machine does not complete is reported as partial; it is a failure only if no other
    has a result.
    """
    env = _make_fault_plan_environment(faults)
    within = max(LIMIT_S, 3.0 * options["rounds"]) if options["iters"] is None else math.inf
    results: list[dict[str, Any]] = []
    unfinished: list[dict[str, Any]] = []
    try:
        plans, left_out = make_plans(kind, qp, op, sizes, **options)
        for line in left_out:
            typer.echo(f"siwarp bench: left out: {line}", err=True)
        for plan in plans:
            with exit_with_message_on_bench_error():
                try:
                    with show_progress_bar(f"bench {kind}") as progress:
                        measured = run(
                            kind,
                            plan.qp,
                            op,
                            size=plan.size,
                            within=within,
                            progress=progress,
                            env=env,
                            **options,
                        )
                except SlowError as e:
                    where = f"{plan.qp}, {plan.size} octets"
                    typer.echo(f"siwarp bench: partial: {where}: {e}", err=True)
                    what = {"kind": kind, "qp": plan.qp, "op": op, "size": plan.size}
                    unfinished.append({**what, "partial": str(e)})
                    continue
            results.append({**measured, "faults": faults})
            if not as_json:
                print_measurement(results[-1])
    except UsageError as e:
        raise typer.BadParameter(str(e)) from None
    everything = results + unfinished
    if as_json:
        print(json.dumps(everything if len(everything) > 1 else everything[0], indent=2))
    if not results:
        raise typer.Exit(1)
    if csv:
        write_csv(Path(csv), [result_to_csv_dict(result) for result in results])
    if plot:
        draw_curves_to_file(Path(plot), kind, curves_of_results(results))


def _split_list_options(words: Sequence[str]) -> list[str]:
    """Return the values of repeated options and of lists with commas, without duplicates."""
    return list(dict.fromkeys(name for word in words for name in word.split(",")))


def _non_default_options(options: dict[str, Any], names: str) -> list[str]:
    """Return the command-line spelling of those options in ``names`` that differ from their
    default.
    """
    found = []
    for name in names.split():
        declared = OPTIONS[name][1]
        if name in options and options[name] != declared.default:
            found.append(max(declared.param_decls, key=len))
    return found


def _measure_locally_or_between_hosts(
    kind: str,
    *,
    addr: str | None,
    qp: list[str],
    size: str | None,
    sizes: str | None,
    all_sizes: bool,
    **options: Any,
) -> None:
    """Measure together with raw sockets on this host, or with a server on another host."""
    if (size is not None) + (sizes is not None) + all_sizes > 1:
        raise typer.BadParameter("-s, --sizes or -a: give one of them")
    asked: dict[str, Any] = {
        "qp": _split_list_options(qp),
        "sizes": "all" if all_sizes else sizes or size,
    }
    _check_result_files_are_writable(options["csv"], options["plot"], options.get("samples", ""))
    if addr is not None:
        if wrong := _non_default_options(options, "rounds markers faults api"):
            raise typer.BadParameter(
                "applies only to a comparison with raw sockets: leave out this option or ADDR",
                param_hint=wrong[0],
            )
        _measure_between_hosts(kind, addr, asked, options)
        return
    between = f"{HOSTS} {TIMES} pairs both"
    if wrong := _non_default_options(options, between):
        raise typer.BadParameter(
            "applies only between hosts: give ADDR, the host of `siwarp bench --server`; "
            "127.0.0.1 is possible",
            param_hint=wrong[0],
        )
    local = {name: v for name, v in options.items() if name not in between.split()}
    _measure_and_print(kind, **asked, **local)


def _measure_between_hosts(
    kind: str, addr: str, asked: dict[str, Any], options: dict[str, Any]
) -> None:
    from siwarp.bench import hosts_points

    defaults = {name: OPTIONS[name][1].default for name in f"post_list pairs both {TIMES}".split()}
    names = {field.name for field in fields(hosts_points.MeasurementOptions)}
    given: dict[str, Any] = {"depth": None, **defaults}
    given |= {name: value for name, value in options.items() if name in names}
    measurement = hosts_points.MeasurementOptions(
        kind=kind,
        addr=addr,
        qps=asked["qp"],
        sizes=asked["sizes"],
        **given,
    )
    with show_progress_bar(f"bench {kind}") as progress:
        hosts_points.run_client(measurement, progress)


def exit_on_signal(number: int, _frame: FrameType | None) -> None:
    """Raise SystemExit at a signal, so that the measuring processes are ended too."""
    raise SystemExit(128 + number)


@app.callback(invoke_without_command=True)
def compare_or_serve(
    context: typer.Context,
    program: str | None = typer.Option(
        None,
        "--program",
        metavar="OTHER",
        help="Compare this build with another siwarp, alternately: a path, for example "
        ".venv/bin/siwarp of a checkout. Exit status 1 if this build is significantly "
        "slower: by 2% (latency), 5% (bandwidth).",
    ),
    rounds: int | None = typer.Option(
        None,
        "--rounds",
        min=compare.LEAST_ROUNDS,
        help="With --program: number of rounds, in which both are measured (default "
        f"{compare.ROUNDS}).",
    ),
    as_json: bool = typer.Option(
        False,
        "--json",
        help="With --program: print everything, each round too, as JSON; with --server: the port.",
    ),
    server: bool = typer.Option(
        False, "--server", help="Run the server for `siwarp bench lat|bw|rate ADDR`."
    ),
    bind: str | None = typer.Option(
        None, "--addr", help="With --server: the address to listen on; default: every IPv4 address."
    ),
    port: int = typer.Option(
        PORT,
        "-p",
        "--port",
        min=0,
        max=65535,
        help="With --server: TCP port; 0 selects a free one.",
    ),
    visit: float = typer.Option(
        3600.0,
        "--visit",
        min=1,
        metavar="S",
        help="With --server: time limit of a client in seconds.",
    ),
) -> None:
    """Measure siwarp: compared with raw sockets, or between hosts."""
    signal.signal(signal.SIGTERM, exit_on_signal)
    if context.invoked_subcommand is not None:
        if program is not None or rounds is not None or as_json or server:
            raise typer.BadParameter(
                "--program and --server cannot be combined with a command: give the options of "
                f"{context.invoked_subcommand} after that word"
            )
        return
    if server:
        from siwarp.bench import hosts_points

        hosts_points.run_server(bind or "0.0.0.0", port, visit, as_json=as_json)
        return
    if program is None:
        raise typer.BadParameter(
            "--rounds and --json belong to --program or to a command: give one"
        )
    with show_progress_bar("both programs") as progress, exit_with_message_on_bench_error():
        compared = compare.compare_programs(program, rounds or compare.ROUNDS, progress)
    if as_json:
        print(json.dumps(compared, indent=2))
    else:
        compare.show_comparison(compared)
    raise typer.Exit(1 if compare.has_performance_loss(compared) else 0)


@app.command("lat")
@with_named_options(
    f"addr qp op size {SIZES} iters wait api depth rounds markers faults {HOSTS} {TIMES}"
)
def run_latency_command(**options: Any) -> None:
    """One-way latency: half a round trip, or all of it for a Read. One message at a time."""
    if options.pop("depth") not in (None, 1):
        raise typer.BadParameter("latency has one message in flight: use --depth 1")
    _measure_locally_or_between_hosts("lat", **options)


@app.command("bw")
@with_named_options(f"addr {STREAM} {HOSTS} pairs both")
def run_bandwidth_command(**options: Any) -> None:
    """Bandwidth in GB/s (10^9 octets a second)."""
    _measure_locally_or_between_hosts("bw", **options)


@app.command("rate")
@with_named_options(f"addr {STREAM} {HOSTS} pairs both")
def run_message_rate_command(**options: Any) -> None:
    """Message rate in messages per second."""
    _measure_locally_or_between_hosts("rate", **options)


@app.command("memory")
@with_named_options("")
def run_memory_command(
    qp: str = typer.Option(
        ",".join(memory.QPS), "--qp", help="Kinds of queue pairs, separated by commas."
    ),
    peers: str = typer.Option(
        ",".join(map(str, memory.PEERS)), "--peers", help="Numbers of peers, separated by commas."
    ),
    *,
    as_json: bool,
) -> None:
    """Memory of a process and of the kernel for its sockets, by the number of peers."""
    qps = tuple(qp.split(","))
    if unknown := [name for name in qps if name not in memory.QPS]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(memory.QPS)}")
    if not all(word.isdecimal() and 0 < int(word) <= 16_000 for word in peers.split(",")):
        raise typer.BadParameter(
            "give numbers from 1 to 16000, separated by commas", param_hint="--peers"
        )
    with show_progress_bar("memory") as progress, exit_with_message_on_bench_error():
        found = memory.measure_memory_per_peer(qps, tuple(map(int, peers.split(","))), progress)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    _print_memory_per_peer(found)


def _print_memory_per_peer(found: dict[str, Any]) -> None:
    """Print a line for each point: the total memory, and the cost of a further peer."""
    print("octets                  total: process, kernel's buffers   per further peer")
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
        print("without the kernel's objects for sockets: only root can read /proc/slabinfo")


@app.command("threads")
@with_named_options("only")
def run_threads_command(
    counts: str | None = typer.Option(
        None,
        "--threads",
        metavar="LIST",
        help="Numbers of threads, separated by commas; default: 8, and powers of two up to twice "
        "the number of CPUs.",
    ),
    rounds: int = typer.Option(
        threads.ROUNDS, "--rounds", min=1, help="Number of rounds; each has every run once."
    ),
    duration: float = typer.Option(
        threads.DURATION_S,
        "-D",
        "--duration",
        min=0.01,
        max=60,
        metavar="S",
        help="Measured seconds of a run.",
    ),
    *,
    only: str,
    as_json: bool,
) -> None:
    """Message rates of threads: on one device, with a device per thread, and on raw sockets.

    Each thread moves 64-octet messages over its own pair of queue pairs. A device has a lane for
    each thread, at most 16, unless SIWARP_LANES is set.
    """
    try:
        asked = (
            threads.default_thread_counts()
            if counts is None
            else threads.parse_thread_counts(counts)
        )
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--threads") from None
    rows = [row for row in threads.rows_of_thread_counts(asked) if only.lower() in row.name.lower()]
    if not rows:
        raise typer.BadParameter(f"no row has {only!r} in its name: omit --only to print the rows")
    try:
        with show_progress_bar("bench threads") as progress, exit_with_message_on_bench_error():
            found = threads.measure_rows(rows, rounds, duration, progress)
    except UsageError as e:
        raise typer.BadParameter(str(e)) from None
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        threads.show_rates(found)


def _make_progress_line_printer(text: str, steps: int = 20) -> Step:
    """Return a progress function that prints a line on stderr after each of ``steps`` parts."""
    start, printed = time.monotonic(), 0

    def print_progress(done: int, total: int) -> None:
        nonlocal printed
        if done * steps // total > printed:
            printed = done * steps // total
            left = (time.monotonic() - start) * (total - done) / done
            line = f"{text}: {done * 100 // total}%, about {left:.0f} s left"
            print(line, file=sys.stderr)

    return print_progress


@app.command("all")
def run_all_command(
    out: Path = typer.Option(  # noqa: B008
        Path("siwarp-bench-all.html"), "--out", metavar="FILE", help="The page to write."
    ),
    json_file: Path | None = typer.Option(  # noqa: B008
        None, "--json", metavar="FILE", help="Also write all data to this file, as JSON."
    ),
    quick: bool = typer.Option(
        False, "--quick", help="A trial in under a minute; its figures are marked as unreliable."
    ),
) -> None:
    """Measure everything beside raw sockets and other stacks, and write an HTML page.

    Takes at most 15 minutes. Quit other programs first. The page also has the figures that were
    measured before an interruption (Ctrl-C). Exit status 1 if the page is partial.
    """
    from siwarp.bench import page, report

    scope = report.Scope.of_trial() if quick else report.Scope.of_complete_report()
    with exit_with_message_on_bench_error(), tempfile.TemporaryDirectory() as folder:
        for path in filter(None, (out, json_file)):
            _check_writable(path)
        try:
            with show_progress_bar("bench all") as progress:
                found = report.measure_figures(
                    scope,
                    report.define_measurements(scope, Path(folder)),
                    progress or _make_progress_line_printer("siwarp bench all"),
                )
        except UsageError as e:
            raise typer.BadParameter(str(e)) from None
    out.write_text(page.make_page(found), "utf-8")
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    for line in page.reasons_to_doubt_report(found):
        typer.echo(line)
    typer.echo(f"wrote {out}")
    raise typer.Exit(1 if found["partial"] else 0)


def _check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the measurement, which takes minutes."""
    try:
        path.open("a").close()
    except OSError as e:
        raise typer.BadParameter(f"{path}: {e.strerror}") from None


@app.command("table")
@with_named_options("rounds only output")
def run_table_command(rounds: int, only: str, output: str, *, as_json: bool) -> None:
    """Figures beside raw sockets, with promised limits; exit status 1 if one is missed."""
    rows = [row for row in figures.ROWS if only.lower() in row.name.lower()]
    if not rows:
        raise typer.BadParameter(f"no row has {only!r} in its name: omit --only to print the names")
    with show_progress_bar("the figures") as progress:
        results = figures.measure_rows(rows, rounds, progress)
    figures.write_results(results, output)
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        figures.show_table(results)
    raise typer.Exit(0 if all(result["verdict"] != "missed" for result in results) else 1)
