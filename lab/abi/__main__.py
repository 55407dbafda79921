# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The command line of ``python -m lab.abi``."""

from __future__ import annotations

from typing import Any

import typer

from lab import command
from lab.abi import programs, translation
from siwarp.bench.cli import exit_with_message_on_bench_error, show_progress_bar
from siwarp.bench.runner import Progress

PARTS = ("programs", "translation")

app = command.create_study_application()


def _measure_programs(only: str, rounds: int, progress: Progress | None) -> list[dict[str, Any]]:
    rows = [row for row in programs.ROWS if only.lower() in row.name.lower()]
    if not rows:
        raise typer.BadParameter(f"no row has {only!r} in its name: omit --only to print the names")
    for program in programs.missing_programs(rows):
        package = programs.PACKAGES[program]
        typer.echo(f"lab abi: {program} is missing: install the package {package}", err=True)
    return programs.measure_rows(rows, rounds, progress)


def _print_results(found: dict[str, Any]) -> None:
    if "programs" in found:
        programs.print_table(found["programs"])
    if "translation" in found:
        translation.print_abi_translation_cycles(found["translation"])


def _all_performance_promises_kept(found: dict[str, Any]) -> bool:
    measured = [row["measured"] for row in found.get("programs", ())]
    judged = [*measured, *found.get("translation", {}).values()]
    return all(of is not None and of["kept"] for of in judged)


@app.command()
def main(
    parts: str = typer.Option(",".join(PARTS), "--part", help=command.PARTS_HELP),
    rounds: int = typer.Option(7, "--rounds", min=1, help="Number of rounds."),
    only: str = typer.Option(
        "", "--only", help="programs: only rows whose name contains this text."
    ),
    output: str = command.OUTPUT,
    as_json: bool = command.AS_JSON,
) -> None:
    """Measure unmodified programs on siwarp's libibverbs.so.1, and the cost of that library.

    Part programs: the performance of perftest and UCX, compared with raw sockets, siwarp's own
    benchmark, and UCX's transport tcp. Part translation: cycles that libibverbs.so.1 adds to a post
    or a poll.

    Exit status 1 if a promise is not kept or could not be measured.
    """
    wanted = command.parse_names(parts, PARTS, "--part")
    found: dict[str, Any] = {}
    with exit_with_message_on_bench_error("lab abi"):
        if "programs" in wanted:
            with show_progress_bar("programs on siwarp") as progress:
                found["programs"] = _measure_programs(only, rounds, progress)
        if "translation" in wanted:
            found["translation"] = translation.measure_abi_translation(rounds)
    command.output_results(found, _print_results, as_json=as_json, output=output)
    raise typer.Exit(0 if _all_performance_promises_kept(found) else 1)


if __name__ == "__main__":
    command.run_study(app, "abi")
