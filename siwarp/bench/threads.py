# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The rates of threads on one device, with a device per thread, and on raw sockets.

Each thread moves 64-octet messages over a connected pair of queue pairs of its own (bench_threads.c
describes the runs). A run is a new process of siwarp-bench. Each round has every run once, so that
other load on the machine affects all of them.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siwarp.base import show
from siwarp.bench.compare import CONFIDENCE, summarize_ratio
from siwarp.bench.plan import UsageError
from siwarp.bench.runner import (
    LIMIT_S,
    BenchError,
    Progress,
    Side,
    SlowError,
    bench_program_path,
    make_progress_counter,
    run_client_and_server,
)
from siwarp.bench.trust import floor_spread_warning, minimum_and_maximum

__all__ = [
    "DURATION_S",
    "ROUNDS",
    "Row",
    "default_thread_counts",
    "measure_rate",
    "measure_rows",
    "parse_thread_counts",
    "rows_of_thread_counts",
    "show_rates",
]

#: Number of rounds for reliable ratios, and the measured seconds of a run.
ROUNDS = 30
DURATION_S = 0.15
#: Octets of each message of a measurement.
SIZE = 64
#: Maximum number of threads, and of lanes of a device (setting lanes).
MOST_THREADS = 256
MOST_LANES = 16

QPS = ("ud", "rc")
#: Thread counts for which a CQ that all threads poll is measured.
POLLERS = (1, 2, 8)
#: The runs of siwarp-bench, in the order in which a round has them, and their names.
RUNS = {
    "raw": "raw sockets",
    "one-device": "one device",
    "own-devices": "own devices",
    "one-region": "one device, one region",
    "one-cq": "one CQ",
}


@dataclass(frozen=True)
class Row:
    """A figure: the type of queue pair (of raw sockets: their protocol), run, and thread count."""

    qp: str
    run: str
    threads: int

    @property
    def name(self) -> str:
        """The name in the output, which ``--only`` selects."""
        return f"{self.qp.upper()}, {RUNS[self.run]}, {_format_threads(self.threads)}"


def _format_threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def default_thread_counts() -> list[int]:
    """Return 8 and the powers of two up to twice the number of CPUs."""
    cpus = len(os.sched_getaffinity(0))
    return sorted({8, *(1 << i for i in range((2 * cpus).bit_length()))})


def parse_thread_counts(text: str) -> list[int]:
    """Return the numbers of a comma-separated list, ascending and without duplicates.

    Raises:
        ValueError: a word is not a number of threads.

    """
    words = text.split(",")
    if not all(
        word.isascii() and word.isdecimal() and 0 < int(word) <= MOST_THREADS for word in words
    ):
        raise ValueError(f"give numbers from 1 to {MOST_THREADS}, separated by commas")
    return sorted({int(word) for word in words})


def rows_of_thread_counts(threads: Sequence[int]) -> list[Row]:
    """Return all rows for these thread counts, in the order in which a round measures them."""
    rows = []
    for qp in QPS:
        rows += [Row(qp, run, n) for n in threads for run in RUNS if run != "one-cq"]
        rows += [Row(qp, "one-cq", n) for n in threads if n in POLLERS]
    return rows


# ---- a single run


def _lane_count_of_run(row: Row) -> int:
    """Return the number of lanes of each device: the user's setting, or the number of threads.

    Raises:
        UsageError: the setting in the environment is not valid.

    """
    given = os.environ.get("SIWARP_LANES", "0")
    if not (given.isdecimal() and int(given) <= MOST_LANES):
        raise UsageError(f"SIWARP_LANES is {given!r}: give a number from 0 to {MOST_LANES}")
    if row.run == "own-devices":
        return 1  # each device is used by one thread only
    return int(given) or min(row.threads, MOST_LANES)


def measure_rate(row: Row, duration: float) -> float:
    """Run one row once and return its rate in messages per second."""
    lanes = _lane_count_of_run(row)
    limit = math.ceil(duration * 2) + LIMIT_S
    options = {
        "kind": "threads",
        "qp": row.qp,
        "run": row.run,
        "threads": row.threads,
        "lanes": lanes,
        "time": round(duration * 1000),
        "size": SIZE,
        "limit": limit,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    env = {**os.environ, "SIWARP_LANES": str(lanes)}
    client = Side("client", [str(bench_program_path()), *words], env)
    try:
        return run_client_and_server(row.name, [client], limit)["value"]
    except SlowError:
        raise SlowError(
            f"the run {row.name!r} did not finish within {limit} s: reduce the load of the machine"
        ) from None


# ---- rounds of runs


def measure_rows(
    rows: Sequence[Row],
    rounds: int = ROUNDS,
    duration: float = DURATION_S,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure the rows in turn, in each of the rounds; every other round has the reverse order.

    Args:
        rows: the rows to measure.
        rounds: how often each row is measured.
        duration: measured seconds of a run; a quarter of it precedes them as warm-up.
        progress: called with the number of runs that are done, and the total.

    Returns:
        ``cpus`` (their number), ``duration``, ``rows``: for each ``name``, ``qp``, ``run``,
        ``threads``, ``rate`` (median, messages per second) and ``span`` (the least and the
        largest); ``ratios``: for each ``name``, ``ratio``, and ``low``, ``high`` and
        ``confidence`` of its interval, which are None after a single round; ``rounds`` (every
        round's rates by the row's name), ``partial`` (why there are fewer rounds than requested),
        and ``unreliable`` (why the figures may reflect the state of the machine).

    Raises:
        UsageError: SIWARP_LANES is not valid.
        BenchError: a run failed in the first round.

    """
    step = make_progress_counter(progress, rounds * len(rows))
    measured: list[dict[str, float]] = []
    partial = ""
    while len(measured) < rounds and not partial:
        rates: dict[str, float] = {}
        try:
            for row in reversed(rows) if len(measured) % 2 else rows:
                rates[row.name] = measure_rate(row, duration)
                step()
        except BenchError as e:
            if not measured:
                raise
            partial = f"{len(measured)} of {rounds} rounds: {e}"
        else:
            measured.append(rates)
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "duration": duration,
        "rows": [_summarize_row(row, [rates[row.name] for rates in measured]) for row in rows],
        "ratios": _summarize_ratios(rows, measured),
        "rounds": measured,
        "partial": partial,
        "unreliable": _reasons_why_floors_are_unreliable(rows, measured),
    }


def _summarize_row(row: Row, rates: list[float]) -> dict[str, Any]:
    return {
        "name": row.name,
        "qp": row.qp,
        "run": row.run,
        "threads": row.threads,
        "rate": statistics.median(rates),
        "span": minimum_and_maximum(rates),
    }


def _reasons_why_floors_are_unreliable(
    rows: Sequence[Row], measured: Sequence[Mapping[str, float]]
) -> list[str]:
    names: dict[str, list[str]] = {}
    for name in (row.name for row in rows if row.run == "raw"):
        if warning := floor_spread_warning([rates[name] for rates in measured]):
            names.setdefault(warning, []).append(name)
    return [f"{warning} ({'; '.join(of)})" for warning, of in names.items()]


# ---- ratios


@dataclass(frozen=True)
class _Ratio:
    """A ratio of rows: the product of the first rows, divided by the product of the others."""

    name: str
    above: tuple[Row, ...]
    below: tuple[Row, ...]


def _ratios_of_qp_type(qp: str, threads: Sequence[int]) -> list[_Ratio]:
    """Return the ratios of one type of queue pair, for ascending thread counts."""
    kind = qp.upper()

    def define_ratio(name: str, above: Row, below: Row) -> _Ratio:
        return _Ratio(f"{kind}, {name}", (above,), (below,))

    def define_ratio_to_one_thread(run: str, n: int) -> _Ratio:
        name = f"{RUNS[run]}, {_format_threads(n)} / 1 thread"
        return define_ratio(name, Row(qp, run, n), Row(qp, run, 1))

    ratios = []
    for n in threads:
        one, words = Row(qp, "one-device", n), _format_threads(n)
        own, region = Row(qp, "own-devices", n), Row(qp, "one-region", n)
        ratios.append(define_ratio(f"{words}: one device / own devices", one, own))
        ratios.append(define_ratio(f"{words}: one region / a region each", region, one))
    for n in threads:
        if n == 1:
            continue
        ours, floor = (
            define_ratio_to_one_thread("one-device", n),
            define_ratio_to_one_thread("raw", n),
        )
        name = f"{kind}, {_format_threads(n)}: gain of one device / gain of raw sockets"
        ratios += [ours, floor]
        ratios.append(_Ratio(name, ours.above + floor.below, ours.below + floor.above))
    eight, two = Row(qp, "one-device", 8), Row(qp, "one-device", 2)
    ratios.append(define_ratio("one device, 8 threads / 2 threads", eight, two))
    ratios += [define_ratio_to_one_thread("one-cq", n) for n in POLLERS if n != 1]
    return ratios


def _summarize_ratios(
    rows: Sequence[Row], measured: Sequence[Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return the ratios whose rows were all measured."""
    threads = sorted({row.threads for row in rows})
    found = []
    for ratio in (each for qp in QPS for each in _ratios_of_qp_type(qp, threads)):
        if not set(ratio.above + ratio.below) <= set(rows):
            continue
        pairs = [
            (
                math.prod(rates[row.name] for row in ratio.above),
                math.prod(rates[row.name] for row in ratio.below),
            )
            for rates in measured
        ]
        found.append({"name": ratio.name, **summarize_ratio(pairs)})
    return found


# ---- output


def _explanatory_notes(found: dict[str, Any]) -> list[str]:
    rounds = len(found["rounds"])
    notes = [
        f"million messages a second of {SIZE} octets in lists of 32: medians of {rounds} rounds, "
        f"{found['cpus']} CPUs"
    ]
    if rounds < ROUNDS:
        sure = (found["ratios"][0]["confidence"] if found["ratios"] else None) or CONFIDENCE
        holds = "" if sure >= CONFIDENCE else f" and hold the ratio with {sure:.0%} only"
        notes.append(f"a trial: with {rounds} rounds the intervals are wide{holds}; use {ROUNDS}")
    if found["partial"]:
        notes.append(f"partial: {found['partial']}")
    return notes + [f"unreliable: {doubt}" for doubt in found["unreliable"]]


def _format_interval(ratio: Mapping[str, Any]) -> str:
    return "" if ratio["low"] is None else f"{ratio['low']:.3f} to {ratio['high']:.3f}"


def show_rates(found: dict[str, Any]) -> None:
    """Print the rates with a line for each thread count, the ratios, and the notes."""
    for qp in QPS:
        rates = {(row["threads"], row["run"]): row for row in found["rows"] if row["qp"] == qp}
        if not rates:
            continue
        runs = [run for run in RUNS if any(run == each for _, each in rates)]
        rows = []
        for n in sorted({n for n, _ in rates}):
            cells = (rates.get((n, run)) for run in runs)
            rows.append([str(n), *(f"{row['rate'] / 1e6:.3g}" if row else "" for row in cells)])
        titles = (f"{qp.upper()}, threads", *(RUNS[run] for run in runs))
        show.print_table(titles, rows, right=range(len(titles)))
        show.print_line()
    if found["ratios"]:
        show.print_table(
            ("ratio", "95% interval", "what"),
            [(f"{r['ratio']:.3f}", _format_interval(r), r["name"]) for r in found["ratios"]],
            right=(0, 1),
        )
    for note in _explanatory_notes(found):
        show.print_line(note)
