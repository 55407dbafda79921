# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The command line of ``python -m lab.mpi``."""

from __future__ import annotations

import typer

from lab.command import (
    AS_JSON,
    OUTPUT,
    PARTS_HELP,
    create_study_application,
    parse_names,
    parse_numbers,
    run_study,
)
from lab.mpi import command, hybrid
from siwarp.bench.cli import show_progress_bar

app = create_study_application()


@app.command()
def main(
    parts: str = typer.Option(",".join(command.PARTS), "--part", help=PARTS_HELP),
    rounds: int = typer.Option(
        5, "--rounds", min=1, help="Number of rounds; each measures every transport."
    ),
    sizes: str = typer.Option(
        "", "--sizes", metavar="OCTETS", help="Message sizes, separated by commas."
    ),
    ranks: str = typer.Option(
        "",
        "--ranks",
        metavar="N",
        help="Numbers of ranks, separated by commas; wire always has two.",
    ),
    netif: str = typer.Option(
        "", "--netif", help="Network interface; default: the first that is up, except lo."
    ),
    limit: int = typer.Option(
        hybrid.LIMIT, "--limit", min=1, max=256, help="hybrid: maximum RC connections of a rank."
    ),
    mpich: str = typer.Option(
        "",
        "--mpich",
        metavar="FOLDER",
        help="Folder of an MPICH with bin/mpicc; default: the one of this Python.",
    ),
    output: str = OUTPUT,
    as_json: bool = AS_JSON,
) -> None:
    """MPICH over siwarp's UD and RC, and over its own TCP, alternately; needs PyPI's mpich.

    Part hybrid measures a channel of siwarp's own, and needs no MPICH.

    Exit status 1 if a promise is missed or could not be shown.
    """
    wanted = parse_names(parts, command.PARTS, "--part")
    octets = parse_numbers(sizes, 8, 1 << 30)
    if octets is None:
        raise typer.BadParameter(
            "give octets from 8 to 2**30, separated by commas", param_hint="--sizes"
        )
    numbers = parse_numbers(ranks, 2, 256)
    if numbers is None:
        raise typer.BadParameter(
            "give ranks from 2 to 256, separated by commas", param_hint="--ranks"
        )
    with show_progress_bar("MPI") as progress:
        options = command.Options(wanted, rounds, octets, numbers, netif, mpich, limit, progress)
        status = command.run_study_parts(options, as_json=as_json, output=output)
    raise typer.Exit(status)


if __name__ == "__main__":
    run_study(app, "mpi")
