# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The connection manager: connects RC queue pairs by MPA start-up (RFC 5044 and RFC 6581).

``CMID`` and its events correspond to librdmacm's; ``connect`` and ``listen`` are a simpler API.
"""

from siwarp.cm.conn import Connection, Listener, connect, listen
from siwarp.cm.id import CMID, RTR, CMEvent, CMEventChannel, CMEventType, ConnParam

__all__ = [
    "CMID",
    "RTR",
    "CMEvent",
    "CMEventChannel",
    "CMEventType",
    "ConnParam",
    "Connection",
    "Listener",
    "connect",
    "listen",
]


def __dir__() -> list[str]:
    return __all__
