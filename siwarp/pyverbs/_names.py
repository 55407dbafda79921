# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Export of enumeration members as module attributes, as in ``pyverbs.enums``."""

from __future__ import annotations

from enum import EnumMeta, IntEnum
from typing import Any


def export_enum_members(namespace: dict[str, Any]) -> None:
    """Add the members of all enumerations in a module's namespace to the namespace."""
    for found in list(namespace.values()):
        if isinstance(found, EnumMeta) and found is not IntEnum:
            namespace.update(found.__members__)
