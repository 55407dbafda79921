# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The members of enumerations as names of a module, as ``pyverbs.enums`` has them."""

from __future__ import annotations

from enum import EnumMeta, IntEnum
from typing import Any


def export(namespace: dict[str, Any]) -> None:
    """Give a module the members of all enumerations in it as names of its own."""
    for found in list(namespace.values()):
        if isinstance(found, EnumMeta) and found is not IntEnum:
            namespace.update(found.__members__)
