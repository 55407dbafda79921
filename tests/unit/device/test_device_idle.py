"""Tests that an open device without traffic sleeps, whatever state its objects are in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.rc_harness import SEND, WRITE, ListenerAndConnector, create_plain_listener
from harness.verbs_harness import Rig, poll, temporary_settings, wait_until
from harness.wire_peer import ScriptedRCPeer

from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, CMEventChannel, ConnParam
from siwarp.verbs import RecvWR, RemoteBuffer, SendWR


def thread_ids() -> set[int]:
    return {int(t.name) for t in Path("/proc/self/task").iterdir()}


def voluntary_context_switches(task: int) -> int:
    """Return how often the thread with the number ``task`` has gone to sleep."""
    for line in Path(f"/proc/self/task/{task}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    raise AssertionError("no such line")


def create_no_objects(rig: Rig) -> Any:
    return None


def create_listener(rig: Rig) -> Any:
    return ListenerAndConnector(rig)


def create_idle_connections(rig: Rig) -> Any:
    connector = ListenerAndConnector(rig)
    return connector, [connector.connect() for _ in range(10)]


def create_a_hundred_ud_queue_pairs(rig: Rig) -> Any:
    return [rig.create_ud_qp() for _ in range(100)]


def create_armed_cqs(rig: Rig) -> Any:
    channel = rig.create_channel()
    queues = [rig.create_cq(16, channel) for _ in range(10)]
    for cq in queues:
        cq.req_notify()
    return rig.create_ud_qp(queues[0])


def exchange_traffic(rig: Rig) -> Any:
    connector = ListenerAndConnector(rig)
    a, b = connector.connect()
    cq = rig.create_cq(256, rig.create_channel())
    qp = rig.create_ud_qp(cq)
    ah = rig.create_ah(qp)
    for i in range(100):
        b.post_receive()
        a.post(SEND, length=8)
        poll(b.rcq), poll(a.scq)
        qp.post_recv(RecvWR(i))
        qp.post_send(SendWR(i, ah=ah))
        poll(cq, 2)
    return connector


def connect_to_silent_peers(rig: Rig) -> Any:
    silent = create_plain_listener()
    channel = CMEventChannel(rig.ctx)
    ids = [CMID(channel) for _ in range(10)]
    for cm_id in ids:
        cm_id.bind_qp(rig.create_qp(qp_type=2))
        cm_id.connect(silent.getsockname())
    return silent, ids


def disconnect_from_silent_peers(rig: Rig) -> Any:
    peers = [ScriptedRCPeer.connect_to_siwarp(ListenerAndConnector(rig)) for _ in range(10)]
    for peer in peers:
        peer.end.id.disconnect()
    return peers


def close_queue_pairs_of_silent_peers(rig: Rig) -> Any:
    peers = [ScriptedRCPeer.connect_to_siwarp(ListenerAndConnector(rig)) for _ in range(10)]
    for peer in peers:
        peer.end.close()
    return peers


def fill_send_queue_to_a_peer_that_does_not_read(rig: Rig) -> Any:
    peer = ScriptedRCPeer.connect_to_siwarp(ListenerAndConnector(rig), size=1 << 20, max_send_wr=64)
    for _ in range(64):
        peer.end.post(WRITE, length=1 << 20, remote=RemoteBuffer(0, 1 << 20, 1))
    wait_until(lambda: not peer.end.scq.poll(64))
    return peer


STATES: list[Callable[[Rig], Any]] = [
    create_no_objects,
    create_listener,
    create_idle_connections,
    create_a_hundred_ud_queue_pairs,
    create_armed_cqs,
    exchange_traffic,
    connect_to_silent_peers,
    disconnect_from_silent_peers,
    close_queue_pairs_of_silent_peers,
    fill_send_queue_to_a_peer_that_does_not_read,
]


@pytest.fixture(scope="module")
def wakeups_per_second() -> Iterator[dict[str, int]]:
    """The number of times that the progress thread of each idle device wakes in one second."""
    rigs, kept, threads = [], [], {}
    for state in STATES:
        others = thread_ids()
        rigs.append(Rig())
        (threads[state.__name__],) = thread_ids() - others
        kept.append(state(rigs[-1]))
    time.sleep(0.4)
    before = {name: voluntary_context_switches(task) for name, task in threads.items()}
    time.sleep(1.0)
    after = {name: voluntary_context_switches(task) for name, task in threads.items()}
    yield {name: after[name] - before[name] for name in threads}
    del kept
    for rig in rigs:
        rig.close()
    assert not set(threads.values()) & thread_ids()


@pytest.mark.parametrize("state", [state.__name__ for state in STATES])
def test_an_idle_open_device_wakes_at_most_five_times_a_second(
    wakeups_per_second: dict[str, int], state: str
) -> None:
    assert wakeups_per_second[state] <= 5


def test_a_thread_that_waits_for_completions_wakes_once_for_each_message() -> None:
    messages = 50
    rig, sender = Rig(), Rig()
    cq = rig.create_cq(messages)
    qp, source = rig.create_ud_qp(cq), sender.create_ud_qp()
    ah = sender.create_ah(qp)
    waiter: list[int] = []
    received: list[int] = []

    def receive_messages() -> None:
        waiter.append(threading.get_native_id())
        wcs, null = ffi.new("struct siw_wc[]", messages), ffi.NULL
        while sum(received) < messages:
            n = lib.siw_wait_cq(cq._c_object(), messages, wcs, null, null, null, -1)
            assert n > 0, n
            received.append(n)

    for i in range(messages):
        qp.post_recv(RecvWR(i))
    thread = threading.Thread(target=receive_messages)
    thread.start()
    wait_until(lambda: bool(waiter))
    time.sleep(0.4)
    (number,) = waiter
    idle = voluntary_context_switches(number)
    time.sleep(0.5)
    assert voluntary_context_switches(number) == idle
    for i in range(messages):
        source.post_send(SendWR(i, ah=ah))
        wait_until(lambda sent=i + 1: sum(received) == sent)  # type: ignore[misc]
        time.sleep(0.002)
        if i == messages - 2:
            wakeups = voluntary_context_switches(number) - idle
    thread.join()
    # A thread that waits may wait for the interpreter's lock, too, before it waits again.
    assert messages - 1 <= wakeups < 2 * messages
    rig.close()
    sender.close()


def poll_for_a_second(pause: float) -> tuple[int, float, float]:
    """Poll a CQ, with a pause of so many seconds after each poll, while naps take 10 ms.

    Return how often the progress thread woke up, the process's share of a CPU, and the longest time
    between two polls in seconds.
    """
    others = thread_ids()
    rig = Rig()
    (task,) = thread_ids() - others
    cq = rig.create_cq()
    address = rig.create_ud_qp(cq).addr
    with (
        temporary_settings(nap_us=10_000),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        before = voluntary_context_switches(task)

        def cause_nap_and_check() -> bool:
            # The datagram wakes the progress thread, which finds that the program polls, and naps.
            stranger.sendto(b"x", address)
            cq.poll(1)
            return voluntary_context_switches(task) > before + 3

        wait_until(cause_nap_and_check)
        cpu, began = time.process_time(), time.monotonic()
        before = voluntary_context_switches(task)
        last, longest = began, 0.0
        while last < began + 1.0:
            cq.poll(1)
            if pause:
                time.sleep(pause)
            now = time.monotonic()
            last, longest = now, max(longest, now - last)
        wakeups = voluntary_context_switches(task) - before
        share = (time.process_time() - cpu) / (last - began)
    rig.close()
    return wakeups, share, longest


def test_the_progress_thread_wakes_rarely_while_the_program_polls_steadily() -> None:
    wakeups, share, _ = poll_for_a_second(0)
    # About 38 wake-ups are expected: 17 in the first 140 ms, and then one every 40 ms. Naps that
    # stay at 10 ms, as when other programs take a quarter of the CPU, would cause 100.
    assert 20 <= wakeups <= 50 or share < 0.9


def test_the_progress_thread_wakes_often_while_the_polling_program_does_not_have_a_cpu() -> None:
    wakeups, share, longest = poll_for_a_second(0.0003)
    assert share < 0.75
    # 100 wake-ups are expected, one every 10 ms; naps of up to 40 ms would cause only 38. If the
    # program gets no CPU during the shortest nap, the thread makes progress itself, without naps.
    assert wakeups > 50 or longest > 0.00125


def test_a_connection_attempt_times_out_although_the_device_sleeps() -> None:
    rig = Rig()
    with create_plain_listener() as silent:
        channel = CMEventChannel(rig.ctx)
        cm_id = CMID(channel)
        cm_id.bind_qp(rig.create_qp(qp_type=2))
        start = time.monotonic()
        cm_id.connect(silent.getsockname(), ConnParam(timeout=0.3))
        event = channel.get_event(10)
        assert event is not None and event.status == 110
        assert time.monotonic() - start >= 0.3
    rig.close()


def test_under_a_real_time_policy_the_progress_thread_has_priority_over_the_program() -> None:
    """The program must not keep the progress thread, which may hold a lock, off the CPU."""
    code = """
import os
from siwarp.verbs import Context
before = set(os.listdir("/proc/self/task"))
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(3))
except PermissionError:
    print("not allowed")
    raise SystemExit
with Context():
    # A sanitizer may have a thread of its own, at the priority of the program.
    threads = [int(name) for name in set(os.listdir("/proc/self/task")) - before]
    print(max((os.sched_getparam(t).sched_priority, os.sched_getscheduler(t)) for t in threads))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    if done.stdout == "not allowed\n":
        pytest.skip("a real-time policy needs a privilege")
    assert done.stdout == f"{(4, os.SCHED_FIFO)}\n"
