# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""ADTS, the advanced data transfer service: files and memory over RD, RC, UD or TCP.

::

    async with await adts.serve("/data", key=key, writable=True) as server:
        async with await adts.connect(server.address, key=key) as session:
            await session.put("results", "run-7", recursive=True)
            await session.get("run-7/table.npy", memory)

``connect`` and ``serve`` are for asyncio; ``copy`` and ``Client`` are for programs without an event
loop. The octets of files are neither encrypted nor protected against tampering on the path; the
protocol is specified in spec/adts.md. siwarp.ulp.adts needs the package crc32c:
``pip install 'siwarp[cli]'``.
"""

from siwarp.ulp.adts.auth import Key, KeyFileError, create_key_file, read_key_file
from siwarp.ulp.adts.channel import Limits
from siwarp.ulp.adts.client import Progress, Result, Session, connect
from siwarp.ulp.adts.copy import Client, copy, copy_async
from siwarp.ulp.adts.server import Server, serve
from siwarp.ulp.adts.session import ADTSError
from siwarp.ulp.adts.transfer import Failure
from siwarp.ulp.adts.tree import Entry
from siwarp.ulp.adts.wire import DEFAULT_PORT, DigestKind, ErrorCode, FileKind

__all__ = [
    "DEFAULT_PORT",
    "ADTSError",
    "Client",
    "DigestKind",
    "Entry",
    "ErrorCode",
    "Failure",
    "FileKind",
    "Key",
    "KeyFileError",
    "Limits",
    "Progress",
    "Result",
    "Server",
    "Session",
    "connect",
    "copy",
    "copy_async",
    "create_key_file",
    "read_key_file",
    "serve",
]


def __dir__() -> list[str]:
    return __all__
