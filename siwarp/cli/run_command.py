# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The commands that need no typer, for typer's list of commands; ``main.py`` runs them directly."""

from __future__ import annotations

from typing import Annotated

import typer

from siwarp.cli import config as config_alone
from siwarp.cli.run import main

_Words = Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS] [--] PROGRAM...")]


def run_program_command(words: _Words = None) -> None:
    """Run a program of libibverbs and librdmacm, with siwarp's devices as its adapters."""
    raise typer.Exit(main("run", words or []))


def print_environment_command() -> None:
    """Print the environment variables of `siwarp run` as shell commands."""
    raise typer.Exit(main("env", []))


def print_settings_command() -> None:
    """Print the settings, or the compiler and linker flags for a C program."""
    raise typer.Exit(config_alone.main("config", []))
