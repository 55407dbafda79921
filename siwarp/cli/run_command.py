# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp run`` and ``siwarp env`` in the list of commands; ``run.py`` does what they do."""

from __future__ import annotations

from typing import Annotated

import typer

from siwarp.cli.run import main

_Words = Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS] [--] PROGRAM...")]


def run(words: _Words = None) -> None:
    """Run a program of libibverbs and librdmacm, with siwarp's devices as its adapters."""
    raise typer.Exit(main("run", words or []))


def env() -> None:
    """Print what `siwarp run` puts into the environment, for a shell."""
    raise typer.Exit(main("env", []))
