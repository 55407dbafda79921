# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Registered memory: pools of units for sends and receives.

A pool grows by regions on demand, and returns them when they are no longer used.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

from siwarp.verbs import MR, PD, SGE, AccessFlag, StateError

__all__ = ["POOL_SIZE", "UNIT_SIZE", "Pool", "SplitPool", "Unit", "Units"]

#: Maximum size of a pool in octets, and size of each of its units.
POOL_SIZE = 64 << 20
UNIT_SIZE = 1 << 20
#: Octets that a pool allocates and registers at a time: at least one unit.
REGION_SIZE = 4 << 20
#: Number of regions without a unit in use that stay registered: those that were used last.
IDLE_REGIONS = 1


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
    def _pop_free_unit(self, set_aside: bool = False) -> Unit | None:
        """Remove a free unit and return it; ``None`` if there is none.

        ``set_aside``: also a unit of those that are set aside (``Pool``).
        """

    @abstractmethod
    def _note_unit_freed(self, unit: Unit) -> None:
        """Store a unit as free, because no task waits for one."""

    @property
    def waiting_count(self) -> int:
        """The number of tasks that wait for a unit."""
        return sum(not turn.done() for turn in self._waiting)

    def take_nowait(self, *, set_aside: bool = False) -> Unit | None:
        """Return a free unit; ``None`` if there is none, or if tasks wait for one.

        ``set_aside``: units that are set aside are free, and tasks that wait for others have no
        claim to them.
        """
        if not set_aside and any(not turn.done() for turn in self._waiting):
            return None
        unit = self._pop_free_unit(set_aside)
        if unit is not None:
            unit._held = True
        return unit

    def request_unit(self) -> asyncio.Future[Unit]:
        """Return a future that gets the next free unit; a request ends with
        ``withdraw_unit_request``.

        The caller may set an exception in the future, which then gets no unit.
        """
        turn: asyncio.Future[Unit] = asyncio.get_running_loop().create_future()
        unit = self.take_nowait()
        if unit is None:
            self._waiting.append(turn)
        else:
            turn.set_result(unit)
        return turn

    def withdraw_unit_request(self, turn: asyncio.Future[Unit]) -> None:
        """End a request, and release the unit that it may have got."""
        if not turn.done():
            turn.cancel()
        elif not turn.cancelled() and turn.exception() is None:
            turn.result().release()
        with contextlib.suppress(ValueError):
            self._waiting.remove(turn)

    async def take(self) -> Unit:
        """Wait for a free unit, and return it."""
        turn = self.request_unit()
        try:
            return await turn
        except BaseException:
            self.withdraw_unit_request(turn)
            raise

    def _put_back_unit(self, unit: Unit) -> None:
        self._note_unit_freed(unit)
        self._serve_waiting_tasks()

    def _serve_waiting_tasks(self) -> None:
        """Give units that have become free to the tasks that wait for one."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            unit = self._pop_free_unit()
            if unit is None:
                return
            unit._held = True
            self._waiting.popleft().set_result(unit)


class _Region:
    """Units whose memory is allocated and registered together."""

    __slots__ = ("count", "free", "mr")

    def __init__(
        self, pd: PD | None, count: int, unit: int, put_back: Callable[[_Region, Unit], None]
    ) -> None:
        #: The number of units.
        self.count = count
        view = memoryview(mmap.mmap(-1, count * unit))
        #: The registration, which keeps the memory until it is closed.
        self.mr = None if pd is None else MR(pd, view, AccessFlag.LOCAL_WRITE)
        # The unit that was released last is used next, because the cache may have its memory.
        self.free = [
            Unit(self.mr, at, view[at : at + unit], partial(put_back, self))
            for at in range(0, count * unit, unit)
        ]

    @property
    def is_idle(self) -> bool:
        """Whether no unit is in use."""
        return len(self.free) == self.count

    def close(self) -> bool:
        """Deregister and free the memory; return False if the transport still uses it."""
        if self.mr is not None:
            try:
                self.mr.close()
            except StateError:
                return False
        self.free.clear()
        return True


class Pool(Units):
    """At most ``size`` octets of memory in units of ``unit`` octets.

    The memory is allocated and registered in regions of ``REGION_SIZE``: the first at once, further
    ones when no registered unit is free. Of the regions without a unit in use, all but the
    ``IDLE_REGIONS`` that were used last are deregistered and freed.

    With ``pd`` None the memory is not registered, for transports that do not need it.
    """

    def __init__(self, pd: PD | None, size: int = POOL_SIZE, unit: int = UNIT_SIZE) -> None:
        super().__init__()
        if not 0 < unit <= size:
            raise ValueError(f"a pool of {size} octets has no unit of {unit}")
        self.unit = unit
        #: The number of units, and the number of those that only calls with ``set_aside`` may take.
        self.size = size // unit
        self.set_aside = 0
        self._pd = pd
        self._splits: list[SplitPool] = []
        self._regions: list[_Region] = []
        # The regions without a unit in use, those used last at the end.
        self._idle: dict[_Region, None] = {}
        self._used = 0
        self._idle[self._add_region()] = None

    @property
    def free_count(self) -> int:
        """The number of units that are not in use, including those that are not registered yet."""
        return self.size - self._used

    @property
    def registered_count(self) -> int:
        """The number of units that are registered: those in use, and free ones in the cache."""
        return sum(region.count for region in self._regions)

    def _add_region(self) -> _Region:
        count = min(max(1, REGION_SIZE // self.unit), self.size - self.registered_count)
        region = _Region(self._pd, count, self.unit, self._put_back_to_region)
        self._regions.append(region)
        return region

    def _pop_free_unit(self, set_aside: bool = False) -> Unit | None:
        if self.free_count <= (0 if set_aside else self.set_aside):
            return None
        # The oldest region that has a free unit, so that the others become idle.
        region = next((region for region in self._regions if region.free), None)
        if region is None:
            try:
                region = self._add_region()
            except OSError:
                # Memory cannot be registered now. The caller waits for a unit that is in use.
                return None
        self._idle.pop(region, None)
        self._used += 1
        return region.free.pop()

    def _put_back_to_region(self, region: _Region, unit: Unit) -> None:
        region.free.append(unit)
        self._put_back_unit(unit)
        if region.is_idle:
            self._idle[region] = None
            for oldest in list(self._idle)[:-IDLE_REGIONS]:
                if oldest.close():
                    del self._idle[oldest]
                    self._regions.remove(oldest)

    def _note_unit_freed(self, unit: Unit) -> None:
        self._used -= 1

    def _serve_waiting_tasks(self) -> None:
        super()._serve_waiting_tasks()
        for split in self._splits:
            split._serve_waiting_tasks()

    @property
    def waiting_count(self) -> int:
        """The number of tasks that wait for a unit or for a part of one."""
        return super().waiting_count + sum(split.waiting_count for split in self._splits)


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
    def free_count(self) -> int:
        """The number of free parts, including the parts into which free units can be divided."""
        parts = sum(map(len, self._free_parts.values()))
        return parts + self._pool.free_count * self._parts_a_unit

    def _pop_free_unit(self, set_aside: bool = False) -> Unit | None:
        if not self._free_parts:
            whole = self._pool.take_nowait(set_aside=set_aside)
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

    def _note_unit_freed(self, part: Unit) -> None:
        whole = self._whole[part]
        parts = self._free_parts.setdefault(whole, [])
        parts.append(part)
        if len(parts) == self._parts_a_unit:
            del self._free_parts[whole]
            for one in parts:
                del self._whole[one]
            whole.release()
