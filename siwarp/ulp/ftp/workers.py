# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Pre-forked worker processes, which accept connections on sockets that they inherit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

from siwarp.base.stop import StopRequest

__all__ = ["run_workers"]

#: Seconds between two starts of the same worker, so that a worker that always fails uses no CPU.
RESTART_PAUSE = 1.0
#: Seconds after which workers that have not ended are killed.
_PATIENCE = 5.0


def run_workers(count: int, work: Callable[[socket.socket], None], stop: StopRequest) -> None:
    """Run ``work`` in ``count`` forked processes until ``stop``, and replace those that die.

    ``work`` gets a socket that becomes readable when it should return: because of ``stop``, or
    because this process has died. Call this function while the process has one thread: a fork
    copies only the thread that calls it. Threads and devices are opened in the worker.
    """
    ours, theirs = socket.socketpair()
    workers: dict[int, int] = {}  # the PID of each worker by its pidfd
    poll = select.poll()
    poll.register(stop.fileno(), select.POLLIN)

    def start_worker() -> None:
        pid = _fork_worker(work, ours, theirs)
        fd = os.pidfd_open(pid)
        workers[fd] = pid
        poll.register(fd, select.POLLIN)

    def reap_worker(fd: int) -> None:
        poll.unregister(fd)
        os.close(fd)
        pid = workers.pop(fd)
        _, status = os.waitpid(pid, 0)
        if not stop.is_set():
            what = (
                f"was killed by signal {os.WTERMSIG(status)}"
                if os.WIFSIGNALED(status)
                else f"ended with status {os.WEXITSTATUS(status)}"
            )
            print(f"siwarp: a worker {what}: let its clients connect again", file=sys.stderr)

    try:
        for _ in range(count):
            start_worker()
        while not stop.is_set():
            missing = count - len(workers)
            for fd, _ in poll.poll(RESTART_PAUSE * 1000 if missing else None):
                if fd in workers:
                    reap_worker(fd)
            if missing and not stop.is_set():
                for _ in range(missing):
                    start_worker()
    finally:
        ours.close()
        theirs.close()
        _end_workers(workers)


def _fork_worker(
    work: Callable[[socket.socket], None], ours: socket.socket, theirs: socket.socket
) -> int:
    """Start a worker, and return its PID."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # The workers ignore Ctrl-C at the terminal, because the parent ends them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ours.close()
        work(theirs)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _end_workers(workers: dict[int, int]) -> None:
    """Wait until the workers have ended, and kill those that do not."""
    deadline = time.monotonic() + _PATIENCE
    for fd, pid in workers.items():
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)
