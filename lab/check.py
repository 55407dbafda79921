# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m lab.check``: ratios to the raw socket compared with reference ratios in a file.

A rate depends on the machine, but a ratio hardly does, so that a regression is detected even if no
older build is available for comparison. Only a complete and reliable measurement without a loss
is a pass: see ``reasons_why_check_fails``.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lab import command
from lab.console import fixed_width_console
from siwarp.bench.cli import exit_with_message_on_bench_error, show_progress_bar
from siwarp.bench.compare import ComparedFigure, Interval, ratio_interval, verdict_of_measurement
from siwarp.bench.runner import BenchError, Progress, run
from siwarp.bench.table import MIB
from siwarp.bench.trust import LEAST_FLOOR_ROUNDS, floor_spread_warning

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "CHECKED",
    "RATIOS",
    "ROUNDS",
    "CheckedRatio",
    "measure_and_check_ratios",
    "print_ratios",
    "read_reference_ratios",
    "reasons_why_check_fails",
    "write_reference_ratios",
]

#: The reference ratios of this checkout.
RATIOS = str(Path(__file__).with_name("ratios.json"))
#: Rounds of each measurement: the least number from which the spread of a raw socket's rounds can
#: be judged.
ROUNDS = LEAST_FLOOR_ROUNDS
#: A ratio that is worse than its reference by more than this fraction is a loss. Ratios measured on
#: machines of one kind, or on one machine on different days, differ by less.
LIMIT = 0.2


@dataclass(frozen=True)
class CheckedRatio:
    """One ratio to check: the name, and the arguments of ``siwarp.bench.run`` that measure it."""

    name: str
    arguments: dict[str, Any]

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller ratio is better, which is so for a ratio of latencies."""
        return bool(self.arguments["kind"] == "lat")


def _define_message_rate_ratio(qp: str, words: str, **more: Any) -> CheckedRatio:
    return CheckedRatio(
        f"{qp.upper()} 64 B {words}", {"kind": "rate", "qp": qp, "size": 64, **more}
    )


CHECKED: tuple[CheckedRatio, ...] = (
    *(
        CheckedRatio(f"{qp.upper()} 64 B latency", {"kind": "lat", "qp": qp, "size": 64})
        for qp in ("ud", "rc")
    ),
    *(_define_message_rate_ratio(qp, "one by one") for qp in ("ud", "uc", "rd", "rc")),
    *(
        _define_message_rate_ratio(qp, "in lists of 32", post_list=32)
        for qp in ("ud", "uc", "rd", "rc")
    ),
    _define_message_rate_ratio("rc", "Writes one by one", op="write", depth=128),
    CheckedRatio("RC Write 1 MiB", {"kind": "bw", "qp": "rc", "op": "write", "size": MIB}),
    CheckedRatio("RD 1 MiB", {"kind": "bw", "qp": "rd", "size": MIB}),
)


def read_reference_ratios(path: Path) -> dict[str, float]:
    """Return the reference ratios that a file contains, by name.

    Raises:
        BenchError: the file has no ratios; the text says which command writes it.

    """
    try:
        found = json.loads(path.read_text("utf-8"))["ratios"]
        return {str(name): float(ratio) for name, ratio in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it has none"
        raise BenchError(
            f"no ratios in {path} ({why}): run make bench-check ARGS=--write on a quiet machine"
        ) from None


def measure_and_check_ratios(
    ratios: dict[str, float],
    rounds: int,
    progress: Progress | None = None,
    checked: Sequence[CheckedRatio] = CHECKED,
    run: Callable[..., dict[str, Any]] = run,
) -> list[dict[str, Any]]:
    """Measure each ratio, siwarp and the raw socket alternately, and compare it with its reference.

    Args:
        ratios: the reference ratios, by name; a ratio without a reference gets no verdict.
        rounds: number of rounds per ratio; at least six, for a 95% interval.
        progress: called with the work done so far, and the total.
        checked: the ratios to measure.
        run: ``siwarp.bench.run``.

    Returns:
        For each ratio ``name``, ``less_is_better``, ``kept`` (the reference; None: no reference),
        ``ratio``, ``low``, ``high``, ``verdict`` (``loss``, ``no loss``, ``open``, or ``new``),
        ``partial`` (why rounds or messages are missing, otherwise empty) and ``unreliable`` (why
        the floor does not tell, otherwise empty).

    Raises:
        BenchError: a run failed.

    """
    found = []
    for i, one in enumerate(checked):

        def report_progress(done: int, total: int, i: int = i) -> None:
            if progress is not None:
                progress(i * 100 + done * 100 // total, 100 * len(checked))

        measured = run(**one.arguments, rounds=rounds, others=False, progress=report_progress)
        pairs = [(each["ours"], each["floor"]) for each in measured["rounds"]]
        found.append(
            _compare_with_reference(one, ratios.get(one.name), ratio_interval(pairs))
            | {
                "partial": measured["partial"],
                "unreliable": floor_spread_warning([each["floor"] for each in measured["rounds"]]),
            }
        )
    return found


def _compare_with_reference(
    one: CheckedRatio, before: float | None, now: Interval
) -> dict[str, Any]:
    word = "new"
    if before is not None:
        change = Interval(now.ratio / before, now.low / before, now.high / before, now.confidence)
        word = verdict_of_measurement(
            ComparedFigure(one.name, (), "", one.less_is_better, LIMIT, 1), change
        )
    return {
        "name": one.name,
        "less_is_better": one.less_is_better,
        "kept": before,
        "ratio": now.ratio,
        "low": now.low,
        "high": now.high,
        "verdict": word,
    }


def reasons_why_check_fails(found: list[dict[str, Any]]) -> list[str]:
    """Return why the ratios are not a pass: a line for each loss, partial or unreliable result."""
    reasons = []
    for each in found:
        if each["verdict"] == "loss":
            now, before = f"{each['ratio']:.2f}", f"{each['kept']:.2f}"
            reasons.append(f"{each['name']}: loss: the ratio is {now}, its reference {before}")
        for word in ("partial", "unreliable"):
            if each[word]:
                reasons.append(f"{each['name']}: {word}: {each[word]}")
    return reasons


def write_reference_ratios(found: list[dict[str, Any]], path: Path) -> None:
    """Write the measured ratios to a file as references, with a description of the machine."""
    machine = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release()}
    ratios = {each["name"]: round(each["ratio"], 3) for each in found}
    path.write_text(json.dumps({"machine": machine, "ratios": ratios}, indent=2) + "\n", "utf-8")


def print_ratios(found: list[dict[str, Any]], console: Console | None = None) -> None:
    """Print a line for each checked ratio, and explain the verdicts."""
    from rich.table import Table

    console = fixed_width_console(console, 100)
    shown = Table(header_style="bold", border_style="dim")
    for column in ("what", "kept", "now", "95% interval", "verdict"):
        shown.add_column(column, justify="left" if column in ("what", "verdict") else "right")
    styles = {"no loss": "green", "open": "yellow", "new": "yellow", "loss": "bold red"}
    for each in found:
        before = "-" if each["kept"] is None else f"{each['kept']:.2f}"
        interval = f"{each['low']:.2f} to {each['high']:.2f}"
        word = f"[{styles[each['verdict']]}]{each['verdict']}[/]"
        shown.add_row(each["name"], before, f"{each['ratio']:.2f}", interval, word)
    console.print(shown)
    console.print(
        "ratios to a raw socket; loss: the complete interval is worse than the reference by more "
        f"than {LIMIT:.0%}; open: only a part of the interval is; latency: less is better",
        soft_wrap=True,
    )
    reasons = reasons_why_check_fails(found)
    for reason in reasons:
        console.print(reason, soft_wrap=True)
    console.print("not a pass" if reasons else "passed", soft_wrap=True)
    if any(each["partial"] or each["unreliable"] for each in found):
        console.print("quit other programs, then measure again", soft_wrap=True)


app = command.create_study_application()


@app.command()
def main(
    file: str = typer.Argument(RATIOS, help="File with the reference ratios."),
    rounds: int = typer.Option(
        ROUNDS, "--rounds", min=6, help="Number of rounds; each measures siwarp and the raw socket."
    ),
    to_write: bool = typer.Option(
        False, "--write", help="Write the ratios to the file as references instead."
    ),
    only: str = typer.Option("", "--only", help="Only ratios whose name contains this text."),
    as_json: bool = command.AS_JSON,
) -> None:
    """Compare ratios to the raw socket with references in a file.

    Exit status 1 after a loss, and also if a result is partial or unreliable: with less than 20
    rounds, or if the interquartile range of a raw socket's rounds exceeds 15% of their median.
    """
    checked = [one for one in CHECKED if only.lower() in one.name.lower()]
    if not checked:
        raise typer.BadParameter(f"no ratio has {only!r} in its name: omit --only to see all")
    if to_write and only:
        raise typer.BadParameter("--write needs all ratios: leave out --only or --write")
    with exit_with_message_on_bench_error("lab check"):
        ratios = {} if to_write else read_reference_ratios(Path(file))
        with show_progress_bar("the ratios") as progress:
            found = measure_and_check_ratios(ratios, rounds, progress, checked)
    reasons = reasons_why_check_fails(found)
    if to_write and not reasons:
        write_reference_ratios(found, Path(file))
    command.output_results(found, print_ratios, as_json=as_json)
    if to_write and reasons:
        typer.echo(f"lab check: {file} was not written", err=True)
    raise typer.Exit(1 if reasons else 0)


if __name__ == "__main__":
    command.run_study(app, "check")
