# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The table of settings of the C library."""

from __future__ import annotations

from dataclasses import dataclass

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
        from siwarp.base.library import lib

        return bool(lib.siw_setting_set_text(self.name.encode(), text.encode()) == 0)


def settings() -> list[Setting]:
    """Return the settings with their values in this process."""
    from siwarp.base.library import ffi, lib

    def decode_text(pointer: object) -> str:
        return str(ffi.string(pointer).decode())

    return [
        Setting(
            name=decode_text(lib.siw_setting_name(i)),
            variable=decode_text(lib.siw_setting_env(i)),
            option=decode_text(lib.siw_setting_option(i)),
            value=lib.siw_setting_value(i),
            default=lib.siw_setting_default(i),
            minimum=lib.siw_setting_min(i),
            maximum=lib.siw_setting_max(i),
            help=decode_text(lib.siw_setting_help(i)),
        )
        for i in range(lib.siw_settings_count())
    ]


def former_setting_advice(word: str) -> str | None:
    """Return what to do instead of using a setting of an earlier release, or None.

    ``word`` is its name, its ``SIWARP_`` variable or its option.
    """
    from siwarp.base.library import ffi, lib

    name = word.removeprefix("SIWARP_").removeprefix("--").replace("-", "_")
    advice = lib.siw_settings_advice_for_former_name(f"SIWARP_{name.upper()}".encode())
    return None if advice == ffi.NULL else str(ffi.string(advice).decode())
