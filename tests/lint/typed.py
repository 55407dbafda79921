"""What mypy must refuse, and what it must not: an ignore that is of no use is an error to it.

Nothing runs this; ``tests/lint/run mypy`` reads it, from outside of the tree.
"""

from __future__ import annotations

import array
import mmap

import numpy as np

import siwarp
from siwarp.testing import pair
from siwarp.verbs import MR, PD, Buffer, Context, RemoteBuffer


def send(conn: siwarp.cm.Connection, mr: MR, view: memoryview) -> None:
    """Send octets of many kinds, and two things that have none."""
    many: list[Buffer] = [b"", bytearray(), view, array.array("d"), mmap.mmap(-1, 4), np.ones(3)]
    for data in many:
        conn.send(data)
    conn.send(mr)
    conn.send("text")  # type: ignore[arg-type]
    conn.send(5)  # type: ignore[arg-type]


async def awaited(
    conn: siwarp.aio.Connection, udp: siwarp.aio.UDEndpoint, to: RemoteBuffer
) -> None:
    """Do the same for asyncio."""
    await conn.send(np.ones(3))
    await conn.write(to, b"octets")
    await conn.write(to, "text")  # type: ignore[arg-type]
    await udp.send("text", ("127.0.0.1", 1))  # type: ignore[arg-type]
    await udp.send(b"octets", "127.0.0.1")  # type: ignore[arg-type]


def register(pd: PD) -> list[MR]:
    """Register memory, or so many octets of new memory."""
    return [MR(pd, 64), MR(pd, bytearray(64)), MR(pd, np.ones(3)), MR(pd, "x")]  # type: ignore[arg-type]


def kinds() -> None:
    """Make a pair of a kind that there is, and of one that there is not."""
    with Context() as device, pair("ud", device) as (a, b):
        a.send(b.recv())
    pair("tcp")  # type: ignore[arg-type]
