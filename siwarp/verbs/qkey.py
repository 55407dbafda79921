# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The default Q_Key of queue pairs for which the program specifies none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siwarp.base import system
from siwarp.verbs._ffi import ffi, lib

if TYPE_CHECKING:
    from siwarp.verbs.device import Context

__all__ = ["default_qkey", "qkey_environment"]

_SETTING = next(
    i for i in range(lib.siw_settings_count()) if ffi.string(lib.siw_setting_name(i)) == b"qkey"
)


def default_qkey(context: Context | None = None) -> int:
    """Return this process's default Q_Key: the setting ``qkey``, or a random number.

    Args:
        context: a device of the process; only needed in a simulated world, where each host is
            treated as a separate process.

    """
    address = "" if context is None else context.device.addresses[0]
    return int(lib.siw_setting_value(_SETTING)) or system.process_qkey(address)


def qkey_environment() -> dict[str, str]:
    """Return the environment variables that give another process the same Q_Key."""
    return {"SIWARP_QKEY": str(default_qkey())}
