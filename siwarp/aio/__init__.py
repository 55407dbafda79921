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
and ``cm_event`` await what happens to objects of ``siwarp.verbs`` and ``siwarp.cm``. Errors are
those of the blocking interface, and deadlines are asyncio's (``asyncio.timeout``,
``asyncio.wait_for``).

All that one event loop does over one device shares one open device: two descriptors in the loop,
one thread of the library. A connection has its socket and nothing else. The device closes with
the last that uses it. Like asyncio itself, nothing here may be called from another thread than
the loop's.

What cancelling does:

- ``recv``, ``accept``, ``wait`` and iterating lose nothing: the next call gives the message or the
  connection.
- ``connect`` closes what it began. So does ``Request.accept``.
- ``send``, ``write``, ``read``: nothing or all of it has been done or will be, never a part of a
  message; the connection goes on. But where the caller's own memory is lent (more than 64 KiB, an
  MR, ``read_into``), cancelling closes the connection, so that the memory is the caller's again.
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
