"""Helpers shared by the tests of aio/."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from siwarp import aio

LOOPBACK = ("127.0.0.1", 0)
LIMIT = 60.0  # seconds; a wait that succeeds ends long before
SANITIZED = "SANITIZER" in os.environ

T = TypeVar("T")


def run(main: Callable[[], Awaitable[T]], limit: float = LIMIT) -> T:
    """Run a test's coroutine; fail if it leaves errors or tasks in the event loop."""
    troubles: list[dict[str, Any]] = []

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: troubles.append(context))
        result = await asyncio.wait_for(main(), limit)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left: {left}"
        gc.collect()  # makes futures report exceptions that were never retrieved
        await asyncio.sleep(0)
        return result

    result = asyncio.run(guarded())
    assert not troubles, troubles
    return result


def fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def threads() -> int:
    """Return the number of threads, without those that are about to end."""
    for thread in threading.enumerate():
        if thread.name == "siwarp-aio-close":
            thread.join(LIMIT)
    for _ in range(100):
        before = len(list(Path("/proc/self/task").iterdir()))
        time.sleep(0.005)
        if len(list(Path("/proc/self/task").iterdir())) == before:
            break
    return before


def no_more_threads_than(count: int) -> bool:
    """Return whether the thread count falls to `count`; joined threads may be listed a while."""
    deadline = time.monotonic() + LIMIT
    while threads() > count:
        if time.monotonic() > deadline:
            return False
    return True


async def until(ready: Callable[[], Any], limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not ready():
        assert time.monotonic() < deadline, f"nothing within {limit} s"
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[aio.Connection, aio.Connection]]:
    """Provide two connected endpoints in this event loop, the initiator first."""
    async with aio.listen(LOOPBACK, **options) as listener:
        accepting = asyncio.create_task(listener.accept())
        async with aio.connect(listener.address, **options) as ours, await accepting as theirs:
            yield ours, theirs


async def gone(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end; its outcome is ignored."""
    task.cancel()
    await asyncio.wait([task])
