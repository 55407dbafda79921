# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""siwarp for asyncio: await connections, messages and completions.

::

    async with aio.listen(("127.0.0.1", 0)) as listener:
        async for conn in listener:  # concurrently: one task per connection
            asyncio.create_task(serve(conn))

    async with asyncio.timeout(5), aio.connect(address) as conn:
        await conn.send(b"hello")
        print(await conn.recv())

``connect``, ``listen``, ``open_ud`` and ``open_rd`` are the high-level interface; ``completions``,
``wait``, ``cm_event`` and ``async_event`` await events of objects of ``siwarp.verbs`` and
``siwarp.cm``. Errors are those of the blocking interface, and time-outs are asyncio's
(``asyncio.timeout``, ``asyncio.wait_for``).

All objects of one event loop on one device share one open device, with two descriptors in the loop
and one thread of the library. Each connection adds only its socket. The device closes with its last
user. As in asyncio itself, only the loop's thread may call these functions.

Effects of cancellation:

- ``recv``, ``accept``, ``wait`` and iteration lose nothing: the next call returns the message or
  the connection.
- ``connect`` and ``Request.accept`` close the connection that they started.
- ``send``, ``write``, ``read``: the operation is executed completely, perhaps later, or not at all,
  and the connection stays open. But if the operation uses the caller's own memory (more than
  64 KiB, an MR, ``read_into``), cancellation closes the connection, so that the caller may reuse
  the memory.
"""

from siwarp.aio.conn import Connection, connect
from siwarp.aio.listener import Listener, Request, listen
from siwarp.aio.rd import RDEndpoint, open_rd
from siwarp.aio.ud import Datagram, UDEndpoint, open_ud
from siwarp.aio.wait import async_event, cm_event, completions, wait

__all__ = [
    "Connection",
    "Datagram",
    "Listener",
    "RDEndpoint",
    "Request",
    "UDEndpoint",
    "async_event",
    "cm_event",
    "completions",
    "connect",
    "listen",
    "open_rd",
    "open_ud",
    "wait",
]


def __dir__() -> list[str]:
    return __all__
