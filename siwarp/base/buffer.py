# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What octets are taken from: the type, and a view of them."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Buffer", "octets"]


class _Octets(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...


class _Array(Protocol):
    # NumPy's stubs give arrays the method above from Python 3.12 on only.
    @property
    def __array_interface__(self) -> dict[str, Any]: ...


#: What lies in memory: bytes, bytearray, memoryview, mmap, array, a NumPy array. Not text.
Buffer = _Octets | _Array


def octets(data: Buffer) -> memoryview:
    """Return a view of the octets of ``data``; releasing it lets the buffer be resized.

    Raises:
        TypeError: it is no contiguous buffer; the message says what to give.

    """
    whole: Any = data
    try:
        view = memoryview(whole)
    except TypeError:
        what = f"octets come from bytes, a bytearray, an array or the like, not {data!r:.60}"
        advice = ": call its encode() first" if isinstance(data, str) else ""
        raise TypeError(what + advice) from None
    return view.cast("B") if view.nbytes else memoryview(b"")
