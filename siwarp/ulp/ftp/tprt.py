# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The FTP command TPRT, which selects the transport of the data connections.

::

    TPRT RD                          (or RC, UD)
    200 TPRT RD token=0123456789abcdef0123456789abcdef unit=1048576 window=8 qkey=1234
    EPSV
    229 Entering extended passive mode (|||40001|).
    TPRT TCP
    200 TPRT TCP

After TPRT RD, RC and UD, EPSV and PASV name the port of that transport. The client opens one
channel there (siwarp.ulp.adts) within ``LIFETIME`` seconds, with the token, which is valid for one
channel: the client sends TPRT again before each transfer. The ends grant each other ``WINDOW``
units of at most ``UNIT`` octets when the channel opens. After TPRT TCP, data connections are FTP's
own again.

In active mode the server opens the channel to the port of the client's address that EPRT or PORT
names, with the token and the Q_Key of its reply to TPRT. The units have at most ``ACTIVE_UNIT``
octets, and not more than the reply says; the client grants ``ACTIVE_WINDOW`` of them when the
channel opens. The reply to EPRT or PORT follows when the channel is open.

On UD, where every datagram carries the token, units have ``UD_UNIT_SIZE`` octets, and the window of
the reply is that of both modes: each end stores at most as many units in each direction.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from siwarp.ulp.adts.channel import Invitation
from siwarp.ulp.adts.channel_ud import UD_UNIT_SIZE
from siwarp.ulp.adts.wire import MIN_UNIT_SIZE

__all__ = [
    "ACTIVE_UNIT",
    "KINDS",
    "LIFETIME",
    "UNIT",
    "WINDOW",
    "format_reply",
    "make_active_mode_invitation",
    "parse_reply",
    "partial_path",
]

#: The kinds of channels, as TPRT and as endpoints.py name them.
KINDS: dict[str, Literal["rd", "rc", "ud"]] = {"RD": "rd", "RC": "rc", "UD": "ud"}
#: Seconds for which a token is valid.
LIFETIME = 30.0
#: The largest unit of the client, and the credits that it grants when the channel opens.
UNIT, WINDOW = 1 << 20, 8
#: The largest unit of the client in active mode; smaller, because each channel of the server has
#: its own memory then.
ACTIVE_UNIT, ACTIVE_WINDOW = 256 << 10, 4
#: Maximum window that this end accepts in a server's reply.
MAX_WINDOW = 1 << 16

_REPLY = re.compile(
    r"200 TPRT (\w+) token=([0-9a-f]{32}) unit=(\d{1,9}) window=(\d{1,9}) qkey=(\d{1,10})"
)


def format_reply(kind: str, invitation: Invitation) -> str:
    """Return the text of the reply to TPRT, which lacks the port: the reply to EPSV has it."""
    return (
        f"200 TPRT {kind} token={invitation.token.hex()} unit={invitation.unit} "
        f"window={invitation.window} qkey={invitation.qkey}"
    )


def parse_reply(reply: str, kind: str, port: int) -> Invitation:
    """Return the invitation that the reply to TPRT and the port in the reply to EPSV form.

    Raises:
        ValueError: the reply has another form, or a number that this end does not accept.

    """
    match = _REPLY.fullmatch(reply)
    if match is None or match[1] != kind:
        raise ValueError(f"a reply to TPRT {kind} without token, unit, window and qkey: {reply!r}")
    unit, window, qkey = map(int, match.group(3, 4, 5))
    least = UD_UNIT_SIZE if kind == "UD" else MIN_UNIT_SIZE
    # The size is limited, because this end reserves memory in proportion to it.
    if not least <= unit <= UNIT or not 0 < window <= MAX_WINDOW or qkey >> 32:
        raise ValueError(
            f"a reply to TPRT {kind} with a unit not from {least} to {UNIT}, a window not from "
            f"1 to {MAX_WINDOW}, or a qkey of more than 32 bits: {reply!r}"
        )
    return Invitation(bytes.fromhex(match[2]), port, unit, window, qkey)


def make_active_mode_invitation(kind: str, offered: Invitation, port: int) -> Invitation:
    """Return the invitation to the client's port in active mode, from that of the reply to TPRT.

    ``kind`` is one of the values of ``KINDS``.
    """
    if kind == "ud":
        return dataclasses.replace(offered, port=port)
    unit = min(offered.unit, ACTIVE_UNIT)
    return dataclasses.replace(offered, port=port, unit=unit, window=ACTIVE_WINDOW)


def partial_path(path: str) -> str:
    """Return the path of an incomplete upload over RD, RC or UD: ``.NAME.part`` beside its file.

    An interrupted upload continues with REST and STOR at the size of this file (command SIZE).
    """
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}.{name}.part"
