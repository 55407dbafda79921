# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""CRC32C for the layers that carry a CRC; tests compare its values with another implementation."""

from __future__ import annotations

from crc32c import crc32c as _crc32c


def crc32c(octets: bytes | memoryview, before: int = 0) -> int:
    """Return the CRC32C as an integer; on the wire it is least significant octet first.

    `before`: the CRC32C of the preceding octets.
    """
    return _crc32c(octets, before)
