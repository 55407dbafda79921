# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Adapts typer 0.7, which Debian 12 has, to the commands, which are written for newer versions."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer.core
import typer.main
from typer.models import OptionInfo, ParamMeta

__all__ = ["patch_old_typer"]


def patch_old_typer() -> None:
    """Let an old typer read Annotated and X | None, and print its messages without boxes.

    Call it before the modules of the commands are imported.
    """
    old: Any = typer
    if tuple(int(part) for part in old.__version__.split(".")[:2]) >= (0, 12):
        return
    old.core.rich = None
    old.main.get_params_from_function = _parameters_of
    old.Argument = _wrap_with_optional_default(old.Argument)
    old.Option = _wrap_with_optional_default(old.Option)


def _wrap_with_optional_default(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``make`` with an optional argument ``default``, as in newer versions of typer."""

    def make_with_optional_default(default: Any = ..., *names: str, **options: Any) -> Any:
        return make(default, *names, **options)

    return make_with_optional_default


def _parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters of a command in the form that typer 0.7 understands."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: _convert_parameter(parameter, hints.get(name, parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
    }


def _convert_parameter(parameter: inspect.Parameter, hint: Any) -> Any:
    default = parameter.default
    if get_origin(hint) is Annotated:
        hint, info = get_args(hint)[:2]
        info = copy.copy(info)
        if isinstance(info, OptionInfo) and isinstance(info.default, str):
            # In Annotated, the first argument of typer.Option is a name, not the default.
            info.param_decls = (info.default, *(info.param_decls or ()))
        # The help of typer 0.7 would show an Enum as CLASS.MEMBER, so pass the member's value.
        value = default.value if isinstance(default, Enum) else default
        info.default = ... if default is parameter.empty else value
        default = info
    if isinstance(hint, types.UnionType):
        hint = Union[get_args(hint)]  # noqa: UP007 (typer compares with this class)
    return ParamMeta(name=parameter.name, default=default, annotation=hint)
