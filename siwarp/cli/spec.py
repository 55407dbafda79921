# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp spec``: the requirements of the specification of datagram-iWARP, and their tests."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from siwarp.cli import requirements, show

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Print the requirements of siwarp's own specification."
)


@app.callback()
def _group_help() -> None:
    """Print the requirements of siwarp's own specification."""


@app.command()
def dgram(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Print the specification itself.")] = False,
) -> None:
    """Print the requirements of datagram-iWARP, each with the tests that verify it."""
    if text:
        print(requirements.specification_text(), end="")
        return
    found = requirements.parse_requirements(requirements.specification_text())
    if as_json:
        show.print_json([asdict(requirement) for requirement in found])
        return
    if show.is_terminal_output():
        rows = [(r.id, r.level, r.text, "\n".join(map(_short_test_id, r.tests))) for r in found]
        show.print_table(("requirement", "level", "text", "shown by"), rows)
    else:
        for r in found:
            print(f"{r.id} {r.level}: {r.text} [{' '.join(r.tests)}]")
    print(f"{len(found)} requirements, {sum(bool(r.tests) for r in found)} shown by a test")


def _short_test_id(test: str) -> str:
    """Return the test's file name without folders, and the test's name."""
    file, _, name = test.partition("::")
    return f"{file.rpartition('/')[2]}::{name}"
