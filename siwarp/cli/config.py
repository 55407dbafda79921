# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp config``: the settings, and the flags to build a C program with."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import typer

from siwarp.cli import show


@dataclass(frozen=True)
class Setting:
    """A row of the table of settings (base/settings.h)."""

    name: str
    variable: str
    option: str
    value: int
    default: int
    minimum: int
    maximum: int
    help: str

    def set(self, text: str) -> bool:
        """Give it a value for this process; False if the text is not one of its values."""
        from siwarp._siwarp import lib

        return bool(lib.siw_setting_set_text(self.name.encode(), text.encode()) == 0)


def settings() -> list[Setting]:
    """Return the settings with their values in this process."""
    from siwarp._siwarp import ffi, lib

    def text(pointer: object) -> str:
        return str(ffi.string(pointer).decode())

    return [
        Setting(
            name=text(lib.siw_setting_name(i)),
            variable=text(lib.siw_setting_env(i)),
            option=text(lib.siw_setting_option(i)),
            value=lib.siw_setting_value(i),
            default=lib.siw_setting_default(i),
            minimum=lib.siw_setting_min(i),
            maximum=lib.siw_setting_max(i),
            help=text(lib.siw_setting_help(i)),
        )
        for i in range(lib.siw_settings_count())
    ]


def config(
    cflags: bool = typer.Option(False, "--cflags", help="Print the compiler's flags."),
    libs: bool = typer.Option(False, "--libs", help="Print the linker's flags."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print the settings, or the flags to build a C program with.

    cc prog.c $(siwarp config --cflags --libs)
    """
    if cflags or libs:
        from siwarp import _paths

        wanted = ([_paths.cflags()] if cflags else []) + ([_paths.libs()] if libs else [])
        print(" ".join(wanted))
        return
    rows = settings()
    if as_json:
        show.data([asdict(row) for row in rows])
        return
    show.table(
        ("variable", "option", "value", "default", "from", "to", "what"),
        [
            (
                row.variable,
                row.option,
                str(row.value),
                str(row.default),
                str(row.minimum),
                str(row.maximum),
                row.help,
            )
            for row in rows
        ],
        right=(2, 3, 4, 5),
    )
    show.line("An option stands before the command: siwarp --crc 0 ping")
    show.line("SIWARP_CAPTURE=FILE writes a capture, as siwarp capture does.")
    show.line("SIWARP_FAULTS=PLAN has things go wrong on the way; siwarp wan --help has the plans.")
