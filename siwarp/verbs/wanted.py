# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""TypeErrors that describe the expected value, for arguments that are often given wrongly."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["address_host_and_port", "require_instance", "type_error"]

T = TypeVar("T")


def type_error(what: str, value: object) -> TypeError:
    """Return the TypeError for a value that is not of the expected kind, which ``what``
    describes.
    """
    text = repr(value)
    return TypeError(f"{what}, not {text if len(text) <= 100 else text[:97] + '...'}")


def address_host_and_port(value: Any) -> tuple[str, int]:
    """Return host and port of an address; further items, as IPv6 addresses have, are ignored.

    Raises:
        TypeError: the value is not an address.

    """
    if isinstance(value, tuple) and len(value) >= 2:
        host, port = value[0], value[1]
        if isinstance(host, str) and isinstance(port, int):
            return host, port
    raise type_error("an address is (host, port), for example ('127.0.0.1', 4791)", value)


def require_instance(value: object, kind: type[T], what: str) -> T:
    """Return ``value`` if it is an instance of ``kind``.

    Raises:
        TypeError: ``value`` is of another type; ``what`` describes the expected value.

    """
    if isinstance(value, kind):
        return value
    raise type_error(what, value)
