# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The protocol between ``siwarp ping`` and its server.

UD: a request is a datagram that begins with ``Q``. The server returns it with an ``A`` in that
place and answers nothing else, so that two servers cannot keep each other busy. RD: the same; in
addition, an ``M`` followed by a Hello requests memory. The answer is an ``A`` followed by a
RemoteBuffer, or only an ``A`` if the server has no memory left. An ``M`` without a Hello returns
the memory. RC: the client's private data is a Hello with the operation and the size; the server's
is a RemoteBuffer for the memory that Writes and Reads access. Sends are returned unchanged.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

REQUEST, ANSWER, MEMORY = ord("Q"), ord("A"), ord("M")

OPS = ("send", "write", "read")
#: Limit of one RC ping in octets, for which the server allocates memory.
MAX_SIZE = 64 << 20

_HELLO = struct.Struct("!8sBxxxQ")
_MAGIC = b"siwping1"


class Hello(NamedTuple):
    """The operation that a client will use, and its number of octets."""

    op: str
    size: int

    def pack(self) -> bytes:
        """Return the Hello in its wire format."""
        return _HELLO.pack(_MAGIC, OPS.index(self.op), self.size)

    @classmethod
    def unpack(cls, data: bytes) -> Hello:
        """Parse a Hello.

        Raises:
            ValueError: the octets are not a Hello of ``siwarp ping``, or the size is too large; the
                text is sent to the client.

        """
        if len(data) < _HELLO.size:
            raise ValueError("this is a siwarp ping server")
        magic, op, size = _HELLO.unpack_from(data)
        if magic != _MAGIC or op >= len(OPS):
            raise ValueError("this is a siwarp ping server")
        if size > MAX_SIZE:
            raise ValueError(f"a ping has at most {MAX_SIZE} octets")
        return cls(OPS[op], size)


def pattern(size: int) -> bytes:
    """Return the initial contents of the server's memory, which a Read ping must return."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def number(ping: int, octets: int) -> bytes:
    """Return a ping's number in ``octets`` octets, at most 8; higher digits are dropped."""
    count = min(8, octets)
    return (ping % (1 << (8 * count))).to_bytes(count, "little") if count else b""
