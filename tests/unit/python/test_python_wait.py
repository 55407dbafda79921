"""Threads that wait for events, which sleep and are woken only by their own events."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.siwarp_process import SiwarpProcess
from harness.verbs_harness import wait_until
from unit.python.python_harness import UDResources

from siwarp.cm import CMEventChannel
from siwarp.verbs import AH, CQ, QP, CompChannel, QPInitAttr, QPType, RecvWR, SendWR

LIMIT = 20.0


class SelfSendingQP:
    """A CQ on a shared channel, with a queue pair that sends to itself."""

    def __init__(self, ud: UDResources, channel: CompChannel) -> None:
        self.cq, idle = CQ(ud.ctx, channel=channel), CQ(ud.ctx)
        init = QPInitAttr(QPType.UD, scq=idle, rcq=self.cq, addr=("127.0.0.1", 0))
        self.qp = QP(ud.pd, init)
        self.qp.to_rts()
        self.to = AH(ud.pd, self.qp.addr)

    def send_to_self(self, n: int) -> None:
        self.qp.post_recv(RecvWR(n))
        self.qp.post_send(SendWR(ah=self.to, send_flags=0))


def test_each_thread_that_waits_on_a_shared_channel_gets_the_completions_of_its_cq(
    ud_resources: UDResources,
) -> None:
    rounds, count = 40, 4
    ours = [SelfSendingQP(ud_resources, ud_resources.channel) for _ in range(count)]
    got: list[list[int]] = [[] for _ in ours]

    def wait_for_messages(n: int) -> None:
        while len(got[n]) < rounds:
            wcs = ours[n].cq.wait(LIMIT)
            assert wcs, f"thread {n} was not woken by message {len(got[n])}"
            got[n] += [wc.wr_id for wc in wcs]

    with ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(wait_for_messages, n) for n in range(count)]
        for i in range(rounds):
            for own in ours:
                own.send_to_self(i)
            wait_until(
                lambda i=i: all(len(g) > i for g in got) or any(w.done() for w in waiting), 60
            )
        for task in waiting:
            task.result()
    assert got == [list(range(rounds))] * count


# ---- sleeps during a wait


def voluntary_context_switches_by_thread() -> dict[str, int]:
    """Return how many times each thread of the process has gone to sleep."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                found[task.name] = int(line.split()[1])
    return found


def make_cq_wait_function(ud: UDResources) -> Callable[[], Any]:
    return lambda: ud.cq.wait(4)


def make_cq_event_wait_function(ud: UDResources) -> Callable[[], Any]:
    return lambda: ud.channel.get_cq_event(4)


def make_cm_event_wait_function(ud: UDResources) -> Callable[[], Any]:
    channel = CMEventChannel(ud.ctx)
    return lambda: channel.get_event(4)


def make_async_event_wait_function(ud: UDResources) -> Callable[[], Any]:
    return lambda: ud.ctx.get_async_event(4)


@pytest.mark.skipif(
    os.environ.get("SANITIZER") == "tsan", reason="ThreadSanitizer's own thread wakes by itself"
)
@pytest.mark.parametrize(
    "what",
    [
        make_cq_wait_function,
        make_cq_event_wait_function,
        make_cm_event_wait_function,
        make_async_event_wait_function,
    ],
)
def test_a_wait_without_events_uses_no_cpu(
    ud_resources: UDResources, what: Callable[[UDResources], Callable[[], Any]]
) -> None:
    wait = what(ud_resources)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        time.sleep(0.5)
        before = voluntary_context_switches_by_thread()
        # The sleep of the test itself counts as one context switch.
        time.sleep(2)
        woken = {
            task: n - before.get(task, 0)
            for task, n in voluntary_context_switches_by_thread().items()
        }
        waiting.result()
    assert sum(woken.values()) <= 4, woken


WAIT_CALLS = {
    "queue": "CQ(ctx, channel=CompChannel(ctx)).wait()",
    "connections": "siwarp.cm.CMEventChannel(ctx).get_event()",
    "device": "ctx.get_async_event()",
    "listener": "siwarp.listen(('127.0.0.1', 0)).accept()",
}

INTERRUPTED_PROGRAM = """
import time
import siwarp, siwarp.cm
from siwarp.verbs import *
ctx = Context()
print("waiting", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


@contextlib.contextmanager
def start_waiting_process(wait: str) -> Iterator[subprocess.Popen[str]]:
    code = INTERRUPTED_PROGRAM.format(wait=wait)
    with SiwarpProcess([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None and it.stdout.readline() == "waiting\n"
            yield it
        except BaseException:
            it.kill()
            raise


@pytest.mark.parametrize("wait", WAIT_CALLS)
def test_ctrl_c_interrupts_every_kind_of_wait_within_a_tenth_of_a_second(wait: str) -> None:
    delays = []
    # After 0.3 s the process sleeps; after 0.01 and 0.05 s the library still polls.
    for slept in (0.3, 0.01, 0.05):
        with start_waiting_process(WAIT_CALLS[wait]) as process:
            time.sleep(slept)
            sent = time.monotonic()
            os.kill(process.pid, signal.SIGINT)
            assert process.stdout is not None
            delays.append(float(process.stdout.readline()) - sent)
        assert process.returncode == 0
    assert min(delays) < 0.1, delays


@pytest.mark.parametrize("loop", [False, True], ids=["alone", "in an event loop's thread"])
def test_a_signal_right_before_the_sleep_ends_a_wait_and_keeps_the_wakeup_descriptor(
    ud_resources: UDResources, monkeypatch: pytest.MonkeyPatch, loop: bool
) -> None:
    """Python runs signal handlers before the system call of a wait, but not during the call."""
    real, events, seen = select.poll, [], []

    class InterruptedPoll:
        def __init__(self) -> None:
            self.real = real()
            self.register = self.real.register

        def poll(self, timeout: int | None = None) -> None:
            signal.raise_signal(signal.SIGUSR1)
            events.extend(self.real.poll(0))
            raise InterruptedError

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    old = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    before = signal.set_wakeup_fd(writer.fileno() if loop else -1)
    try:
        with monkeypatch.context() as m, pytest.raises(InterruptedError):
            m.setattr(select, "poll", InterruptedPoll)
            ud_resources.channel.get_cq_event(LIMIT)
        assert signal.set_wakeup_fd(-1) == (writer.fileno() if loop else -1)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, old)
        reader.close()
        writer.close()
    assert seen and len(events) == (0 if loop else 1)


# Closing a CQ with an unacknowledged event would hang.
@pytest.mark.timeout(20)
def test_a_cq_event_whose_wait_was_interrupted_by_a_signal_does_not_block_close(
    ud_resources: UDResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt occurs after the library has returned the event, before it is acknowledged."""
    own = SelfSendingQP(ud_resources, ud_resources.channel)
    own.cq.req_notify()
    own.send_to_self(1)

    def interrupt_after_event(self: CompChannel, get: Callable[[int], int], ms: int) -> int:
        assert get(10_000) == 0
        raise KeyboardInterrupt

    monkeypatch.setattr(CompChannel, "_wait_in_library", interrupt_after_event)
    with pytest.raises(KeyboardInterrupt):
        ud_resources.channel.get_cq_event(LIMIT)
    own.qp.close()
    own.cq.close()
    assert own.cq.closed
