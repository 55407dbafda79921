"""Memory windows: refused binds, objects that are busy because of a window, and posted binds."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from harness.mw_harness import (
    BIND,
    BOTH,
    LOCAL,
    NOT_OF_STREAM,
    RW,
    assert_terminated,
    bind_new_memory_window,
    connect_and_exchange_send,
    invalidate_memory_window,
    read_remote_buffer,
    register_region,
    write_and_wait_for_completion,
)
from harness.rc_harness import READ, SEND, End, ListenerAndConnector
from harness.verbs_harness import Rig, errno_raised_by, poll

from siwarp._siwarp import ffi, lib
from siwarp.verbs import (
    MR,
    MW,
    PD,
    AccessFlag,
    MWBind,
    MWBindInfo,
    MWType,
    Persona,
    QPAttr,
    QPState,
    QPType,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCStatus,
    WROpcode,
    inc_rkey,
)


@pytest.fixture
def connected_endpoints(two_device_connector: ListenerAndConnector) -> Iterator[tuple[End, End]]:
    """Two connected endpoints on two devices, of which both may send."""
    yield connect_and_exchange_send(two_device_connector)


def post_invalid_bind(b: End, mw: MW, info: MWBindInfo, rkey: int | None = None) -> WCStatus:
    """Post a bind that fails, wait for the state ERR and return the status of the completion."""
    if mw.type == MWType.TYPE_1:
        b.qp.bind_mw(mw, MWBind(info))
    else:
        wr = SendWR(1, WROpcode.BIND_MW)
        wr.set_bind_wr(mw, info, rkey)
        b.qp.post_send(wr)
    status = WCStatus(poll(b.scq)[0].status)
    b.wait_for_error_state()
    return status


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "why", ["no right", "before", "behind", "wraps", "read-only", "mr's domain", "mw's domain"]
)
def test_an_invalid_bind_completes_with_mw_bind_err(
    two_device_connector: ListenerAndConnector, kind: MWType, why: str
) -> None:
    _, b = connect_and_exchange_send(two_device_connector)
    mr = register_region(
        b, 4096, LOCAL if why == "no right" else BIND if why == "read-only" else LOCAL | BIND
    )
    other = PD(b.rig.ctx)
    if why == "mr's domain":
        mr = MR(other, bytearray(4096), LOCAL | BIND)
    mw = MW(other if why == "mw's domain" else b.rig.pd, kind)
    addr, length = {
        "before": (mr.addr - 1, 10),
        "behind": (mr.addr + 1, 4096),
        "wraps": (mr.addr, 2**64 - 1),
    }.get(why, (mr.addr, 4096))
    assert post_invalid_bind(b, mw, MWBindInfo(mr, addr, length, RW)) == WCStatus.MW_BIND_ERR
    mw.close()
    mr.close()


def test_under_persona_roce_sends_before_an_invalid_bind_complete_first(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_and_exchange_send(two_device_connector, persona=Persona.ROCE)
    mr, mw = register_region(b, 4096, LOCAL), MW(b.rig.pd)
    a.post_receive(1)
    b.post(SEND, 1, length=8, flags=0)
    b.post(SEND, 2, length=0)
    a.post_receive(2)
    mw.bind(b.qp, mr, wr_id=3)
    done = [(wc.wr_id, wc.status) for wc in poll(b.scq, 2)]
    assert done == [(2, WCStatus.SUCCESS), (3, WCStatus.MW_BIND_ERR)]
    assert [wc.ok for wc in poll(a.rcq, 2)] == [True, True]
    mw.close()
    mr.close()


def test_a_memory_window_for_remote_read_needs_no_local_write_right(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    mr = MR(b.rig.pd, b"for reading", BIND)
    mw, remote = bind_new_memory_window(b, mr, access=AccessFlag.REMOTE_READ)
    assert read_remote_buffer(a, remote, 11) == b"for reading"
    mw.close()
    mr.close()


@pytest.mark.parametrize("why", ["bound", "key", "nothing"])
def test_a_bind_of_a_bound_type_2_window_or_with_a_foreign_key_fails(
    two_device_connector: ListenerAndConnector, why: str
) -> None:
    _, b = connect_and_exchange_send(two_device_connector)
    mr = register_region(b)
    mw = MW(b.rig.pd)
    rkey = inc_rkey(mw.rkey)
    if why == "bound":
        mw.bind(b.qp, mr)
        assert poll(b.scq)[0].ok
        rkey = inc_rkey(rkey)
    if why == "key":
        rkey ^= 0x100
    info = MWBindInfo(mr, mr.addr, 0 if why == "nothing" else 8, RW)
    assert post_invalid_bind(b, mw, info, rkey) == WCStatus.MW_BIND_ERR
    mw.close()


def test_a_type_2_bind_accepts_any_low_octet_of_the_key(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    mr = register_region(b)
    mw = MW(b.rig.pd)
    base = mw.rkey & ~0xFF
    for octet in (0, 255, 128, 1, 0):
        wr = SendWR(1, WROpcode.BIND_MW)
        wr.set_bind_wr(mw, MWBindInfo(mr, mr.addr, 8, RW), base | octet)
        mw.rkey = wr.rkey
        b.qp.post_send(wr)
        assert poll(b.scq)[0].ok
        mr.write(bytes([octet]) * 8)
        assert (
            read_remote_buffer(a, RemoteBuffer(mr.addr, 8, base | octet), 8) == bytes([octet]) * 8
        )
        invalidate_memory_window(mw, b)
    mw.close()


@pytest.mark.parametrize("why", ["never", "type 1", "region", "other queue pair", "twice"])
def test_a_key_that_is_not_of_the_queue_pair_cannot_be_invalidated(
    two_device_connector: ListenerAndConnector, why: str
) -> None:
    _a, b = connect_and_exchange_send(two_device_connector)
    mr = register_region(b)
    mws = []
    rkey = mr.rkey if why == "region" else 0x12345678
    if why == "type 1":
        mw, remote = bind_new_memory_window(b, mr, MWType.TYPE_1)
        mws, rkey = [mw], remote.rkey
    elif why == "other queue pair":
        # _c keeps the other end of the second connection from being garbage-collected.
        _c, d = connect_and_exchange_send(two_device_connector)
        mw, remote = bind_new_memory_window(d, mr)
        mws, rkey = [mw], remote.rkey
    elif why == "twice":
        mw, remote = bind_new_memory_window(b, mr)
        invalidate_memory_window(mw, b)
        mws, rkey = [mw], remote.rkey
    b.qp.post_send(SendWR(1, WROpcode.LOCAL_INV, invalidate_rkey=rkey))
    assert poll(b.scq)[0].status == WCStatus.LOC_PROT_ERR
    b.wait_for_error_state()
    if why in ("type 1", "other queue pair"):
        assert errno_raised_by(mr.close) == errno.EBUSY
    for mw in mws:
        mw.close()
    mr.close()


@pytest.mark.parametrize("kind", BOTH)
def test_a_region_and_a_protection_domain_are_busy_because_of_their_memory_window(
    connected_endpoints: tuple[End, End], kind: MWType
) -> None:
    _, b = connected_endpoints
    mr = register_region(b)
    mw, _ = bind_new_memory_window(b, mr, kind)
    assert errno_raised_by(mr.close) == errno_raised_by(mr.rereg, access=LOCAL) == errno.EBUSY
    invalidate_memory_window(mw, b)
    mr.rereg(access=LOCAL | BIND)
    mw.bind(b.qp, mr)
    assert poll(b.scq)[0].ok
    assert errno_raised_by(mr.close) == errno.EBUSY
    mw.close()
    mr.close()
    other = PD(b.rig.ctx)
    kept = MW(other, kind)
    assert lib.siw_dealloc_pd(other._c) == -errno.EBUSY
    kept.close()
    other.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("end", ["reset", "error", "close"])
def test_a_posted_bind_keeps_its_window_and_region_busy_until_the_bind_is_flushed(
    two_device_connector: ListenerAndConnector, kind: MWType, end: str
) -> None:
    _, b = connect_and_exchange_send(two_device_connector)
    mr, mw = register_region(b), MW(b.rig.pd, kind)
    b.qp.modify(QPAttr(qp_state=QPState.SQD))
    mw.bind(b.qp, mr)
    assert errno_raised_by(mr.close) == errno_raised_by(mw.close) == errno.EBUSY
    if end == "error":
        b.qp.modify(QPAttr(qp_state=QPState.ERR))
        assert poll(b.scq)[0].status == WCStatus.WR_FLUSH_ERR
        mw.bind(b.qp, mr)  # a bind posted in the state ERR is flushed, too
        assert poll(b.scq)[0].status == WCStatus.WR_FLUSH_ERR
    elif end == "reset":
        b.qp.modify(QPAttr(qp_state=QPState.RESET))
    else:
        b.close()
    mr.close()
    mw.close()


def test_a_bind_posted_in_sqd_executes_after_the_return_to_rts(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    mr, mw = register_region(b), MW(b.rig.pd)
    b.qp.modify(QPAttr(qp_state=QPState.SQD))
    remote = mw.bind(b.qp, mr)
    assert b.scq.poll() == []
    b.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(b.scq)[0].ok
    assert read_remote_buffer(a, remote, 8) == bytes(8)
    mw.close()


# ---- creation of windows and posting of binds


def test_as_many_memory_windows_can_be_allocated_as_max_mw_says(rig: Rig) -> None:
    most = rig.ctx.query_device().max_mw
    made = [lib.siw_alloc_mw(rig.pd._c_object(), 1 + i % 2) for i in range(most)]
    assert all(made)
    assert len({mw.rkey for mw in made}) == most
    assert not lib.siw_alloc_mw(rig.pd._c_object(), 1)
    assert ffi.errno == errno.ENOMEM
    assert [lib.siw_dealloc_mw(mw) for mw in made] == [0] * most
    MW(rig.pd).close()


def test_an_invalid_window_type_and_a_second_deallocation_are_refused(rig: Rig) -> None:
    for kind in (0, 3, -1):
        assert errno_raised_by(MW, rig.pd, kind) == errno.EINVAL
    assert lib.siw_alloc_mw(ffi.NULL, 1) == ffi.NULL
    assert lib.siw_dealloc_mw(ffi.NULL) == -errno.EINVAL
    mw = MW(rig.pd)
    c = mw._c
    mw.close()
    assert lib.siw_dealloc_mw(c) == -errno.EINVAL


def test_a_region_with_remote_invalidate_access_cannot_allow_memory_windows(rig: Rig) -> None:
    qp = rig.create_qp(qp_type=QPType.RC)
    access = LOCAL | BIND | AccessFlag.REMOTE_INVALIDATE
    assert errno_raised_by(MR, rig.pd, bytearray(10), access, qp=qp) == errno.EINVAL
    MR(rig.pd, bytearray(10), LOCAL | BIND, qp=qp).close()


def test_a_window_does_not_open_a_region_of_one_queue_pair_to_other_queue_pairs(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_and_exchange_send(two_device_connector)
    c, d = connect_and_exchange_send(two_device_connector)
    mr = MR(b.rig.pd, bytearray(100), LOCAL | BIND, qp=b.qp)
    mw, remote = bind_new_memory_window(d, mr, MWType.TYPE_1)
    assert read_remote_buffer(a, remote, 4) == bytes(4)
    write_and_wait_for_completion(c, remote, b"no")
    assert_terminated(c, d, NOT_OF_STREAM)
    other = MW(b.rig.pd)
    e, f = connect_and_exchange_send(two_device_connector)
    assert post_invalid_bind(f, other, MWBindInfo(mr, mr.addr, 8, RW)) == WCStatus.MW_BIND_ERR
    assert e.qp.qp_state is not None
    for window in (mw, other):
        window.close()
    mr.close()


def test_the_queue_pair_of_a_memory_window_may_be_destroyed_before_the_window(
    two_device_connector: ListenerAndConnector,
) -> None:
    _, b = connect_and_exchange_send(two_device_connector)
    mr = register_region(b)
    mw, _ = bind_new_memory_window(b, mr)
    b.close()
    assert errno_raised_by(mr.close) == errno.EBUSY
    mw.close()
    mr.close()


def test_bind_requests_have_the_layout_of_libibverbs() -> None:
    assert ffi.sizeof("struct siw_send_wr") == 128
    assert ffi.offsetof("struct siw_send_wr", "bind_mw") == 80
    assert ffi.sizeof("struct siw_mw_bind_info") == 32
    offsets = {"mr": 0, "addr": 8, "length": 16, "mw_access_flags": 24}
    for name, offset in offsets.items():
        assert ffi.offsetof("struct siw_mw_bind_info", name) == offset
    bind = ffi.typeof("struct siw_send_wr").fields
    assert dict(bind)["bind_mw"].type.fields[2][1].offset == 16
    for name, offset in {"context": 0, "pd": 8, "rkey": 16, "handle": 20, "type": 24}.items():
        assert ffi.offsetof("struct siw_mw", name) == offset
    assert ffi.offsetof("struct siw_mw_bind", "bind_info") == 16


def test_inc_rkey_changes_only_the_low_octet() -> None:
    assert [inc_rkey(k) for k in (0, 0x1FF, 0xFFFFFFFF)] == [1, 0x100, 0xFFFFFF00]


def test_a_fenced_invalidation_completes_after_an_earlier_read(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    far = MR(a.rig.pd, bytearray(1 << 20), LOCAL | RW)
    mr = register_region(b, 1 << 20)
    mw, remote = bind_new_memory_window(b, mr)
    b.qp.post_send(SendWR(1, READ, send_flags=0, sg=[mr.sge()], remote=far.remote()))
    mw.invalidate(b.qp, wr_id=2)
    b.post_receive(1)
    # The Write succeeds, because no thread has polled and received the error message.
    write_and_wait_for_completion(a, remote, b"still")
    assert poll(b.scq)[0].wr_id == 2
    assert mr.read(5) in (b"still", bytes(5))
    mw.close()


def test_a_bind_or_local_invalidate_with_the_inline_flag_is_refused(
    connected_endpoints: tuple[End, End],
) -> None:
    _, b = connected_endpoints
    mr, mw = register_region(b), MW(b.rig.pd)
    wr = SendWR(1, WROpcode.BIND_MW, send_flags=SendFlag.INLINE)
    wr.set_bind_wr(mw, MWBindInfo(mr, mr.addr, 8, RW))
    assert errno_raised_by(b.qp.post_send, wr) == errno.EINVAL
    inv = SendWR(1, WROpcode.LOCAL_INV, send_flags=SendFlag.INLINE, invalidate_rkey=1)
    assert errno_raised_by(b.qp.post_send, inv) == errno.EINVAL
    mw.close()
