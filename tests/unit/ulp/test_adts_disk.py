"""Calls of the file system in threads: their order, their results, and sessions that share."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from siwarp.ulp.adts.disk import Disk


def test_calls_are_made_in_their_order_and_errors_end_only_their_own_call() -> None:
    made: list[int] = []

    def record_call(number: int) -> int:
        made.append(number)
        if number == 3:
            raise OSError(5, "a bad sector")
        return 10 * number

    async def make_calls_of_which_one_fails() -> None:
        disk = Disk()
        futures = [disk.queue_call(record_call, number) for number in range(20)]
        done = await asyncio.gather(*futures, return_exceptions=True)
        assert made == list(range(20))
        assert isinstance(done.pop(3), OSError)
        assert done == [10 * number for number in range(20) if number != 3]
        disk.close()

    asyncio.run(make_calls_of_which_one_fails())


def test_a_cancelled_call_is_made_in_its_turn() -> None:
    may_go_on = threading.Event()
    made: list[str] = []

    async def cancel_second_of_three_calls() -> None:
        disk = Disk()
        first = disk.queue_call(may_go_on.wait)
        second = disk.queue_call(made.append, "second")
        third = disk.queue_call(made.append, "third")
        second.cancel()
        may_go_on.set()
        await asyncio.gather(first, third)
        assert made == ["second", "third"]
        disk.close()

    asyncio.run(cancel_second_of_three_calls())


def test_the_disk_is_busy_from_the_first_call_to_the_end_of_the_last() -> None:
    may_go_on = threading.Event()

    async def check_busy_since_during_calls() -> None:
        with ThreadPoolExecutor(1) as threads:
            disk = Disk(threads)
            assert disk.busy_since is None
            waiting = disk.queue_call(may_go_on.wait)
            began = disk.busy_since
            assert began is not None
            last = disk.queue_call(lambda: disk.busy_since)
            may_go_on.set()
            await waiting
            since = await last
            assert since is not None and since >= began
            # The only thread is free again, so the disk has no call left.
            await asyncio.get_running_loop().run_in_executor(threads, lambda: None)
            assert disk.busy_since is None

    asyncio.run(check_busy_since_during_calls())


def test_a_session_with_many_calls_lets_others_have_the_thread() -> None:
    may_go_on = threading.Event()
    made: list[str] = []

    async def make_calls_of_two_disks() -> None:
        with ThreadPoolExecutor(1) as threads:
            busy, other = Disk(threads), Disk(threads)
            first = busy.queue_call(may_go_on.wait)
            calls = [busy.queue_call(made.append, "busy") for _ in range(100)]
            short = other.queue_call(made.append, "other")
            may_go_on.set()
            await asyncio.gather(first, short, *calls)
            assert made.count("busy") == 100
            assert made.index("other") < 10

    asyncio.run(make_calls_of_two_disks())


def test_calls_that_wait_when_the_disk_is_closed_are_made() -> None:
    may_go_on = threading.Event()
    made: list[int] = []

    async def close_disk_with_waiting_calls() -> None:
        disk = Disk()
        calls = [
            disk.queue_call(may_go_on.wait),
            *(disk.queue_call(made.append, i) for i in range(50)),
        ]
        disk.close()
        may_go_on.set()
        await asyncio.gather(*calls)
        assert made == list(range(50))

    asyncio.run(close_disk_with_waiting_calls())


@pytest.mark.parametrize("calls", [1, 3])
def test_a_loop_that_was_closed_does_not_disturb_the_thread(calls: int) -> None:
    may_go_on = threading.Event()
    made: list[int] = []
    threads = ThreadPoolExecutor(1)

    async def start_calls_and_leave_loop() -> None:
        disk = Disk(threads)
        disk.queue_call(may_go_on.wait)
        for i in range(calls):
            disk.queue_call(made.append, i)

    asyncio.run(start_calls_and_leave_loop())
    may_go_on.set()
    threads.shutdown(wait=True)
    assert made == list(range(calls))
