# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The console on which studies print their tables."""

from __future__ import annotations

from rich.console import Console

__all__ = ["fixed_width_console"]


def fixed_width_console(console: Console | None, width: int) -> Console:
    """Return ``console`` or a new one; its width is fixed if it is not a terminal."""
    console = console or Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, width=width, file=console.file)
