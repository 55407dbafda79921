# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""CRC32C for the layers that carry one; tests judge it with another implementation."""

from __future__ import annotations

from crc32c import crc32c as _crc32c


def crc32c(octets: bytes | memoryview, before: int = 0) -> int:
    """CRC32C as an integer; on the wire its four octets go least significant first.

    `before`: the CRC32C of the octets that precede these.
    """
    return _crc32c(octets, before)
