# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The list of commands in a group's ``--help``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["Group"]


class Group(TyperGroup):
    """A group of commands whose help shows each command's first paragraph untruncated."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the table of commands; the formatter breaks lines between words."""
        rows = [
            (name, " ".join((command.help or "").partition("\n\n")[0].split()))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
