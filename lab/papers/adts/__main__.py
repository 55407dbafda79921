# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The command line of ``python -m lab.papers.adts``."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from lab import command
from lab.doubts import cpu_load_warning
from lab.papers.adts import figures, immediate, musts, outside
from lab.papers.adts.lines import KINDS
from lab.papers.adts.page import make_page
from lab.papers.adts.report import print_results
from lab.papers.adts.summary import Log, find_spreads
from siwarp.bench.machine import describe_machine
from siwarp.bench.runner import BenchError
from siwarp.bench.sizes import parse_octet_count

#: Octets of the file on a line by its delay in ms: on a long line, the first seconds, in which the
#: rate grows, must be a small part of the time. TCP with CUBIC takes long on a lossy line, and has
#: a smaller file there; on a long line it begins fast, until several packets are lost.
LINE_SIZES = {13: 32 << 20, 81: 96 << 20}
LOSSY_SIZES = {13: 8 << 20, 81: 32 << 20}
#: Seconds for which two flows share a line.
SHARE_S = 30
#: Octets of the trace.
TRACE = 128 << 20

Part = Callable[[], dict[str, Any]]


def _make_parts(rounds: int, octets: int, scale: float, log: Log) -> dict[str, Part]:
    """Return the parts of the study by name; ``scale`` multiplies sizes and numbers on lines."""

    def scaled(number: int) -> int:
        return max(1, int(number * scale))

    parts: dict[str, Part] = {"lan": lambda: musts.measure_lan(octets, rounds, log)}
    parts["outside"] = lambda: outside.measure_outside(octets, rounds, log)
    for kind in KINDS:
        for shape in (*musts.LOSSY, *musts.CLEAN):
            delay = int(shape.delay_ms)
            sizes = dict.fromkeys(("rd", "cubic", "bbr"), scaled(LINE_SIZES[delay]))
            if shape.loss:
                sizes["cubic"] = scaled(LOSSY_SIZES[delay])
                if delay == 81:
                    del sizes["bbr"]  # for the time that CUBIC takes
            word = "lossy" if shape.loss else "clean"
            parts[f"{kind}-{word}-{shape.delay_ms:g}ms"] = (
                lambda kind=kind, shape=shape, sizes=sizes: musts.measure_line(  # type: ignore[misc]
                    kind, shape, sizes, rounds, log
                )
            )
        for shape in musts.CLEAN:
            parts[f"{kind}-share-{shape.delay_ms:g}ms"] = lambda kind=kind, shape=shape: (
                musts.measure_share(  # type: ignore[misc]
                    kind, shape, SHARE_S * scale, rounds, log
                )
            )
    parts["small"] = lambda: musts.measure_small(
        scaled(1000), scaled(100), rounds, ("rd", "tcp"), log
    )
    parts["put-size"] = lambda: figures.measure_sizes("put", rounds, scale, log)
    parts["get-size"] = lambda: figures.measure_sizes("get", rounds, scale, log)
    for size in (32, 256):
        parts[f"get-delay-{size}"] = lambda size=size: figures.measure_delays(  # type: ignore[misc]
            size, rounds, scale, log
        )
    for delay in (0, 1, 10):
        parts[f"put-unit-{delay}ms"] = lambda delay=delay: figures.measure_units(  # type: ignore[misc]
            delay, rounds, scale, log
        )
    parts["features"] = lambda: figures.measure_features(rounds, scale, log)
    parts["trace"] = lambda: figures.measure_trace(TRACE, rounds, scale, log)
    parts["immediate"] = lambda: immediate.measure_immediate(rounds, scale, log)
    parts["cpu"] = lambda: figures.measure_cpu(rounds, scale, log)
    return parts


def _measure(name: str, part: Part, scale: float, log: Log) -> dict[str, Any]:
    """Measure a part; return its results with the reasons to doubt them, or why it failed."""
    log.tell(name)
    log.doubts = []
    if scale < 1:
        log.doubt(f"a trial: sizes on lines and of figures are {scale:g} of those that are named")
    if warning := cpu_load_warning():
        log.doubt(warning)
    failed = ""
    measured: dict[str, Any] = {"line": "", "ratios": []}
    try:
        measured = part()
    except (BenchError, OSError) as e:
        failed = str(e)
        log.tell(f"failed: {failed}")
    return measured | {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "failed": failed,
        "unreliable": log.doubts + list(find_spreads(measured)),
    }


app = command.create_study_application()


@app.command()
def main(
    part: str = typer.Option("lan", "--part", help=f"{command.PARTS_HELP} all: every part."),
    rounds: int = typer.Option(5, "--rounds", min=1, help="Number of rounds."),
    size: str = typer.Option("256M", "-s", "--size", help="Octets of the file without delay."),
    scale: float = typer.Option(
        1.0, "--scale", min=0.001, max=1, help="Part of the usual sizes on lines, for a trial."
    ),
    results: str = typer.Option(
        "", "--results", metavar="FILE", help="File to which the results of the parts are added."
    ),
    page: str = typer.Option(
        "", "--page", metavar="FILE", help="Write the HTML page of the results; measure nothing."
    ),
    as_json: bool = command.AS_JSON,
) -> None:
    """The file transfer ADTS: promised figures, and the figures of the paper.

    Put and get without delay, lines with delay and loss, a TCP flow beside RD, and small files.
    Parts: lan, outside (vsftpd and curl) and small; for the lines of `siwarp wan` (wan) and of the
    kernel (kernel, as root) KIND-lossy-13ms, KIND-lossy-81ms, KIND-clean-13ms, KIND-clean-81ms,
    KIND-share-13ms and KIND-share-81ms; for the paper's figures put-size, get-size, get-delay-32,
    get-delay-256, put-unit-0ms, put-unit-1ms, put-unit-10ms, features, trace, cpu and immediate.
    Exit status 1 if a promised figure is missed, or a part failed.
    """
    try:
        octets = parse_octet_count(size)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--size") from None

    log = Log()
    parts = _make_parts(rounds, octets, scale, log)
    names = tuple(parts) if part == "all" else command.parse_names(part, tuple(parts), "--part")
    path = Path(results) if results else None
    kept = json.loads(path.read_text("utf-8")) if path is not None and path.exists() else {}
    if page:
        if not kept:
            raise typer.BadParameter("needs --results with measured parts", param_hint="--page")
        Path(page).write_text(make_page(kept, tuple(parts)), "utf-8")
        return
    found: dict[str, Any] = {}
    for name in names:
        found[name] = _measure(name, parts[name], scale, log)
        if path is not None:
            kept |= {"machine": describe_machine(), name: found[name]}
            path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    command.output_results(found, print_results, as_json=as_json)
    missed = any(ratio["met"] is False for each in found.values() for ratio in each["ratios"])
    if missed or any(each["failed"] for each in found.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    command.run_study(app, "papers.adts")
