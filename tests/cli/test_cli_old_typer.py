"""Parameters of commands as typer 0.7 understands them; `make deb` runs the commands with it."""

from __future__ import annotations

from typing import Annotated, Optional

import typer
from typer.models import ArgumentInfo, OptionInfo

from siwarp.cli.old_typer import _parameters_of


def typer_command_doing_nothing(
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
    size: Annotated[int, typer.Option("--size", "-s", min=1)] = 64,
    path: str | None = typer.Option(None, "--path"),
) -> None:
    """Do nothing."""


def test_annotations_become_defaults_that_an_old_typer_understands() -> None:
    found = _parameters_of(typer_command_doing_nothing)
    assert list(found) == ["name", "size", "path"]
    name, size, path = found.values()
    assert name.annotation == Optional[str]  # noqa: UP045
    assert isinstance(name.default, ArgumentInfo)
    assert (name.default.default, name.default.metavar) == (None, "NAME")
    assert size.annotation is int
    assert isinstance(size.default, OptionInfo)
    assert (size.default.default, size.default.param_decls) == (64, ("--size", "-s"))
    assert path.annotation == Optional[str]  # noqa: UP045
    assert path.default.param_decls == ("--path",)
