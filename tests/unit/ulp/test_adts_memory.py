"""Pools of registered units serve waiting tasks in order, also if some are cancelled."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from typing import Any

import pytest

from siwarp.ulp.adts.memory import Pool, SplitPool, Unit
from siwarp.verbs import MR, PD, Context, LimitError, StateError


@pytest.fixture(name="pd")
def protection_domain() -> Iterator[PD]:
    with Context() as context:
        yield PD(context)


def test_the_units_of_a_pool_are_disjoint_and_registered(pd: PD) -> None:
    pool = Pool(pd, 65536, 16384)
    units = []
    while (unit := pool.take_nowait()) is not None:
        unit.view[:] = bytes([len(units)]) * len(unit.view)
        units.append(unit)
    assert (len(units), pool.size, pool.free_count) == (4, 4, 0)
    mr = pool._regions[0].mr
    assert mr is not None
    for number, unit in enumerate(units):
        assert bytes(unit.view) == bytes([number]) * 16384
        sge = unit.sge(100)
        assert (sge.lkey, sge.length) == (mr.lkey, 100)
        assert mr.addr <= sge.addr < mr.addr + 65536
        unit.release()
    assert len({unit.offset for unit in units}) == 4
    assert pool.free_count == 4


def test_a_unit_is_released_once(pd: PD) -> None:
    pool = Pool(pd, 16384, 16384)
    unit = pool.take_nowait()
    assert unit is not None
    unit.release()
    with pytest.raises(ValueError, match="free already"):
        unit.release()
    assert pool.free_count == 1


def test_memory_without_a_pd_is_not_registered() -> None:
    unit = Pool(None, 4096, 4096).take_nowait()
    assert unit is not None
    with pytest.raises(ValueError, match="not registered"):
        unit.sge(1)


def test_a_pool_has_at_least_one_unit() -> None:
    with pytest.raises(ValueError, match="no unit of"):
        Pool(None, 4096, 8192)


def test_waiting_tasks_get_units_in_order_and_cancelled_ones_lose_none() -> None:
    async def take_units_of_full_pool() -> None:
        pool = Pool(None, 8192, 4096)
        held = [await pool.take(), await pool.take()]
        order: list[int] = []

        async def take_and_release_unit(number: int) -> None:
            unit = await pool.take()
            order.append(number)
            await asyncio.sleep(0)
            unit.release()

        tasks = [asyncio.create_task(take_and_release_unit(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert pool.waiting_count == 5
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert pool.waiting_count == 4
        held[0].release()  # task 1 gets the unit, but is cancelled before it runs
        tasks[1].cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        assert pool.take_nowait() is None  # no unit is free, because tasks 2 to 4 wait for one
        held[1].release()
        await asyncio.gather(*tasks[2:])
        assert order == [2, 3, 4]
        assert (pool.free_count, pool.waiting_count) == (2, 0)

    asyncio.run(take_units_of_full_pool())


def test_an_exception_in_a_request_ends_its_wait() -> None:
    async def fail_request_for_unit() -> None:
        pool = Pool(None, 4096, 4096)
        unit = await pool.take()
        turn = pool.request_unit()
        turn.set_exception(ConnectionError("ended"))
        with pytest.raises(ConnectionError):
            await turn
        pool.withdraw_unit_request(turn)
        unit.release()
        assert pool.free_count == 1

    asyncio.run(fail_request_for_unit())


def test_a_unit_whose_parts_are_all_free_returns_to_its_pool(pd: PD) -> None:
    pool = Pool(pd, 4 * 65536, 65536)
    parts = SplitPool(pool, 16384)
    assert parts.free_count == 16
    taken = [parts.take_nowait() for _ in range(5)]
    assert (pool.free_count, parts.free_count) == (2, 11)
    assert len({part.offset for part in taken if part}) == 5
    for part in taken:
        assert part is not None
        assert len(part.view) == 16384
        part.release()
    assert (pool.free_count, parts.free_count) == (4, 16)
    units = [pool.take_nowait() for _ in range(4)]
    assert parts.take_nowait() is None
    assert all(units)


def test_a_unit_that_becomes_free_serves_tasks_that_wait_for_parts() -> None:
    async def take_parts_of_freed_unit() -> None:
        pool = Pool(None, 65536, 65536)
        parts = SplitPool(pool, 16384)
        whole = await pool.take()
        tasks = [asyncio.create_task(parts.take()) for _ in range(6)]
        await asyncio.sleep(0)
        assert (parts.waiting_count, pool.waiting_count) == (6, 6)
        whole.release()
        await asyncio.sleep(0)
        assert sum(task.done() for task in tasks) == 4
        for task in tasks:
            (await task).release()
        assert (pool.free_count, parts.free_count, pool.waiting_count) == (1, 4, 0)

    asyncio.run(take_parts_of_freed_unit())


@pytest.fixture
def shrink_pool_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each region of a pool have two units of 4,096 octets."""
    monkeypatch.setattr("siwarp.ulp.adts.memory.REGION_SIZE", 8192)


def take_units(pool: Pool, count: int) -> list[Unit]:
    units = [pool.take_nowait() for _ in range(count)]
    return [unit for unit in units if unit is not None]


def test_a_pool_is_registered_by_regions_on_demand_and_freed_after_use(
    pd: PD, shrink_pool_regions: None
) -> None:
    pool = Pool(pd, 5 * 4096, 4096)
    assert (pool.registered_count, pool.free_count) == (2, 5)
    units = take_units(pool, 6)
    assert (len(units), pool.registered_count, pool.free_count) == (5, 5, 0)
    assert len({unit.mr for unit in units}) == 3
    for unit in units:
        unit.release()
    assert (pool.registered_count, pool.free_count) == (1, 5)  # the last region, which has one unit
    assert [unit.mr is not None and unit.mr.closed for unit in units] == [True] * 4 + [False]
    with pytest.raises(StateError):
        units[0].sge(1)
    assert len(take_units(pool, 6)) == 5


def test_the_region_that_was_used_last_stays_registered(pd: PD, shrink_pool_regions: None) -> None:
    pool = Pool(pd, 6 * 4096, 4096)
    units = take_units(pool, 6)
    for unit in reversed(units):
        unit.release()
    (kept,) = take_units(pool, 1)
    assert kept.mr is units[0].mr
    assert units[5].mr is not None and units[5].mr.closed


def test_free_units_of_regions_in_use_are_taken_first(pd: PD, shrink_pool_regions: None) -> None:
    pool = Pool(pd, 6 * 4096, 4096)
    units = take_units(pool, 5)
    units[1].release()
    units[3].release()
    assert pool.registered_count == 6
    (unit,) = take_units(pool, 1)
    assert unit.mr is units[0].mr


def test_memory_that_cannot_be_registered_is_as_if_the_pool_were_smaller(
    pd: PD, shrink_pool_regions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(pd, 6 * 4096, 4096)

    def raise_error_of_refused_call(*args: Any) -> None:
        raise LimitError(errno.ENOMEM, "too many regions")

    monkeypatch.setattr("siwarp.ulp.adts.memory.MR", raise_error_of_refused_call)
    units = take_units(pool, 3)
    assert len(units) == 2
    units[0].release()
    assert len(take_units(pool, 2)) == 1


def test_a_region_that_the_transport_still_uses_is_kept_and_freed_later(
    pd: PD, shrink_pool_regions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(pd, 6 * 4096, 4096)
    units = take_units(pool, 6)
    close = MR.close

    def raise_error_of_refused_call(mr: MR) -> None:
        raise StateError(errno.EBUSY, "a Send uses the memory")

    monkeypatch.setattr(MR, "close", raise_error_of_refused_call)
    for unit in units[:4]:
        unit.release()
    assert pool.registered_count == 6
    assert not any(unit.mr is not None and unit.mr.closed for unit in units)
    monkeypatch.setattr(MR, "close", close)
    for unit in units[4:]:
        unit.release()
    assert pool.registered_count == 2


def test_units_that_are_set_aside_are_taken_only_on_request() -> None:
    async def take_units_that_are_set_aside() -> None:
        pool = Pool(None, 4 * 4096, 4096)
        parts = SplitPool(pool, 1024)
        pool.set_aside = 2
        held = take_units(pool, 4)
        assert (len(held), pool.free_count) == (2, 2)
        assert parts.take_nowait() is None
        turn = pool.request_unit()
        unit = pool.take_nowait(set_aside=True)
        part = parts.take_nowait(set_aside=True)
        assert unit is not None and part is not None and not turn.done()
        unit.release()
        assert not turn.done()
        held[0].release()
        assert not turn.done()  # two units are free, and both are set aside
        held[1].release()
        assert turn.done()

    asyncio.run(take_units_that_are_set_aside())


def test_registered_memory_outlives_neither_its_users_nor_its_device(pd: PD) -> None:
    pool = Pool(pd, 65536, 16384)
    mr = pool._regions[0].mr
    assert mr is not None
    pd.context.close(force=True)
    with pytest.raises(StateError):
        mr.sge()
