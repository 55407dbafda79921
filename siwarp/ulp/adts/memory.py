# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Registered memory: a pool of units for sends and receives, and registrations made on demand."""

from __future__ import annotations

import asyncio
import mmap
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from siwarp.verbs import MR, PD, SGE, AccessFlag

__all__ = ["POOL_SIZE", "UNIT_SIZE", "Pool", "RegistrationCache", "Unit"]

#: Octets of a pool, and of one of its units.
POOL_SIZE = 64 << 20
UNIT_SIZE = 1 << 20


class Unit:
    """A piece of a pool's memory: a whole unit, or one of the parts of a unit.

    The holder releases the unit, or passes it to a channel, which then releases it. A unit is
    released once; the view must not be used afterwards.
    """

    __slots__ = ("_free", "_held", "_offset", "_pool", "view")

    #: The unit's memory, writable.
    view: memoryview

    def __init__(self, pool: Pool, offset: int, size: int, free: Callable[[Unit], None]) -> None:
        self._pool = pool
        self._offset = offset
        self._free = free
        self._held = True
        self.view = pool._view[offset : offset + size]

    def sge(self, length: int) -> SGE:
        """Return a scatter/gather element of the unit's first ``length`` octets."""
        mr = self._pool.mr
        if mr is None:
            raise ValueError("the memory of a pool without a PD is not registered")
        return mr.sge(self._offset, length)

    def split(self, size: int) -> list[Unit]:
        """Return the unit as parts of ``size`` octets; the unit is free when all parts are."""
        left = len(self.view) // size
        if not left:
            raise ValueError(f"a unit of {len(self.view)} octets has no part of {size}")

        def release_part(part: Unit) -> None:
            nonlocal left
            left -= 1
            if not left:
                self.release()

        at = range(self._offset, self._offset + left * size, size)
        return [Unit(self._pool, offset, size, release_part) for offset in at]

    def release(self) -> None:
        """Give the unit back.

        Raises:
            ValueError: the unit was released before.

        """
        if not self._held:
            raise ValueError("this unit has been released before: release each unit once")
        self._held = False
        self._free(self)


class Pool:
    """Memory of ``octets`` octets in units of ``unit`` octets, registered once with ``pd``.

    With ``pd`` None the memory is not registered, for transports that do not need it. Only the
    thread of the event loop may use a pool. Tasks that wait for a unit get units in the order of
    their calls; cancellation loses no unit.
    """

    def __init__(self, pd: PD | None, octets: int = POOL_SIZE, unit: int = UNIT_SIZE) -> None:
        if not 0 < unit <= octets:
            raise ValueError(f"a pool of {octets} octets has no unit of {unit}")
        self.unit = unit
        #: The number of units.
        self.size = octets // unit
        self._memory = mmap.mmap(-1, self.size * unit)
        self._view = memoryview(self._memory)
        #: The registration of all units.
        self.mr = None if pd is None else MR(pd, self._view, AccessFlag.LOCAL_WRITE)
        self._units = deque(
            Unit(self, i * unit, unit, self._put_back) for i in range(self.size)
        )
        self._waiting: deque[asyncio.Future[Unit]] = deque()

    @property
    def free(self) -> int:
        """The number of free units."""
        return len(self._units)

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for a unit."""
        return len(self._waiting)

    def take_nowait(self) -> Unit | None:
        """Return a free unit; ``None`` if there is none, or if other tasks wait for one."""
        if not self._units or self._waiting:
            return None
        unit = self._units.pop()
        unit._held = True
        return unit

    async def take(self) -> Unit:
        """Wait for a free unit, and return it."""
        unit = self.take_nowait()
        if unit is not None:
            return unit
        turn: asyncio.Future[Unit] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turn.result().release()  # the task got a unit and was cancelled at the same time
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _put_back(self, unit: Unit) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                unit._held = True
                turn.set_result(unit)
                return
        self._units.append(unit)

    def close(self) -> None:
        """Deregister the memory; no request may use it any more.

        Raises:
            StateError: an outstanding request uses the memory (EBUSY).

        """
        if self.mr is not None:
            self.mr.close()


class RegistrationCache:
    """Registrations of a program's own memory, made on demand and kept for the next transfer.

    At most ``octets`` octets stay registered; the registration that was unused longest is closed
    first. A registration is closed when its buffer is deleted, if the buffer supports weak
    references (NumPy arrays, mmap; not bytes or bytearray), and otherwise when it is replaced.
    """

    def __init__(self, pd: PD, octets: int = 256 << 20) -> None:
        raise NotImplementedError

    def get(self, buffer: Any) -> MR:
        """Return the registration of a buffer, for sending; register it if necessary."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all registrations."""
        raise NotImplementedError


_unused = (OrderedDict, weakref)
