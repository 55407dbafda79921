# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Command-line options that were removed: refused, with the replacement to type."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["declare_removed_option"]


def declare_removed_option(option: str, instead: str, *, flag: bool = False) -> Any:
    """Return a hidden option of typer whose use is refused with the sentence ``instead``.

    The type of the option is ``bool`` if ``flag``, otherwise ``str``.
    """

    def refuse_value(value: object) -> object:
        if value:
            raise typer.BadParameter(f"this option was removed: {instead}")
        return value

    return typer.Option(False if flag else "", option, hidden=True, callback=refuse_value)
