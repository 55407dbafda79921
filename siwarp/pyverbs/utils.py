# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Text for numbers and GIDs: ``pyverbs.utils``."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from siwarp.pyverbs.pyverbs_error import PyverbsUserError

_QP_TYPES = {
    2: "RC",
    3: "UC",
    4: "UD",
    8: "Raw Packet",
    9: "XRCD_SEND",
    10: "XRCD_RECV",
    0xFF: "Driver QP",
}
_QP_STATES = ("Reset", "Init", "RTR", "RTS", "SQD", "SQE", "Error", "Unknown")
_ACCESS = {
    1: "Local write",
    2: "Remote write",
    4: "Remote read",
    8: "Remote atomic",
    16: "MW bind",
    32: "Zero based",
    64: "On demand",
}
_MIG_STATES = ("Migrated", "Re-arm", "Armed")
_REREG_ERRORS = {
    -1: "IBV_REREG_MR_ERR_INPUT",
    -2: "IBV_REREG_MR_ERR_DONT_FORK_NEW",
    -3: "IBV_REREG_MR_ERR_DO_FORK_OLD",
    -4: "IBV_REREG_MR_ERR_CMD",
    -5: "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW",
}


def be64toh(num: int) -> int:
    """Convert a 64-bit number from network byte order to host byte order."""
    return int.from_bytes(num.to_bytes(8, "big"), sys.byteorder)


def gid_text(raw: bytes) -> str:
    """Return the 16 octets of a GID as eight words of four digits."""
    digits = raw.hex()
    return ":".join(digits[i : i + 4] for i in range(0, 32, 4))


def gid_str(subnet_prefix: int, interface_id: int) -> str:
    """Return a GID, given as halves in network byte order, as eight words of four digits."""
    return gid_text(
        subnet_prefix.to_bytes(8, sys.byteorder) + interface_id.to_bytes(8, sys.byteorder)
    )


def gid_str_to_array(val: str) -> list[str]:
    """Return the 16 octets of a GID, each as two hexadecimal digits.

    Raises:
        PyverbsUserError: ``val`` is not eight words of four hexadecimal digits.

    """
    words = val.split(":")
    try:
        int("".join(words), 16)
    except ValueError:
        words = []
    if len(words) != 8 or any(len(word) != 4 for word in words):
        raise PyverbsUserError(
            f"Invalid GID value ({val}): it must be eight words of four hexadecimal "
            "digits, such as 0000:0000:0000:0000:0000:ffff:7f00:0001"
        )
    return [word[i : i + 2] for word in words for i in (0, 2)]


def flags_to_text(flags: int, names: Mapping[int, str]) -> str:
    """Return the names of the flags that are set, each followed by a space."""
    return "".join(f"{name} " for bit, name in names.items() if flags & bit)


def _name_of_number(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else f"Unknown ({number})"


def qp_type_to_str(qp_type: int) -> str:
    """Return a queue pair's type as text."""
    return _QP_TYPES.get(qp_type, f"Unknown ({qp_type})")


def qp_state_to_str(qp_state: int) -> str:
    """Return a queue pair's state as text."""
    return _name_of_number(_QP_STATES, qp_state)


def mtu_to_str(mtu: int) -> int:
    """Return the number of octets of an MTU code, or 0 for an undefined code."""
    return 128 << mtu if 1 <= mtu <= 5 else 0


def access_flags_to_str(flags: int) -> str:
    """Return access flags as text."""
    return flags_to_text(flags, _ACCESS)


def mig_state_to_str(mig: int) -> str:
    """Return a path migration state as text."""
    return _name_of_number(_MIG_STATES, mig)


def rereg_error_to_str(error: int) -> str:
    """Return an error code of ``ibv_rereg_mr`` as text."""
    return _REREG_ERRORS.get(error, f"Unknown error ({error})")
