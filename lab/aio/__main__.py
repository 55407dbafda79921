# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The command line of ``python -m lab.aio``."""

from __future__ import annotations

import typer

from lab import command
from lab.aio import rates
from siwarp.bench.cli import exit_with_message_on_bench_error, show_progress_bar
from siwarp.bench.sizes import parse_octet_count

app = command.create_study_application()


@app.command()
def main(
    connections: str = typer.Option(
        ",".join(map(str, rates.CONNECTIONS)),
        "--connections",
        help="Numbers of connections, separated by commas.",
    ),
    size: str = typer.Option(
        "64", "-s", "--size", help="Octets of a message, for example 64 or 4K."
    ),
    rounds: int = typer.Option(7, "--rounds", min=1, help="Number of rounds."),
    output: str = command.OUTPUT,
    as_json: bool = command.AS_JSON,
) -> None:
    """Messages per second of siwarp.aio and of asyncio's own streams, in round trips."""
    numbers = command.parse_numbers(connections, 1, 10_000)
    if not numbers:
        raise typer.BadParameter(
            "give numbers from 1 to 10000, separated by commas", param_hint="--connections"
        )
    try:
        each = parse_octet_count(size)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--size") from None
    if each > 65536:
        raise typer.BadParameter("1 to 64K", param_hint="--size")
    with show_progress_bar("asyncio") as progress, exit_with_message_on_bench_error("lab aio"):
        found = rates.measure_rates(numbers, each, rounds, progress)
    command.output_results(found, rates.print_rates, as_json=as_json, output=output)


if __name__ == "__main__":
    command.run_study(app, "aio")
