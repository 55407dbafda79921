# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Text for numbers of devices and ports, for ``pyverbs.device``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from siwarp.pyverbs._enums_device import (
    ibv_device_cap_flags,
    ibv_event_type,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
)

_NODE = ("", "CA", "Switch", "Router", "RNIC", "USNIC", "USNIC UDP")
_TRANSPORT = ("IB", "IWARP", "USNIC", "USNIC UDP")
_PORT_STATE = ("NOP", "Down", "Init", "Armed", "Active", "Defer")
_LINK_LAYER = ("Unspecified", "InfiniBand", "Ethernet")
_GID_TYPE = ("IB", "RoCEv1", "RoCEv2")
_PHYS_STATE = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "Port configuration training",
    5: "Link up",
    6: "Link error recovery",
    7: "Phy test",
}
_WIDTH = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
_SPEED = {
    0: "0.0",
    1: "2.5",
    2: "5.0",
    4: "5.0",
    8: "10.0",
    16: "14.0",
    32: "25.0",
    64: "50.0",
    128: "100.0",
    256: "200.0",
}


def translate_node_type(node_type: int) -> str:
    """Return a node's type as text."""
    return (_NODE[node_type] or "Unknown") if 0 <= node_type < len(_NODE) else "Unknown"


def translate_transport_type(transport_type: int) -> str:
    """Return a transport's type as text."""
    known = 0 <= transport_type < len(_TRANSPORT)
    return _TRANSPORT[transport_type] if known else "Unknown"


def translate_mtu(mtu: int) -> str:
    """Return an MTU as text."""
    return f"{128 << mtu} ({mtu})" if 1 <= mtu <= 5 else f"Invalid MTU ({mtu})"


def translate_link_layer(ll: int) -> str:
    """Return a link layer as text."""
    return _LINK_LAYER[ll] if 0 <= ll < len(_LINK_LAYER) else f"Invalid link layer ({ll})"


def translate_gid_type(gid_type: int) -> str:
    """Return a GID's type as text."""
    known = 0 <= gid_type < len(_GID_TYPE)
    return _GID_TYPE[gid_type] if known else f"Unknown gid_type ({gid_type})"


def translate_event_type(event_type: int) -> str:
    """Return the type of an asynchronous event as text."""
    try:
        return ibv_event_type(event_type).name
    except ValueError:
        return f"Unknown event_type ({event_type})"


def phys_state_to_str(phys: int) -> str:
    """Return a port's physical state as text."""
    return f"{_PHYS_STATE[phys]} ({phys})" if phys in _PHYS_STATE else "Invalid physical state"


def port_state_to_str(port_state: int) -> str:
    """Return a port's state as text."""
    known = 0 <= port_state < len(_PORT_STATE)
    return f"{_PORT_STATE[port_state] if known else 'Invalid state'} ({port_state})"


def width_to_str(width: int) -> str:
    """Return a link's width as text."""
    return f"{_WIDTH[width]} ({width})" if width in _WIDTH else "Invalid width"


def speed_to_str(active_speed: int, active_speed_ex: int = 0) -> str:
    """Return a link's speed per lane as text; a second code that is not 0 replaces the first."""
    speed = active_speed_ex or active_speed
    return f"{_SPEED[speed]} Gbps ({speed})" if speed in _SPEED else "Invalid speed"


def str_from_flags(flags: int, dictionary: Mapping[int, str]) -> str:
    """Return the names of the set flags, one per line."""
    return "\n  " + "".join(f"{name}\n  " for bit, name in dictionary.items() if flags & bit)


def _names_by_value(of: type[IntEnum]) -> dict[int, str]:
    return {member.value: member.name for member in of}


def translate_device_caps(flags: int) -> str:
    """Return a device's capabilities as text."""
    return str_from_flags(flags, _names_by_value(ibv_device_cap_flags))


def translate_port_cap_flags(flags: int) -> str:
    """Return a port's capabilities as text."""
    return str_from_flags(flags, _names_by_value(ibv_port_cap_flags))


def translate_port_cap_flags2(flags: int) -> str:
    """Return a port's capabilities of the second flag word as text."""
    return str_from_flags(flags, _names_by_value(ibv_port_cap_flags2))


def guid_format(num: int) -> str:
    """Return a GUID, given in network byte order, as four words."""
    digits = num.to_bytes(8, "little").hex()
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def guid_to_hex(node_guid: int) -> str:
    """Return a GUID as a hexadecimal number."""
    return f"{node_guid:x}"
