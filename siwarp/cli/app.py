# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The subcommands of ``siwarp`` as one application of typer's."""

from __future__ import annotations

import importlib
from typing import Any

import typer

__all__ = ["build_app"]


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
    "run": ("siwarp.cli.run_command", "run"),
    "env": ("siwarp.cli.run_command", "env"),
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
