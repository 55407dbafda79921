# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Collects the subcommands of ``siwarp`` in one typer application."""

from __future__ import annotations

import importlib
from typing import Any

import typer

from siwarp.cli.group import Group
from siwarp.cli.old_typer import patch_old_typer

__all__ = ["build_app"]


def _print_version(wanted: bool) -> None:
    if wanted:
        from siwarp.cli import version

        raise typer.Exit(version.main("--version", []))


def _handle_global_options(
    _version_wanted: bool = typer.Option(
        False, "-V", "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """A software RNIC in user space: iWARP over TCP and UDP, without hardware or root privileges.

    Every setting that `siwarp config` lists can be given before the command, for example `siwarp
    --crc 0 ping`.
    """


#: Name of each subcommand, the module that implements it, and the function or application in that
#: module.
_COMMANDS = {
    "demo": ("siwarp.cli.demo", "demo"),
    "ping": ("siwarp.cli.ping", "ping"),
    "devices": ("siwarp.cli.devices", "devices"),
    "doctor": ("siwarp.cli.doctor", "doctor"),
    "config": ("siwarp.cli.run_command", "print_settings_command"),
    "counters": ("siwarp.cli.counters", "counters"),
    "capture": ("siwarp.cli.capture", "capture"),
    "dissect": ("siwarp.cli.dissect", "dissect"),
    "run": ("siwarp.cli.run_command", "run_program_command"),
    "env": ("siwarp.cli.run_command", "print_environment_command"),
    "ftp": ("siwarp.cli.ftp", "app"),
    "cp": ("siwarp.cli.cp", "cp"),
    "cp-far-end": ("siwarp.cli.far_end", "cp_far_end"),
    "serve": ("siwarp.cli.serve", "serve"),
    "wan": ("siwarp.cli.wan", "wan"),
    "sim": ("siwarp.cli.sim", "sim"),
    "spec": ("siwarp.cli.spec", "app"),
    "bench": ("siwarp.bench.cli", "app"),
}

#: Commands that only other commands start.
_HIDDEN = {"cp-far-end"}
#: Arguments after the program that ``siwarp capture`` runs belong to that program.
_CONTEXT_SETTINGS = {"capture": {"allow_interspersed_args": False}}


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application with all subcommands, or with only the wanted one."""
    patch_old_typer()
    app = typer.Typer(
        name="siwarp",
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_handle_global_options)
    for name, (module, attribute) in _COMMANDS.items():
        if wanted in _COMMANDS and name != wanted:
            continue
        command: Any = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, cls=Group)
        else:
            settings = _CONTEXT_SETTINGS.get(name)
            app.command(name, context_settings=settings, hidden=name in _HIDDEN)(command)
    return app
