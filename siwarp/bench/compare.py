# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Compares this build of siwarp with another build: both measure alternately, pair by pair.

Each measurement is a separate ``siwarp bench`` process with options that every version has, so that
the other program may be an older version.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from siwarp.base import show
from siwarp.bench.runner import BenchError, Progress, make_progress_counter
from siwarp.bench.table import MIB, format_value_with_unit

__all__ = [
    "FIGURES",
    "ROUNDS",
    "ComparedFigure",
    "Interval",
    "compare_programs",
    "find_other_program",
    "has_performance_loss",
    "ratio_interval",
    "show_comparison",
    "summarize_ratio",
    "verdict_of_measurement",
]

#: Number of rounds that a comparison needs to resolve 2%, and the minimum number of rounds.
ROUNDS = 40
LEAST_ROUNDS = 3
#: Time limit in seconds for one measurement by one program.
LIMIT_S = 60
#: The command that runs this installation of siwarp.
_THIS_COMMAND = (sys.executable, "-m", "siwarp.cli")
#: Variables that would make the other program load this build's modules or library.
_OURS_ALONE = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")


# ---- the interval of a ratio
#
# The confidence interval of a ratio from paired measurements, by Wilcoxon's signed ranks. Ranks are
# used because a machine that is busy for a moment produces outliers: outliers widen a t interval
# until it is useless, but hardly affect this interval.

#: The confidence of a ratio's interval if there are at least six pairs of values.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A ratio, the bounds of its interval, and the interval's confidence (0 to 1)."""

    ratio: float
    low: float
    high: float
    confidence: float


def _count_rank_sums(n: int) -> list[int]:
    """Return, for each sum, the number of subsets of the ranks 1..n with this sum."""
    counts = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(len(counts) - 1, rank - 1, -1):
            counts[total] += counts[total - rank]
    return counts


def _count_averages_outside_interval(n: int) -> tuple[int, float]:
    """Return the number of Walsh averages outside the interval on each side, and the confidence.

    With fewer than six pairs no interval reaches CONFIDENCE, and the widest interval is used.
    """
    left, outside, counts = 0, 0, _count_rank_sums(n)
    while 2 * (left + counts[outside]) <= (1 - CONFIDENCE) * 2**n:
        left += counts[outside]
        outside += 1
    if not outside:
        return 0, 1 - 2 / 2**n
    return outside - 1, 1 - 2 * left / 2**n


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Return the ratio first / second of pairs of positive values, with its interval.

    The ratio is the Hodges-Lehmann estimate: the median of the Walsh averages, which are the means
    of the logarithms of every two pairs' ratios.

    Raises:
        ValueError: there are fewer than two pairs.

    """
    if len(pairs) < 2:
        raise ValueError("too few pairs of values: give at least two")
    logs = [math.log(first / second) for first, second in pairs]
    walsh = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    outside, confidence = _count_averages_outside_interval(len(logs))
    return Interval(
        math.exp(statistics.median(walsh)),
        math.exp(walsh[outside]),
        math.exp(walsh[-1 - outside]),
        confidence,
    )


def summarize_ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    """Return the ratio of pairs, and ``low``, ``high`` and ``confidence`` of its interval.

    One pair has no interval: the three are None.
    """
    if len(pairs) == 1:
        first, second = pairs[0]
        return {"ratio": first / second, "low": None, "high": None, "confidence": None}
    return asdict(ratio_interval(pairs))


# ---- figures measured by both programs


@dataclass(frozen=True)
class ComparedFigure:
    """One figure that is measured with both programs.

    Attributes:
        name: the title in the output.
        command: the arguments of ``siwarp bench`` that measure it.
        unit: unit of the result.
        less_is_better: whether a ratio above 1 is bad.
        limit: permitted distance of the ratio from 1: 0.02 is 2%.
        part: the share of the messages that ``siwarp bench`` would choose. A run of latency also
            measures raw sockets, and the slowest of them takes most of its time.
    """

    name: str
    command: tuple[str, ...]
    unit: str
    less_is_better: bool
    limit: float
    part: float


def _define_compared_latency(qp: str) -> ComparedFigure:
    words = ("lat", "--qp", qp, "--size", "64")
    return ComparedFigure(f"{qp.upper()} Send 64 B latency", words, "us", True, 0.02, 0.25)


def _define_compared_bandwidth(qp: str, op: str, size: int, words: str) -> ComparedFigure:
    command = ("bw", "--qp", qp, "--op", op, "--size", str(size))
    return ComparedFigure(f"{qp.upper()} {words} bandwidth", command, "GB/s", False, 0.05, 1)


#: A UD message is one datagram, so UD's bandwidth is measured with 60 KB.
FIGURES: tuple[ComparedFigure, ...] = (
    _define_compared_latency("ud"),
    _define_compared_latency("rc"),
    _define_compared_latency("rd"),
    _define_compared_bandwidth("ud", "send", 60_000, "Send 60 KB"),
    _define_compared_bandwidth("rc", "write", MIB, "Write 1 MiB"),
    _define_compared_bandwidth("rd", "send", MIB, "Send 1 MiB"),
)


def find_other_program(named: str) -> str:
    """Return the path of the named program, found as the shell would find it.

    Raises:
        BenchError: there is no such program; the text describes what to name.

    """
    if Path(named).is_dir():
        raise BenchError(
            f"{named} is a folder: name the program in it, for example .venv/bin/siwarp"
        )
    found = shutil.which(named)
    if found is None:
        why = "cannot be executed" if Path(named).exists() else "is not there"
        raise BenchError(
            f"{named} {why}: name an installed siwarp, or .venv/bin/siwarp of a checkout "
            "(`make build` makes it)"
        )
    return str(Path(found).absolute())


def _program_environment(*, other: bool) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not (other and k in _OURS_ALONE)}


class _Program:
    """One of the two builds of siwarp, and how to start it."""

    def __init__(self, other: str | None = None) -> None:
        self.name = "this build" if other is None else other
        self._start = list(_THIS_COMMAND) if other is None else [other]
        self._env = _program_environment(other=other is not None)

    def _run_bench(self, words: Sequence[str]) -> str:
        command = [*self._start, "bench", *words]
        try:
            # Run in a folder without siwarp/, which Python would import as the package.
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                cwd="/",
                env=self._env,
            )
        except OSError as e:
            raise BenchError(
                f"{self.name} does not start ({e.strerror}): name the program siwarp"
            ) from None
        except subprocess.TimeoutExpired:
            raise BenchError(
                f"{self.name}: {words[0]} did not finish within {LIMIT_S} s: reduce the "
                "load of the machine, or --size and --depth"
            ) from None
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            last = lines[-1] if lines else f"exit status {done.returncode}"
            raise BenchError(f"{self.name} cannot run `bench {' '.join(words)}`: {last}")
        return done.stdout

    def measure(self, what: ComparedFigure, iters: int | None) -> dict[str, Any]:
        """Measure a figure once; without ``iters`` the program chooses the number of messages.

        Raises:
            BenchError: the program failed, or its output is not that of siwarp bench.

        """
        words = [*what.command, "--rounds", "1", "--json"]
        if iters is not None:
            words += ["--iters", str(iters)]
        said = self._run_bench(words)
        try:
            result = json.loads(said)
            value, unit, done = result["ours"], result["unit"], result["iters"]
            good = unit == what.unit and math.isfinite(value) and value > 0 and done >= 1
        except (ValueError, KeyError, TypeError):
            good = False
        if not good:
            raise BenchError(
                f"{self.name} is not siwarp, or its version is too different to compare: "
                f"`bench {' '.join(words)}` printed no result in {what.unit}"
            )
        return dict(result)


def _measure_with_both_programs(
    what: ComparedFigure, programs: dict[str, _Program], iters: int, turn: int
) -> dict[str, Any]:
    """Measure with both programs; the program that measures first alternates from round to
    round.
    """
    order = list(programs) if turn % 2 == 0 else list(reversed(programs))
    results = {name: programs[name].measure(what, iters) for name in order}
    floors = {f"{name}_floor": result.get("floor") for name, result in results.items()}
    return {name: result["ours"] for name, result in results.items()} | floors | {"first": order[0]}


def verdict_of_measurement(what: ComparedFigure, interval: Interval) -> str:
    """Return the verdict ``loss``, ``no loss``, or ``open`` if the interval contains the limit."""
    if interval.confidence < CONFIDENCE:
        return "open"
    sign = 1 if what.less_is_better else -1
    limit = sign * (1 + sign * what.limit)
    best, worst = sorted((sign * interval.low, sign * interval.high))
    if best > limit:
        return "loss"
    return "open" if worst > limit else "no loss"


def _summarize_measurement(
    what: ComparedFigure, iters: int, pairs: list[dict[str, Any]]
) -> dict[str, Any]:
    interval = ratio_interval([(pair["this"], pair["other"]) for pair in pairs])
    return {
        "name": what.name,
        "unit": what.unit,
        "less_is_better": what.less_is_better,
        "limit": what.limit,
        "iters": iters,
        "this": statistics.median(pair["this"] for pair in pairs),
        "other": statistics.median(pair["other"] for pair in pairs),
        "ratio": interval.ratio,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "verdict": verdict_of_measurement(what, interval),
        "pairs": pairs,
    }


def compare_programs(
    other: str,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
    figures: Sequence[ComparedFigure] = FIGURES,
) -> dict[str, Any]:
    """Measure each figure with this build and with the other program, alternately.

    The first measurement of each figure is not counted; it determines the number of messages of the
    others, and whether the program can measure the figure at all.

    Args:
        other: the other program, a path or a name that the shell would find.
        rounds: pairs of measurements per figure.
        progress: called with the number of pairs done and their total.
        figures: the figures to measure.

    Returns:
        ``other`` (its path), ``rounds``, ``wanted_rounds`` and ``figures``: for each ``name``,
        ``unit``, ``less_is_better``, ``limit``, ``iters``, the medians ``this`` and ``other``, the
        ``ratio`` this / other with ``low``, ``high`` and ``confidence`` of its interval, the
        ``verdict``, and ``pairs``, every round's values.

    Raises:
        BenchError: one of the programs cannot measure; the text names it and quotes its message.

    """
    path = find_other_program(other)
    programs = {"this": _Program(), "other": _Program(path)}
    step = make_progress_counter(progress, (rounds + 1) * len(figures))
    iters: list[int] = []
    for what in figures:
        chosen = programs["this"].measure(what, None)["iters"]
        iters.append(max(1, int(chosen * what.part)))
        programs["other"].measure(what, iters[-1])
        step()
    pairs: list[list[dict[str, Any]]] = [[] for _ in figures]
    for turn in range(rounds):
        for what, messages, mine in zip(figures, iters, pairs, strict=True):
            mine.append(_measure_with_both_programs(what, programs, messages, turn))
            step()
    return {
        "other": path,
        "rounds": rounds,
        "wanted_rounds": ROUNDS,
        "figures": [
            _summarize_measurement(*each) for each in zip(figures, iters, pairs, strict=True)
        ],
    }


def has_performance_loss(compared: dict[str, Any]) -> bool:
    """Whether at least one figure has the verdict ``loss``."""
    return any(each["verdict"] == "loss" for each in compared["figures"])


def _explanatory_notes(compared: dict[str, Any]) -> list[str]:
    rounds = compared["rounds"]
    notes = [
        f"{rounds} rounds, both programs alternately; medians; ratio: this / other per round. "
        "Loss: the complete interval is beyond the limit"
    ]
    if any(each["verdict"] == "open" for each in compared["figures"]):
        notes.append("open: the interval contains the limit; more rounds make it narrower")
    if rounds < ROUNDS:
        confidence = compared["figures"][0]["confidence"]
        sure = "" if confidence >= CONFIDENCE else f" and hold the ratio with {confidence:.0%} only"
        notes.append(f"a trial: with {rounds} rounds the intervals are wide{sure}; use {ROUNDS}")
    return notes


def show_comparison(compared: dict[str, Any]) -> None:
    """Print a line for each figure, and explain the numbers."""
    rows = []
    for each in compared["figures"]:
        sign = 1 if each["less_is_better"] else -1
        rows.append(
            (
                each["name"],
                each["verdict"],
                f"{each['ratio']:.3f}",
                f"{each['low']:.3f} to {each['high']:.3f}",
                f"{1 + sign * each['limit']:.2f}",
                format_value_with_unit(each["other"], each["unit"]),
                format_value_with_unit(each["this"], each["unit"]),
            )
        )
    styles = {"no loss": "green", "open": "yellow", "loss": "bold red"}
    show.print_line(f"other: {compared['other']}")
    show.print_table(
        ("what", "verdict", "ratio", "95% interval", "limit", "other", "this"),
        rows,
        right=(2, 3, 4, 5, 6),
        styles=[styles[each["verdict"]] for each in compared["figures"]],
    )
    for note in _explanatory_notes(compared):
        show.print_line(note)
