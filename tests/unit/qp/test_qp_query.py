"""Querying a queue pair returns its actual attributes."""

from __future__ import annotations

import errno

import pytest
from harness.rc_harness import READ, ListenerAndConnector
from harness.verbs_harness import Rig, poll

from siwarp._siwarp import ffi, lib
from siwarp.cm import ConnParam
from siwarp.verbs import SRQ, AccessFlag, Persona, QPAttr, QPState, QPType, SendWR

ALL = AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ | AccessFlag.REMOTE_ATOMIC


def test_a_query_of_a_new_ud_queue_pair_returns_its_defaults_and_capacities(rig: Rig) -> None:
    qp = rig.create_qp(
        max_send_wr=5, max_recv_wr=9, max_send_sge=3, max_recv_sge=2, max_inline_data=20
    )
    attr, init = qp.query()
    assert (attr.qp_state, attr.cur_qp_state, attr.qkey) == (QPState.RESET, QPState.RESET, 0)
    assert attr.qp_access_flags == 0 and (attr.max_rd_atomic, attr.max_dest_rd_atomic) == (0, 0)
    assert attr.sq_draining is False and attr.en_sqd_async_notify is False
    cap = init.cap
    assert (cap.max_send_wr, cap.max_recv_wr) == (8, 16)
    assert (cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data) == (3, 2, 32)
    assert init.cap == qp.cap
    assert init.addr == qp.addr == ("127.0.0.1", qp.qp_num)
    assert init.qp_type == QPType.UD and init.sq_sig_all is False and init.crc is True


@pytest.mark.parametrize("sig_all", [False, True])
@pytest.mark.parametrize("crc", [False, True])
def test_a_query_returns_the_creation_attributes_in_every_state(
    rig: Rig, sig_all: bool, crc: bool
) -> None:
    scq, rcq = rig.create_cq(), rig.create_cq()
    qp = rig.create_qp(scq=scq, rcq=rcq, sig_all=sig_all, crc=crc)
    for change in (
        QPAttr(),
        QPAttr(qp_state=QPState.INIT, qkey=0x1234),
        QPAttr(qp_state=QPState.RTR),
        QPAttr(qp_state=QPState.RTS, qkey=0x80000001),
        QPAttr(qp_state=QPState.SQD),
        QPAttr(qp_state=QPState.ERR),
    ):
        qp.modify(change)
        attr, init = qp.query()
        assert attr.qp_state == attr.cur_qp_state == (change.qp_state or QPState.RESET)
        if change.qkey:
            assert attr.qkey == change.qkey
        assert (init.sq_sig_all, init.crc, init.scq, init.rcq) == (sig_all, crc, scq, rcq)


def test_siw_query_qp_returns_the_pointers_given_at_creation(rig: Rig) -> None:
    scq, rcq, srq = rig.create_cq(), rig.create_cq(), SRQ(rig.pd)
    mine = ffi.new("int *")
    made = ffi.new("struct siw_qp_init_attr *", {"qp_type": QPType.RC, "qp_context": mine})
    made.send_cq, made.recv_cq, made.srq = scq._c_object(), rcq._c_object(), srq._c_object()
    qp = lib.siw_create_qp(rig.pd._c_object(), made)
    init = ffi.new("struct siw_qp_init_attr *")
    assert lib.siw_query_qp(qp, ffi.NULL, init) == 0
    assert init.qp_context == mine and init.srq == srq._c_object()
    assert (init.send_cq, init.recv_cq) == (scq._c_object(), rcq._c_object())
    assert lib.siw_destroy_qp(qp) == 0


def test_a_query_of_an_rc_queue_pair_returns_requested_and_later_negotiated_values(
    two_device_connector: ListenerAndConnector,
) -> None:
    fresh = two_device_connector.active.create_qp(qp_type=QPType.RC)
    assert fresh.query()[0].qp_access_flags == ALL
    fresh.modify(QPAttr(max_rd_atomic=7, max_dest_rd_atomic=9, qp_access_flags=0))
    attr = fresh.query()[0]
    assert (attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.qp_access_flags) == (7, 9, 0)
    a, b = two_device_connector.connect(
        ConnParam(initiator_depth=3, responder_resources=5),
        ConnParam(initiator_depth=9, responder_resources=2),
    )
    depths = [
        (end.qp.query()[0].max_rd_atomic, end.qp.query()[0].max_dest_rd_atomic) for end in (a, b)
    ]
    # Each side issues at most as many Reads as the other has resources for.
    assert depths == [(2, 5), (5, 2)]
    a.qp.modify(QPAttr(qp_access_flags=AccessFlag.REMOTE_READ))
    assert a.qp.query()[0].qp_access_flags == AccessFlag.REMOTE_READ
    for persona in (Persona.IWARP, Persona.ROCE):
        c, _ = two_device_connector.connect(persona=persona)
        assert c.qp.query()[1].persona == persona


def test_reads_beyond_the_queried_max_rd_atomic_all_complete_in_order(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(ConnParam(initiator_depth=2))
    assert a.qp.query()[0].max_rd_atomic == 2
    reads = [SendWR(i, READ, sg=[a.mem.sge(0, 64)], remote=b.mem.remote(0, 64)) for i in range(9)]
    a.qp.post_send(reads)
    assert [w.wr_id for w in poll(a.scq, 9)] == list(range(9))


def test_either_output_pointer_of_siw_query_qp_may_be_null(rig: Rig) -> None:
    qp = rig.create_qp()._c_object()
    attr, init = ffi.new("struct siw_qp_attr *"), ffi.new("struct siw_qp_init_attr *")
    assert lib.siw_query_qp(qp, attr, ffi.NULL) == lib.siw_query_qp(qp, ffi.NULL, init) == 0
    assert (attr.qp_state, attr.fd) == (QPState.RESET, -1) and init.qp_type == QPType.UD
    assert lib.siw_query_qp(ffi.NULL, attr, init) == -errno.EINVAL
