"""Threads that poll, post and destroy concurrently get at worst an error and never crash."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.rc_harness import SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import LIMIT, Rig, poll, wait_until
from unit.device.test_device_idle import thread_ids

from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SGE,
    CompChannel,
    Context,
    Persona,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    StateError,
)
from siwarp.verbs._ffi import Handle

#: Errors that a call may return for an object that another thread is destroying.
EXPECTED_ERRORS = {errno.EINVAL, errno.EBADF, errno.ENOMEM}


class RepeatingThreads:
    """Threads that each call a function repeatedly until they are stopped."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def add(self, call: Callable[[], object]) -> None:
        def call_until_stopped() -> None:
            try:
                while not self.stop.is_set():
                    try:
                        call()
                    except OSError as e:
                        assert e.errno in EXPECTED_ERRORS, e
            except BaseException as e:
                self.failures.append(e)

        self.threads.append(threading.Thread(target=call_until_stopped))

    def run_during_calls(self, seconds: float, least: int, call: Callable[[], object]) -> None:
        """Start all threads, call `call` at least `least` times, and stop the threads.

        The calls are repeated for `seconds` under a sanitizer, which also reports races without a
        visible effect, and for a fifth as long otherwise.
        """
        n = 0
        seconds /= 1 if "SANITIZER" in os.environ else 5
        for t in self.threads:
            t.start()
        try:
            start = time.monotonic()
            while not self.failures and (n < least or time.monotonic() < start + seconds):
                assert time.monotonic() < start + 60, f"only {n} of {least} calls in a minute"
                call()
                n += 1
        finally:
            self.stop.set()
            for t in self.threads:
                t.join(20)
        assert not any(t.is_alive() for t in self.threads)
        assert not self.failures, self.failures


def test_a_ud_queue_pair_is_destroyed_while_two_threads_post_to_it_and_two_poll(
    rig: Rig,
) -> None:
    cq = rig.create_cq(4096)
    mr = rig.reg_mr(4096)
    target = rig.create_ah(("127.0.0.1", 9))
    current = [rig.create_ud_qp(cq)]
    team = RepeatingThreads()
    team.add(lambda: current[0].post_send(SendWR(1, sg=[mr.sge(0, 64)], ah=target)))
    team.add(lambda: current[0].post_recv([RecvWR(2, sg=[mr.sge(64, 64)])] * 3))
    team.add(lambda: cq.poll(64))
    team.add(lambda: cq.poll(1))

    def replace_queue_pair() -> None:
        old, current[0] = current[0], rig.create_ud_qp(cq)
        if len(old._parents) and old.qp_num % 2:
            old.modify(QPAttr(qp_state=QPState.ERR))
        old.close()

    team.run_during_calls(1.0, 20, replace_queue_pair)


def test_a_connected_queue_pair_is_destroyed_while_other_threads_post_and_poll(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(size=4096)
    ends = [a, b]
    team = RepeatingThreads()

    def post_write(i: int) -> None:
        me, other = ends[i], ends[1 - i]
        remote = other.mem.remote(0, 64)
        me.qp.post_send(SendWR(1, WRITE, sg=[me.mem.sge(0, 64)], remote=remote))

    team.add(lambda: post_write(0))
    team.add(lambda: ends[0].qp.post_recv(RecvWR(1)))
    team.add(lambda: ends[0].scq.poll(16))
    team.add(lambda: ends[1].scq.poll(16))

    def replace_connection() -> None:
        old = tuple(ends)
        ends[:] = two_device_connector.connect(size=4096)
        for end in old:
            end.close()

    team.run_during_calls(1.0, 2, replace_connection)


def test_every_send_completes_once_while_other_threads_change_the_queue_pair_state(
    rig: Rig,
) -> None:
    cq, rcq = rig.create_cq(4096), rig.create_cq(16)
    mr = rig.reg_mr(64)
    qp = rig.create_ud_qp(scq=cq, rcq=rcq, max_send_wr=64)
    target = rig.create_ah(rig.create_ud_qp())
    taken: list[list[int]] = [[], []]
    found: list[int] = []

    def make_send_posting_function(me: int) -> Callable[[], object]:
        count = 0

        def post_numbered_send() -> None:
            nonlocal count
            count += 1
            number = count * 2 + me
            key = 0xBAD if me and count % 8 == 0 else mr.lkey
            wr = SendWR(number, sg=[SGE(mr.addr, 8, key)], ah=target)
            qp.post_send([wr] if count % 3 else wr)
            taken[me].append(number)

        return post_numbered_send

    team = RepeatingThreads()
    team.add(make_send_posting_function(0))
    team.add(make_send_posting_function(1))
    team.add(lambda: found.extend(w.wr_id for w in cq.poll(16)))
    states = itertools.cycle([QPState.SQD, QPState.RTS, QPState.RTS])

    def change_qp_state() -> None:
        with contextlib.suppress(StateError):  # SQE has no transition to SQD
            qp.modify(QPAttr(qp_state=next(states)))

    team.run_during_calls(1.0, 100, change_qp_state)
    qp.modify(QPAttr(qp_state=QPState.ERR))
    wait_until(
        lambda: found.extend(w.wr_id for w in cq.poll(64)) or len(found) >= sum(map(len, taken))
    )
    for me in (0, 1):
        assert [n for n in found if n % 2 == me] == taken[me], (
            "requests of a thread did not each complete once and in order"
        )


@contextlib.contextmanager
def restrict_process_to_one_cpu() -> Iterator[None]:
    cpus = os.sched_getaffinity(0)

    def set_affinity_of_all_threads(on: set[int]) -> None:
        for task in thread_ids():
            with contextlib.suppress(ProcessLookupError):  # a listed thread has ended
                os.sched_setaffinity(task, on)

    set_affinity_of_all_threads({min(cpus)})
    yield
    set_affinity_of_all_threads(cpus)


def answer_messages(end: End, rounds: int) -> None:
    """Wait for each of ``rounds`` messages and answer it.

    The caller has posted the first receive.
    """
    for _ in range(rounds):
        end.rcq.req_notify()
        while not end.rcq.poll(1):
            assert end.events.get_cq_event(LIMIT), "no message was received"
            end.rcq.req_notify()
        # The receive is posted first, because the next message may arrive right after the answer.
        end.post_receive(1, 8)
        end.post(SEND, length=8)
        poll(end.scq)


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE])
def test_a_send_completes_before_its_answer_even_if_the_sending_thread_is_preempted(
    two_device_connector: ListenerAndConnector, persona: Persona
) -> None:
    """The answering thread preempts the low-priority sender before its send system call returns."""
    one = two_device_connector.begin_connect(size=64, one_cq=True, persona=persona)
    other = End(
        two_device_connector.passive,
        two_device_connector.next_connection_request().id,
        two_device_connector.p_channel,
        64,
        persona=persona,
    )
    other.id.accept()
    one.next_cm_event(), other.next_cm_event()
    other.post_receive(1, 8)
    rounds = 30

    def send_messages() -> None:
        os.nice(19)
        for _ in range(rounds):
            one.post_receive(1, 8)
            one.post(SEND, 2, length=8)
            wait_until(lambda: one.scq.pending == 2)
            assert [(wc.wr_id, wc.status) for wc in one.scq.poll(2)] == [(2, 0), (1, 0)]

    with restrict_process_to_one_cpu(), ThreadPoolExecutor() as pool:
        for done in [pool.submit(answer_messages, other, rounds), pool.submit(send_messages)]:
            done.result()


def test_a_completion_queue_is_destroyed_while_other_threads_poll_it(rig: Rig) -> None:
    current = [rig.create_cq(16)]
    team = RepeatingThreads()
    for _ in range(3):
        team.add(lambda: current[0].poll(4))

    def replace_cq() -> None:
        old, current[0] = current[0], rig.create_cq(16)
        old.close()

    team.run_during_calls(0.5, 20, replace_cq)


def test_a_device_is_closed_while_other_threads_post_and_poll() -> None:
    class DeviceObjects:
        def __init__(self) -> None:
            self.ctx = Context()
            self.pd = PD(self.ctx)
            self.cq = CQ(self.ctx, 256)
            self.mr = MR(self.pd, 64)
            self.qp = QP(self.pd, QPInitAttr(QPType.UD, scq=self.cq))
            self.qp.to_rts()
            self.wr = SendWR(1, sg=[self.mr.sge()], ah=AH(self.pd, ("127.0.0.1", 9)))

    current = [DeviceObjects()]
    team = RepeatingThreads()
    # Only one thread may use a request object at a time, so only one thread posts.
    team.add(lambda: current[0].qp.post_send(current[0].wr))
    team.add(lambda: current[0].cq.poll(16))
    team.add(lambda: current[0].cq.poll(1))

    def replace_device() -> None:
        old, current[0] = current[0], DeviceObjects()
        old.ctx.__exit__(None, None, None)

    team.run_during_calls(1.0, 5, replace_device)


def test_handles_can_be_closed_in_any_order_while_other_threads_use_them() -> None:
    """A thread that waits for events of a closing object neither blocks the close nor crashes."""
    rng = random.Random(7)

    class DeviceObjects:
        def __init__(self) -> None:
            self.ctx = Context()
            self.pd = PD(self.ctx)
            self.channel = CompChannel(self.ctx)
            self.cq = CQ(self.ctx, 256, channel=self.channel)
            self.out, self.into = MR(self.pd, 64), MR(self.pd, 64)
            self.qp = QP(self.pd, QPInitAttr(QPType.UD, scq=self.cq))
            self.qp.to_rts()
            self.ah = AH(self.pd, self.qp.addr)
            self.events = CMEventChannel(self.ctx)
            self.id = CMID(self.events)
            self.id.listen(("127.0.0.1", 0))

        def handles(self) -> list[Handle]:
            return [self.pd, self.channel, self.cq, self.out, self.into, self.qp, self.ah,
                    self.events, self.id]  # fmt: skip

    current = [DeviceObjects()]

    def query_objects() -> None:
        w = current[0]
        w.qp.query()
        assert w.id.local_addr[0] == "127.0.0.1" and w.cq.capacity >= 256

    def await_events() -> None:
        current[0].ctx.get_async_event(0.002)
        current[0].events.get_event(0.002)

    team = RepeatingThreads()
    for call in (query_objects, await_events, lambda: current[0].cq.wait(0.01)):
        team.add(call)

    def replace_device() -> None:
        w = current[0]
        for _ in range(5):  # the completions raise events, for which other threads wait
            w.qp.post_recv(RecvWR(1, sg=[w.into.sge()]))
            w.qp.post_send(SendWR(2, sg=[w.out.sge(0, 8)], ah=w.ah))
        old, current[0] = w, DeviceObjects()
        parts = old.handles()
        rng.shuffle(parts)
        for part in parts:
            # close() fails while the object is in use or a thread waits for its events.
            with contextlib.suppress(StateError):
                part.close()
        wait_until(lambda: try_to_close(old.ctx))

    def try_to_close(ctx: Context) -> bool:
        with contextlib.suppress(StateError):
            ctx.__exit__(None, None, None)
        return ctx.closed

    team.run_during_calls(1.0, 5, replace_device)


def test_a_wait_whose_time_out_ends_before_the_thread_sleeps_returns_immediately(
    build_dir: Path,
) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-late"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("kind", [QPType.RC, QPType.UD], ids=lambda k: k.name)
def test_calls_of_the_c_api_on_a_destroyed_queue_pair_are_refused(rig: Rig, kind: QPType) -> None:
    cq = rig.create_cq()
    init = ffi.new("struct siw_qp_init_attr *", {"qp_type": kind})
    init.send_cq = init.recv_cq = cq._c_object()
    qp = lib.siw_create_qp(rig.pd._c_object(), init)
    attr = ffi.new("struct siw_qp_attr *", {"qp_state": 1})
    assert lib.siw_modify_qp(qp, attr, 1) == 0
    recv, send = ffi.new("struct siw_recv_wr *"), ffi.new("struct siw_send_wr *")
    assert lib.siw_post_recv(qp, recv, ffi.NULL) == 0
    assert lib.siw_destroy_qp(qp) == 0
    bad = ffi.new("struct siw_recv_wr **")
    assert lib.siw_post_recv(qp, recv, bad) == -errno.EINVAL
    assert bad[0] == recv
    assert lib.siw_post_send(qp, send, ffi.NULL) == -errno.EINVAL
    assert lib.siw_modify_qp(qp, attr, 1) == -errno.EINVAL
    assert lib.siw_query_qp(qp, attr, ffi.NULL) == -errno.EINVAL
    assert lib.siw_destroy_qp(qp) == -errno.EINVAL
    # The next queue pair may use the memory of the destroyed one and must inherit no state.
    again = lib.siw_create_qp(rig.pd._c_object(), init)
    got = ffi.new("struct siw_qp_attr *")
    assert lib.siw_query_qp(again, got, ffi.NULL) == 0
    assert got.qp_state == QPState.RESET
    assert lib.siw_post_recv(again, recv, ffi.NULL) == -errno.EINVAL
    assert lib.siw_modify_qp(again, attr, 1) == 0
    assert lib.siw_post_recv(again, recv, ffi.NULL) == 0
    attr.qp_state = QPState.ERR
    assert lib.siw_modify_qp(again, attr, 1) == 0
    assert len(poll(cq)) == 1
    assert lib.siw_destroy_qp(again) == 0


def test_posting_to_a_closed_queue_pair_handle_raises_an_error(rig: Rig) -> None:
    qp = rig.create_ud_qp()
    qp.close()
    with pytest.raises(StateError, match="closed"):
        qp.post_recv(RecvWR(1))


def test_four_threads_on_shared_and_own_queue_pairs_lose_no_message(build_dir: Path) -> None:
    """The threads post, poll and wait on channels over RC and UD, 30 s under ThreadSanitizer."""
    seconds = {"tsan": 30, "asan": 2}.get(os.environ.get("SANITIZER", ""), 1)
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-threads", str(seconds)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    # The program prints six counts: requests and messages on the shared connection, datagrams,
    # operations of each thread, and waits.
    counts = [int(n) for n in re.findall(r"\d+", done.stdout)]
    assert len(counts) == 6 and min(counts) > 10, done.stdout
