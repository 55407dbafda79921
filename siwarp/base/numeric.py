# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Resolve host names to numeric addresses, because the C library does not resolve names."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["resolve_to_numeric"]


def resolve_to_numeric(host: str) -> str:
    """Return an address of ``host``, preferably IPv4, which servers listen on by default.

    Raises:
        OSError: ``host`` has no address.

    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
        except OSError as e:
            raise OSError(
                f"{host!r} is neither a numeric address nor a known host name ({e.strerror})"
            ) from None
        return str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])
    return host
