"""Devices that are opened and closed repeatedly: leaks, threads, and the progress thread."""

from __future__ import annotations

import gc
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.descriptors import count_open_descriptors
from harness.rc_harness import SEND, WRITE, End, ListenerAndConnector
from harness.siwarp_process import SiwarpProcess
from harness.verbs_harness import Rig, poll, wait_until
from pace import scale_limit

from siwarp import cm
from siwarp._siwarp import ffi, lib
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SGE,
    CompChannel,
    Context,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    get_device_list,
)

SANITIZED = "SANITIZER" in os.environ


def thread_ids() -> set[int]:
    return {int(t.name) for t in Path("/proc/self/task").iterdir()}


def resident_anonymous_memory_kib() -> int:
    """Return the resident anonymous memory in KiB, without file-backed pages."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon in /proc/self/status")


# ---- devices


def test_the_loopback_interface_is_a_device_with_its_addresses() -> None:
    (lo,) = [d for d in get_device_list() if d.netdev == "lo"]
    assert lo.name == "siw_lo" and lo.up and lo.mtu >= 1500
    assert lo.addresses[0] == "127.0.0.1"


@pytest.mark.parametrize("name", [None, "lo", "siw_lo", "127.0.0.1", "127.1.2.3", "0.0.0.0"])
def test_the_loopback_device_can_be_opened_by_each_of_its_names(name: str | None) -> None:
    with Context(name) as ctx:
        assert ctx.device.netdev == "lo"


def test_two_open_devices_are_independent_and_exchange_a_ud_message() -> None:
    a, b = Rig(), Rig()
    cq = b.create_cq()
    receiver = b.create_ud_qp(cq)
    sender = a.create_ud_qp()
    into = b.reg_mr(8)
    receiver.post_recv(RecvWR(1, sg=[into.sge()]))
    sender.post_send(SendWR(2, sg=[a.reg_mr(b"two devs", 0).sge()], ah=a.create_ah(receiver)))
    assert poll(cq)[0].source == sender.addr
    assert into.read() == b"two devs"
    a.close()
    assert receiver.qp_state == QPState.RTS
    b.close()


def open_use_and_close_device() -> None:
    """Open a device, use each kind of object and close the device."""
    with Context() as ctx, PD(ctx) as pd, CompChannel(ctx) as channel:
        cq = CQ(ctx, 16, channel=channel)
        mr = MR(pd, bytearray(72))
        qp = QP(pd, QPInitAttr(QPType.UD, scq=cq))
        QP(pd, QPInitAttr(QPType.RC, scq=cq))
        qp.to_rts()
        qp.post_recv(RecvWR(1, sg=[mr.sge(8, 64)]))
        qp.post_send(SendWR(2, sg=[mr.sge(0, 8)], ah=AH(pd, qp.addr)))
        assert len(poll(cq, 2)) == 2


def test_opening_and_closing_a_device_two_hundred_times_leaks_nothing() -> None:
    for _ in range(20):
        open_use_and_close_device()
    gc.collect()
    before_fds, before_tasks, before = (
        count_open_descriptors(),
        thread_ids(),
        resident_anonymous_memory_kib(),
    )
    for _ in range(200):
        open_use_and_close_device()
    gc.collect()
    assert count_open_descriptors() == before_fds
    assert thread_ids() == before_tasks
    grown = resident_anonymous_memory_kib() - before
    # A sanitizer intentionally keeps freed memory for a while.
    assert SANITIZED or grown < 2048, f"{grown} KiB leaked in 200 rounds"


def test_connecting_and_disconnecting_a_hundred_times_leaks_nothing(
    two_device_connector: ListenerAndConnector,
) -> None:
    def connect_and_close() -> None:
        a, b = two_device_connector.connect(size=4096, max_send_wr=8, max_recv_wr=8)
        b.post_receive()
        a.post(SEND, length=100)
        poll(b.rcq)
        for end in (a, b):
            end.close()
            end.scq.close()
            end.rcq.close()
            end.events.close()
            end.mem.close()

    # Closed sockets linger until the end of the peer's stream arrives.
    def wait_for_closed_sockets() -> None:
        wait_until(lambda: count_open_descriptors() == count)

    for _ in range(10):
        connect_and_close()
    time.sleep(0.05)
    gc.collect()
    count, before = count_open_descriptors(), resident_anonymous_memory_kib()
    for _ in range(100):
        connect_and_close()
    gc.collect()
    wait_for_closed_sockets()
    grown = resident_anonymous_memory_kib() - before
    assert SANITIZED or grown < 4096, f"{grown} KiB leaked in 100 connections"


def test_many_memory_registrations_leak_nothing(rig: Rig) -> None:
    memory = bytearray(4096)

    def register_many_regions() -> None:
        for _ in range(5000):
            rig.reg_mr(memory).close()

    register_many_regions()
    gc.collect()
    before = resident_anonymous_memory_kib()
    register_many_regions()
    gc.collect()
    assert SANITIZED or resident_anonymous_memory_kib() - before < 1024


# ---- threads


def run_threads(workers: list[threading.Thread], errors: list[BaseException]) -> None:
    for w in workers:
        w.start()
    for w in workers:
        w.join(30)
        assert not w.is_alive(), "a thread hangs"
    assert not errors, errors


class TimedThreads:
    """Threads that each run a function repeatedly for some time and keep its exception.

    The function runs at least `rounds` times, for `seconds` under a sanitizer, which also reports
    races without a visible effect, and for a fifth as long otherwise.
    """

    def __init__(self, seconds: float, rounds: int = 10) -> None:
        self.end = time.monotonic() + seconds / (1 if SANITIZED else 5)
        self.rounds = rounds
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def add(self, work: Callable[..., None], *args: object) -> None:
        def repeat_until_end_time() -> None:
            try:
                rounds = 0
                while rounds < self.rounds or time.monotonic() < self.end:
                    work(*args)
                    rounds += 1
            except BaseException as e:
                self.errors.append(e)

        self.threads.append(threading.Thread(target=repeat_until_end_time))

    def run(self) -> None:
        run_threads(self.threads, self.errors)


def test_four_threads_send_and_receive_on_shared_queue_pairs(rig: Rig) -> None:
    scq, rcq = rig.create_cq(4096), rig.create_cq(4096)
    a = rig.create_ud_qp(scq, max_send_wr=256)
    b = rig.create_ud_qp(rcq, max_recv_wr=256)
    mr, into = rig.reg_mr(4096), rig.reg_mr(4096)
    to_b = rig.create_ah(b)
    received = [0] * 4
    posted = [0] * 4

    def exchange_messages(me: int) -> None:
        rng = random.Random(me)
        for _ in range(20):
            try:
                b.post_recv(RecvWR(me, sg=[into.sge(0, 512)]))
                posted[me] += 1
            except OSError as e:
                assert e.errno == 12
            size = rng.randrange(513)
            try:
                flags = SendFlag.SIGNALED if rng.randrange(8) == 0 else 0
                a.post_send(SendWR(me, sg=[mr.sge(0, size)], ah=to_b, send_flags=flags))
            except OSError as e:
                assert e.errno == 12
            received[me] += sum(1 for w in rcq.poll(8) if w.ok)
        assert all(w.ok for w in scq.poll(64))

    workers = TimedThreads(1.0)
    for i in range(4):
        workers.add(exchange_messages, i)
    workers.run()
    assert sum(received) > 100
    assert sum(received) <= sum(posted)


def test_threads_create_use_and_destroy_queue_pairs_on_a_shared_cq(rig: Rig) -> None:
    cq = rig.create_cq(1 << 14)
    mr, into = rig.reg_mr(4096), rig.reg_mr(4096)

    def create_use_and_destroy_qp() -> None:
        qp = rig.create_ud_qp(cq, max_send_wr=16, max_recv_wr=16)
        ah = rig.create_ah(qp)
        for i in range(5):
            qp.post_recv(RecvWR(i, sg=[into.sge()]))
            qp.post_send(SendWR(i, sg=[mr.sge(0, 64)], ah=ah))
            cq.poll(4)
        if random.random() < 0.5:
            qp.modify(QPAttr(qp_state=QPState.ERR))
        cq.poll(8)
        ah.close()
        qp.close()

    def poll_shared_cq() -> None:
        cq.poll(16)

    def register_region() -> None:
        rig.reg_mr(bytearray(100)).close()

    workers = TimedThreads(1.0)
    for _ in range(2):
        workers.add(create_use_and_destroy_qp)
    workers.add(poll_shared_cq)
    workers.add(register_region)
    workers.run()
    wait_until(lambda: not cq.poll(64))


def test_different_threads_post_to_modify_and_reset_the_same_queue_pairs(rig: Rig) -> None:
    cq = rig.create_cq(1 << 14)
    mr, into = rig.reg_mr(4096), rig.reg_mr(4096)
    a = rig.create_ud_qp(cq, max_send_wr=64)
    b = rig.create_ud_qp(cq, max_recv_wr=64)
    to_b = rig.create_ah(b)

    def post_send_and_receive() -> None:
        for _ in range(10):
            send, recv = SendWR(1, sg=[mr.sge(0, 100)], ah=to_b), RecvWR(2, sg=[into.sge()])
            for call in (lambda s=send: a.post_send(s), lambda r=recv: b.post_recv(r)):
                try:
                    call()
                except OSError as e:
                    assert e.errno in (12, 22), e

    def poll_completions() -> None:
        for w in cq.poll(64):
            assert w.status in (0, 5), w

    def modify_qp_states() -> None:
        for qp in (a, b):
            qp.modify(QPAttr(qp_state=QPState.ERR))
            qp.modify(QPAttr(qp_state=QPState.RESET))
            qp.to_rts(QPAttr(qkey=random.randrange(2)))

    workers = TimedThreads(1.0)
    workers.add(post_send_and_receive)
    workers.add(post_send_and_receive)
    workers.add(poll_completions)
    workers.add(modify_qp_states)
    workers.run()


def test_every_send_posted_while_the_queue_pair_moves_to_err_completes_once(rig: Rig) -> None:
    for _ in range(30):
        cq = rig.create_cq(8192)
        qp = rig.create_ud_qp(cq, max_send_wr=4096)
        ah = rig.create_ah(qp)
        posted: list[int] = []
        go = threading.Barrier(2)

        def post_sends(qp: QP = qp, ah: AH = ah, posted: list[int] = posted, go: Any = go) -> None:
            go.wait()
            for i in range(300):
                qp.post_send(SendWR(i, ah=ah))
                posted.append(i)

        thread = threading.Thread(target=post_sends)
        thread.start()
        go.wait()
        time.sleep(random.random() * 0.0004)
        qp.modify(QPAttr(qp_state=QPState.ERR))
        thread.join(10)
        done = [w.wr_id for w in poll(cq, len(posted))]
        assert done == posted
        qp.close()


def test_every_write_posted_while_the_connection_ends_completes_once(
    two_device_connector: ListenerAndConnector,
) -> None:
    for _ in range(30):
        a, b = two_device_connector.connect(size=4096, max_send_wr=512)
        posted: list[int] = []
        go = threading.Barrier(2)

        def post_writes(a: End = a, b: End = b, posted: list[int] = posted, go: Any = go) -> None:
            go.wait()
            for i in range(200):
                a.post(WRITE, i, length=10, remote=b.mem.remote(0, 10))
                posted.append(i)

        thread = threading.Thread(target=post_writes)
        thread.start()
        go.wait()
        time.sleep(random.random() * 0.0004)
        a.id.disconnect()
        thread.join(10)
        done = [w.wr_id for w in poll(a.scq, len(posted))]
        assert done == posted
        a.close()
        b.close()


def test_four_threads_connect_and_exchange_messages_at_the_same_time() -> None:
    def connect_and_exchange_messages() -> None:
        rig = Rig()
        connector = ListenerAndConnector(rig)
        a, b = connector.connect(size=1 << 16)
        for i in range(10):
            b.post_receive(wr_id=i)
            a.post(SEND, i, length=1000)
            assert poll(b.rcq)[0].ok
            assert poll(a.scq)[0].ok
        a.close()
        b.close()
        rig.close()

    workers = TimedThreads(0.7, rounds=3)
    for _ in range(4):
        workers.add(connect_and_exchange_messages)
    workers.run()


# ---- progress


def test_a_program_that_never_polls_receives_its_cq_event(rig: Rig) -> None:
    channel = rig.create_channel()
    cq = rig.create_cq(16, channel)
    qp = rig.create_ud_qp(scq=rig.create_cq(), rcq=cq)
    qp.post_recv(RecvWR(1))
    cq.req_notify()
    sender = Rig()
    p = select.poll()
    p.register(channel, select.POLLIN)
    assert p.poll(30) == []
    s = sender.create_ud_qp()
    start = time.monotonic()
    s.post_send(SendWR(1, ah=sender.create_ah(qp), send_flags=0))
    assert p.poll(5000)
    assert time.monotonic() - start < scale_limit(0.5)
    sender.close()


def test_an_rdma_write_is_placed_in_a_program_that_makes_no_calls(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(size=1 << 20)
    view = b.mem.view
    a.mem.view[:] = b"\x77" * (1 << 20)
    time.sleep(0.01)
    a.post(WRITE, length=1 << 20, remote=b.mem.remote())
    deadline = time.monotonic() + 5
    # No thread polls the CQs of the receiver b.
    while view[-1] != 0x77:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_invalid_request_raises_an_event_for_a_program_that_waits_in_poll(
    two_device_connector: ListenerAndConnector,
) -> None:
    for _ in range(40):
        a, b = two_device_connector.connect(size=64)
        a.scq.req_notify()
        p = select.poll()
        p.register(a.events, select.POLLIN)
        a.qp.post_send(SendWR(1, sg=[SGE(a.mem.addr, 4, 0xBAD)], send_flags=0))
        assert p.poll(2000), "no event for a failed request within 2 s"
        a.close()
        b.close()


def voluntary_context_switches(task: int) -> int:
    for line in Path(f"/proc/self/task/{task}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    raise AssertionError("no such line")


def test_the_progress_thread_blocks_the_signals_of_the_program() -> None:
    others = thread_ids()
    rig = Rig()
    (thread,) = thread_ids() - others
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    (blocked,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
    # The thread blocks all signals except those that cannot be blocked (9, 19), the two that the C
    # library reserves (32, 33), and SIGBUS and SIGSEGV, because a fault in memory that the program
    # has unmapped kills a thread that blocks SIGBUS or SIGSEGV.
    exempt = {9, 19, 32, 33, 7, 11}
    assert all(int(blocked, 16) >> (n - 1) & 1 for n in range(1, 65) if n not in exempt)
    rig.close()


def test_the_progress_thread_sleeps_while_a_thread_waits_for_an_event() -> None:
    others = thread_ids()
    mine = Rig()
    (thread,) = thread_ids() - others
    channel = mine.create_channel()
    mine.create_cq(16, channel)
    waiter = threading.Thread(
        target=lambda: lib.siw_get_cq_event(
            channel._c_object(), ffi.new("struct siw_cq **"), ffi.NULL, 1500
        )
    )
    waiter.start()
    time.sleep(0.4)
    before = voluntary_context_switches(thread)
    time.sleep(1.0)
    woke = voluntary_context_switches(thread) - before
    waiter.join()
    assert woke <= 5
    mine.close()


SERVER = """
import sys, time
from siwarp.verbs import *
with Context() as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, 4 * 70000) as mr:
    with QP(pd, QPInitAttr(QPType.UD, scq=cq, addr=("127.0.0.1", 0), qkey=4711)) as qp:
        qp.to_rts()
        # The next message may arrive before the receive of the last message is posted again.
        recvs = [RecvWR(i, sg=[mr.sge(70000 * i, 70000)]) for i in range(4)]
        qp.post_recv(recvs)
        print(qp.qp_num, flush=True)
        end = time.monotonic() + 20
        served = 0
        while served < 50 and time.monotonic() < end:
            for wc in cq.poll(8):
                if wc.opcode != WCOpcode.RECV:
                    continue
                with AH(pd, wc=wc) as ah:
                    sg = [mr.sge(70000 * wc.wr_id, wc.byte_len)]
                    qp.post_send(SendWR(sg=sg, ah=ah, send_flags=0))
                qp.post_recv(recvs[wc.wr_id])
                served += 1
"""

RC_SERVER = """
from siwarp import cm
with cm.listen(("127.0.0.1", 0)) as listener:
    print(listener.address[1], flush=True)
    with listener.accept(20) as conn:
        for _ in range(30):
            conn.send(conn.recv(20)[::-1])
        conn.recv(20)
"""


def test_two_processes_exchange_messages_over_ud(rig: Rig) -> None:
    with SiwarpProcess([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        cq = rig.create_cq()
        qp = rig.create_ud_qp(cq, qkey=4711)
        mr = rig.reg_mr(1 << 17)
        ah = rig.create_ah(("127.0.0.1", port))
        for i in range(50):
            size = (i * 1301) % 60000
            mr.view[:size] = bytes([i + 1]) * size
            qp.post_recv(RecvWR(1, sg=[mr.sge(1 << 16, 1 << 16)]))
            qp.post_send(SendWR(2, sg=[mr.sge(0, size)], ah=ah))
            done = poll(cq, 2)
            assert [w.byte_len for w in done if w.opcode == 128] == [size]
            assert mr.read(size, 1 << 16) == bytes([i + 1]) * size
        assert server.wait(20) == 0


def test_two_processes_exchange_messages_over_rc() -> None:
    with SiwarpProcess(
        [sys.executable, "-c", RC_SERVER], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with cm.connect(("127.0.0.1", port)) as conn:
            for i in range(30):
                data = bytes(range(256)) * (i * 8) + b"end"
                conn.send(data, 10)
                assert conn.recv(10) == data[::-1]
            conn.send(b"bye", 10)
        assert server.wait(20) == 0
