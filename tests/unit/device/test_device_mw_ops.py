"""Atomics and immediate data through memory windows: granted access and refused access."""

from __future__ import annotations

import errno
import sys

import pytest
from harness.rc_harness import READ, End, ListenerAndConnector
from harness.rd_harness import RDEnd
from harness.uc_harness import UCPair
from harness.verbs_harness import Rig, errno_raised_by, poll, wait_until

from siwarp.verbs import (
    MR,
    MW,
    AccessFlag,
    ErrorOrigin,
    ErrorReport,
    MWBind,
    MWBindInfo,
    MWType,
    QPState,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)

ADD, SWAP = WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.ATOMIC_CMP_AND_SWP
MASKED_ADD, MASKED_SWAP = WROpcode.MASKED_ATOMIC_FETCH_AND_ADD, WROpcode.MASKED_ATOMIC_CMP_AND_SWP
WRITE_IMM, SEND_IMM = WROpcode.RDMA_WRITE_WITH_IMM, WROpcode.SEND_WITH_IMM
LOCAL, BIND = AccessFlag.LOCAL_WRITE, AccessFlag.MW_BIND
WRITES, READS, ATOMIC = AccessFlag.REMOTE_WRITE, AccessFlag.REMOTE_READ, AccessFlag.REMOTE_ATOMIC
BOTH = [MWType.TYPE_1, MWType.TYPE_2]
IMM = 0x01020304
#: The layer, type and code of errors of Read and Atomic Requests (RFC 5040 section 4.8, RFC 7306
#: section 8.2).
NO_STAG, BEYOND, NO_RIGHT, NOT_OF_STREAM = 0x000100, 0x000101, 0x000102, 0x000103
MISALIGNED = 0x000207
#: The layer, type and code of the errors that a Write may cause (RFC 5041 section 7.2).
W_NO_STAG, W_BEYOND, W_NOT_OF_STREAM = 0x010100, 0x010101, 0x010102


def read_mr_uint64(mr: MR, offset: int = 0) -> int:
    return int.from_bytes(mr.read(8, offset), sys.byteorder)


def write_uint64(mr: MR, value: int, offset: int = 0) -> None:
    mr.write(value.to_bytes(8, sys.byteorder), offset=offset)


def bind_new_memory_window(b: End, mr: MR, kind: MWType, **kw: int) -> tuple[MW, RemoteBuffer]:
    """Bind a new memory window and wait for the completion."""
    mw = MW(b.rig.pd, kind)
    remote = mw.bind(b.qp, mr, **kw)
    assert poll(b.scq)[0].check().opcode == WCOpcode.BIND_MW
    return mw, remote


def post_to_remote(
    a: End, opcode: WROpcode, remote: RemoteBuffer, wr_id: int = 5, **operands: int
) -> None:
    wr = SendWR(wr_id, opcode, sg=[a.mem.sge(0, 8)], remote=remote, **operands)  # type: ignore[arg-type]
    a.qp.post_send(wr)


def post_write_with_immediate(a: End, remote: RemoteBuffer, data: bytes) -> None:
    a.mem.write(data)
    sg = [a.mem.sge(0, len(data))]
    a.qp.post_send(SendWR(6, WRITE_IMM, sg=sg, remote=remote, imm_data=IMM))


def assert_terminated(a: End, b: End, vendor_err: int) -> None:
    """Assert that both endpoints are in error and report ``vendor_err`` as the wire error."""
    for end in (a, b):
        end.wait_for_error_state()
    assert b.next_cm_event().wire_error == vendor_err
    assert a.next_cm_event().wire_error == vendor_err


# ---- RC


@pytest.mark.parametrize("based", [0, AccessFlag.ZERO_BASED], ids=["by address", "from zero"])
@pytest.mark.parametrize("kind", BOTH)
def test_atomics_through_a_memory_window_change_the_region(
    two_device_connector: ListenerAndConnector, kind: MWType, based: int
) -> None:
    a, b = two_device_connector.connect()
    mr = MR(b.rig.pd, 64, LOCAL | BIND)
    write_uint64(mr, 40, 16)
    mw, remote = bind_new_memory_window(b, mr, kind, offset=16, length=8, access=ATOMIC | based)
    assert remote.addr == (0 if based else mr.addr + 16)
    for opcode, operands, after in (
        (ADD, {"compare_add": 2}, 42),
        (SWAP, {"compare_add": 41, "swap": 9}, 42),
        (SWAP, {"compare_add": 42, "swap": 0xFF}, 0xFF),
        (MASKED_ADD, {"compare_add": 1, "compare_add_mask": 0x80}, 0),
        (MASKED_SWAP, {"swap": 0xABCD, "swap_mask": 0xFF00, "compare_add_mask": 1}, 0xAB00),
    ):
        before = read_mr_uint64(mr, 16)
        post_to_remote(a, opcode, remote, **operands)
        (done,) = poll(a.scq)
        assert (done.status, done.byte_len, read_mr_uint64(a.mem)) == (WCStatus.SUCCESS, 8, before)
        assert read_mr_uint64(mr, 16) == after
    assert mr.read(16) == bytes(16) and mr.read(40, 24) == bytes(40)
    # The region is busy, because a window is bound to it.
    assert errno_raised_by(mr.close) == errno.EBUSY
    mw.close()
    mr.close()


def remote_buffer_at_offset(mr: MR, remote: RemoteBuffer, offset: int) -> RemoteBuffer:
    """Return the 8 octets at an offset of the region as a remote buffer with the window's key."""
    return RemoteBuffer(mr.addr + offset, 8, remote.rkey)


@pytest.mark.parametrize("opcode", [ADD, SWAP])
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("right", NO_RIGHT),
        ("behind", BEYOND),
        ("before", BEYOND),
        ("half", BEYOND),
        ("misaligned", MISALIGNED),
        ("ended", NO_STAG),
        ("closed", NO_STAG),
    ],
)
def test_an_atomic_that_a_memory_window_does_not_grant_is_refused(
    two_device_connector: ListenerAndConnector, kind: MWType, why: str, code: int, opcode: WROpcode
) -> None:
    a, b = two_device_connector.connect()
    mr = MR(b.rig.pd, 64, LOCAL | BIND)
    mr.write(b"\x11" * 64)
    access = WRITES | READS if why == "right" else ATOMIC
    mw, remote = bind_new_memory_window(b, mr, kind, offset=16, length=20, access=access)
    if why == "ended":
        mw.invalidate(b.qp)
        assert poll(b.scq)[0].ok
    if why == "closed":
        mw.close()
    where = {"behind": 40, "before": 8, "half": 32, "misaligned": 20}.get(why, 16)
    post_to_remote(
        a,
        opcode,
        remote_buffer_at_offset(mr, remote, where),
        compare_add=int.from_bytes(b"\x11" * 8, "little"),
    )
    assert_terminated(a, b, code)
    (done,) = poll(a.scq)
    refusal = WCStatus.REM_OP_ERR if why == "misaligned" else WCStatus.REM_ACCESS_ERR
    assert (done.status, done.vendor_err) == (refusal, code)
    assert mr.read() == b"\x11" * 64
    mw.close()
    mr.close()


@pytest.mark.parametrize("kind", BOTH)
def test_an_atomic_must_be_aligned_by_address_and_not_by_offset_in_a_memory_window(
    two_device_connector: ListenerAndConnector, kind: MWType
) -> None:
    a, b = two_device_connector.connect()
    mr = MR(b.rig.pd, 64, LOCAL | BIND)
    mw, remote = bind_new_memory_window(
        b, mr, kind, offset=4, length=32, access=ATOMIC | AccessFlag.ZERO_BASED
    )
    post_to_remote(a, ADD, RemoteBuffer(4, 8, remote.rkey), compare_add=1)
    assert poll(a.scq)[0].ok and read_mr_uint64(mr, 8) == 1
    post_to_remote(a, ADD, RemoteBuffer(8, 8, remote.rkey), compare_add=1)
    assert_terminated(a, b, MISALIGNED)
    assert mr.read() == bytes(8) + (1).to_bytes(8, sys.byteorder) + bytes(48)
    mw.close()


def test_a_type_2_memory_window_grants_atomics_only_to_its_queue_pair(
    two_device_connector: ListenerAndConnector,
) -> None:
    (a, b), (c, d) = two_device_connector.connect(), two_device_connector.connect()
    mr = MR(b.rig.pd, 16, LOCAL | BIND)
    shared, by_all = bind_new_memory_window(b, mr, MWType.TYPE_1, access=ATOMIC)
    own, by_one = bind_new_memory_window(b, mr, MWType.TYPE_2, access=ATOMIC)
    for end, remote in ((a, by_all), (c, by_all), (a, by_one)):
        post_to_remote(end, ADD, remote.part(0, 8), compare_add=1)
        assert poll(end.scq)[0].ok
    post_to_remote(c, ADD, by_one.part(0, 8), compare_add=1)
    assert_terminated(c, d, NOT_OF_STREAM)
    post_to_remote(a, ADD, by_one.part(8, 8), compare_add=1)
    assert poll(a.scq)[0].ok
    assert (read_mr_uint64(mr), read_mr_uint64(mr, 8)) == (3, 1)
    for mw in (shared, own):
        mw.close()


@pytest.mark.parametrize("kind", BOTH)
def test_a_write_with_immediate_through_a_memory_window_reports_its_length(
    two_device_connector: ListenerAndConnector, kind: MWType
) -> None:
    a, b = two_device_connector.connect()
    mr = MR(b.rig.pd, 64, LOCAL | BIND)
    mw, remote = bind_new_memory_window(b, mr, kind, offset=8, length=16, access=WRITES)
    for data in (b"through a window", b"", b"again"):
        b.post_receive(7)
        post_write_with_immediate(a, remote, data)
        assert poll(a.scq)[0].ok
        (wc,) = poll(b.rcq)
        assert (wc.wr_id, wc.opcode, wc.byte_len) == (7, WCOpcode.RECV_RDMA_WITH_IMM, len(data))
        assert (wc.wc_flags, wc.imm_data) == (WCFlag.WITH_IMM, IMM)
        assert mr.read(len(data), 8) == data
    mw.close()
    mr.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("why", "code"),
    [("right", NO_RIGHT), ("beyond", W_BEYOND), ("ended", W_NO_STAG), ("another", W_NOT_OF_STREAM)],
)
def test_a_refused_write_with_immediate_delivers_no_immediate_data(
    two_device_connector: ListenerAndConnector, kind: MWType, why: str, code: int
) -> None:
    if (kind, why) == (MWType.TYPE_1, "another"):
        # A type 1 window is valid for all queue pairs of its protection domain, so the test
        # invalidates the window.
        code = W_NO_STAG
    a, b = two_device_connector.connect()
    mr = MR(b.rig.pd, 64, LOCAL | BIND)
    others = two_device_connector.connect() if why == "another" else (a, b)
    binder = others[1]
    mw, remote = bind_new_memory_window(
        binder, mr, kind, access=READS | ATOMIC if why == "right" else WRITES
    )
    if why == "ended" or (kind, why) == (MWType.TYPE_1, "another"):
        mw.invalidate(binder.qp)
        assert poll(binder.scq)[0].ok
    b.post_receive(7)
    post_write_with_immediate(
        a, RemoteBuffer(remote.addr + 57 * (why == "beyond"), 8, remote.rkey), b"no more!"
    )
    assert_terminated(a, b, code)
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.status, wc.wc_flags) == (7, WCStatus.WR_FLUSH_ERR, 0)
    assert mr.read() == bytes(64)
    mw.close()


@pytest.mark.parametrize("inline", [False, True])
def test_a_send_with_immediate_carries_the_key_of_a_window_bound_just_before(
    two_device_connector: ListenerAndConnector, inline: bool
) -> None:
    a, b = two_device_connector.connect(max_inline_data=64)
    # The responder may send only after it has received a message.
    b.post_receive(1)
    a.post(WROpcode.SEND)
    assert poll(b.rcq)[0].ok and poll(a.scq)[0].ok
    mr = MR(b.rig.pd, 64, LOCAL | BIND)
    mw = MW(b.rig.pd, MWType.TYPE_2)
    for turn in range(3):
        bind = SendWR(1, WROpcode.BIND_MW, send_flags=0)
        bind.set_bind_wr(mw, MWBindInfo(mr, mr.addr, 8, ATOMIC))
        mw.rkey = bind.rkey
        b.mem.write(RemoteBuffer(mr.addr, 8, 0).pack())
        flags = SendFlag.SIGNALED | (SendFlag.INLINE if inline else 0)
        told = SendWR(2, SEND_IMM, sg=[b.mem.sge(0, 20)], imm_data=bind.rkey, send_flags=flags)
        a.post_receive(1, 64, 20)
        b.qp.post_send([bind, told])
        (wc,) = poll(a.rcq)
        assert (wc.byte_len, wc.wc_flags, wc.imm_data) == (20, WCFlag.WITH_IMM, mw.rkey)
        where = RemoteBuffer.unpack(a.mem.read(20, 64))
        post_to_remote(a, ADD, RemoteBuffer(where.addr, 8, wc.imm_data), compare_add=1)
        assert poll(a.scq)[0].ok and poll(b.scq)[0].wr_id == 2
        assert read_mr_uint64(mr) == turn + 1
        mw.invalidate(b.qp)
        assert poll(b.scq)[0].ok
    mw.close()


@pytest.mark.parametrize("opcode", [SEND_IMM, WRITE_IMM, ADD])
@pytest.mark.parametrize("kind", BOTH)
def test_a_memory_window_key_is_no_local_key_for_immediate_data_or_atomics(
    two_device_connector: ListenerAndConnector, kind: MWType, opcode: WROpcode
) -> None:
    a, b = two_device_connector.connect()
    mr = MR(a.rig.pd, 64, LOCAL | BIND)
    mw, _ = bind_new_memory_window(a, mr, kind, access=WRITES | READS | ATOMIC)
    wr = SendWR(3, opcode, sg=[mr.sge(0, 8)], remote=b.mem.remote(0, 8), imm_data=IMM)
    wr.sg[0].lkey = mw.rkey
    a.qp.post_send(wr)
    assert poll(a.scq)[0].status == WCStatus.LOC_PROT_ERR
    a.wait_for_error_state()
    b.wait_for_error_state()
    assert b.mem.read(8) == bytes(8)
    mw.close()


# ---- RD: type 1 windows, bound through another queue pair of the protection domain


class BoundWindow:
    """A memory window on a region of the RD target, bound through a UC queue pair."""

    def __init__(self, rig: Rig, access: int, kind: MWType = MWType.TYPE_1) -> None:
        self.binder = UCPair(rig, size=8)
        self.mr = MR(rig.pd, 64, LOCAL | BIND)
        self.mw = MW(rig.pd, kind)
        self.remote = self.mw.bind(self.binder.a, self.mr, 16, 16, access=access)
        assert self.binder.poll_sends()[0].check().opcode == WCOpcode.BIND_MW

    def invalidate(self) -> None:
        self.mw.invalidate(self.binder.a)
        assert self.binder.poll_sends()[0].ok


def test_rd_writes_reads_and_atomics_work_through_a_memory_window(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    w = BoundWindow(rig, WRITES | READS | ATOMIC)
    a.out.view[:16] = b"sixteen octets.."
    a.post_rdma(b, WROpcode.RDMA_WRITE, 16, remote=w.remote)
    assert a.poll_sends()[0].ok and w.mr.read(16, 16) == b"sixteen octets.."
    a.post_rdma(b, READ, 16, offset=100, remote=w.remote)
    assert a.poll_sends()[0].ok and a.out.read(16, 100) == b"sixteen octets.."
    write_uint64(w.mr, 5, 16)
    a.post_rdma(b, ADD, 8, remote=w.remote, compare_add=2)
    assert a.poll_sends()[0].ok and (read_mr_uint64(a.out), read_mr_uint64(w.mr, 16)) == (5, 7)
    a.post_rdma(b, SWAP, 8, remote=w.remote, compare_add=7, swap=1)
    assert a.poll_sends()[0].ok and (read_mr_uint64(a.out), read_mr_uint64(w.mr, 16)) == (7, 1)
    assert w.mr.read(16) == bytes(16) and w.mr.read(32, 32) == bytes(32)
    w.invalidate()
    w.mw.close()
    w.mr.close()


@pytest.mark.parametrize("opcode", [READ, ADD, SWAP, WROpcode.RDMA_WRITE])
@pytest.mark.parametrize("why", ["right", "beyond", "ended", "type 2"])
def test_an_rd_request_that_a_memory_window_does_not_grant_fails_alone(
    rig: Rig, opcode: WROpcode, why: str
) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    given = {READ: WRITES, WROpcode.RDMA_WRITE: READS}.get(opcode, WRITES | READS)
    kind = MWType.TYPE_2 if why == "type 2" else MWType.TYPE_1
    w = BoundWindow(rig, given if why == "right" else WRITES | READS | ATOMIC, kind)
    if why == "ended":
        w.invalidate()
    remote = RemoteBuffer(w.remote.addr + 16 * (why == "beyond"), 8, w.remote.rkey)
    wrote = opcode == WROpcode.RDMA_WRITE
    code = {
        "right": NO_RIGHT,
        "beyond": W_BEYOND if wrote else BEYOND,
        "ended": W_NO_STAG if wrote else NO_STAG,
        "type 2": W_NOT_OF_STREAM if wrote else NOT_OF_STREAM,
    }[why]
    a.out.view[:8] = b"whatever"
    b.post_receive(7)
    a.post_rdma(b, opcode, 8, 3, remote=remote)
    a.send(b, b"behind", 4, offset=8)
    done = {wc.wr_id: wc.status for wc in a.poll_sends(2)}
    assert done[4] == WCStatus.SUCCESS and b.poll_receives()[0].ok
    found: list[ErrorReport] = wait_until(b.qp.errors)
    assert [e.origin for e in found] == [ErrorOrigin.FOUND]
    assert found[0].layer << 16 | found[0].type << 8 | found[0].code == code
    if done[3] == WCStatus.SUCCESS:  # a Write may complete before its error is reported
        assert wrote and wait_until(a.qp.errors)[0].origin == ErrorOrigin.REPORTED
    else:
        assert done[3] == WCStatus.REM_ACCESS_ERR
    assert w.mr.read() == bytes(64)
    assert (a.qp.qp_state, b.qp.qp_state) == (QPState.RTS, QPState.RTS)
    w.mw.close()
    w.mr.close()


def test_an_rd_queue_pair_refuses_binds_and_invalidations(rig: Rig) -> None:
    a = RDEnd(rig)
    mr = MR(rig.pd, 64, LOCAL | BIND)
    for kind in BOTH:
        mw = MW(rig.pd, kind)
        if kind == MWType.TYPE_1:
            bind = MWBind(MWBindInfo(mr, mr.addr, 8, WRITES))
            assert errno_raised_by(a.qp.bind_mw, mw, bind) == errno.EINVAL
        else:
            wr = SendWR(1, WROpcode.BIND_MW)
            wr.set_bind_wr(mw, MWBindInfo(mr, mr.addr, 8, WRITES))
            assert errno_raised_by(a.qp.post_send, wr) == errno.EINVAL
        mw.close()
    inv = SendWR(1, WROpcode.LOCAL_INV, invalidate_rkey=mr.rkey)
    assert errno_raised_by(a.qp.post_send, inv) == errno.EINVAL
    b = RDEnd(rig)
    b.post_receive()
    a.send(b, b"goes on")
    assert a.poll_sends()[0].ok and b.poll_receives()[0].ok
