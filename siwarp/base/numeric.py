# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Names of hosts as numeric addresses: the stack resolves none."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["numeric"]


def numeric(host: str) -> str:
    """Return a name's address, an IPv4 one if it has any: a server is at these by default.

    Raises:
        OSError: it has none.

    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
        except OSError as e:
            raise OSError(
                f"{host!r} is no numeric address and no known host name ({e.strerror})"
            ) from None
        return str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])
    return host
