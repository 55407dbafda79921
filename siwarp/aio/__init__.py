# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""siwarp for asyncio: await connections, messages and completions.

::

    async with aio.listen(("127.0.0.1", 0)) as listener:
        async for conn in listener:  # many at a time: a task for each
            asyncio.create_task(serve(conn))

    async with asyncio.timeout(5), aio.connect(address) as conn:
        await conn.send(b"hello")
        print(await conn.recv())

``connect``, ``listen``, ``open_ud`` and ``open_rd`` are the short way; ``completions``, ``wait``
and ``cm_event`` await events of objects of ``siwarp.verbs`` and ``siwarp.cm``. Errors are
those of the blocking interface, and deadlines are asyncio's (``asyncio.timeout``,
``asyncio.wait_for``).

Everything that one event loop does on one device shares one open device: two descriptors in the
loop, one thread of the library. A connection adds its socket alone. The device closes with its last
user. As in asyncio itself, nothing here may be called from another thread than the loop's.

What cancellation does:

- ``recv``, ``accept``, ``wait`` and iterating lose nothing: the next call returns the message or
  the connection.
- ``connect`` closes what it began. So does ``Request.accept``.
- ``send``, ``write``, ``read``: the operation is done wholly, perhaps later, or not at all, and the
  connection goes on. But if the operation uses the caller's own memory (more than 64 KiB, an MR,
  ``read_into``), cancelling closes the connection, so that the caller may use the memory again.
"""

from siwarp.aio.conn import Connection, connect
from siwarp.aio.listener import Listener, Request, listen
from siwarp.aio.rd import RDEndpoint, open_rd
from siwarp.aio.ud import Datagram, UDEndpoint, open_ud
from siwarp.aio.wait import cm_event, completions, wait

__all__ = [
    "Connection",
    "Datagram",
    "Listener",
    "RDEndpoint",
    "Request",
    "UDEndpoint",
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
