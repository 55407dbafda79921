# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What needs no typer, in the list of commands: ``main.py`` calls it past these functions."""

from __future__ import annotations

from typing import Annotated

import typer

from siwarp.cli import config as config_alone
from siwarp.cli.run import main

_Words = Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS] [--] PROGRAM...")]


def run(words: _Words = None) -> None:
    """Run a program of libibverbs and librdmacm, with siwarp's devices as its adapters."""
    raise typer.Exit(main("run", words or []))


def env() -> None:
    """Print what `siwarp run` puts into the environment, for a shell."""
    raise typer.Exit(main("env", []))


def config() -> None:
    """Print the settings, or the flags to build a C program with."""
    raise typer.Exit(config_alone.main("config", []))
