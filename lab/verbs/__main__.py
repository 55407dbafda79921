# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The command line of ``python -m lab.verbs``."""

from __future__ import annotations

from functools import partial
from typing import Any

import typer

from lab import command
from lab.verbs import personas, runs
from siwarp.bench import table
from siwarp.bench.cli import show_progress_bar

#: The figures with limits that `make bench` does not measure.
PROMISED: tuple[table.Row, ...] = (
    table.Row(
        "Write into a process that stopped polling: extra delay",
        "-",
        5000,
        1200,
        True,
        {"kind": "onesided"},
    ),
    *(
        table.Row(
            f"{qp.upper()} round trip of a quiet QP during a flood",
            "without the flood",
            10,
            5,
            True,
            {"kind": "fair", "qp": qp},
        )
        for qp in ("ud", "rc")
    ),
    *(
        table.Row(
            f"RC connections, {depth} in flight: time of each",
            "raw TCP",
            2,
            1.5,
            True,
            {"kind": "connect", "depth": depth},
        )
        for depth in (1, 32)
    ),
    *(
        table.Row(
            f"{qp.upper()} 64 B latency with 10,000 idle QPs",
            "with one QP",
            1.10,
            1.03,
            True,
            {"kind": "crowd", "qp": qp},
        )
        for qp in ("ud", "rc", "rd")
    ),
    table.Row(
        "Write + Read of a QP while another CQ is polled: median and p99, two lanes",
        "one lane",
        1.10,
        1.0,
        True,
        {"kind": "lanes"},
    ),
    table.Row("register + deregister 1 GiB", "-", 10, 2, True, {"kind": "reg"}),
)
PARTS = ("promises", "personas")

app = command.create_study_application()


def _print_results(found: dict[str, Any]) -> None:
    if "promises" in found:
        table.show_table(found["promises"])
    if "personas" in found:
        personas.print_personas(found["personas"])


def _all_performance_promises_kept(found: dict[str, Any]) -> bool:
    kept = all(row["verdict"] != "missed" for row in found.get("promises", ()))
    return kept and all(row["error"] is None for row in found.get("personas", ()))


@app.command()
def main(
    parts: str = typer.Option(",".join(PARTS), "--part", help=command.PARTS_HELP),
    only: str = typer.Option("", "--only", help="Only rows whose name contains this text."),
    rounds: int = typer.Option(7, "--rounds", min=1, help="Number of rounds."),
    iters: int | None = typer.Option(None, "-n", "--iters", min=1, help="Messages of one run."),
    output: str = command.OUTPUT,
    as_json: bool = command.AS_JSON,
) -> None:
    """Figures of queue pairs that `siwarp bench` does not measure, and both personas of RC.

    Part promises: the delay of a Write into a process that does not poll, quiet queue pairs beside
    a flood, connections, 10,000 idle queue pairs, one-sided traffic of a lane that is not polled,
    and registration, each with its limit. Part personas: latency, bandwidth and rate of RC with
    persona iwarp and with persona roce.

    Exit status 1 if a promise is missed or a row failed.
    """
    wanted = command.parse_names(parts, PARTS, "--part")

    def select_rows(part: str, rows: tuple[Any, ...]) -> list[Any]:
        return [row for row in rows if part in wanted and only.lower() in row.name.lower()]

    promised = select_rows("promises", PROMISED)
    compared = select_rows("personas", personas.ROWS)
    if not promised and not compared:
        raise typer.BadParameter(f"no row has {only!r} in its name: omit --only to print the names")
    found: dict[str, Any] = {}
    with show_progress_bar("promises") as progress:
        if promised:
            run = partial(runs.measure_in_rounds, iters=iters)
            found["promises"] = table.measure_rows(promised, rounds, progress, run)
    with show_progress_bar("personas") as progress:
        if compared:
            found["personas"] = personas.measure_personas(compared, rounds, progress, iters)
    command.output_results(found, _print_results, as_json=as_json, output=output)
    raise typer.Exit(0 if _all_performance_promises_kept(found) else 1)


if __name__ == "__main__":
    command.run_study(app, "verbs")
