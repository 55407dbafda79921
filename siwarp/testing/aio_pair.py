# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Two asyncio connections that are connected to each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from siwarp.base import system

if TYPE_CHECKING:
    from siwarp import aio

__all__ = ["aio_pair"]


@contextlib.asynccontextmanager
async def aio_pair(host: str = "127.0.0.1") -> AsyncIterator[tuple[aio.Connection, aio.Connection]]:
    """Yield two RC connections of ``siwarp.aio`` that are connected to each other; close them.

    Use it as ``async with aio_pair() as (a, b)``. ``host`` is an address of this machine, or of a
    device of the simulated world in which ``World.run`` runs the coroutine. The first connection is
    the initiator, the second one the responder.

    Raises:
        Error: ``host`` is not an address of this machine, or of the world.
        RuntimeError: a simulated process, which has no loopback device, and no ``host``.

    """
    if system.simulated and host == "127.0.0.1":
        raise RuntimeError(
            "this process is simulated and has no loopback device: pass the address of a device "
            "of the world, for example aio_pair('10.0.0.1'), or run without siwarp.sim and "
            "SIWARP_SIM"
        )
    from siwarp import aio

    async with aio.listen((host, 0)) as listener:
        accepting = asyncio.ensure_future(listener.accept())
        try:
            async with aio.connect(listener.address) as a, await accepting as b:
                yield a, b
        finally:
            accepting.cancel()
