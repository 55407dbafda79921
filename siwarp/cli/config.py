# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp config``: the settings, and the flags to build a C program with."""

from __future__ import annotations

from dataclasses import asdict

import typer

from siwarp.cli import show
from siwarp.cli.settings import settings


def config(
    cflags: bool = typer.Option(False, "--cflags", help="Print the compiler's flags."),
    libs: bool = typer.Option(False, "--libs", help="Print the linker's flags."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print the settings, or the flags to build a C program with.

    cc prog.c $(siwarp config --cflags --libs)
    """
    if cflags or libs:
        from siwarp import _paths

        wanted = ([_paths.cflags()] if cflags else []) + ([_paths.libs()] if libs else [])
        print(" ".join(wanted))
        return
    rows = settings()
    if as_json:
        show.data([asdict(row) for row in rows])
        return
    show.table(
        ("variable", "option", "value", "default", "from", "to", "what"),
        [
            (
                row.variable,
                row.option,
                str(row.value),
                str(row.default),
                str(row.minimum),
                str(row.maximum),
                row.help,
            )
            for row in rows
        ],
        right=(2, 3, 4, 5),
    )
    show.line("An option stands before the command: siwarp --crc 0 ping")
    show.line("SIWARP_CAPTURE=FILE writes a capture, as siwarp capture does.")
    show.line("SIWARP_FAULTS=PLAN has things go wrong on the way; siwarp wan --help has the plans.")
