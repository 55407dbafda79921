# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Two asyncio connections that are connected to each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from siwarp import aio

__all__ = ["aio_pair"]


@contextlib.asynccontextmanager
async def aio_pair(host: str = "127.0.0.1") -> AsyncIterator[tuple[aio.Connection, aio.Connection]]:
    """Yield two RC connections of ``siwarp.aio`` that are connected to each other; close them.

    Use it as ``async with aio_pair() as (a, b)``. ``host`` is an address of this machine. The first
    connection is the initiator, the second one the responder.

    Raises:
        Error: ``host`` is not an address of this machine.

    """
    from siwarp import aio

    async with aio.listen((host, 0)) as listener:
        accepting = asyncio.ensure_future(listener.accept())
        try:
            async with aio.connect(listener.address) as a, await accepting as b:
                yield a, b
        finally:
            accepting.cancel()
