"""Thousands of UD queue pairs in a process: time, memory, descriptors, and reception by each."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.descriptors import count_open_descriptors, list_open_descriptors
from harness.verbs_harness import Rig, poll

from siwarp._siwarp import ffi, lib
from siwarp.verbs import LimitError, QPAttr, RecvWR, SendWR

SLOW = "SANITIZER" in os.environ
SHARED = 2000 if SLOW else 10000
OWN = 500 if SLOW else 4100
QKEY = 5
SECONDS = 30.0 if SLOW else 5.0


@pytest.fixture
def raise_descriptor_limit() -> Iterator[None]:
    """Raise the process's limit of file descriptors up to the hard limit, at most 20,000."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < OWN + 500:
        pytest.fail(f"raise `ulimit -Hn` to {OWN + 500}: it is {hard}", pytrace=False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def proportional_set_size() -> int:
    """Return the proportional set size (Pss) of this process in octets."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss in smaps_rollup")


def create_qps(rig: Rig, cq: Any, n: int, shared: bool) -> list[Any]:
    """Create n UD queue pairs in RTS by C calls, 256 per socket if shared and else one."""
    init = ffi.new("struct siw_qp_init_attr *")
    attr = ffi.new("struct siw_qp_attr *", {"qkey": QKEY})
    made: list[Any] = []
    for i in range(n):
        init.send_cq = init.recv_cq = cq._c
        init.cap.max_send_wr = init.cap.max_recv_wr = 16
        init.cap.max_send_sge = init.cap.max_recv_sge = 1
        init.qp_type = lib.SIW_QPT_UD
        init.shared_socket_qp = made[i - i % 256] if shared and i % 256 else ffi.NULL
        qp = lib.siw_create_qp(rig.pd._c, init)
        assert qp != ffi.NULL, f"number {i}: {os.strerror(ffi.errno)}"
        made.append(qp)
    for qp in made:
        for state in (lib.SIW_QPS_INIT, lib.SIW_QPS_RTR, lib.SIW_QPS_RTS):
            attr.qp_state = state
            mask = lib.SIW_QP_STATE | (lib.SIW_QP_QKEY if state == lib.SIW_QPS_INIT else 0)
            assert lib.siw_modify_qp(qp, attr, mask) == 0
    return made


def send_to_some_queue_pairs(rig: Rig, qps: list[Any], cq: Any) -> None:
    """Send a message by QPN to about 200 of the queue pairs; assert that each receives its own."""
    chosen = [*range(1, len(qps), len(qps) // 200), len(qps) - 1]
    mr = rig.reg_mr(bytearray(8 * len(qps)))
    sge = ffi.new("struct siw_sge *")
    recv = ffi.new("struct siw_recv_wr *", {"sg_list": sge, "num_sge": 1})
    sender, own = rig.create_ud_qp(), rig.reg_mr(bytearray(8))
    where = ffi.new("struct siw_addr *")
    for i in chosen:
        s = mr.sge(8 * i, 8)
        sge.addr, sge.length, sge.lkey = s.addr, s.length, s.lkey
        recv.wr_id = i
        assert lib.siw_post_recv(qps[i], recv, ffi.NULL) == 0
    for i in chosen:
        assert lib.siw_qp_addr(qps[i], where, ffi.NULL) == 0
        own.write(i.to_bytes(8, "big"))
        ah = rig.create_ah(("127.0.0.1", socket.ntohs(where.port_be)))
        sender.post_send(
            SendWR(
                sg=[own.sge()],
                ah=ah,
                remote_qpn=lib.siw_qp_num(qps[i]),
                remote_qkey=QKEY,
            )
        )
        assert poll(sender.scq)[0].ok
    got = poll(cq, len(chosen))
    assert sorted(w.wr_id for w in got) == sorted(chosen)
    for w in got:
        assert (w.ok, w.qp_num) == (True, lib.siw_qp_num(qps[w.wr_id]))
        assert int.from_bytes(mr.read(8, 8 * w.wr_id), "big") == w.wr_id


@pytest.mark.clause("DGRAM-SHARE-1")
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_thousands_of_queue_pairs_are_created_receive_and_are_destroyed_within_seconds(
    rig: Rig, raise_descriptor_limit: None, shared: bool
) -> None:
    n = SHARED if shared else OWN
    cq = rig.create_cq(1024)
    # the first queue pairs also allocate structures that all of them share
    create_and_destroy_qps(rig, cq, 300, shared)
    fds, before, start = (
        count_open_descriptors(),
        proportional_set_size(),
        time.monotonic(),
    )
    qps = create_qps(rig, cq, n, shared)
    took, each = time.monotonic() - start, (proportional_set_size() - before) / n
    try:
        sockets = count_open_descriptors() - fds
        assert sockets == ((n + 255) // 256 if shared else n)
        send_to_some_queue_pairs(rig, qps, cq)
    finally:
        start = time.monotonic()
        for qp in qps:
            assert lib.siw_destroy_qp(qp) == 0
        took += time.monotonic() - start
    assert took < SECONDS, f"{n} queue pairs took {took:.1f} s"
    if not SLOW:  # sanitizers multiply the memory use
        assert each < 4096, f"{each:.0f} octets of memory per queue pair"


def create_and_destroy_qps(rig: Rig, cq: Any, n: int, shared: bool) -> None:
    for qp in create_qps(rig, cq, n, shared):
        assert lib.siw_destroy_qp(qp) == 0


def test_without_a_free_descriptor_the_error_recommends_socket_sharing_which_succeeds(
    rig: Rig,
) -> None:
    cq = rig.create_cq()
    first = rig.create_ud_qp(cq, qkey=QKEY)
    used = max(list_open_descriptors())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
    held = []
    try:
        for _ in range(used + 2):
            try:
                held.append(os.dup(0))
            except OSError:
                break
        with pytest.raises(
            LimitError,
            match=r"socket of the UD QP.*among up to 256 QPs by QPInitAttr\(shared_socket_qp=",
        ):
            rig.create_qp(cq)
        second = rig.create_qp(cq, shared_socket_qp=first)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    second.to_rts(QPAttr(qkey=QKEY))
    mr = rig.reg_mr(bytearray(b"abc"))
    second.post_recv(RecvWR(1, sg=[mr.sge()]))
    first.post_send(
        SendWR(
            sg=[mr.sge()],
            send_flags=0,
            ah=rig.create_ah(second),
            remote_qpn=second.qp_num,
            remote_qkey=QKEY,
        )
    )
    assert poll(cq)[0].byte_len == 3
