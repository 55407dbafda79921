# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Tasks: threads of which one runs at a time, and locks that they may hold while others run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from siwarp.base.library import lib
from siwarp.sim.units import NEVER

__all__ = ["Ended", "SimLock", "SimRLock", "Task", "current", "home", "leave_if_over", "start"]


#: Whether the world ends: tasks that still wait are to end.
ending = False


class Ended(BaseException):
    """Raised inside of a task that still runs when its world ends."""


class Task:
    """A function that runs in a world; made by ``World.spawn``."""

    def __init__(self, name: str, home: str | None) -> None:
        #: Its name in messages.
        self.name = name
        #: The address of the device that ``siwarp.connect`` and its like use in it, or None.
        self.home = home
        #: Its number in the world.
        self.number = -1
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._told = False
        self._crashes = 0  # of its host when it started

    def done(self) -> bool:
        """Whether the function has returned or raised."""
        return self._done

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised.

        Raises:
            RuntimeError: it has not ended.

        """
        if not self._done:
            raise RuntimeError(f"{self!r} has not ended: wait with world.run_until(task.done)")
        if self._error is not None:
            self._told = True
            raise self._error
        return self._value

    def __repr__(self) -> str:
        state = "running" if not self._done else "failed" if self._error else "done"
        return f"<Task {self.number} {self.name} {state}>"


#: The running task of each thread; none for the thread that opened the world.
_local = threading.local()


def current() -> Task | None:
    """Return the task that this thread is; None for the one that opened the world."""
    task: Task | None = getattr(_local, "task", None)
    return task


def home() -> str | None:
    """Return the address of the device on whose host the running task runs, or None."""
    task = current()
    return None if task is None else task.home


def leave_if_over() -> None:
    """Raise Ended in a task whose world ends."""
    if ending and current() is not None:
        raise Ended


def start(task: Task, call: Callable[[], Any], ended: Callable[[Task], None]) -> None:
    """Start a task's thread; ``ended`` is called in it, when the function is over.

    Raises:
        MemoryError, RuntimeError: no memory, or no threads are left.

    """
    number = lib.siw_sim_task_new()
    if number < 0:
        raise MemoryError(f"no memory for the task {task.name}: end others first")
    task.number = number

    def run() -> None:
        lib.siw_sim_task_begin(number)
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
        # A daemon: what is left of a world that could not end must not keep the process.
        threading.Thread(target=run, name=f"siwarp-sim-{task.name}", daemon=True).start()
    except RuntimeError:
        lib.siw_sim_task_drop(number)
        raise


class SimLock:
    """A lock for tasks. While a task waits for it others run; it goes to the first that waits."""

    _reentrant = False

    def __init__(self) -> None:
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[int] = deque()

    def acquire(self, blocking: bool = True) -> bool:
        """Take it, or return False."""
        me = lib.siw_sim_task()
        if self._owner is None or (self._reentrant and self._owner == me):
            self._owner = me
            self._depth += 1
            return True
        if not blocking:
            return False
        self._waiting.append(me)
        while self._owner != me:  # release() hands it to the first that waits
            lib.siw_sim_park(NEVER)
            if self._owner != me and ending and current() is not None:
                self._waiting.remove(me)
                raise Ended
        return True

    def release(self) -> None:
        """Give it back.

        Raises:
            RuntimeError: no task holds it.

        """
        if self._owner is None:
            raise RuntimeError("release of a lock that no task holds: take it first")
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
    """A lock that its task may take again."""

    _reentrant = True
