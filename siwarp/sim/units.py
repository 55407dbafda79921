# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Conversion of durations, which are numbers of seconds or text with a unit."""

from __future__ import annotations

import math
import re
from decimal import Decimal

__all__ = ["NEVER", "Duration", "nanoseconds"]

#: A number of seconds, or text such as "250us", "1.5s" or "10min".
Duration = float | int | str

#: A time that is never reached.
NEVER = (1 << 64) - 1

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3600_000_000_000,
}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|h)")


def nanoseconds(duration: Duration) -> int:
    """Convert a number of seconds, or text with ns, us, ms, s, min or h, to nanoseconds.

    Raises:
        ValueError: the duration is negative, infinite, or malformed text.

    """
    if isinstance(duration, str):
        match = _TEXT.fullmatch(duration.strip())
        if match is None:
            raise ValueError(
                f"{duration!r} is not a duration: use a number with ns, us, ms, s, min or h, such "
                "as '2h'"
            )
        return int(Decimal(match[1]) * _UNITS[match[2]])
    if not math.isfinite(duration) or duration < 0:
        raise ValueError(f"{duration!r} is not a duration: use seconds, 0 or more")
    return round(duration * 1_000_000_000)
