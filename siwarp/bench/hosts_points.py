# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measurements between hosts: the points that the command line names, and their output.

A point is measured in rounds of at most a second, so that a failure costs only one round, and
earlier rounds are still reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from siwarp.base import samples as of_samples
from siwarp.base.numeric import resolve_to_numeric
from siwarp.bench.hosts import ClientSession, Load, RunResult
from siwarp.bench.hosts_server import Server
from siwarp.bench.plan import Plan, UsageError, make_plans
from siwarp.bench.plot import draw_curves_to_file
from siwarp.bench.runner import (
    FIRST_PROBE_MESSAGES,
    ITERS,
    BenchError,
    seconds_per_message,
)
from siwarp.bench.show import print_text, write_csv
from siwarp.bench.sizes import format_size

__all__ = [
    "Amount",
    "MeasuredPoint",
    "MeasurementOptions",
    "format_point_line",
    "format_table_heading",
    "measure_point",
    "partial_result_notes",
    "run_client",
    "run_server",
]

# ---- a point

#: The maximum duration of a round in seconds, and its duration if the option -D is not given.
ROUND_S, SHORT_S = 1.0, 0.15
#: Maximum number of samples that are stored for a point.
KEPT = 10_000_000


@dataclass(frozen=True)
class Amount:
    """The amount to measure: ``iters`` messages, or if that is None, ``seconds``."""

    iters: int | None
    seconds: float


@dataclass
class MeasuredPoint:
    """The measured result for one kind of queue pair and one message size.

    Attributes:
        rounds: value of each round, in the plan's unit.
        n: total number of messages.
        samples: us of each message, in order: one way, or the round trip for a Read.
        partial: why there are fewer rounds than requested; empty if all were done.
    """

    plan: Plan
    load: Load
    rounds: list[float] = field(default_factory=list)
    n: int = 0
    samples: array[float] = field(default_factory=lambda: array("d"))
    partial: str = ""

    @property
    def median_value(self) -> float | None:
        """The median of the latency samples, or else of the rounds; None if there are no rounds."""
        if self.samples:
            return statistics.median(self.samples)
        return statistics.median(self.rounds) if self.rounds else None

    def percentiles(self, wanted: tuple[float, ...]) -> dict[str, float]:
        """Return percentiles of the samples, ``min`` and ``max``, or {} if there are no samples."""
        if not self.samples:
            return {}
        ordered = sorted(self.samples)
        found = {"min": ordered[0], **of_samples.percentiles(ordered, wanted)}
        return {**found, "max": ordered[-1], "mean": statistics.fmean(ordered)}

    def as_json(self, wanted: tuple[float, ...]) -> dict[str, Any]:
        """Return the point as a dictionary without its samples."""
        plan = self.plan
        return {
            "kind": plan.kind,
            "qp": plan.qp,
            "op": plan.op,
            "size": plan.size,
            "depth": plan.depth,
            "post_list": plan.post_list,
            "wait": plan.wait,
            "pairs": self.load.pairs,
            "both": self.load.both,
            "unit": plan.unit,
            "value": self.median_value,
            "least": min(self.rounds, default=None),
            "largest": max(self.rounds, default=None),
            "n": self.n,
            "rounds": self.rounds,
            "percentiles": self.percentiles(wanted),
            "partial": self.partial,
        }


def _messages_per_run(plan: Plan, wanted: float) -> int:
    """Return ``wanted`` limited to the most messages of a run, as a multiple of a credit."""
    _, _, most = ITERS[plan.kind]
    iters = max(1, min(most, int(wanted)))
    return iters + -iters % plan.messages_per_credit


def _probe_seconds_per_message(
    session: ClientSession, plan: Plan, load: Load, most: int | None
) -> float:
    """Return the approximate seconds per message, measured by two short runs."""
    short = ITERS[plan.kind][0]
    each = 0.0
    for n in (FIRST_PROBE_MESSAGES, short):
        if most is not None and n > most:
            n = most
        if each * n > ROUND_S:
            break
        probe = replace(plan, iters=n + -n % plan.messages_per_credit)
        each = seconds_per_message(plan, session.measure_once(probe, load).slowest)
        if n == most:
            break
    return each


def measure_point(
    session: ClientSession,
    plan: Plan,
    amount: Amount,
    load: Load,
    tick: Callable[[float], None],
) -> MeasuredPoint:
    """Measure one point: one kind of queue pair with one message size.

    Args:
        session: the session with the server.
        plan: the measurement; its ``iters`` are ignored.
        amount: how much to measure. A round has at most the messages of one second.
        load: how many queue pairs run at once.
        tick: called with the fraction that is done, 0 to 1.

    Returns:
        The point, partial if a round failed.

    """
    point = MeasuredPoint(plan, load)
    began = time.monotonic()
    left = amount.iters
    try:
        each = _probe_seconds_per_message(session, plan, load, left)
        length = min(ROUND_S, max(SHORT_S, amount.seconds / 7))
        began = time.monotonic()
        while (left is None and time.monotonic() - began < amount.seconds) or left:
            n = _messages_per_run(plan, (ROUND_S if left else length) / max(each, 1e-9))
            n = n if left is None else min(n, left + -left % plan.messages_per_credit)
            done = session.measure_once(replace(plan, iters=n), load, keep=plan.kind == "lat")
            _add_round_to_point(point, done)
            each = seconds_per_message(plan, done.slowest)
            if left is not None:
                left = max(0, left - n)
            part = (time.monotonic() - began) / amount.seconds
            tick(min(1.0, part if amount.iters is None else 1 - (left or 0) / amount.iters))
    except BenchError as e:
        point.partial = str(e)
    return point


def _add_round_to_point(point: MeasuredPoint, done: RunResult) -> None:
    point.rounds.append(done.value)
    point.n += done.n
    parts = 1000 * (1 if point.plan.op == "read" else 2)
    room = KEPT - len(point.samples)
    point.samples.extend(ns / parts for ns in done.samples[:room])


# ---- output

_LATENCY = ("min", "p50", "p99", "p99.9", "max")


def format_table_heading(kind: str) -> str:
    """Return the heading of the table of points."""
    head = f"{'qp':<3} {'op':<5} {'size':>7} {'messages':>8}"
    if kind == "lat":
        return head + "".join(f" {name:>8}" for name in _LATENCY) + " us"
    unit = "MB/s" if kind == "bw" else "M msg/s"
    return f"{head} {'median':>12} {'least':>12} {'largest':>12} {unit}"


def format_point_line(point: MeasuredPoint) -> str:
    """Return the result of a point as a line of the table."""
    plan = point.plan
    head = f"{plan.qp:<3} {plan.op:<5} {format_size(plan.size):>7} {point.n:>8}"
    if point.median_value is None:
        return f"{head} failed: {point.partial}"
    if plan.kind == "lat":
        found = point.percentiles((50.0, 99.0, 99.9))
        shown = head + "".join(f" {found[name]:8.2f}" for name in _LATENCY)
    else:
        values = point.median_value, min(point.rounds), max(point.rounds)
        scale, digits = (1e3, 2) if plan.kind == "bw" else (1e-6, 5)
        shown = head + "".join(f" {value * scale:12.{digits}f}" for value in values)
    return shown + " partial" * bool(point.partial)


def partial_result_notes(points: Iterable[MeasuredPoint]) -> list[str]:
    """Return the reasons why points are partial, each once with its points."""
    reasons: dict[str, list[str]] = {}
    for point in points:
        if point.partial and point.rounds:
            where = f"{point.plan.qp} {format_size(point.plan.size)}"
            reasons.setdefault(f"partial: {point.partial}", []).append(where)
    return [
        f"{', '.join(where[:3])}{' and others' * (len(where) > 3)}: {why}"
        for why, where in reasons.items()
    ]


def format_distribution_lines(
    point: MeasuredPoint, wanted: Sequence[float] | None, *, histogram: bool
) -> list[str]:
    """Return lines with the requested percentiles and a histogram of a point."""
    if not point.samples:
        return []
    found = []
    if wanted:
        shown = of_samples.percentiles(sorted(point.samples), wanted)
        found.append("  " + "  ".join(f"{name} {value:.2f}" for name, value in shown.items()))
    if histogram:
        found += of_samples.histogram_lines(sorted(point.samples))
    return found


def format_sample_lines(point: MeasuredPoint, *, in_order: bool) -> list[str]:
    """Return each sample in the format of perftest's -H (sorted) or -U (unsorted)."""
    found = point.samples if in_order else sorted(point.samples)
    return ["#, usec", *(f"{i + 1}, {value:.2f}" for i, value in enumerate(found))]


def _point_to_csv_row(point: MeasuredPoint, wanted: tuple[float, ...]) -> dict[str, Any]:
    row = point.as_json(wanted)
    percentiles = row.pop("percentiles")
    return {**row, **percentiles, "rounds": len(row["rounds"])}


# ---- the command

#: Duration of a measurement in seconds if neither messages nor seconds are given.
SECONDS = 1.0


@dataclass(frozen=True)
class MeasurementOptions:
    """The options of ``siwarp bench lat|bw|rate ADDR``, named as on the command line.

    Attributes:
        sizes: a list for ``siwarp.bench.sizes``; None: the kind's usual size.
        percentiles: as on the command line; None: those of a summary.
    """

    kind: str
    addr: str
    port: int
    qps: Sequence[str]
    op: str
    sizes: str | None
    iters: int | None
    duration: float | None
    depth: int | None
    post_list: int
    wait: str
    pairs: int
    both: bool
    percentiles: str | None
    histogram: bool
    sorted_samples: bool
    unsorted_samples: bool
    samples: str
    csv: str
    plot: str
    as_json: bool

    @property
    def wanted_percentiles(self) -> tuple[float, ...]:
        """The percentiles that the command line requests, or those of a summary."""
        if self.percentiles is None:
            return of_samples.PERCENTILES
        try:
            return of_samples.parse_percentiles(self.percentiles)
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint="--percentiles") from None


def _check_options(asked: MeasurementOptions) -> None:
    """Reject combinations of options that are not possible."""
    if asked.iters is not None and asked.duration is not None:
        raise typer.BadParameter("give either messages (-n) or seconds (-D)")
    of_latency = {
        "--percentiles": asked.percentiles is not None,
        "--histogram": asked.histogram,
        "-H": asked.sorted_samples,
        "-U": asked.unsorted_samples,
        "--samples": bool(asked.samples),
    }
    if asked.kind != "lat" and any(of_latency.values()):
        option = next(name for name, given in of_latency.items() if given)
        raise typer.BadParameter(
            "only lat measures single messages: omit the option, or use lat", param_hint=option
        )
    if asked.kind == "lat" and (asked.pairs > 1 or asked.both):
        raise typer.BadParameter(
            "latency has one message in flight: -q and -b apply only to bw and rate"
        )


@contextlib.contextmanager
def _exit_with_message_on_error() -> Iterator[None]:
    """End the command with the message of the error, if an error occurs."""
    try:
        yield
    except (UsageError, ValueError) as e:
        raise typer.BadParameter(str(e)) from None
    except (BenchError, OSError) as e:
        text = getattr(e, "strerror", None) or e
        typer.echo(f"siwarp bench: {text}", err=True)
        raise typer.Exit(1) from None


def _measure_points(
    asked: MeasurementOptions, plans: Sequence[Plan], tick: Callable[[int, int], None] | None
) -> Iterator[MeasuredPoint]:
    amount = Amount(asked.iters, asked.duration or SECONDS)
    load = Load(asked.pairs, asked.both)
    with ClientSession(asked.addr, asked.port) as session:
        for i, plan in enumerate(plans):

            def report_progress(part: float, i: int = i) -> None:
                if tick is not None:
                    tick(int(100 * (i + part)), 100 * len(plans))

            point = measure_point(session, plan, amount, load, report_progress)
            yield point
            if session.is_over:
                break


def run_client(asked: MeasurementOptions, tick: Callable[[int, int], None] | None) -> None:
    """Measure all points, print the results, and write the files that the options name.

    The exit status is 1 if a point has no result, and 2 if the measurement is not possible at all.
    """
    _check_options(asked)
    wanted, points = asked.wanted_percentiles, list[MeasuredPoint]()
    with _exit_with_message_on_error():
        plans, left_out = make_plans(
            asked.kind, asked.qps, asked.op, asked.sizes, depth=asked.depth, wait=asked.wait,
            post_list=asked.post_list, rounds=1, beside=False,
        )  # fmt: skip
        for line in left_out:
            typer.echo(f"siwarp bench: left out: {line}", err=True)
        for point in _measure_points(asked, plans, tick):
            if not asked.as_json:
                if not points:
                    print(format_table_heading(asked.kind))
                _print_point(asked, point)
            points.append(point)
        _write_result_files(asked, points)
    if asked.as_json:
        result = {"server": asked.addr, "port": asked.port, "left_out": left_out}
        print(json.dumps({**result, "points": [p.as_json(wanted) for p in points]}, indent=2))
    for note in partial_result_notes(points):
        typer.echo(f"siwarp bench: {note}", err=True)
    if len(points) < len(plans) or any(point.median_value is None for point in points):
        if asked.as_json and points:
            typer.echo(f"siwarp bench: {points[-1].partial}", err=True)
        raise typer.Exit(1)


def _print_point(asked: MeasurementOptions, point: MeasuredPoint) -> None:
    print(format_point_line(point), flush=True)
    percentiles = asked.wanted_percentiles if asked.percentiles is not None else None
    for line in format_distribution_lines(point, percentiles, histogram=asked.histogram):
        print(line)
    if asked.sorted_samples or asked.unsorted_samples:
        for line in format_sample_lines(point, in_order=asked.unsorted_samples):
            print(line)


def _write_result_files(asked: MeasurementOptions, points: Sequence[MeasuredPoint]) -> None:
    if asked.csv:
        write_csv(Path(asked.csv), [_point_to_csv_row(p, asked.wanted_percentiles) for p in points])
    if asked.plot:
        curves: dict[str, list[tuple[int, float]]] = {}
        for point in points:
            if point.median_value is not None:
                at = curves.setdefault(point.plan.qp.upper(), [])
                at.append((point.plan.size, point.median_value))
        draw_curves_to_file(Path(asked.plot), asked.kind, curves)
    if asked.samples:
        everything = [us for point in points for us in point.samples]
        of_samples.write_samples(Path(asked.samples), everything)


def run_server(bind: str, port: int, visit: float, *, as_json: bool) -> None:
    """Run the server until SIGTERM or SIGINT."""

    def print_server_line(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    def print_listening_address(address: tuple[str, int]) -> None:
        host, bound = address
        if as_json:
            print(json.dumps({"addr": host, "port": bound}), flush=True)
            return
        everyone = ", every IPv4 address of this machine" if host == "0.0.0.0" else ""
        print_text(
            f"bench server on {host} TCP port {bound}{everyone}; the measurements use free TCP and "
            "UDP ports; nothing is encrypted. Ctrl-C ends the server"
        )

    async def serve_until_signal() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await Server(visit, print_server_line).serve(
                resolve_to_numeric(bind), port, print_listening_address
            )

    with _exit_with_message_on_error():
        asyncio.run(serve_until_signal())
