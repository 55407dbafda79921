"""Waits for events: non-blocking descriptors, and which thread makes progress during a wait."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pace
import pytest
from harness.every_harness import QKEY, build_datagram
from harness.rc_harness import SEND, ListenerAndConnector, create_plain_listener
from harness.verbs_harness import LIMIT, Rig, poll, temporary_settings, wait_until

from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import RecvWR, SendWR, SrqAttr


def set_nonblocking(fd: int, on: bool) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK if on else flags & ~os.O_NONBLOCK)


class EventWait:
    """A kind of wait for events: its descriptor, its call, and an action that causes an event."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    fd: int

    def wait_for_event(self, ms: int) -> int:
        raise NotImplementedError

    def cause_event(self) -> None:
        raise NotImplementedError


class CompletionEventWait(EventWait):
    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.channel = rig.create_channel()
        self.cq = rig.create_cq(16, self.channel)
        self.qp = rig.create_ud_qp(self.cq)
        self.to = rig.create_ah(self.qp)
        self.fd = self.channel.fileno()

    def wait_for_event(self, ms: int) -> int:
        cq = ffi.new("struct siw_cq **")
        r = int(lib.siw_get_cq_event(self.channel._c_object(), cq, ffi.NULL, ms))
        if not r:
            lib.siw_ack_cq_events(cq[0], 1)
        return r

    def cause_event(self) -> None:
        self.cq.req_notify()
        self.qp.post_send(SendWR(1, ah=self.to))


class AsyncEventWait(EventWait):
    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.srq = rig.create_srq()
        self.fd = rig.ctx.async_fd()

    def wait_for_event(self, ms: int) -> int:
        event = ffi.new("struct siw_async_event *")
        r = int(lib.siw_get_async_event(self.rig.ctx._c_object(), event, ms))
        if not r:
            lib.siw_ack_async_event(event)
        return r

    def cause_event(self) -> None:
        # No receive is posted, so the limit event is raised immediately.
        self.srq.modify(SrqAttr(srq_limit=4))


class ConnectionEventWait(EventWait):
    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.channel = CMEventChannel(rig.ctx)
        self.fd = self.channel.fileno()
        self.nobody = create_plain_listener()
        self.ids: list[CMID] = []

    def wait_for_event(self, ms: int) -> int:
        return int(
            lib.siw_cm_get_event(self.channel._c_object(), ffi.new("struct siw_cm_event *"), ms)
        )

    def cause_event(self) -> None:
        self.nobody.close()
        self.ids.append(CMID(self.channel))
        self.ids[-1].bind_qp(self.rig.create_qp(qp_type=2))
        self.ids[-1].connect(("127.0.0.1", 1))


KINDS_OF_WAIT: list[Callable[[Rig], EventWait]] = [
    CompletionEventWait,
    AsyncEventWait,
    ConnectionEventWait,
]


@pytest.mark.parametrize("kind", KINDS_OF_WAIT)
def test_a_wait_without_time_out_blocks_unless_the_descriptor_has_o_nonblock(
    rig: Rig, kind: Callable[[Rig], EventWait]
) -> None:
    wait = kind(rig)
    assert not fcntl.fcntl(wait.fd, fcntl.F_GETFL) & os.O_NONBLOCK
    set_nonblocking(wait.fd, True)
    assert wait.wait_for_event(-1) == -errno.EAGAIN
    start = time.monotonic()
    # A time-out applies even if the descriptor is non-blocking.
    assert wait.wait_for_event(50) == -errno.EAGAIN
    assert time.monotonic() - start >= 0.05
    set_nonblocking(wait.fd, False)
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(wait.wait_for_event(-1)))
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    wait.cause_event()
    waiter.join(LIMIT)
    assert got == [0]
    set_nonblocking(wait.fd, True)
    assert wait.wait_for_event(-1) == -errno.EAGAIN
    wait.cause_event()
    wait_until(lambda: wait.wait_for_event(-1) == 0)
    assert wait.wait_for_event(-1) == -errno.EAGAIN


@pytest.mark.parametrize("kind", KINDS_OF_WAIT)
def test_reading_the_event_descriptor_directly_does_not_lose_the_event(
    rig: Rig, kind: Callable[[Rig], EventWait]
) -> None:
    wait = kind(rig)
    wait.cause_event()
    os.read(wait.fd, 8)
    wait_until(lambda: wait.wait_for_event(0) == 0)
    assert wait.wait_for_event(0) == -errno.EAGAIN


def test_an_asynchronous_event_has_the_context_pointer_of_its_object(rig: Rig) -> None:
    cq = lib.siw_create_cq(rig.ctx._c_object(), 1, ffi.cast("void *", 0x11), ffi.NULL, 0)
    init = ffi.new("struct siw_srq_init_attr *")
    init.srq_context = ffi.cast("void *", 0x22)
    init.attr.max_wr = 4
    srq = lib.siw_create_srq(rig.pd._c_object(), init)
    qps = []
    # The second queue pair may use the memory of the destroyed queue pair.
    for user in (0x33, 0x44):
        qp_init = ffi.new("struct siw_qp_init_attr *")
        qp_init.qp_context = ffi.cast("void *", user)
        qp_init.send_cq = qp_init.recv_cq = cq
        qp_init.srq = srq
        qp_init.qp_type = lib.SIW_QPT_UD
        qps.append(lib.siw_create_qp(rig.pd._c_object(), qp_init))
        if user == 0x33:
            assert lib.siw_destroy_qp(qps.pop()) == 0
    attr = ffi.new("struct siw_qp_attr *", {"qp_state": lib.SIW_QPS_ERR})
    assert lib.siw_modify_qp(qps[0], attr, lib.SIW_QP_STATE) == 0
    limit = ffi.new("struct siw_srq_attr *", {"srq_limit": 4})
    assert lib.siw_modify_srq(srq, limit, lib.SIW_SRQ_LIMIT) == 0
    event = ffi.new("struct siw_async_event *")
    for kind, user in (
        (lib.SIW_EVENT_QP_LAST_WQE_REACHED, 0x44),
        (lib.SIW_EVENT_SRQ_LIMIT_REACHED, 0x22),
    ):
        assert lib.siw_get_async_event(rig.ctx._c_object(), event, 1000) == 0
        assert (event.event_type, int(ffi.cast("uintptr_t", event.user_context))) == (kind, user)
        lib.siw_ack_async_event(event)
    assert lib.siw_destroy_qp(qps[0]) == lib.siw_destroy_srq(srq) == lib.siw_destroy_cq(cq) == 0


def voluntary_context_switches(task: int) -> int:
    text = Path(f"/proc/self/task/{task}/status").read_text()
    (line,) = [x for x in text.splitlines() if x.startswith("voluntary_ctxt_switches:")]
    return int(line.split()[1])


@pytest.fixture
def waiting_thread(rig: Rig, request: Any) -> Iterator[int]:
    """The thread id of a thread that waits for rare events without a time-out."""
    wait: EventWait = request.param(rig)
    task: list[int] = []

    def wait_without_time_out() -> None:
        task.append(threading.get_native_id())
        assert wait.wait_for_event(-1) == 0

    waiter = threading.Thread(target=wait_without_time_out)
    waiter.start()
    wait_until(lambda: task)
    time.sleep(0.05)
    yield task[0]
    wait.cause_event()
    waiter.join(LIMIT)
    assert not waiter.is_alive()


@pytest.mark.parametrize("waiting_thread", KINDS_OF_WAIT[1:], indirect=True)
def test_a_thread_that_waits_for_rare_events_is_not_woken_by_messages(
    rig: Rig, waiting_thread: int
) -> None:
    a, b = ListenerAndConnector(rig).connect(size=64)
    before = voluntary_context_switches(waiting_thread)
    for _ in range(200):
        b.post_receive(length=8)
        a.post(SEND, length=8)
        assert poll(b.rcq)[0].ok and poll(a.scq)[0].ok
        # In the pause, a thread that waits on the sockets would go to sleep again.
        time.sleep(0.001)
    assert voluntary_context_switches(waiting_thread) - before <= 2


@pytest.mark.parametrize("program", ["leaving", "left"])
def test_the_progress_thread_completes_the_work_of_the_last_call_of_a_program(
    build_dir: Path, program: str
) -> None:
    done = pace.run_command(
        [build_dir / f"tests/c/siw-test-{program}"],
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def cpu_seconds_of_waits(waits: EventWait, times: int) -> float:
    """Return the CPU seconds of ``times`` waits of 20 ms that all time out."""
    began = time.thread_time()
    for _ in range(times):
        assert waits.wait_for_event(20) == -errno.EAGAIN
    return time.thread_time() - began


def test_after_some_unsuccessful_spins_most_waits_sleep_without_spinning(rig: Rig) -> None:
    waits = CompletionEventWait(rig)
    with temporary_settings(spin_us=10_000):
        # Only six of the 50 waits spin, for 10 ms each.
        assert cpu_seconds_of_waits(waits, 50) < 0.25


def is_asleep(task: int) -> bool:
    return "State:\tS" in Path(f"/proc/self/task/{task}/status").read_text()


def thread_ids() -> set[int]:
    return {int(t.name) for t in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("armed", [False, True])
def test_the_progress_thread_leaves_a_lane_to_polls_that_always_find_completions(
    armed: bool,
) -> None:
    """Unless a CQ is armed: the program may then wait for an event, and does not poll again.

    A datagram wakes the progress thread, which takes a nap of 12.5 ms if it leaves the datagram to
    the program, and otherwise receives it before it sleeps again. The nap may be over before this
    thread looks, so the test ends when three attempts in a row were as expected.
    """
    others = thread_ids()
    rig = Rig()
    (task,) = thread_ids() - others
    cq = rig.create_cq(256, rig.create_channel())
    qp = rig.create_ud_qp(cq, qkey=QKEY)
    with (
        temporary_settings(nap_us=100_000),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer,
    ):

        def send() -> None:
            qp.post_recv(RecvWR(1))
            peer.sendto(build_datagram(b""), qp.addr)

        def is_received_when_progress_thread_sleeps_again() -> bool:
            before = voluntary_context_switches(task)
            send()
            wait_until(lambda: voluntary_context_switches(task) > before)
            return cq.pending == 1

        def poll_and_check_next_datagram() -> bool:
            send()
            # The progress thread has received it, and sleeps on the sockets again.
            wait_until(lambda: cq.pending and is_asleep(task))
            if armed:
                cq.req_notify()
            assert cq.poll(1)  # finds the completion, so it makes no progress round
            expected = is_received_when_progress_thread_sleeps_again() == armed
            while cq.poll(16):
                pass
            return expected

        wait_until(lambda: all(poll_and_check_next_datagram() for _ in range(3)))
    rig.close()
