# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp bench lat|bw|rate ADDR`` and ``siwarp bench --server``: options and output."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import typer

from siwarp.base import samples as of_samples
from siwarp.base.numeric import numeric
from siwarp.base.stop import Stop
from siwarp.bench import hosts_show
from siwarp.bench.hosts_client import Load, Visit
from siwarp.bench.hosts_measure import Amount, Point, measure
from siwarp.bench.hosts_server import Server
from siwarp.bench.plan import Plan, UsageError, make_plan
from siwarp.bench.runner import BenchError
from siwarp.bench.sizes import ALL, sizes
from siwarp.bench.trust import busy

__all__ = ["Asked", "client", "serve"]

#: Duration of a measurement in seconds if neither messages nor seconds are given.
SECONDS = 1.0


@dataclass(frozen=True)
class Asked:
    """The options of the command line, with their names there.

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
    as_json: bool

    @property
    def wanted(self) -> tuple[float, ...]:
        """The percentiles of a result."""
        if self.percentiles is None:
            return of_samples.PERCENTILES
        try:
            return of_samples.parse_percentiles(self.percentiles)
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint="--percentiles") from None


def _judge(asked: Asked) -> None:
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


def _plans(asked: Asked) -> tuple[list[Plan], list[str]]:
    """Return the measurements to make, and the sizes of ``--sizes all`` that are not possible."""
    plans, left_out = [], []
    for qp in asked.qps:
        every: list[int | None] = [None] if asked.sizes is None else [*sizes(asked.sizes)]
        for size in every:
            try:
                plans.append(
                    make_plan(
                        asked.kind, qp, asked.op, size=size, depth=asked.depth, wait=asked.wait,
                        post_list=asked.post_list, rounds=1, beside=False,
                    )
                )  # fmt: skip
            except UsageError as e:
                if size is None or size not in ALL or size == ALL[0] or "octets" not in str(e):
                    raise
                left_out.append(f"{qp}: {e}")
                break
    return plans, left_out


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """End with the error message of a failure."""
    try:
        yield
    except (UsageError, ValueError) as e:
        raise typer.BadParameter(str(e)) from None
    except (BenchError, OSError) as e:
        text = getattr(e, "strerror", None) or e
        typer.echo(f"siwarp bench: {text}", err=True)
        raise typer.Exit(1) from None


def _measure(
    asked: Asked, plans: Sequence[Plan], tick: Callable[[int, int], None] | None
) -> Iterator[Point]:
    amount = Amount(asked.iters, asked.duration or SECONDS)
    load, doubt = Load(asked.pairs, asked.both), busy()
    with Visit(asked.addr, asked.port) as visit:
        for i, plan in enumerate(plans):

            def step(part: float, i: int = i) -> None:
                if tick is not None:
                    tick(int(100 * (i + part)), 100 * len(plans))

            point = measure(visit, plan, amount, load, step, doubt)
            yield point
            if visit.is_over:
                break


def client(asked: Asked, tick: Callable[[int, int], None] | None) -> None:
    """Measure, print, and write the files that the options name.

    The exit status is 1 if a point has no result, and 2 if the measurement is not possible at all.
    """
    _judge(asked)
    wanted, points = asked.wanted, list[Point]()
    with _reported():
        plans, left_out = _plans(asked)
        for line in left_out:
            typer.echo(f"siwarp bench: left out: {line}", err=True)
        for point in _measure(asked, plans, tick):
            if not asked.as_json:
                if not points:
                    print(hosts_show.heading(asked.kind))
                _show(asked, point)
            points.append(point)
        _write(asked, points)
    if asked.as_json:
        result = {"server": asked.addr, "port": asked.port, "left_out": left_out}
        print(json.dumps({**result, "points": [p.as_json(wanted) for p in points]}, indent=2))
    for note in hosts_show.notes(points):
        typer.echo(f"siwarp bench: {note}", err=True)
    if len(points) < len(plans) or any(point.value is None for point in points):
        if asked.as_json and points:
            typer.echo(f"siwarp bench: {points[-1].partial}", err=True)
        raise typer.Exit(1)


def _show(asked: Asked, point: Point) -> None:
    print(hosts_show.row(point), flush=True)
    percentiles = asked.wanted if asked.percentiles is not None else None
    for line in hosts_show.distribution(point, percentiles, histogram=asked.histogram):
        print(line)
    if asked.sorted_samples or asked.unsorted_samples:
        for line in hosts_show.every_sample(point, in_order=asked.unsorted_samples):
            print(line)


def _write(asked: Asked, points: Sequence[Point]) -> None:
    if asked.csv:
        hosts_show.write_csv(Path(asked.csv), points, asked.wanted)
    if asked.samples:
        everything = [us for point in points for us in point.samples]
        of_samples.write(Path(asked.samples), everything)


def serve(bind: str | None, port: int, visit: float, *, as_json: bool) -> None:
    """Run the server until SIGTERM or SIGINT."""
    stop = Stop()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)

    def say(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    with _reported(), Server(numeric(bind or "0.0.0.0"), port, visit, say) as server:
        host, bound = server.address
        if as_json:
            print(json.dumps({"addr": host, "port": bound}), flush=True)
        else:
            everyone = ", every IPv4 address of this machine" if host == "0.0.0.0" else ""
            print(
                f"bench server on {host} TCP port {bound}{everyone}; the measurements use free "
                "TCP and UDP ports; nothing is encrypted. Ctrl-C ends the server",
                flush=True,
            )
        server.run(stop)
