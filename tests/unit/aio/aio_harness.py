"""Functions shared by the tests of siwarp.aio."""

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
LIMIT = 60.0  # seconds
SANITIZED = "SANITIZER" in os.environ

T = TypeVar("T")


def run_in_event_loop(main: Callable[[], Awaitable[T]], limit: float = LIMIT) -> T:
    """Run the coroutine of a test; fail if errors or tasks remain in the event loop."""
    troubles: list[dict[str, Any]] = []

    async def run_and_check_tasks() -> T:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: troubles.append(context))
        result = await asyncio.wait_for(main(), limit)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left: {left}"
        # Garbage collection reports exceptions of futures that were not retrieved.
        gc.collect()
        await asyncio.sleep(0)
        return result

    result = asyncio.run(run_and_check_tasks())
    assert not troubles, troubles
    return result


def settled_thread_count() -> int:
    """Return the number of threads of the process, without threads that are about to end."""
    for thread in threading.enumerate():
        if thread.name == "siwarp-aio-close":
            thread.join(LIMIT)
    for _ in range(100):
        before = len(list(Path("/proc/self/task").iterdir()))
        time.sleep(0.005)
        if len(list(Path("/proc/self/task").iterdir())) == before:
            break
    return before


def thread_count_falls_to(count: int) -> bool:
    """Return whether the number of threads falls to `count` within the limit.

    The kernel may still list a thread shortly after the thread has been joined.
    """
    deadline = time.monotonic() + LIMIT
    while settled_thread_count() > count:
        if time.monotonic() > deadline:
            return False
    return True


async def wait_until_async(ready: Callable[[], Any], limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not ready():
        assert time.monotonic() < deadline, f"the condition was false for {limit} s"
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def connected_endpoints(
    **options: Any,
) -> AsyncIterator[tuple[aio.Connection, aio.Connection]]:
    """Provide two connected endpoints in the running event loop, the initiator first."""
    async with aio.listen(LOOPBACK, **options) as listener:
        accepting = asyncio.create_task(listener.accept())
        async with aio.connect(listener.address, **options) as ours, await accepting as theirs:
            yield ours, theirs


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, and ignore its result."""
    task.cancel()
    await asyncio.wait([task])
