# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The command line of ``python -m lab.wan``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from lab import command
from lab.wan import flows as shared
from lab.wan import matrix as bottlenecks
from siwarp.bench.cli import exit_with_message_on_bench_error
from siwarp.cli.wan import check_link_fault_plan

app = command.create_study_application()


@app.command()
def main(
    flows: str = typer.Option("rd,tcp", "--flows", help="rd, tcp, or both separated by a comma."),
    seconds: float | None = typer.Option(
        None, "--seconds", min=1, max=600, help="Duration in seconds: 60, in a matrix 3."
    ),
    faults: str = typer.Option(
        "rate=50Mbit,delay=20ms",
        "--faults",
        metavar="PLAN",
        help="Fault plan of the link; see siwarp wan.",
    ),
    congestion: str = typer.Option(
        "", "--tcp", metavar="NAME", help="TCP's congestion control; default: the kernel's."
    ),
    matrix: bool = typer.Option(
        False, "--matrix", help="Bottlenecks of many rates, queues and round trips. Needs root."
    ),
    cells: str = typer.Option(
        "",
        "--cells",
        metavar="NAMES",
        help="Only these cells of the matrix, for example 20M/15000/4ms; or short.",
    ),
    results: str = typer.Option(
        "",
        "--results",
        metavar="FILE",
        help="File for the results; an interrupted run continues from it.",
    ),
    as_json: bool = command.AS_JSON,
) -> None:
    """Reliable datagrams and a kernel TCP flow on one link with faults: the share of each flow.

    With --matrix each cell has a rate, a queue and a round trip time, and runs of RD alone, of the
    kernel's CUBIC and BBR alone, of two CUBIC flows, of RD together with CUBIC, and of two RD
    flows.
    """
    if matrix:
        _measure_bottleneck_matrix(cells, seconds or 3.0, results, as_json=as_json)
        return
    seconds = seconds or 60.0
    kinds = tuple(flows.split(","))
    if len(set(kinds)) < len(kinds) or set(kinds) - {"rd", "tcp"}:
        raise typer.BadParameter("rd, tcp, or rd,tcp", param_hint="--flows")
    check_link_fault_plan(faults)
    with exit_with_message_on_bench_error("lab wan"):
        found = shared.measure_flows(kinds, seconds, faults, congestion)
    if not as_json:
        print(f"{faults}, {seconds:g} s; the kernel's TCP has {found['congestion_control']}")
    command.output_results(found, _print_flows, as_json=as_json)


def _print_flows(found: dict[str, Any]) -> None:
    for kind, flow in found["flows"].items():
        print(
            f"  {kind}  {flow['mbit_s']:8.2f} Mbit/s   {flow['share']:.2f} of both   "
            f"{_draw_throughput(flow['steps'])}"
        )


def _measure_bottleneck_matrix(cells: str, seconds: float, results: str, *, as_json: bool) -> None:
    names = bottlenecks.parse_case_selection(cells)
    if names is None:
        raise typer.BadParameter(f"of {', '.join(bottlenecks.CELLS)}", param_hint="--cells")

    def print_progress(done: int, total: int, what: str) -> None:
        print(f"{done + 1} of {total}: {what}", file=sys.stderr, flush=True)

    with exit_with_message_on_bench_error("lab wan"):
        found = bottlenecks.measure_bottleneck_cases(
            names, seconds, Path(results) if results else None, progress=print_progress
        )
    if as_json:
        command.output_results(
            bottlenecks.add_promise_verdicts_to_results(found), print, as_json=True
        )
    else:
        print(*bottlenecks.format_result_table_lines(found), sep="\n")
    if not bottlenecks.all_performance_promises_kept(found):
        raise typer.Exit(1)


#: Bars of eight heights, for a string that shows the throughput of a flow over time.
_BARS = " ▁▂▃▄▅▆▇█"
_SPARK = 60


def _draw_throughput(steps: list[int]) -> str:
    """Return octets per step as a string of at most _SPARK bars; the highest bar is full."""
    width = -(-len(steps) // _SPARK)
    sums = [sum(steps[i : i + width]) for i in range(0, len(steps) - width + 1, width)]
    most = max([*sums, 1])
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // most)] for value in sums)


if __name__ == "__main__":
    command.run_study(app, "wan")
