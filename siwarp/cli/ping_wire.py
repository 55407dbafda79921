# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What ``siwarp ping`` and its server say to each other.

UD: a request is a datagram that begins with ``Q``; the server sends it back with an ``A`` in that
place, and answers nothing else, so that two servers can never keep each other busy. RD: the same,
and an ``M`` with a Hello behind it asks for memory, which an ``A`` with a RemoteBuffer gives, or
one with nothing if the server has none left; an ``M`` alone returns it. RC:
the client's private data (a Hello) says what it will do; the server's is a RemoteBuffer of the
memory that Writes and Reads go to. Sends come back as they were.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

REQUEST, ANSWER, MEMORY = ord("Q"), ord("A"), ord("M")

OPS = ("send", "write", "read")
#: Octets of one RC ping: what a server gives a client memory for.
MAX_SIZE = 64 << 20

_HELLO = struct.Struct("!8sBxxxQ")
_MAGIC = b"siwping1"


class Hello(NamedTuple):
    """What an RC client will do, and with how many octets."""

    op: str
    size: int

    def pack(self) -> bytes:
        """Return the private data for it."""
        return _HELLO.pack(_MAGIC, OPS.index(self.op), self.size)

    @classmethod
    def unpack(cls, data: bytes) -> Hello:
        """Read private data.

        Raises:
            ValueError: it is not of a ``siwarp ping``, or asks for too much; the text is for
                the client.

        """
        if len(data) < _HELLO.size:
            raise ValueError("this is a siwarp ping server")
        magic, op, size = _HELLO.unpack_from(data)
        if magic != _MAGIC or op >= len(OPS):
            raise ValueError("this is a siwarp ping server")
        if size > MAX_SIZE:
            raise ValueError(f"at most {MAX_SIZE} octets a ping")
        return cls(OPS[op], size)


def pattern(size: int) -> bytes:
    """Return the octets that a server's memory has at first: what a Read ping must bring."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def number(ping: int, octets: int) -> bytes:
    """Return a ping's number in so many octets, at most 8; what does not fit wraps."""
    count = min(8, octets)
    return (ping % (1 << (8 * count))).to_bytes(count, "little") if count else b""
