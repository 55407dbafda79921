# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measures the figures of ``siwarp bench all``: siwarp, raw sockets and other stacks in one run.

Each round measures every figure once, so that other load on the machine affects all of them, and
every other round has the reverse order. ``siwarp.bench.page`` makes a page of the result.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from siwarp.bench import threads
from siwarp.bench.compare import summarize_ratio
from siwarp.bench.machine import describe_machine, siwarp_environment_variables
from siwarp.bench.plan import RD_FLOOR, Plan, make_bench_plan
from siwarp.bench.runner import (
    FIRST_PROBE_MESSAGES,
    ITERS,
    BenchError,
    Progress,
    Variant,
    make_progress_counter,
    run_variant,
    seconds_per_message,
)
from siwarp.bench.stacks import LATENCY_SIZE, STACKS, STREAM_SIZE
from siwarp.bench.table import MIB
from siwarp.bench.trust import floor_spread_warning, minimum_and_maximum

__all__ = [
    "LIMIT_S",
    "ROUNDS",
    "Figure",
    "Scope",
    "define_measurements",
    "measure_figures",
    "measurement_key",
]

#: Number of rounds of a complete report, whose medians and intervals are reliable: 11 minutes.
ROUNDS = 30
#: Time limit of the measurement in seconds. No run starts after it, and no round starts that would
#: exceed it.
LIMIT_S = 14 * 60
#: The maximum number of octets of the first, short run of a figure, and the maximum length of a
#: run in multiples of the planned length.
PROBE_OCTETS, LONGEST = 1 << 25, 7
#: Number of failures after which a figure is not measured again.
MAX_FAILURES = 2
#: Maximum number of unreliable floors that are named; a longer list is not printed.
MAX_FLOOR_NAMES = 5


@dataclass(frozen=True)
class Scope:
    """How much is measured: a complete report, or a trial.

    ``seconds`` is the length of a run. ``datagrams`` and ``streams`` are the message sizes of
    latency and bandwidth, over UDP and over TCP; RD's bandwidth is also measured with the largest.
    """

    rounds: int
    seconds: float
    datagrams: tuple[int, ...]
    streams: tuple[int, ...]
    thread_counts: tuple[int, ...]
    quick: bool = False

    @classmethod
    def of_complete_report(cls) -> Scope:
        """Return the scope of a complete report, whose figures are reliable."""
        cpus = len(os.sched_getaffinity(0))
        counts = {8, *(1 << i for i in range(cpus.bit_length()))}
        sizes = 64, 512, 4096, 16384
        return cls(ROUNDS, 0.15, (*sizes, RD_FLOOR), (*sizes, 65536, MIB), tuple(sorted(counts)))

    @classmethod
    def of_trial(cls) -> Scope:
        """Return the scope of a trial, which takes less than a minute and is not reliable."""
        return cls(2, 0.02, (64, RD_FLOOR), (64, MIB), (1, 2), quick=True)


Sample = Mapping[str, float]


class Run(Protocol):
    """A function that measures a figure once; the result has ``value``, and may have ``cycles``."""

    def __call__(self) -> Sample:
        """Measure the figure once.

        Raises:
            BenchError: the run failed.

        """


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        section: latency, bandwidth, rate, cpu, threads or stacks.
        panel: the chart of the section.
        series: the curve of the chart.
        x: octets of a message, or the number of threads.
        unit: us, GB/s, msg/s, or ns (of CPU time per message).
        run: the function that measures the figure.
        floor, best: the keys of the figures for its ratios: raw sockets with a system call for each
            message (or each list), and the fastest use of the kernel; empty if there is none.
    """

    section: str
    panel: str
    series: str
    x: int
    unit: str
    run: Run
    floor: str = ""
    best: str = ""

    @property
    def key(self) -> str:
        """The key that identifies the figure in a report."""
        return measurement_key(self.section, self.panel, self.series, self.x)

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller figure is better."""
        return self.unit in ("us", "ns")


def measurement_key(section: str, panel: str, series: str, x: int) -> str:
    """Return the key that identifies a figure with these attributes in a report."""
    return f"{section}/{panel}/{series}/{x}"


# ---- functions that measure a figure


class _BenchRun:
    """Measures with siwarp-bench; the first call chooses the number of messages of all calls."""

    def __init__(self, plan: Plan, raw: str, seconds: float, env: Mapping[str, str]) -> None:
        self._plan = plan
        self._variant = Variant(raw or "ours", raw or "ours", beside=bool(raw))
        self._seconds = seconds
        self._env = env
        self._planned = False

    def _run_processes_once(self) -> dict[str, float]:
        return run_variant(self._plan, self._variant, self._env)

    def _set_iterations(self, iters: int) -> None:
        credit = self._plan.messages_per_credit
        self._plan = replace(self._plan, iters=iters + -iters % credit)

    def __call__(self) -> Sample:
        """Run both processes, and return their result."""
        if not self._planned:
            probe, least, most = ITERS[self._plan.kind]
            # A probe of large messages sends fewer than the usual minimum number of messages, which
            # would take too much time.
            self._set_iterations(
                min(probe, max(FIRST_PROBE_MESSAGES, PROBE_OCTETS // self._plan.size))
            )
            each = seconds_per_message(self._plan, self._run_processes_once()["value"])
            least = min(least, max(1, int(LONGEST * self._seconds / each)))
            self._set_iterations(max(least, min(most, int(self._seconds / each))))
            self._planned = True
        return self._run_processes_once()


class _CpuRun(_BenchRun):
    """Measures the CPU time of both processes per message."""

    def __call__(self) -> Sample:
        """Run both processes, and return their CPU time per message."""
        result = super().__call__()
        found = {"value": result["cpu_ns"] / result["n"]}
        if result["cycles"]:
            found["cycles"] = result["cycles"] / result["n"]
        return found


# ---- the figures


@dataclass(frozen=True)
class _Series:
    """A curve of a chart; ``raw`` names the kind of raw socket; "": siwarp is measured."""

    name: str
    qp: str
    raw: str = ""
    op: str = "send"
    post_list: int = 1


_RAW_UDP = _Series("raw UDP", "ud", "unconnected")
_RAW_UDP_LISTS = _Series("raw UDP, sendmmsg and recvmmsg", "ud", "mmsg")
_RAW_UDP_GSO = _Series("raw UDP, GSO and GRO", "ud", "gso")
_RAW_TCP = _Series("raw TCP, a send per message", "rc", "polling")
_RAW_TCP_READ = _Series("raw TCP, request and data", "rc", "polling", "read")
_RAW_TCP_STREAM = _Series("raw TCP, 64 KiB per send", "rc", "coalesced")
_UD, _RD = _Series("UD", "ud"), _Series("RD", "rd")
_SEND, _WRITE = _Series("RC Send", "rc"), _Series("RC Write", "rc", op="write")
_READ = _Series("RC Read", "rc", op="read")


def _with_lists_of_32(series: _Series) -> _Series:
    return replace(series, name=f"{series.name}, lists of 32", post_list=32)


def _series_with_blocking_floor(series: _Series) -> _Series:
    raw = {"unconnected": "blocking", "polling": "blocking"}.get(series.raw)
    return replace(series, raw=raw or f"blocking-{series.raw}") if series.raw else series


def _figures_of_bench(
    scope: Scope,
    section: str,
    panel: str,
    size: int,
    floor: _Series,
    ours: Sequence[_Series],
    *,
    best: _Series | None = None,
) -> Iterator[Figure]:
    """Yield the figures of raw sockets and siwarp with messages of one size."""
    kind = {"latency": "lat", "rate": "rate"}.get(section, "bw")
    unit = {"latency": "us", "rate": "msg/s", "cpu": "ns"}.get(section, "GB/s")
    at_best = "" if best is None else measurement_key(section, panel, best.name, size)
    for series in (floor, *filter(None, [best]), *ours):
        if section == "cpu":
            plan = make_bench_plan(
                "rate" if size == 64 else "bw",
                series.qp,
                series.op,
                size=size,
                wait="event",
                post_list=series.post_list,
            )
            # A process that waits sleeps immediately and does not spin, so its CPU time is the
            # time that the messages cost.
            run: Run = _CpuRun(
                plan,
                _series_with_blocking_floor(series).raw,
                scope.seconds,
                {"SIWARP_SPIN_US": "0"},
            )
        else:
            # Writes and Reads are posted one by one like Sends: with 128 outstanding.
            depth = 128 if section == "rate" else None
            plan = make_bench_plan(
                kind, series.qp, series.op, size=size, depth=depth, post_list=series.post_list
            )
            run = _BenchRun(plan, series.raw, scope.seconds, {})
        at_floor = "" if series.raw else measurement_key(section, panel, floor.name, size)
        yield Figure(
            section, panel, series.name, size, unit, run, at_floor, "" if series.raw else at_best
        )


def _define_latency_measurements(scope: Scope) -> Iterator[Figure]:
    for size in scope.datagrams:
        yield from _figures_of_bench(scope, "latency", "UDP", size, _RAW_UDP, (_UD, _RD))
    for size in scope.streams:
        yield from _figures_of_bench(scope, "latency", "TCP", size, _RAW_TCP, (_SEND, _WRITE))
        yield from _figures_of_bench(scope, "latency", "TCP", size, _RAW_TCP_READ, (_READ,))


def _define_bandwidth_measurements(scope: Scope) -> Iterator[Figure]:
    for size in scope.datagrams:
        # A GSO batch has at least two datagrams.
        best = _RAW_UDP_GSO if size * 2 <= RD_FLOOR else None
        yield from _figures_of_bench(
            scope, "bandwidth", "UDP", size, _RAW_UDP, (_UD, _RD), best=best
        )
    floor = measurement_key("bandwidth", "UDP", _RAW_UDP.name, RD_FLOOR)
    run = _BenchRun(make_bench_plan("bw", "rd", size=MIB), "", scope.seconds, {})
    yield Figure("bandwidth", "UDP", _RD.name, MIB, "GB/s", run, floor)
    for size in scope.streams:
        yield from _figures_of_bench(
            scope, "bandwidth", "TCP", size, _RAW_TCP, (_SEND, _WRITE, _READ), best=_RAW_TCP_STREAM
        )


def _define_rate_measurements(scope: Scope) -> Iterator[Figure]:
    uc = _Series("UC", "uc")
    datagrams = [each for one in (_UD, uc, _RD) for each in (one, _with_lists_of_32(one))]
    yield from _figures_of_bench(
        scope, "rate", "UDP", 64, _RAW_UDP_LISTS, datagrams, best=_RAW_UDP_GSO
    )
    streams = [each for one in (_SEND, _WRITE) for each in (one, _with_lists_of_32(one))]
    yield from _figures_of_bench(scope, "rate", "TCP", 64, _RAW_TCP, streams, best=_RAW_TCP_STREAM)


def _define_cpu_time_measurements(scope: Scope) -> Iterator[Figure]:
    yield from _figures_of_bench(
        scope,
        "cpu",
        "UDP",
        64,
        _RAW_UDP_LISTS,
        (_with_lists_of_32(_UD), _with_lists_of_32(_RD)),
        best=_RAW_UDP_GSO,
    )
    yield from _figures_of_bench(scope, "cpu", "UDP", RD_FLOOR, _RAW_UDP, (_UD, _RD))
    yield from _figures_of_bench(
        scope, "cpu", "TCP", 64, _RAW_TCP, (_with_lists_of_32(_SEND),), best=_RAW_TCP_STREAM
    )
    yield from _figures_of_bench(scope, "cpu", "TCP", MIB, _RAW_TCP, (_SEND, _WRITE))


def _define_thread_measurements(scope: Scope) -> Iterator[Figure]:
    for qp, panel in (("ud", "UDP"), ("rc", "TCP")):
        for count in scope.thread_counts:
            for run in ("raw", "one-device", "own-devices"):
                row = threads.Row(qp, run, count)

                def measure_thread_rate(row: threads.Row = row) -> Sample:
                    return {"value": threads.measure_rate(row, scope.seconds)}

                floor = measurement_key("threads", panel, threads.RUNS["raw"], count)
                yield Figure(
                    "threads",
                    panel,
                    threads.RUNS[run],
                    count,
                    "msg/s",
                    measure_thread_rate,
                    "" if run == "raw" else floor,
                )


def _figures_of_other_stacks(folder: Path) -> Iterator[Figure]:
    for kind, section, unit, size in (
        ("lat", "latency", "us", LATENCY_SIZE),
        ("bw", "bandwidth", "GB/s", STREAM_SIZE),
    ):
        for stack in STACKS:
            if stack.is_installed():

                def measure_rate_of_stack(
                    measure: Callable[[str, Path], float] = stack.measure, kind: str = kind
                ) -> Sample:
                    return {"value": measure(kind, folder)}

                floor = measurement_key(section, "TCP", _RAW_TCP.name, size)
                yield Figure(
                    "stacks", section, stack.name, size, unit, measure_rate_of_stack, floor
                )


def define_measurements(scope: Scope, folder: Path) -> list[Figure]:
    """Return all figures, in the order in which a round measures them.

    Args:
        scope: how much to measure.
        folder: an empty folder for files of the runs.

    """
    return [
        *_define_latency_measurements(scope),
        *_define_bandwidth_measurements(scope),
        *_define_rate_measurements(scope),
        *_define_cpu_time_measurements(scope),
        *_define_thread_measurements(scope),
        *_figures_of_other_stacks(folder),
    ]


# ---- rounds


class _Rounds:
    """The samples of each figure by round, and the reason if rounds are missing."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        self.samples: list[dict[str, Sample]] = []
        self.failures: dict[str, list[str]] = {figure.key: [] for figure in figures}
        self.partial = ""

    def measure_rounds(
        self,
        figures: Sequence[Figure],
        rounds: int,
        limit: float,
        report_completed_step: Callable[[], None],
    ) -> None:
        """Measure until all rounds are done, the time is over, or the user interrupts."""
        until = time.monotonic() + limit
        longest = 0.0
        for turn in range(rounds):
            start = time.monotonic()
            if start + longest > until:
                self.partial = f"{turn} of {rounds} rounds: the time limit was reached"
                return
            self.samples.append({})
            try:
                for figure in reversed(figures) if turn % 2 else figures:
                    if time.monotonic() > until:
                        self.partial = f"the time limit was reached in round {turn + 1} of {rounds}"
                        return
                    self._measure_figure(figure)
                    report_completed_step()
            except (KeyboardInterrupt, SystemExit):
                self.partial = f"interrupted in round {turn + 1} of {rounds}"
                return
            longest = max(longest, time.monotonic() - start)

    def _measure_figure(self, figure: Figure) -> None:
        failures = self.failures[figure.key]
        if len(failures) < MAX_FAILURES:
            try:
                self.samples[-1][figure.key] = figure.run()
            except BenchError as e:
                failures.append(str(e))

    def values_of_measurement(self, key: str, name: str = "value") -> list[float | None]:
        """Return a figure's values, one for each round; None: the round has none."""
        return [samples.get(key, {}).get(name) for samples in self.samples]


def measure_figures(
    scope: Scope,
    figures: Sequence[Figure],
    progress: Progress | None = None,
    limit: float = LIMIT_S,
) -> dict[str, Any]:
    """Measure the figures and return the report.

    Args:
        scope: how much to measure.
        figures: what to measure (``define_measurements``).
        progress: called with the number of runs that are done, and the total.
        limit: seconds; see LIMIT_S.

    Returns:
        ``date`` (UTC), ``seconds``, ``rounds`` (wanted), ``quick``, ``machine``, ``settings``,
        ``load`` (the average of a minute, before and after), ``stacks`` (for each its ``name``,
        ``installed``, ``install`` and ``bandwidth``), ``partial`` (why the report is incomplete,
        otherwise empty), ``unreliable`` (why the figures may reflect the state of the machine) and
        ``figures``. Each figure has the attributes of Figure, ``median`` and ``span`` (None: it
        failed), ``values`` (by round), ``cycles`` (median; None: not counted), ``ratio`` and
        ``best_ratio`` (each with its interval and ``rounds``, or None), ``failures``, and
        ``unreliable`` (a reason, or empty).

    """
    step = make_progress_counter(progress, scope.rounds * len(figures))
    start, load = time.monotonic(), os.getloadavg()[0]
    warnings = ["a trial with few rounds, short runs and few sizes"] if scope.quick else []
    rounds = _Rounds(figures)
    rounds.measure_rounds(figures, scope.rounds, limit, step)
    summaries = [_summarize_measurement(figure, rounds) for figure in figures]
    failed = [one for one in summaries if one["failures"]]
    partial = [rounds.partial]
    partial += [f"{one['key']}: {one['failures'][-1]}" for one in failed]
    floors = {key for figure in figures for key in (figure.floor, figure.best) if key}
    bad = [one["key"] for one in summaries if one["key"] in floors and one["unreliable"]]
    if bad:
        names = ", ".join(bad) if len(bad) <= MAX_FLOOR_NAMES else "see the remarks"
        warnings.append(f"{len(bad)} of {len(floors)} runs of raw sockets: {names}")
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "seconds": round(time.monotonic() - start),
        "rounds": scope.rounds,
        "quick": scope.quick,
        "machine": describe_machine(),
        "settings": siwarp_environment_variables(),
        "load": {"before": load, "after": os.getloadavg()[0]},
        "stacks": [
            {
                "name": stack.name,
                "installed": stack.is_installed(),
                "install": stack.install,
                "bandwidth": stack.bandwidth,
            }
            for stack in STACKS
        ],
        "partial": "; ".join(filter(None, partial)),
        "unreliable": warnings,
        "figures": summaries,
    }


def _summarize_measurement(figure: Figure, rounds: _Rounds) -> dict[str, Any]:
    values = rounds.values_of_measurement(figure.key)
    known = [value for value in values if value is not None]
    cycles = [
        value for value in rounds.values_of_measurement(figure.key, "cycles") if value is not None
    ]
    return {
        "key": figure.key,
        "section": figure.section,
        "panel": figure.panel,
        "series": figure.series,
        "x": figure.x,
        "unit": figure.unit,
        "less_is_better": figure.less_is_better,
        "floor": figure.floor,
        "best": figure.best,
        "median": statistics.median(known) if known else None,
        "span": minimum_and_maximum(known) if known else None,
        "values": values,
        "cycles": statistics.median(cycles) if cycles else None,
        "ratio": _summarize_ratio(values, rounds.values_of_measurement(figure.floor)),
        "best_ratio": _summarize_ratio(values, rounds.values_of_measurement(figure.best)),
        "failures": rounds.failures[figure.key],
        "unreliable": _reason_why_measurement_is_unreliable(figure, rounds),
    }


def _reason_why_measurement_is_unreliable(figure: Figure, rounds: _Rounds) -> str:
    """Return why the ratios of a figure, or a figure without ratios, are unreliable, or nothing."""

    def spread_warning_of(key: str) -> str:
        return floor_spread_warning(
            [value for value in rounds.values_of_measurement(key) if value is not None]
        )

    if warning := spread_warning_of(figure.floor or figure.key):
        return warning
    warning = spread_warning_of(figure.best) if figure.best else ""
    return f"the kernel's best as the floor: {warning}" if warning else ""


def _summarize_ratio(
    values: Sequence[float | None], floors: Sequence[float | None]
) -> dict[str, float | None] | None:
    """Return the ratio with its interval, and the number of rounds that have both values."""
    pairs = [
        (value, floor)
        for value, floor in zip(values, floors, strict=True)
        if value is not None and floor is not None and math.isfinite(value) and floor > 0
    ]
    return {**summarize_ratio(pairs), "rounds": len(pairs)} if pairs else None
