"""Pools of registered units serve waiting tasks in order, also if some are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from siwarp.ulp.adts.memory import Pool, SplitPool
from siwarp.verbs import PD, Context, StateError


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
    assert (len(units), pool.size, pool.free) == (4, 4, 0)
    assert pool.mr is not None
    for number, unit in enumerate(units):
        assert bytes(unit.view) == bytes([number]) * 16384
        sge = unit.sge(100)
        assert (sge.lkey, sge.length) == (pool.mr.lkey, 100)
        assert pool.mr.addr <= sge.addr < pool.mr.addr + 65536
        unit.release()
    assert len({unit.offset for unit in units}) == 4
    assert pool.free == 4


def test_a_unit_is_released_once(pd: PD) -> None:
    pool = Pool(pd, 16384, 16384)
    unit = pool.take_nowait()
    assert unit is not None
    unit.release()
    with pytest.raises(ValueError, match="free already"):
        unit.release()
    assert pool.free == 1


def test_memory_without_a_pd_is_not_registered() -> None:
    unit = Pool(None, 4096, 4096).take_nowait()
    assert unit is not None
    with pytest.raises(ValueError, match="not registered"):
        unit.sge(1)


def test_a_pool_has_at_least_one_unit() -> None:
    with pytest.raises(ValueError, match="no unit of"):
        Pool(None, 4096, 8192)


def test_waiting_tasks_get_units_in_order_and_cancelled_ones_lose_none() -> None:
    async def wait_for_units() -> None:
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
        assert pool.waiting == 5
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert pool.waiting == 4
        held[0].release()  # task 1 gets the unit, but is cancelled before it runs
        tasks[1].cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        assert pool.take_nowait() is None  # no unit is free, because tasks 2 to 4 wait for one
        held[1].release()
        await asyncio.gather(*tasks[2:])
        assert order == [2, 3, 4]
        assert (pool.free, pool.waiting) == (2, 0)

    asyncio.run(wait_for_units())


def test_an_exception_in_a_request_ends_its_wait() -> None:
    async def fail_request() -> None:
        pool = Pool(None, 4096, 4096)
        unit = await pool.take()
        turn = pool.request()
        turn.set_exception(ConnectionError("ended"))
        with pytest.raises(ConnectionError):
            await turn
        pool.withdraw(turn)
        unit.release()
        assert pool.free == 1

    asyncio.run(fail_request())


def test_a_unit_whose_parts_are_all_free_returns_to_its_pool(pd: PD) -> None:
    pool = Pool(pd, 4 * 65536, 65536)
    parts = SplitPool(pool, 16384)
    assert parts.free == 16
    taken = [parts.take_nowait() for _ in range(5)]
    assert (pool.free, parts.free) == (2, 11)
    assert len({part.offset for part in taken if part}) == 5
    for part in taken:
        assert part is not None
        assert len(part.view) == 16384
        part.release()
    assert (pool.free, parts.free) == (4, 16)
    units = [pool.take_nowait() for _ in range(4)]
    assert parts.take_nowait() is None
    assert all(units)


def test_a_unit_that_becomes_free_serves_tasks_that_wait_for_parts() -> None:
    async def wait_for_parts() -> None:
        pool = Pool(None, 65536, 65536)
        parts = SplitPool(pool, 16384)
        whole = await pool.take()
        tasks = [asyncio.create_task(parts.take()) for _ in range(6)]
        await asyncio.sleep(0)
        assert (parts.waiting, pool.waiting) == (6, 6)
        whole.release()
        await asyncio.sleep(0)
        assert sum(task.done() for task in tasks) == 4
        for task in tasks:
            (await task).release()
        assert (pool.free, parts.free, pool.waiting) == (1, 4, 0)

    asyncio.run(wait_for_parts())


def test_registered_memory_outlives_neither_its_users_nor_its_device(pd: PD) -> None:
    pool = Pool(pd, 65536, 16384)
    assert pool.mr is not None
    pd.context.close(force=True)
    with pytest.raises(StateError):
        pool.mr.sge()
