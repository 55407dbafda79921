# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Attributes of a device's network interface: GUID, index and speed."""

from __future__ import annotations

import sys
from pathlib import Path

from siwarp.base import system

#: Speed in Mbit/s that is assumed for interfaces without a reported speed.
_USUAL_MBPS = 10_000
#: Codes of link width and speed per lane (``ibv_query_port``), by total rate in Mbit/s.
_RATES = {
    2_500: (1, 1),
    5_000: (1, 2),
    10_000: (1, 4),
    14_000: (1, 16),
    25_000: (1, 32),
    40_000: (2, 4),
    50_000: (1, 64),
    100_000: (2, 32),
    200_000: (2, 64),
    400_000: (2, 128),
}


def _read_sysfs_attribute(netdev: str, name: str) -> str:
    """Return an attribute of an interface from sysfs, or "" if it cannot be read."""
    try:
        return Path("/sys/class/net", netdev, name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""


def interface_guid(netdev: str) -> int:
    """Return the GUID of the device on an interface, in network byte order.

    The GUID is the interface's hardware address (RFC 7042: an EUI-48 in an EUI-64) or, without a
    hardware address, derived from the interface index.
    """
    try:
        mac = bytes.fromhex(_read_sysfs_attribute(netdev, "address").replace(":", ""))
    except ValueError:
        mac = b""
    if len(mac) != 6 or not any(mac):
        mac = b"\x02\x00\x00\x00" + (system.interface_index(netdev) & 0xFFFF).to_bytes(2, "big")
    octets = bytes((mac[0] ^ 2, *mac[1:3])) + b"\xff\xfe" + mac[3:]
    return int.from_bytes(octets, sys.byteorder)


def interface_mbps(netdev: str) -> int:
    """Return an interface's rate in Mbit/s, or 10 Gbit/s if the interface reports none."""
    try:
        mbps = int(_read_sysfs_attribute(netdev, "speed"))
    except ValueError:
        mbps = 0
    return mbps if mbps > 0 else _USUAL_MBPS


def link_width_and_speed(netdev: str) -> tuple[int, int]:
    """Return the codes of the lowest link width and speed not below the interface's rate."""
    wanted = interface_mbps(netdev)
    return next((codes for rate, codes in _RATES.items() if rate >= wanted), _RATES[400_000])
