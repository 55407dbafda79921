"""Watchdog threads handle one-sided traffic when the progress thread of a device gets no CPU."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.uc_harness import UCPair
from harness.verbs_harness import Rig, multiply_pauses_temporarily, poll, wait_until
from pace import scale_limit
from unit.device.test_device_idle import thread_ids, voluntary_context_switches

from siwarp.verbs import WROpcode

WATCHDOGS = 2  # SIW_WATCHDOGS
LONGEST_SINGLE = 1 << 16  # SIW_LONGEST_SINGLE


class WatchedConnection:
    """A connected pair whose receiver makes no calls and only reads its memory."""

    def __init__(self) -> None:
        others = thread_ids()
        self.rig = Rig()
        (self.thread,) = thread_ids() - others
        self.others = others | {self.thread}
        self.a, self.b = ListenerAndConnector(self.rig).connect()
        self.count = 0
        # The test reads the memory through the kernel, because another thread writes to it.
        self.memory = os.open("/proc/self/mem", os.O_RDONLY)

    def watchdogs(self) -> list[int]:
        return sorted(thread_ids() - self.others)

    def write_and_measure_delay(self) -> float:
        """Write a new value and return the seconds until the value is in the peer's memory."""
        self.count += 1
        value = self.count.to_bytes(8, "little")
        self.a.mem.write(value)
        began = time.monotonic()
        self.a.post(WRITE, length=8, remote=self.b.mem.remote())
        wait_until(lambda: os.pread(self.memory, 8, self.b.mem.addr) == value)
        took = time.monotonic() - began
        poll(self.a.scq)
        return took

    def start_watchdogs(self) -> list[int]:
        """Write until the watchdog threads exist, and return their thread ids."""
        wait_until(lambda: self.write_and_measure_delay() and len(self.watchdogs()) == WATCHDOGS)
        return self.watchdogs()

    def write_until_watchdogs_wake(self, watchdogs: list[int]) -> None:
        """Make RDMA Writes until all watchdog threads have woken."""
        before = [voluntary_context_switches(task) for task in watchdogs]

        def write_and_check_that_all_woke() -> bool:
            self.write_and_measure_delay()
            return all(
                voluntary_context_switches(task) > n
                for task, n in zip(watchdogs, before, strict=True)
            )

        wait_until(write_and_check_that_all_woke)


@pytest.fixture
def watched_connection() -> Iterator[WatchedConnection]:
    w = WatchedConnection()
    with multiply_pauses_temporarily():  # on a slow machine the pauses between messages are long
        yield w
    os.close(w.memory)
    w.rig.close()
    assert not thread_ids() - w.others


@contextmanager
def keep_cpu_busy(cpu: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(8):
            spins = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", "while True: pass"])
            )
            stack.callback(spins.kill)
            os.sched_setaffinity(spins.pid, {cpu})
        yield


@contextmanager
def run_thread_at_idle_priority(task: int, cpu: int) -> Iterator[None]:
    """Restrict a thread to one CPU at the lowest scheduling priority."""
    cpus = os.sched_getaffinity(task)
    os.sched_setaffinity(task, {cpu})
    os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
    yield
    os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(task, cpus)


def test_a_device_without_one_sided_traffic_starts_no_watchdog_threads(
    watched_connection: WatchedConnection,
) -> None:
    for _ in range(100):
        watched_connection.b.post_receive()
        watched_connection.a.post(SEND, length=8)
        poll(watched_connection.b.rcq), poll(watched_connection.a.scq)
    assert watched_connection.watchdogs() == []


def test_writes_separated_by_pauses_start_no_watchdog_threads(
    watched_connection: WatchedConnection,
) -> None:
    with multiply_pauses_temporarily(1):
        for _ in range(30):
            watched_connection.write_and_measure_delay()
            time.sleep(0.003)
    assert watched_connection.watchdogs() == []


def repeat_transfers_over_rc(
    watched_connection: WatchedConnection, size: int, opcode: WROpcode
) -> Iterator[bool]:
    """Write or Read a new value in each iteration, and read the memory until the value arrives."""
    a, b = ListenerAndConnector(watched_connection.rig).connect(size=size)
    source, sink = (a.mem, b.mem) if opcode == WRITE else (b.mem, a.mem)
    for i in itertools.cycle(range(1, 256)):
        source.write(bytes([i]) * size)
        a.post(opcode, length=size, remote=b.mem.remote())
        wait_until(
            lambda i=i: os.pread(watched_connection.memory, 1, sink.addr + size - 1) == bytes([i])
        )
        poll(a.scq)
        yield True


def repeat_writes_over_uc(
    watched_connection: WatchedConnection, size: int, opcode: WROpcode
) -> Iterator[bool]:
    """Write a new value over UC in each iteration; UC has no Reads."""
    ends = UCPair(watched_connection.rig, size)
    for i in itertools.cycle(range(1, 256)):
        ends.send(bytes([i]) * size, opcode=opcode, remote=ends.into.remote())
        wait_until(
            lambda i=i: (
                os.pread(watched_connection.memory, 1, ends.into.addr + size - 1) == bytes([i])
            )
        )
        ends.poll_sends()
        yield True


Messages = Callable[[WatchedConnection, int, WROpcode], Iterator[bool]]
KINDS = [
    (repeat_transfers_over_rc, WRITE),
    (repeat_transfers_over_rc, READ),
    (repeat_writes_over_uc, WRITE),
]


@pytest.mark.parametrize(("messages", "opcode"), KINDS)
def test_short_writes_and_reads_start_the_watchdog_threads(
    watched_connection: WatchedConnection, messages: Messages, opcode: WROpcode
) -> None:
    sent = messages(watched_connection, LONGEST_SINGLE // 2, opcode)
    wait_until(lambda: next(sent) and len(watched_connection.watchdogs()) == WATCHDOGS)


@pytest.mark.parametrize(("messages", "opcode"), KINDS)
def test_long_writes_and_reads_start_no_watchdog_threads(
    watched_connection: WatchedConnection, messages: Messages, opcode: WROpcode
) -> None:
    sent = messages(watched_connection, LONGEST_SINGLE + 1, opcode)
    for _ in range(100):
        next(sent)
    assert watched_connection.watchdogs() == []


def test_watchdog_threads_sleep_after_the_last_write(watched_connection: WatchedConnection) -> None:
    # The watchdog threads of the first round wake again in the second round.
    for _ in range(2):
        watchdogs = watched_connection.start_watchdogs()
        watched_connection.write_until_watchdogs_wake(watchdogs)
        time.sleep(scale_limit(0.3))
        before = [voluntary_context_switches(task) for task in watchdogs]
        time.sleep(0.5)
        assert [voluntary_context_switches(task) for task in watchdogs] == before


def test_watchdog_threads_are_not_woken_while_the_program_polls(
    watched_connection: WatchedConnection,
) -> None:
    watchdogs = watched_connection.start_watchdogs()
    end: End = watched_connection.b
    time.sleep(scale_limit(0.3))
    before = [voluntary_context_switches(task) for task in watchdogs]
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        end.post_receive()
        watched_connection.a.post(SEND, length=8)
        poll(end.rcq), poll(watched_connection.a.scq)
    assert [voluntary_context_switches(task) for task in watchdogs] == before


def test_watchdog_threads_handle_writes_while_the_progress_thread_gets_no_cpu(
    watched_connection: WatchedConnection,
) -> None:
    """Without watchdog threads the messages of this test take 36 to 65 ms, with them 0.4 ms.

    The watchdog threads sleep after the process has had no CPU for 0.1 s, and only the progress
    thread wakes them, so the test starts them again in each round.
    """
    cpu = max(os.sched_getaffinity(0))
    took: list[float] = []
    with keep_cpu_busy(cpu):
        for _ in range(10):
            watched_connection.write_until_watchdogs_wake(watched_connection.start_watchdogs())
            with run_thread_at_idle_priority(watched_connection.thread, cpu):
                took += [watched_connection.write_and_measure_delay() for _ in range(10)]
    assert sorted(took)[50] < scale_limit(0.003)
