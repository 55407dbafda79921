# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Tasks of a world, which are threads of which exactly one runs at a time, and their locks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from siwarp.base.library import lib
from siwarp.sim.units import NEVER

__all__ = [
    "SimLock",
    "SimRLock",
    "Task",
    "WorldEnded",
    "current_host_address",
    "current_task",
    "raise_if_world_is_closing",
    "start_task",
]


#: True while the world is being closed, so that tasks that still wait must end.
ending = False


class WorldEnded(BaseException):
    """Exception raised inside a task that still runs when its world is closed."""


class Task:
    """A function that runs in a thread of its own in a world, created by ``World.spawn``."""

    def __init__(self, name: str, home: str | None) -> None:
        #: Name of the task in messages.
        self.name = name
        #: First address of the task's host, which ``siwarp.connect`` uses; None: the task has no
        #: host.
        self.home = home
        #: Number of the task in the world.
        self.number = -1
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._error_raised = False
        self._crashes = 0  # number of crashes of the task's host before the task started

    def done(self) -> bool:
        """Return whether the task's function has returned or raised an exception."""
        return self._done

    def result(self) -> Any:
        """Return the result of the task's function, or raise the function's exception.

        Raises:
            RuntimeError: the task has not ended.

        """
        if not self._done:
            raise RuntimeError(f"{self!r} has not ended: wait with world.run_until(task.done)")
        if self._error is not None:
            self._error_raised = True
            raise self._error
        return self._value

    def __repr__(self) -> str:
        state = "running" if not self._done else "failed" if self._error else "done"
        return f"<Task {self.number} {self.name} {state}>"


#: Task of each thread; the thread that opened the world has no task.
_local = threading.local()


def current_task() -> Task | None:
    """Return the calling thread's task, or None for the thread that opened the world."""
    task: Task | None = getattr(_local, "task", None)
    return task


def current_host_address() -> str | None:
    """Return the first address of the running task's host, or None if the task has no host."""
    task = current_task()
    return None if task is None else task.home


def raise_if_world_is_closing() -> None:
    """Raise WorldEnded if the calling task's world is being closed."""
    if ending and current_task() is not None:
        raise WorldEnded


def start_task(task: Task, call: Callable[[], Any], ended: Callable[[Task], None]) -> None:
    """Start a thread that calls ``call``, stores the result in the task, and calls ``ended``.

    Raises:
        MemoryError: no memory is left.
        RuntimeError: the thread cannot be started.

    """
    number = lib.siw_sim_task_new()
    if number < 0:
        raise MemoryError(f"out of memory for the task {task.name}: end other tasks first")
    task.number = number

    def run_task() -> None:
        lib.siw_sim_task_wait_first_turn(number)
        _local.task = task
        try:
            task._value = call()
        except BaseException as e:
            task._error = e
        finally:
            task._done = True
            ended(task)
            lib.siw_sim_task_end()

    try:
        # The thread is a daemon thread, so that a task of a world that could not be closed does not
        # block the exit of the process.
        threading.Thread(target=run_task, name=f"siwarp-sim-{task.name}", daemon=True).start()
    except RuntimeError:
        lib.siw_sim_task_destroy(number)
        raise


class SimLock:
    """A lock for tasks, passed on release to the task that has waited longest."""

    _reentrant = False

    def __init__(self) -> None:
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[int] = deque()

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock, or return False if the lock is held and ``blocking`` is False."""
        me = lib.siw_sim_current_task_number()
        if self._owner is None or (self._reentrant and self._owner == me):
            self._owner = me
            self._depth += 1
            return True
        if not blocking:
            return False
        self._waiting.append(me)
        while self._owner != me:  # release() passes the lock to the first waiter
            lib.siw_sim_park(NEVER)
            if self._owner != me and ending and current_task() is not None:
                self._waiting.remove(me)
                raise WorldEnded
        return True

    def release(self) -> None:
        """Release the lock.

        Raises:
            RuntimeError: no task holds the lock.

        """
        if self._owner is None:
            raise RuntimeError("release of a lock that no task holds: acquire it first")
        self._depth -= 1
        if self._depth:
            return
        self._owner = None
        if self._waiting:
            self._owner = self._waiting.popleft()
            self._depth = 1
            lib.siw_sim_unpark(self._owner)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.release()


class SimRLock(SimLock):
    """A reentrant lock for tasks, which its holder may acquire again."""

    _reentrant = True
