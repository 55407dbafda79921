# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The connection manager: RC queue pairs find each other over MPA's start-up (RFC 5044, 6581).

``CMID`` and its events are librdmacm's; ``connect`` and ``listen`` are the short way.
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
