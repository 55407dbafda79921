# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The Q_Key of queue pairs that are given none."""

from __future__ import annotations

from siwarp.base import system
from siwarp.verbs._ffi import ffi, lib

__all__ = ["own_qkey", "shared_qkey"]

#: Drawn once, so that queue pairs of one process, and of its forked children, reach each other. Not
#: 0, which everybody has, and without the top bit, which stands for the sender's own.
_RANDOM = int.from_bytes(system.random_bytes(4), "big") & 0x7FFFFFFF or 1


_SETTING = next(
    i for i in range(lib.siw_settings_count()) if ffi.string(lib.siw_setting_name(i)) == b"qkey"
)


def own_qkey() -> int:
    """Return this process's Q_Key: setting ``qkey``, or else a random number."""
    return int(lib.siw_setting_value(_SETTING)) or _RANDOM


def shared_qkey() -> dict[str, str]:
    """Return the environment by which a process has the same Q_Key."""
    return {"SIWARP_QKEY": str(own_qkey())}
