# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The command ``siwarp``: its subcommands, and the settings that may stand before them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import typer

from siwarp.base.output import unbroken

__all__ = ["main"]


def _version(wanted: bool) -> None:
    if wanted:
        from siwarp._siwarp import ffi, lib

        print(f"siwarp {ffi.string(lib.siw_version()).decode()}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """A software RNIC in user space: iWARP over TCP and UDP, no hardware, no root.

    Every setting that `siwarp config` lists can stand before the command, as in
    `siwarp --crc 0 ping`.
    """


#: Name of each subcommand, where it is, and the function or application there.
_COMMANDS = {
    "demo": ("siwarp.cli.demo", "demo"),
    "ping": ("siwarp.cli.ping", "ping"),
    "devices": ("siwarp.cli.devices", "devices"),
    "doctor": ("siwarp.cli.doctor", "doctor"),
    "config": ("siwarp.cli.config", "config"),
    "counters": ("siwarp.cli.counters", "counters"),
    "capture": ("siwarp.cli.capture", "capture"),
    "dissect": ("siwarp.cli.dissect", "dissect"),
    "wan": ("siwarp.cli.wan", "wan"),
    "spec": ("siwarp.cli.spec", "app"),
    "bench": ("siwarp.bench.cli", "app"),
}


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application with all subcommands, or only with the one that is wanted."""
    app = typer.Typer(
        name="siwarp",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, (module, attribute) in _COMMANDS.items():
        if wanted in _COMMANDS and name != wanted:
            continue
        command: Any = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


class UsageError(Exception):
    """The command line is wrong; the text says how."""


def take_settings(arguments: list[str]) -> list[str]:
    """Apply the settings at the head of the arguments, and return the other arguments.

    They go into the environment too, for the processes that a command starts.
    """
    rest = list(arguments)
    if not rest or not rest[0].startswith("--"):
        return rest
    from siwarp.cli.config import settings

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


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status: 141 if its output is not read to the end."""
    return unbroken(lambda: _run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        rest = take_settings(sys.argv[1:] if arguments is None else arguments)
        wanted = next((word for word in rest if not word.startswith("-")), None)
        status = build_app(wanted)(args=rest, prog_name="siwarp", standalone_mode=True)
        return int(status or 0)
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
