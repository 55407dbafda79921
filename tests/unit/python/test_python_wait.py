"""A waiting thread sleeps, and is woken only by its own events."""

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
from harness.verbs_harness import wait_until
from unit.python.python_harness import UDResources

from siwarp.cm import CMEventChannel
from siwarp.verbs import AH, CQ, QP, CompChannel, QPInitAttr, QPType, RecvWR, SendWR

LIMIT = 20.0


class SelfSendingQP:
    """A CQ with a queue pair that sends to itself, on a channel shared with others."""

    def __init__(self, ud: UDResources, channel: CompChannel) -> None:
        self.cq, idle = CQ(ud.ctx, channel=channel), CQ(ud.ctx)
        init = QPInitAttr(QPType.UD, scq=idle, rcq=self.cq, addr=("127.0.0.1", 0))
        self.qp = QP(ud.pd, init)
        self.qp.to_rts()
        self.to = AH(ud.pd, self.qp.addr)

    def send_to_self(self, n: int) -> None:
        self.qp.post_recv(RecvWR(n))
        self.qp.post_send(SendWR(ah=self.to, send_flags=0))


def test_threads_that_share_a_channel_each_get_what_completes_on_their_queue(
    ud_resources: UDResources,
) -> None:
    rounds, count = 40, 4
    ours = [SelfSendingQP(ud_resources, ud_resources.channel) for _ in range(count)]
    got: list[list[int]] = [[] for _ in ours]

    def wait_for_messages(n: int) -> None:
        while len(got[n]) < rounds:
            wcs = ours[n].cq.wait(LIMIT)
            assert wcs, f"thread {n} sleeps on beside message {len(got[n])}"
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


# ---- sleeping


def voluntary_switches_by_thread() -> dict[str, int]:
    """Return how often each thread of this process has gone to sleep."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                found[task.name] = int(line.split()[1])
    return found


def cq_wait_call(ud: UDResources) -> Callable[[], Any]:
    return lambda: ud.cq.wait(4)


def cq_event_wait_call(ud: UDResources) -> Callable[[], Any]:
    return lambda: ud.channel.get_cq_event(4)


def cm_event_wait_call(ud: UDResources) -> Callable[[], Any]:
    channel = CMEventChannel(ud.ctx)
    return lambda: channel.get_event(4)


def async_event_wait_call(ud: UDResources) -> Callable[[], Any]:
    return lambda: ud.ctx.get_async_event(4)


@pytest.mark.skipif(
    os.environ.get("SANITIZER") == "tsan", reason="ThreadSanitizer's own thread wakes by itself"
)
@pytest.mark.parametrize(
    "what", [cq_wait_call, cq_event_wait_call, cm_event_wait_call, async_event_wait_call]
)
def test_a_wait_without_events_uses_no_cpu(
    ud_resources: UDResources, what: Callable[[UDResources], Callable[[], Any]]
) -> None:
    wait = what(ud_resources)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        time.sleep(0.5)
        before = voluntary_switches_by_thread()
        time.sleep(2)  # one of the counted context switches is this thread's own sleep
        woken = {
            task: n - before.get(task, 0) for task, n in voluntary_switches_by_thread().items()
        }
        waiting.result()
    assert sum(woken.values()) <= 4, woken


WAITS = {
    "queue": "CQ(ctx, channel=CompChannel(ctx)).wait()",
    "connections": "siwarp.cm.CMEventChannel(ctx).get_event()",
    "device": "ctx.get_async_event()",
    "listener": "siwarp.listen(('127.0.0.1', 0)).accept()",
}

INTERRUPTED = """
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
def waiting_process(wait: str) -> Iterator[subprocess.Popen[str]]:
    code = INTERRUPTED.format(wait=wait)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None and it.stdout.readline() == "waiting\n"
            yield it
        except BaseException:
            it.kill()
            raise


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_interrupts_whatever_sleeps_within_a_tenth_of_a_second(wait: str) -> None:
    delays = []
    # after 0.3 s the process sleeps; after 0.01 and 0.05 s the library still polls
    for slept in (0.3, 0.01, 0.05):
        with waiting_process(WAITS[wait]) as process:
            time.sleep(slept)
            sent = time.monotonic()
            os.kill(process.pid, signal.SIGINT)
            assert process.stdout is not None
            delays.append(float(process.stdout.readline()) - sent)
        assert process.returncode == 0
    assert min(delays) < 0.1, delays


@pytest.mark.parametrize("loop", [False, True], ids=["alone", "in an event loop's thread"])
def test_a_signal_right_before_the_sleep_ends_it_and_a_loop_keeps_its_descriptor(
    ud_resources: UDResources, monkeypatch: pytest.MonkeyPatch, loop: bool
) -> None:
    """Python checks for signals before the system call, not during it."""
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


@pytest.mark.timeout(20)  # if the event were not acknowledged, closing the CQ would wait for ever
def test_an_event_interrupted_by_a_signal_does_not_block_close(
    ud_resources: UDResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Ctrl-C after the library has returned the event and before it is acknowledged."""
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
