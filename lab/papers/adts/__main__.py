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
from lab.papers.adts import figures, immediate, promises, vsftpd
from lab.papers.adts.links import KINDS
from lab.papers.adts.page import make_page
from lab.papers.adts.report import print_results
from lab.papers.adts.summary import Log, find_spread_warnings
from lab.unreliable import cpu_load_warning
from siwarp.bench.machine import describe_machine
from siwarp.bench.runner import BenchError
from siwarp.bench.sizes import parse_octet_count

#: Octets of the copied file, by the link's delay in ms. On a link with a long delay, the first
#: seconds, in which the rate grows, must be a small part of the time. TCP with CUBIC is slow on a
#: link with losses, and therefore copies a smaller file there; with a long delay that file must be
#: larger, because CUBIC is fast until it has lost several packets.
LINK_FILE_SIZES = {13: 32 << 20, 81: 96 << 20}
LOSSY_LINK_FILE_SIZES = {13: 8 << 20, 81: 32 << 20}
#: Seconds for which the rates of two flows that share a link are measured.
SHARE_S = 30
#: Total octets of the files of the Zipf trace.
TRACE = 128 << 20

Part = Callable[[], dict[str, Any]]


def _define_parts_of_study(rounds: int, octets: int, scale: float, log: Log) -> dict[str, Part]:
    """Return the parts of the study by name; ``scale`` multiplies sizes and counts of files."""

    def scale_number(number: int) -> int:
        return max(1, int(number * scale))

    parts: dict[str, Part] = {
        "lan": lambda: promises.measure_file_transfers_over_loopback(octets, rounds, log)
    }
    parts["outside"] = lambda: vsftpd.measure_vsftpd_and_curl(octets, rounds, log)
    for kind in KINDS:
        for shape in (*promises.LOSSY, *promises.CLEAN):
            delay = int(shape.delay_ms)
            sizes = dict.fromkeys(("rd", "cubic", "bbr"), scale_number(LINK_FILE_SIZES[delay]))
            if shape.loss:
                sizes["cubic"] = scale_number(LOSSY_LINK_FILE_SIZES[delay])
                if delay == 81:
                    del sizes["bbr"]  # to save time: the copy with CUBIC takes long on this link
            word = "lossy" if shape.loss else "clean"
            parts[f"{kind}-{word}-{shape.delay_ms:g}ms"] = (
                lambda kind=kind, shape=shape, sizes=sizes: promises.measure_put_over_link(  # type: ignore[misc]
                    kind, shape, sizes, rounds, log
                )
            )
        for shape in promises.CLEAN:
            parts[f"{kind}-share-{shape.delay_ms:g}ms"] = lambda kind=kind, shape=shape: (
                promises.measure_bandwidth_share(  # type: ignore[misc]
                    kind, shape, SHARE_S * scale, rounds, log
                )
            )
    parts["small"] = lambda: promises.measure_small_files(
        scale_number(1000), scale_number(100), rounds, ("rd", "tcp"), log
    )
    parts["put-size"] = lambda: figures.measure_copy_seconds_by_file_size("put", rounds, scale, log)
    parts["get-size"] = lambda: figures.measure_copy_seconds_by_file_size("get", rounds, scale, log)
    for size in (32, 256):
        parts[f"get-delay-{size}"] = lambda size=size: figures.measure_rates_by_link_delay(  # type: ignore[misc]
            size, rounds, scale, log
        )
    for delay in (0, 1, 10):
        parts[f"put-unit-{delay}ms"] = lambda delay=delay: figures.measure_put_rate_by_unit_size(  # type: ignore[misc]
            delay, rounds, scale, log
        )
    parts["features"] = lambda: figures.measure_basic_and_optimized_sessions(rounds, scale, log)
    parts["trace"] = lambda: figures.measure_copying_of_trace_files(TRACE, rounds, scale, log)
    parts["immediate"] = lambda: immediate.measure_writes_with_immediate(rounds, scale, log)
    parts["cpu"] = lambda: figures.measure_cpu_time_by_file_size(rounds, scale, log)
    return parts


def _measure_part_of_study(name: str, part: Part, scale: float, log: Log) -> dict[str, Any]:
    """Measure a part; return its results, and warnings about them or the reason of a failure."""
    log.print_progress(name)
    log.warnings = []
    if scale < 1:
        log.add_warning(f"a trial: files are smaller than named, by a factor of {scale:g}")
    if warning := cpu_load_warning():
        log.add_warning(warning)
    failed = ""
    measured: dict[str, Any] = {"line": "", "ratios": []}
    try:
        measured = part()
    except (BenchError, OSError) as e:
        failed = str(e)
        log.print_progress(f"failed: {failed}")
    return measured | {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "failed": failed,
        "unreliable": log.warnings + list(find_spread_warnings(measured)),
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
    parts = _define_parts_of_study(rounds, octets, scale, log)
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
        found[name] = _measure_part_of_study(name, parts[name], scale, log)
        if path is not None:
            kept |= {"machine": describe_machine(), name: found[name]}
            path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    command.output_results(found, print_results, as_json=as_json)
    missed = any(ratio["met"] is False for each in found.values() for ratio in each["ratios"])
    if missed or any(each["failed"] for each in found.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    command.run_study(app, "papers.adts")
