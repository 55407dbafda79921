"""Tests that each limit that a device reports can be reached and not exceeded."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.rc_harness import SEND, WRITE, ListenerAndConnector
from harness.verbs_harness import Rig, errno_raised_by, poll

from siwarp._siwarp import ffi, lib
from siwarp.verbs import Context, QPType, RecvWR, SendWR


@contextlib.contextmanager
def create_up_to_limit(make: Any, destroy: Any, limit: int) -> Iterator[list[Any]]:
    """Create ``limit`` objects, assert that one more is refused, and destroy all objects."""
    made: list[Any] = []
    try:
        for _ in range(limit):
            c = make()
            assert c, f"errno {ffi.errno} at {len(made)} of {limit}"
            made.append(c)
        assert not make()
        assert ffi.errno == errno.ENOMEM
        yield made
        # After one object has been destroyed, another one can be created.
        assert destroy(made.pop()) == 0
        made.append(make())
        assert made[-1]
    finally:
        for c in reversed(made):
            assert destroy(c) == 0


def test_as_many_protection_domains_can_be_created_as_max_pd_says(rig: Rig) -> None:
    # The fixture `rig` already has one PD.
    limit = rig.ctx.query_device().max_pd - 1
    with create_up_to_limit(
        lambda: lib.siw_alloc_pd(rig.ctx._c_object()), lib.siw_dealloc_pd, limit
    ):
        pass


def test_as_many_completion_queues_can_be_created_as_max_cq_says(rig: Rig) -> None:
    c = rig.ctx._c_object()
    limit = rig.ctx.query_device().max_cq

    def create_cq() -> Any:
        return lib.siw_create_cq(c, 1, ffi.NULL, ffi.NULL, 0)

    with create_up_to_limit(create_cq, lib.siw_destroy_cq, limit):
        pass


def test_a_completion_queue_can_have_max_cqe_entries_and_not_more(rig: Rig) -> None:
    most = rig.ctx.query_device().max_cqe
    assert rig.create_cq(most).capacity >= most
    assert errno_raised_by(rig.create_cq, most + 1) == errno.EINVAL


def test_as_many_queue_pairs_can_be_created_as_max_qp_says(rig: Rig) -> None:
    cq = rig.create_cq()
    init = ffi.new(
        "struct siw_qp_init_attr *",
        {"send_cq": cq._c_object(), "recv_cq": cq._c_object(), "qp_type": 2},
    )

    def create_qp() -> Any:
        init.cap = {"max_send_wr": 1, "max_recv_wr": 1}
        return lib.siw_create_qp(rig.pd._c_object(), init)

    limit = rig.ctx.query_device().max_qp
    with create_up_to_limit(create_qp, lib.siw_destroy_qp, limit) as made:
        assert len({lib.siw_qp_num(qp) for qp in made}) == limit


def test_as_many_shared_receive_queues_can_be_created_as_max_srq_says(rig: Rig) -> None:
    pd, destroy = rig.pd._c_object(), lib.siw_destroy_srq
    init = ffi.new("struct siw_srq_init_attr *")

    def create_srq() -> Any:
        init.attr = {"max_wr": 1, "max_sge": 1}
        return lib.siw_create_srq(pd, init)

    with create_up_to_limit(create_srq, destroy, rig.ctx.query_device().max_srq):
        pass


@pytest.mark.scales
def test_as_many_address_handles_can_be_created_as_max_ah_says(rig: Rig) -> None:
    addr = ffi.new("struct siw_addr *")
    assert lib.siw_addr_parse(b"127.0.0.1", 5, addr) == 0
    pd, make, destroy = rig.pd._c_object(), lib.siw_create_ah, lib.siw_destroy_ah
    with create_up_to_limit(lambda: make(pd, addr), destroy, rig.ctx.query_device().max_ah):
        pass


# The test makes a million registrations, each of which takes microseconds under a sanitizer.
@pytest.mark.scales
def test_as_many_memory_regions_can_be_registered_as_max_mr_says(rig: Rig) -> None:
    pd, reg, limit = rig.pd._c_object(), lib.siw_reg_mr, rig.ctx.query_device().max_mr
    with create_up_to_limit(lambda: reg(pd, ffi.NULL, 0, 0), lib.siw_dereg_mr, limit) as made:
        assert len({mr.lkey for mr in made}) == limit


@pytest.mark.parametrize("kind", [QPType.RC, QPType.UD], ids=lambda k: k.name)
def test_a_queue_pair_can_have_the_capacities_that_the_device_reports_and_not_more(
    rig: Rig, kind: QPType
) -> None:
    most = rig.ctx.query_device()
    for name, limit in [
        ("max_send_wr", most.max_qp_wr),
        ("max_recv_wr", most.max_qp_wr),
        ("max_send_sge", most.max_sge),
        ("max_recv_sge", most.max_sge),
        ("max_inline_data", most.max_inline_data),
    ]:
        qp = rig.create_qp(qp_type=kind, **{name: limit})
        assert getattr(qp.cap, name) == limit
        qp.close()
        assert errno_raised_by(rig.create_qp, qp_type=kind, **{name: limit + 1}) == errno.EINVAL


def test_a_connection_with_all_capacities_at_their_limits_works(rig: Rig) -> None:
    most = rig.ctx.query_device()
    a, b = ListenerAndConnector(rig).connect(
        size=1 << 16,
        max_send_wr=most.max_qp_wr,
        max_recv_wr=most.max_qp_wr,
        max_send_sge=most.max_sge,
        max_recv_sge=most.max_sge,
        max_inline_data=most.max_inline_data,
    )
    wrs = [RecvWR(i, sg=[b.mem.sge(0, 1)] * most.max_sge) for i in range(64)]
    for i in range(most.max_qp_wr // 64):
        b.qp.post_recv(wrs)
        if not i:
            a.post(SEND, 1, length=most.max_sge)
    assert poll(b.rcq)[0].byte_len == most.max_sge
    assert errno_raised_by(b.qp.post_recv, [RecvWR(0), RecvWR(1)]) == errno.ENOMEM
    inline = SendWR(3, sg=[a.mem.sge(0, most.max_inline_data)], send_flags=8 | 2)
    a.qp.post_send(inline)
    # Each receive holds 16 octets, so the message is too long for its receive.
    assert poll(b.rcq)[0].status in (1, 5)


@pytest.mark.parametrize("size", [0, 1])
def test_rc_accepts_a_message_of_max_rc_msg_octets_and_refuses_a_longer_one(
    rig: Rig, size: int
) -> None:
    a, b = ListenerAndConnector(rig).connect(max_send_sge=16)
    most = rig.ctx.query_device().max_rc_msg
    wr = SendWR(1, WRITE, sg=[a.mem.sge(0, 1)] * 16, remote=b.mem.remote())
    for sge in wr.sg:
        sge.length = most // 16
    wr.sg[0].length += size
    if size:
        assert errno_raised_by(a.qp.post_send, wr) == errno.EINVAL
        assert a.scq.poll(1) == []
    else:
        # The post is accepted, and the request fails only because its memory is not mapped.
        a.qp.post_send(wr)
        assert poll(a.scq)[0].status == 4


def test_each_of_two_thousand_ud_queue_pairs_of_a_device_receives_its_own_messages(
    rig: Rig,
) -> None:
    n = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = n + 200
    if soft < want:
        assert hard >= want, f"needs {want} descriptors: raise `ulimit -Hn` ({hard})"
        resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))
    try:
        cq = rig.create_cq(8192)
        mr = rig.reg_mr(8 * n)
        qps = [rig.create_ud_qp(cq, max_send_wr=1, max_recv_wr=1) for _ in range(n)]
        sender = rig.create_ud_qp(max_send_wr=n)
        for i, qp in enumerate(qps):
            qp.post_recv(RecvWR(i, sg=[mr.sge(8 * i, 8)]))
        out = rig.reg_mr(8 * n)
        for i in range(n):
            out.write(i.to_bytes(8, "big"), offset=8 * i)
            sender.post_send(
                SendWR(i, sg=[out.sge(8 * i, 8)], ah=rig.create_ah(qps[i]), send_flags=0)
            )
        got = poll(cq, n)
        assert {(w.wr_id, w.qp_num) for w in got} == {(i, qp.qp_num) for i, qp in enumerate(qps)}
        assert all(mr.read(8, 8 * i) == i.to_bytes(8, "big") for i in range(n))
        for qp in qps:
            qp.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_exhausted_descriptors_are_reported_as_emfile_and_have_no_later_effect(rig: Rig) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cq = rig.create_cq()
    qps = []
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, hard))
    try:
        number = 0
        for _ in range(20):
            try:
                qps.append(rig.create_qp(cq))
            except OSError as e:
                number = e.errno or 0
                break
        assert number == errno.EMFILE
        assert errno_raised_by(Context) == errno.EMFILE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    rig.create_ud_qp(cq).close()
