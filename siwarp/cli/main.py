# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The command ``siwarp``: the settings before its subcommands, and what its errors look like."""

from __future__ import annotations

import gc
import importlib
import os
import sys

from siwarp.base.output import unbroken

__all__ = ["main"]


class UsageError(Exception):
    """The command line is wrong; the text says how."""


def take_settings(arguments: list[str]) -> list[str]:
    """Apply the settings at the head of the arguments, and return the other arguments.

    They go into the environment too, for the processes that a command starts.
    """
    rest = list(arguments)
    if not rest or not rest[0].startswith("--"):
        return rest
    from siwarp.cli.settings import settings

    table = {setting.option: setting for setting in settings()}
    while rest:
        option, equals, value = rest[0].partition("=")
        if option not in table:
            break
        rest.pop(0)
        if not equals:
            if not rest:
                raise UsageError(f"{option} needs a value")
            value = rest.pop(0)
        setting = table[option]
        if not setting.set(value):
            raise UsageError(
                f"{option} {value}: not a value from {setting.minimum} to {setting.maximum} "
                f"({setting.help})"
            )
        os.environ[setting.variable] = value
    return rest


#: What needs no typer: where it is.
_ALONE = {
    "run": "siwarp.cli.run",
    "env": "siwarp.cli.run",
    "config": "siwarp.cli.config",
    "-V": "siwarp.cli.version",
    "--version": "siwarp.cli.version",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status: 141 if its output is not read to the end.

    ``arguments``: those of the command line if None; this process is for the command alone then.
    """
    if arguments is None:
        # What imports make lives until the process ends. A fifth of the time that a short command
        # takes would go to the garbage collector, which finds nothing in it.
        gc.disable()
    return unbroken(lambda: _run(arguments))


def _imported() -> None:
    """Have the garbage collector work again, and leave out what the imports made."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _run(arguments: list[str] | None) -> int:
    try:
        rest = take_settings(sys.argv[1:] if arguments is None else arguments)
        alone = _ALONE.get(rest[0]) if rest else None
        if alone is not None:
            run = importlib.import_module(alone).main
            _imported()
            status: int = run(rest[0], rest[1:])
            return status
        from siwarp.cli.app import build_app

        wanted = next((word for word in rest if not word.startswith("-")), None)
        app = build_app(wanted)
        _imported()
        return int(app(args=rest, prog_name="siwarp", standalone_mode=True) or 0)
    except UsageError as e:
        print(f"siwarp: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except OSError as e:  # siwarp.Error among them: its message says what to do
        where = f"{e.filename}: " if e.filename is not None and e.strerror else ""
        print(f"siwarp: {where}{e.strerror or e}", file=sys.stderr)
        return 1
