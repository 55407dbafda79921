# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Registered memory: pools of units for sends and receives."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable

from siwarp.verbs import MR, PD, SGE, AccessFlag

__all__ = ["POOL_SIZE", "UNIT_SIZE", "Pool", "SplitPool", "Unit", "Units"]

#: Octets of a pool, and octets of each of its units.
POOL_SIZE = 64 << 20
UNIT_SIZE = 1 << 20


class Unit:
    """A piece of registered memory, taken from a pool and released once."""

    __slots__ = ("_free", "_held", "mr", "offset", "on_release", "view")

    #: The unit's memory, writable.
    view: memoryview
    #: The memory region that contains the unit, at ``offset``; ``None``: the unit is not
    #: registered.
    mr: MR | None
    offset: int
    #: A function that the next release calls once, after the unit has become free.
    on_release: Callable[[], None] | None

    def __init__(
        self, mr: MR | None, offset: int, view: memoryview, free: Callable[[Unit], None]
    ) -> None:
        self.mr = mr
        self.offset = offset
        self.view = view
        self.on_release = None
        self._free = free
        self._held = False

    def sge(self, length: int) -> SGE:
        """Return a scatter/gather element of the unit's first ``length`` octets."""
        if self.mr is None:
            raise ValueError("this memory is not registered: its pool has no PD")
        return self.mr.sge(self.offset, length)

    def release(self) -> None:
        """Give the unit back to its pool.

        Raises:
            ValueError: the unit is free already.

        """
        if not self._held:
            raise ValueError("this unit is free already: release each unit once")
        self._held = False
        call, self.on_release = self.on_release, None
        self._free(self)
        if call is not None:
            call()


class Units(ABC):
    """Provides units of one size. Only the thread of the event loop may use the object.

    Tasks that wait for a unit get units in the order of their calls. Cancellation loses no unit.
    """

    #: Octets of a unit.
    unit: int

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[Unit]] = deque()

    @abstractmethod
    def _pop_free_unit(self) -> Unit | None:
        """Remove a free unit and return it; ``None`` if there is none."""

    @abstractmethod
    def _push_free_unit(self, unit: Unit) -> None:
        """Store a unit as free, because no task waits for one."""

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for a unit."""
        return sum(not turn.done() for turn in self._waiting)

    def take_nowait(self) -> Unit | None:
        """Return a free unit; ``None`` if there is none, or if tasks wait for one."""
        if any(not turn.done() for turn in self._waiting):
            return None
        unit = self._pop_free_unit()
        if unit is not None:
            unit._held = True
        return unit

    def request(self) -> asyncio.Future[Unit]:
        """Return a future that gets the next free unit; a request ends with ``withdraw``.

        The caller may set an exception in the future, which then gets no unit.
        """
        turn: asyncio.Future[Unit] = asyncio.get_running_loop().create_future()
        unit = self.take_nowait()
        if unit is None:
            self._waiting.append(turn)
        else:
            turn.set_result(unit)
        return turn

    def withdraw(self, turn: asyncio.Future[Unit]) -> None:
        """End a request, and release the unit that it may have got."""
        if not turn.done():
            turn.cancel()
        elif not turn.cancelled() and turn.exception() is None:
            turn.result().release()
        with contextlib.suppress(ValueError):
            self._waiting.remove(turn)

    async def take(self) -> Unit:
        """Wait for a free unit, and return it."""
        turn = self.request()
        try:
            return await turn
        except BaseException:
            self.withdraw(turn)
            raise

    def _put_back_unit(self, unit: Unit) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                unit._held = True
                turn.set_result(unit)
                return
        self._push_free_unit(unit)


class Pool(Units):
    """Memory of ``size`` octets in units of ``unit`` octets, registered at once.

    With ``pd`` None the memory is not registered, for transports that do not need it.
    """

    def __init__(self, pd: PD | None, size: int = POOL_SIZE, unit: int = UNIT_SIZE) -> None:
        super().__init__()
        if not 0 < unit <= size:
            raise ValueError(f"a pool of {size} octets has no unit of {unit}")
        self.unit = unit
        #: The number of units.
        self.size = size // unit
        self._view = memoryview(mmap.mmap(-1, self.size * unit))
        #: The registration of all units.
        self.mr = None if pd is None else MR(pd, self._view, AccessFlag.LOCAL_WRITE)
        # The unit that was released last is used next, because the cache may have its memory.
        self._splits: list[SplitPool] = []
        self._units = [
            Unit(self.mr, at, self._view[at : at + unit], self._put_back_unit)
            for at in range(0, self.size * unit, unit)
        ]

    @property
    def free(self) -> int:
        """The number of free units."""
        return len(self._units)

    def _pop_free_unit(self) -> Unit | None:
        return self._units.pop() if self._units else None

    def _push_free_unit(self, unit: Unit) -> None:
        self._units.append(unit)
        for split in self._splits:
            split._serve_waiting_tasks()

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for a unit or for a part of one."""
        return super().waiting + sum(split.waiting for split in self._splits)


class SplitPool(Units):
    """Units of a pool as parts of ``unit`` octets; a unit whose parts are all free returns to the
    pool.
    """

    def __init__(self, pool: Pool, unit: int) -> None:
        super().__init__()
        if not 0 < unit <= pool.unit:
            raise ValueError(f"a unit of {pool.unit} octets has no part of {unit}")
        self.unit = unit
        self._pool = pool
        self._parts_a_unit = pool.unit // unit
        # The free parts of each unit of the pool that has some, and the unit of each part in use.
        self._free_parts: OrderedDict[Unit, list[Unit]] = OrderedDict()
        self._whole: dict[Unit, Unit] = {}
        pool._splits.append(self)

    @property
    def free(self) -> int:
        """The number of free parts, including the parts into which free units can be divided."""
        parts = sum(map(len, self._free_parts.values()))
        return parts + self._pool.free * self._parts_a_unit

    def _pop_free_unit(self) -> Unit | None:
        if not self._free_parts:
            whole = self._pool.take_nowait()
            if whole is None:
                return None
            parts = [
                Unit(
                    whole.mr,
                    whole.offset + at,
                    whole.view[at : at + self.unit],
                    self._put_back_unit,
                )
                for at in range(0, self._parts_a_unit * self.unit, self.unit)
            ]
            self._free_parts[whole] = parts
            self._whole.update(dict.fromkeys(parts, whole))
        whole, parts = next(iter(self._free_parts.items()))
        part = parts.pop()
        if not parts:
            del self._free_parts[whole]
        return part

    def _serve_waiting_tasks(self) -> None:
        """Give parts to waiting tasks after a unit of the pool has become free."""
        while self.waiting and (part := self._pop_free_unit()) is not None:
            self._put_back_unit(part)

    def _push_free_unit(self, part: Unit) -> None:
        whole = self._whole[part]
        parts = self._free_parts.setdefault(whole, [])
        parts.append(part)
        if len(parts) == self._parts_a_unit:
            del self._free_parts[whole]
            for one in parts:
                del self._whole[one]
            whole.release()
