"""Calls that mypy must accept or reject; mypy reports an unused `type: ignore` as an error.

This file is never executed; ``tests/lint/run mypy`` checks it, from outside the tree.
"""

from __future__ import annotations

import array
import mmap

import numpy as np

import siwarp
from siwarp.testing import pair
from siwarp.verbs import CQ, MR, PD, QP, Buffer, Context, RemoteBuffer, arrays


def send_object_of_each_type(conn: siwarp.cm.Connection, mr: MR, view: memoryview) -> None:
    """Send objects with the buffer protocol, and two objects without the buffer protocol."""
    many: list[Buffer] = [b"", bytearray(), view, array.array("d"), mmap.mmap(-1, 4), np.ones(3)]
    for data in many:
        conn.send(data)
    conn.send(mr)
    conn.send("text")  # type: ignore[arg-type]
    conn.send(5)  # type: ignore[arg-type]


async def send_supported_types_async(
    conn: siwarp.aio.Connection, udp: siwarp.aio.UDEndpoint, to: RemoteBuffer
) -> None:
    """Send objects with and without the buffer protocol, with asyncio."""
    await conn.send(np.ones(3))
    await conn.write(to, b"octets")
    await conn.write(to, "text")  # type: ignore[arg-type]
    await udp.send("text", ("127.0.0.1", 1))  # type: ignore[arg-type]
    await udp.send(b"octets", "127.0.0.1")  # type: ignore[arg-type]


def register_memory(pd: PD) -> list[MR]:
    """Register existing memory, or new memory of a given size."""
    return [MR(pd, 64), MR(pd, bytearray(64)), MR(pd, np.ones(3)), MR(pd, "x")]  # type: ignore[arg-type]


def post_and_poll_arrays(qp: QP, cq: CQ, ahs: arrays.AHList) -> int:
    """Post and poll NumPy arrays, and objects that are no arrays."""
    qp.post_send_array(arrays.send_array(3)[:2], ahs)
    qp.post_recv_array(arrays.recv_array(3))
    qp.post_send_array([], ahs)  # type: ignore[arg-type]
    qp.post_send_array(arrays.send_array(3), [])  # type: ignore[arg-type]
    return cq.poll_array(arrays.wc_array(3))


def create_pairs() -> None:
    """Create pairs of connected endpoints, and pairs of an unknown type or in no world."""
    with Context() as device, pair("ud", device) as (a, b):
        a.send(b.recv())
    with pair("rd", sim=True) as (a, b):
        a.send(b.recv())
    pair("tcp")  # type: ignore[arg-type]
    pair("rd", sim="yes")  # type: ignore[arg-type]
