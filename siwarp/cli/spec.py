# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp spec``: the requirements of siwarp's own specifications, and their tests."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from siwarp.base import show
from siwarp.cli import requirements
from siwarp.cli.requirements import SPECIFICATIONS, Specification

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Print the requirements of siwarp's own specifications."
)

_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Text = Annotated[bool, typer.Option("--text", help="Print the specification itself.")]


@app.callback()
def _group_help() -> None:
    """Print the requirements of siwarp's own specifications."""


@app.command("dgram")
def print_datagram_requirements(as_json: _AsJson = False, text: _Text = False) -> None:
    """Print the requirements of datagram-iWARP, each with the tests that verify it."""
    _print_protocol_specification(SPECIFICATIONS["dgram"], as_json, text)


@app.command("adts")
def print_adts_requirements(as_json: _AsJson = False, text: _Text = False) -> None:
    """Print the requirements of ADTS (file transfer), each with the tests that verify it."""
    _print_protocol_specification(SPECIFICATIONS["adts"], as_json, text)


def _print_protocol_specification(specification: Specification, as_json: bool, text: bool) -> None:
    markdown = requirements.specification_text(specification)
    if text:
        print(markdown, end="")
        return
    found = requirements.parse_requirements(markdown)
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
