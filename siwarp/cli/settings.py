# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The table of settings of the C library."""

from __future__ import annotations

from dataclasses import dataclass

from siwarp.cli.libsiwarp import load_library

__all__ = ["Setting", "former_setting_advice", "settings"]


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
        """Set the value in this process; return False if the text is not a valid value."""
        library = load_library()
        return bool(library.siw_setting_set_text(self.name.encode(), text.encode()) == 0)


def settings() -> list[Setting]:
    """Return the settings with their values in this process."""
    library = load_library()
    return [
        Setting(
            name=library.siw_setting_name(i).decode(),
            variable=library.siw_setting_env(i).decode(),
            option=library.siw_setting_option(i).decode(),
            value=library.siw_setting_value(i),
            default=library.siw_setting_default(i),
            minimum=library.siw_setting_min(i),
            maximum=library.siw_setting_max(i),
            help=library.siw_setting_help(i).decode(),
        )
        for i in range(library.siw_settings_count())
    ]


def former_setting_advice(word: str) -> str | None:
    """Return what to do instead of using a setting of an earlier release, or None.

    ``word`` is its name, its ``SIWARP_`` variable or its option.
    """
    name = word.removeprefix("SIWARP_").removeprefix("--").replace("-", "_")
    variable = f"SIWARP_{name.upper()}".encode()
    advice: bytes | None = load_library().siw_settings_advice_for_former_name(variable)
    return None if advice is None else advice.decode()
