# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The common part of the command lines of all studies: options, output, and signals."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from siwarp.bench.cli import exit_on_signal

__all__ = [
    "AS_JSON",
    "OUTPUT",
    "PARTS_HELP",
    "create_study_application",
    "output_results",
    "parse_names",
    "parse_numbers",
    "run_study",
]

#: The options ``--json`` and ``-o`` of a study.
AS_JSON = typer.Option(False, "--json", help="Print everything, each round too, as JSON.")
OUTPUT = typer.Option("", "-o", "--output", help="Also write everything to this file, as JSON.")
PARTS_HELP = "Parts to measure, separated by commas."


def create_study_application() -> typer.Typer:
    """Return the typer application of a study, to which ``@app.command()`` adds the command."""
    return typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


def run_study(app: typer.Typer, study: str) -> None:
    """Run the command ``python -m lab.STUDY``; SIGTERM also ends its processes."""
    signal.signal(signal.SIGTERM, exit_on_signal)
    app(prog_name=f"python -m lab.{study}")


def parse_names(words: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list.

    Raises:
        typer.BadParameter: a name is not one of ``known``.

    """
    names = tuple(words.split(","))
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(known)}", param_hint=option
        )
    return names


def parse_numbers(words: str, least: int, most: int) -> tuple[int, ...] | None:
    """Return the numbers in a comma-separated list, or None if a number is out of bounds."""
    said = words.split(",") if words else []
    if not all(word.isdecimal() and least <= int(word) <= most for word in said):
        return None
    return tuple(map(int, said))


def output_results(
    found: Any, show: Callable[[Any], None], *, as_json: bool, output: str = ""
) -> None:
    """Print results with ``show``, or as JSON, and write them to the file ``output`` if named."""
    text = json.dumps(found, indent=2)
    if output:
        Path(output).write_text(text + "\n", "utf-8")
    if as_json:
        print(text)
    else:
        show(found)
