"""A device's watchdog threads serve one-sided traffic when its progress thread gets no CPU."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, Wire
from harness.uc_harness import Ends
from harness.verbs_harness import Rig, long_pauses, poll, wait_until
from pace import scale_limit
from unit.device.test_device_idle import switches, tasks

from siwarp.verbs import WROpcode

WATCHDOGS = 2  # SIW_WATCHDOGS
LONGEST_SINGLE = 1 << 16  # SIW_LONGEST_SINGLE


class Watched:
    """A connected pair whose receiver does nothing but look at its memory."""

    def __init__(self) -> None:
        others = tasks()
        self.rig = Rig()
        (self.thread,) = tasks() - others
        self.others = others | {self.thread}
        self.a, self.b = Wire(self.rig).connect()
        self.count = 0
        # Another thread writes to this memory while it is read, so the kernel reads it.
        self.memory = os.open("/proc/self/mem", os.O_RDONLY)

    def watchdogs(self) -> list[int]:
        return sorted(tasks() - self.others)

    def write(self) -> float:
        """Write a new value; return after how many seconds it is in the peer's memory."""
        self.count += 1
        value = self.count.to_bytes(8, "little")
        self.a.mem.write(value)
        began = time.monotonic()
        self.a.post(WRITE, length=8, remote=self.b.mem.remote())
        wait_until(lambda: os.pread(self.memory, 8, self.b.mem.addr) == value)
        took = time.monotonic() - began
        poll(self.a.scq)
        return took

    def begin(self) -> list[int]:
        """Write until the watchdog threads exist."""
        wait_until(lambda: self.write() and len(self.watchdogs()) == WATCHDOGS)
        return self.watchdogs()

    def on_duty(self, watchdogs: list[int]) -> None:
        """Write until all watchdog threads have woken."""
        before = [switches(task) for task in watchdogs]

        def all_woke() -> bool:
            self.write()
            return all(switches(task) > n for task, n in zip(watchdogs, before, strict=True))

        wait_until(all_woke)


@pytest.fixture
def watched() -> Iterator[Watched]:
    w = Watched()
    with long_pauses():  # the messages of a slow machine are far apart
        yield w
    os.close(w.memory)
    w.rig.close()
    assert not tasks() - w.others


@contextmanager
def a_busy_cpu(cpu: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(8):
            spins = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", "while True: pass"])
            )
            stack.callback(spins.kill)
            os.sched_setaffinity(spins.pid, {cpu})
        yield


@contextmanager
def restrict_to_cpu(task: int, cpu: int) -> Iterator[None]:
    """Restrict a thread to one CPU at the lowest scheduling priority."""
    cpus = os.sched_getaffinity(task)
    os.sched_setaffinity(task, {cpu})
    os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
    yield
    os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(task, cpus)


def test_a_device_without_one_sided_traffic_has_no_deputies(watched: Watched) -> None:
    for _ in range(100):
        watched.b.post_receive()
        watched.a.post(SEND, length=8)
        poll(watched.b.rcq), poll(watched.a.scq)
    assert watched.watchdogs() == []


def test_single_writes_now_and_then_have_no_deputies(watched: Watched) -> None:
    with long_pauses(1):
        for _ in range(30):
            watched.write()
            time.sleep(0.003)
    assert watched.watchdogs() == []


def on_rc(watched: Watched, size: int, opcode: WROpcode) -> Iterator[bool]:
    """Write or Read a new value each time, and look at the memory until it has arrived."""
    a, b = Wire(watched.rig).connect(size=size)
    source, sink = (a.mem, b.mem) if opcode == WRITE else (b.mem, a.mem)
    for i in itertools.cycle(range(1, 256)):
        source.write(bytes([i]) * size)
        a.post(opcode, length=size, remote=b.mem.remote())
        wait_until(lambda i=i: os.pread(watched.memory, 1, sink.addr + size - 1) == bytes([i]))
        poll(a.scq)
        yield True


def on_uc(watched: Watched, size: int, opcode: WROpcode) -> Iterator[bool]:
    """Write over UC, without a TCP connection; UC has no Reads."""
    ends = Ends(watched.rig, size)
    for i in itertools.cycle(range(1, 256)):
        ends.send(bytes([i]) * size, opcode=opcode, remote=ends.into.remote())
        wait_until(lambda i=i: os.pread(watched.memory, 1, ends.into.addr + size - 1) == bytes([i]))
        ends.poll_sends()
        yield True


Messages = Callable[[Watched, int, WROpcode], Iterator[bool]]
KINDS = [(on_rc, WRITE), (on_rc, READ), (on_uc, WRITE)]


@pytest.mark.parametrize(("messages", "opcode"), KINDS)
def test_short_writes_and_reads_have_deputies(
    watched: Watched, messages: Messages, opcode: WROpcode
) -> None:
    sent = messages(watched, LONGEST_SINGLE // 2, opcode)
    wait_until(lambda: next(sent) and len(watched.watchdogs()) == WATCHDOGS)


@pytest.mark.parametrize(("messages", "opcode"), KINDS)
def test_longer_writes_and_reads_start_no_watchdogs(
    watched: Watched, messages: Messages, opcode: WROpcode
) -> None:
    sent = messages(watched, LONGEST_SINGLE + 1, opcode)
    for _ in range(100):
        next(sent)
    assert watched.watchdogs() == []


def test_deputies_sleep_when_no_more_writes_come(watched: Watched) -> None:
    for _ in range(2):  # in the second round, the watchdog threads of the first round wake again
        watchdogs = watched.begin()
        watched.on_duty(watchdogs)
        time.sleep(scale_limit(0.3))
        before = [switches(task) for task in watchdogs]
        time.sleep(0.5)
        assert [switches(task) for task in watchdogs] == before


def test_deputies_are_not_woken_while_the_program_polls(watched: Watched) -> None:
    watchdogs = watched.begin()
    end: End = watched.b
    time.sleep(scale_limit(0.3))
    before = [switches(task) for task in watchdogs]
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        end.post_receive()
        watched.a.post(SEND, length=8)
        poll(end.rcq), poll(watched.a.scq)
    assert [switches(task) for task in watchdogs] == before


def test_deputies_serve_while_the_devices_thread_does_not_get_its_cpu(watched: Watched) -> None:
    """Without watchdog threads the messages here take 36 to 65 ms, with them 0.4 ms.

    The watchdog threads sleep when this process gets no CPU for 0.1 s; the progress thread would
    have to wake them.
    """
    cpu = max(os.sched_getaffinity(0))
    took: list[float] = []
    with a_busy_cpu(cpu):
        for _ in range(10):
            watched.on_duty(watched.begin())
            with restrict_to_cpu(watched.thread, cpu):
                took += [watched.write() for _ in range(10)]
    assert sorted(took)[50] < scale_limit(0.003)
