# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The entry point of ``siwarp``: settings before the subcommand, and the format of its errors."""

from __future__ import annotations

import gc
import importlib
import os
import sys

from siwarp.base.output import run_with_closable_output, wrap_lines_of_stderr

__all__ = ["main"]


class UsageError(Exception):
    """The command line is wrong; the text says why."""


#: Commands and options that need no typer, and the modules that implement them.
_WITHOUT_TYPER = {
    "run": "siwarp.cli.run",
    "env": "siwarp.cli.run",
    "config": "siwarp.cli.config",
    "-V": "siwarp.cli.version",
    "--version": "siwarp.cli.version",
}


def apply_settings(arguments: list[str]) -> list[str]:
    """Apply the settings at the start of the arguments, and return the remaining arguments.

    The settings are also put into the environment, for the processes that a command starts.
    """
    rest = list(arguments)
    if not rest or not rest[0].startswith("--") or rest[0] in _WITHOUT_TYPER:
        return rest
    from siwarp.cli.settings import former_setting_advice, settings

    table = {setting.option: setting for setting in settings()}
    while rest:
        option, equals, value = rest[0].partition("=")
        if option not in table:
            if advice := former_setting_advice(option):
                raise UsageError(f"{option} is no longer a setting: {advice}")
            break
        rest.pop(0)
        if not equals:
            if not rest:
                raise UsageError(f"{option} needs a value")
            value = rest.pop(0)
        setting = table[option]
        if not setting.set(value):
            raise UsageError(
                f"{option} {value}: give a value from {setting.minimum} to {setting.maximum} "
                f"({setting.help})"
            )
        os.environ[setting.variable] = value
    return rest


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status: 141 if the reader of its output closed the pipe.

    ``arguments``: None for those of the command line; the process then runs only this command.
    """
    if arguments is None:
        # Objects that imports create live until the process ends. Collecting garbage among them
        # finds nothing, and would take a fifth of a short command's time.
        gc.disable()
        wrap_lines_of_stderr()
    return run_with_closable_output(lambda: _run_command(arguments))


def _enable_gc_after_imports() -> None:
    """Enable the garbage collector again, and exempt the objects that imports created."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _was_raised_during_interrupt(error: BaseException) -> bool:
    """Return whether an error was raised while a KeyboardInterrupt was handled.

    An object that was being created when Ctrl-C was pressed may keep its parent from closing.
    """
    context = error.__context__
    return context is not None and (
        isinstance(context, KeyboardInterrupt) or _was_raised_during_interrupt(context)
    )


def _run_command(arguments: list[str] | None) -> int:
    try:
        rest = apply_settings(sys.argv[1:] if arguments is None else arguments)
        alone = _WITHOUT_TYPER.get(rest[0]) if rest else None
        if alone is not None:
            run = importlib.import_module(alone).main
            _enable_gc_after_imports()
            status: int = run(rest[0], rest[1:])
            return status
        from siwarp.cli.app import build_app

        wanted = next((word for word in rest if not word.startswith("-")), None)
        app = build_app(wanted)
        _enable_gc_after_imports()
        return int(app(args=rest, prog_name="siwarp", standalone_mode=True) or 0)
    except UsageError as e:
        print(f"siwarp: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except OSError as e:  # includes siwarp.Error, whose message names the remedy
        if _was_raised_during_interrupt(e):
            return 130
        where = f"{e.filename}: " if e.filename is not None and e.strerror else ""
        print(f"siwarp: {where}{e.strerror or e}", file=sys.stderr)
        return 1
