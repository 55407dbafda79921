# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""TypeErrors that say what to give, for what is easily given wrong."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["an_address", "instance", "wanted"]

T = TypeVar("T")


def wanted(what: str, value: object) -> TypeError:
    """Return the error for a value that is not what is wanted."""
    text = repr(value)
    return TypeError(f"{what}, not {text if len(text) <= 100 else text[:97] + '...'}")


def an_address(value: Any) -> tuple[str, int]:
    """Return the host and the port of an address; what follows them, as of IPv6, is left out.

    Raises:
        TypeError: it is none.

    """
    if isinstance(value, tuple) and len(value) >= 2:
        host, port = value[0], value[1]
        if isinstance(host, str) and isinstance(port, int):
            return host, port
    raise wanted("an address is (host, port), as ('127.0.0.1', 4791)", value)


def instance(value: object, kind: type[T], what: str) -> T:
    """Return ``value`` if it is of that kind.

    Raises:
        TypeError: it is not; ``what`` says what it should be.

    """
    if isinstance(value, kind):
        return value
    raise wanted(what, value)
