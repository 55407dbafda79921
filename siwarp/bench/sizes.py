# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Parses sizes in octets: ``64``, ``4K``, ``1M``; and lists: ``all``, ``1:64K:*2``."""

from __future__ import annotations

__all__ = ["ALL", "MOST", "format_size", "parse_octet_count", "parse_sizes"]

#: The sizes of perftest's --all: powers of two from 2 to 2^23.
ALL = tuple(1 << i for i in range(1, 24))
#: Maximum number of message sizes in a list.
MOST = 1000

_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_octet_count(text: str) -> int:
    """Return a number of octets; K, M and G are 2^10, 2^20 and 2^30.

    Raises:
        ValueError: the text is not a number of octets, or 0.

    """
    digits, unit = text, 1
    if text[-1:].upper() in _SUFFIXES:
        digits, unit = text[:-1], _SUFFIXES[text[-1].upper()]
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 12 and int(digits)):
        raise ValueError(f"{text!r} is not a number of octets: give for example 64, 4K or 1M")
    return int(digits) * unit


def format_size(octets: int) -> str:
    """Return a number of octets as text that parse_octet_count accepts: 64, 4K, 1M."""
    for suffix in ("M", "K"):
        if octets >= _SUFFIXES[suffix] and octets % _SUFFIXES[suffix] == 0:
            return f"{octets // _SUFFIXES[suffix]}{suffix}"
    return str(octets)


def _expand_range(text: str) -> list[int]:
    """Return the sizes of FIRST:LAST:*FACTOR or FIRST:LAST:+STEP, including both limits."""
    first, last, step = text.split(":")
    if step[:1] not in ("*", "+"):
        raise ValueError(f"{text!r}: give *FACTOR or +OCTETS as the step, for example 1:64K:*2")
    size, most, by = parse_octet_count(first), parse_octet_count(last), parse_octet_count(step[1:])
    if step == "*1":
        raise ValueError(f"{text!r}: give a factor of 2 or more")
    found = []
    while size <= most:
        found.append(size)
        if len(found) > MOST:
            raise ValueError(f"{text!r} has more than {MOST} sizes: use larger steps")
        size = size * by if step[0] == "*" else size + by
    return found


def parse_sizes(text: str) -> list[int]:
    """Return the sizes that a text names, ascending and without duplicates.

    Args:
        text: ``all`` (2 to 2^23, powers of two), or a comma-separated list of sizes,
            ``FIRST:LAST:*FACTOR`` and ``FIRST:LAST:+STEP``.

    Raises:
        ValueError: the text names no size, or too many.

    """
    found: set[int] = set()
    for part in text.split(","):
        if part == "all":
            found.update(ALL)
        elif part.count(":") == 2:
            found.update(_expand_range(part))
        else:
            found.add(parse_octet_count(part))
    if not 0 < len(found) <= MOST:
        raise ValueError(f"{text!r} names {len(found)} sizes: give 1 to {MOST}")
    return sorted(found)
