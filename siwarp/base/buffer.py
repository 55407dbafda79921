# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The type of objects that provide octets, and a view of their memory."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Buffer", "octets"]


class _Octets(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...


class _Array(Protocol):
    # NumPy's stubs declare __buffer__ for arrays only from Python 3.12 on.
    @property
    def __array_interface__(self) -> dict[str, Any]: ...


#: An object with the buffer protocol: bytes, bytearray, memoryview, mmap, array, a NumPy array.
#: Not text.
Buffer = _Octets | _Array


def octets(data: Buffer) -> memoryview:
    """Return a view of the octets of ``data``; release the view before you resize the buffer.

    Raises:
        TypeError: ``data`` is not a contiguous buffer; the message names accepted types.

    """
    whole: Any = data
    try:
        view = memoryview(whole)
    except TypeError:
        what = f"expected bytes, a bytearray, an array or another buffer, not {data!r:.60}"
        advice = ": call its encode() first" if isinstance(data, str) else ""
        raise TypeError(what + advice) from None
    return view.cast("B") if view.nbytes else memoryview(b"")
