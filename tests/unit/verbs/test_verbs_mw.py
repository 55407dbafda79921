"""Memory windows: who may use them, from when and until when, and what is no bind."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from hostile.peer import accept_raw
from unit.verbs.rc_harness import READ, SEND, WRITE, End, Wire
from unit.verbs.uc_harness import Ends
from unit.verbs.verbs_harness import Rig, poll, refused, until

from siwarp._siwarp import ffi, lib
from siwarp.inspect import DDPUntagged, Opcode, ReadRequest
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
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
    inc_rkey,
)

LOCAL, BIND = AccessFlag.LOCAL_WRITE, AccessFlag.MW_BIND
RW = AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ
BOTH = [MWType.TYPE_1, MWType.TYPE_2]
INVALID, NOT_OF_STREAM, BOUNDS = 0x010100, 0x010102, 0x010101
READ_INVALID, NO_RIGHT, CANNOT_INVALIDATE = 0x000100, 0x000102, 0x000109


@pytest.fixture
def ends(two: Wire) -> Iterator[tuple[End, End]]:
    """Two connected ends on two devices, of which both may send."""
    yield opened(two)


def opened(two: Wire, **kw: object) -> tuple[End, End]:
    a, b = two.connect(**kw)
    behind(a, b)
    return a, b


def region(b: End, size: int = 4096, access: int = LOCAL | BIND) -> MR:
    return MR(b.rig.pd, bytearray(size), access)


def bound(b: End, mr: MR, kind: MWType = MWType.TYPE_2, **kw: int) -> tuple[MW, RemoteBuffer]:
    """Bind a new window, and wait for it."""
    mw = MW(b.rig.pd, kind)
    remote = mw.bind(b.qp, mr, **kw)
    wc = poll(b.scq)[0]
    assert (wc.ok, wc.opcode) == (True, WCOpcode.BIND_MW)
    return mw, remote


def ended(mw: MW, b: End) -> None:
    """End its binding, and wait for that."""
    mw.invalidate(b.qp)
    wc = poll(b.scq)[0]
    kind = WCOpcode.BIND_MW if mw.type == MWType.TYPE_1 else WCOpcode.LOCAL_INV
    assert (wc.ok, wc.opcode) == (True, kind)


def write(a: End, remote: RemoteBuffer, data: bytes, wr_id: int = 2) -> None:
    """Write, until TCP has it."""
    a.mem.write(data)
    a.post(WRITE, wr_id, length=len(data), remote=remote)
    assert poll(a.scq)[0].ok


def behind(a: End, b: End) -> None:
    """Send, so that what was written before it is in the other end's memory."""
    b.recv(9)
    a.post(SEND, 9, length=1)
    assert poll(a.scq)[0].ok and poll(b.rcq)[0].ok


def read(a: End, remote: RemoteBuffer, length: int) -> bytes:
    a.post(READ, 3, offset=1024, length=length, remote=remote)
    assert poll(a.scq)[0].check().opcode == WCOpcode.RDMA_READ
    return a.mem.read(length, 1024)


def terminated(a: End, b: End, vendor_err: int) -> None:
    """Expect that both ends are over, for this reason."""
    for end in (a, b):
        end.is_over()
    a.event()
    assert b.event().wire_error == vendor_err


# ---- what a window grants


@pytest.mark.parametrize("kind", BOTH)
def test_a_window_grants_its_part_of_the_region(ends: tuple[End, End], kind: MWType) -> None:
    a, b = ends
    mr = region(b)
    mr.write(b"before" * 100)
    mw, remote = bound(b, mr, kind, offset=100, length=50)
    assert remote == RemoteBuffer(mr.addr + 100, 50, mw.rkey)
    write(a, remote, b"x" * 50)
    assert read(a, remote, 50) == b"x" * 50
    assert mr.read(600) == (b"before" * 100)[:100] + b"x" * 50 + (b"before" * 100)[150:600]
    mw.close()
    mr.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("offset", [99, 141, 150])
def test_beside_its_window_the_region_is_closed(two: Wire, kind: MWType, offset: int) -> None:
    a, b = opened(two)
    mr = region(b)
    mw, remote = bound(b, mr, kind, offset=100, length=50)
    write(a, RemoteBuffer(mr.addr + offset, 10, remote.rkey), b"0123456789")
    terminated(a, b, BOUNDS)
    assert mr.read() == bytes(4096)
    mw.close()


@pytest.mark.parametrize("kind", BOTH)
def test_of_a_window_with_offsets_from_zero_the_peer_counts_from_zero(
    ends: tuple[End, End], kind: MWType
) -> None:
    a, b = ends
    mr = region(b)
    mw, remote = bound(b, mr, kind, offset=64, length=32, access=RW | AccessFlag.ZERO_BASED)
    assert remote.addr == 0
    write(a, remote.part(8, 4), b"zero")
    assert read(a, remote, 32) == bytes(8) + b"zero" + bytes(20)
    assert mr.read(4, 72) == b"zero"
    write(a, RemoteBuffer(mr.addr + 64, 4, remote.rkey), b"zero")
    terminated(a, b, BOUNDS)
    mw.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("reads", [True, False])
def test_a_window_grants_the_right_that_it_was_bound_with_alone(
    two: Wire, kind: MWType, reads: bool
) -> None:
    a, b = opened(two)
    mr = region(b)
    access = AccessFlag.REMOTE_WRITE if reads else AccessFlag.REMOTE_READ
    mw, remote = bound(b, mr, kind, access=access)
    a.post(READ if reads else WRITE, 1, length=8, remote=remote)
    terminated(a, b, NO_RIGHT)
    mw.close()


def test_a_window_is_no_local_key(ends: tuple[End, End]) -> None:
    a, b = ends
    mr = region(b)
    mw, remote = bound(b, mr)
    wr = RecvWR(1, sg=[mr.sge(0, 8)])
    wr.sg[0].lkey = remote.rkey
    b.qp.post_recv(wr)
    a.post(SEND, 1, length=8)
    assert poll(b.rcq)[0].status == WCStatus.LOC_PROT_ERR
    mw.close()


def test_a_window_of_type_2_is_of_one_queue_pair_and_of_type_1_of_the_domain(two: Wire) -> None:
    a, b = opened(two)
    c, d = opened(two)
    mr = region(b)
    one, shared = bound(b, mr, MWType.TYPE_1)
    write(c, shared, b"shared")
    assert read(c, shared, 6) == read(a, shared, 6) == b"shared"
    other, own = bound(b, mr)
    assert read(a, own, 6) == b"shared"
    write(c, own, b"forbidden")
    terminated(c, d, NOT_OF_STREAM)
    assert mr.read(6) == b"shared"
    for mw in (one, other):
        mw.close()


def test_a_bind_posted_before_a_send_is_made_when_the_send_arrives(ends: tuple[End, End]) -> None:
    a, b = ends
    mr = region(b)
    mw = MW(b.rig.pd)
    for turn in range(20):
        bind = SendWR(1, WROpcode.BIND_MW, send_flags=0)
        bind.set_bind_wr(mw, MWBindInfo(mr, mr.addr + turn, 8, RW))
        mw.rkey = bind.rkey
        b.mem.write(RemoteBuffer(mr.addr + turn, 8, bind.rkey).pack())
        a.recv(1, 0, 20)
        b.qp.post_send([bind, SendWR(2, sg=[b.mem.sge(0, 20)])])
        assert poll(a.rcq)[0].ok
        write(a, RemoteBuffer.unpack(a.mem.read(20)), bytes([turn]) * 8)
        assert [w.wr_id for w in poll(b.scq)] == [2]  # the bind said nothing
        behind(a, b)
        assert mr.read(8, turn) == bytes([turn]) * 8
        ended(mw, b)
    mw.close()


def test_requests_around_a_bind_complete_in_their_order(ends: tuple[End, End]) -> None:
    a, b = ends
    far = MR(a.rig.pd, bytearray(1 << 20), LOCAL | RW)
    mr = region(b, 1 << 20)
    mw = MW(b.rig.pd)
    bind = SendWR(3, WROpcode.BIND_MW)
    bind.set_bind_wr(mw, MWBindInfo(mr, mr.addr, 8, RW))
    b.qp.post_send(
        [
            SendWR(1, WROpcode.RDMA_WRITE, sg=[mr.sge()], remote=far.remote()),
            SendWR(2, WROpcode.RDMA_READ, sg=[mr.sge()], remote=far.remote()),
            bind,
            SendWR(4, WROpcode.LOCAL_INV, send_flags=3, invalidate_rkey=bind.rkey),
            SendWR(5, WROpcode.RDMA_WRITE, sg=[mr.sge(0, 8)], remote=far.remote(0, 8)),
        ]
    )
    done = poll(b.scq, 5)
    assert [(w.wr_id, w.status) for w in done] == [(i, 0) for i in range(1, 6)]
    assert [w.opcode for w in done[2:4]] == [WCOpcode.BIND_MW, WCOpcode.LOCAL_INV]
    mw.close()


def test_under_persona_roce_a_bind_completes_behind_silent_sends(two: Wire) -> None:
    a, b = opened(two, persona=Persona.ROCE)
    mr = region(b)
    mw = MW(b.rig.pd)
    a.recv(1)
    b.post(SEND, 1, length=8, flags=0)
    mw.bind(b.qp, mr, wr_id=7)
    assert poll(b.scq)[0].wr_id == 7
    assert poll(a.rcq)[0].ok
    ended(mw, b)
    mw.close()


# ---- how a binding ends


@pytest.mark.parametrize("op", [READ, WRITE])
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("how", ["invalidate", "close"])
def test_an_ended_window_grants_nothing(two: Wire, kind: MWType, how: str, op: WROpcode) -> None:
    a, b = opened(two)
    mr = region(b)
    mw, remote = bound(b, mr, kind)
    write(a, remote, b"while it lives")
    assert read(a, remote, 14) == b"while it lives"
    if how == "close":
        mw.close()
    else:
        ended(mw, b)
    a.post(op, 1, length=8, remote=remote)
    terminated(a, b, READ_INVALID if op == READ else INVALID)
    assert mr.read(14) == b"while it lives"
    mr.close()


def test_the_peer_of_a_window_of_type_2_may_end_it(ends: tuple[End, End]) -> None:
    a, b = ends
    mr = region(b)
    mw, remote = bound(b, mr)
    assert refused(mr.close) == errno.EBUSY
    b.recv(1)
    a.qp.post_send(
        SendWR(3, WROpcode.SEND_WITH_INV, sg=[a.mem.sge(0, 7)], invalidate_rkey=remote.rkey)
    )
    assert poll(b.rcq)[0].invalidated_rkey == remote.rkey
    assert poll(a.scq)[0].ok
    again = mw.bind(b.qp, mr)
    assert poll(b.scq)[0].ok
    assert again.rkey == inc_rkey(remote.rkey)
    write(a, again, b"again")
    assert read(a, again, 5) == b"again"
    mw.close()
    mr.close()


def test_a_window_of_type_1_is_not_for_the_peer_to_end(two: Wire) -> None:
    a, b = opened(two)
    mr = region(b)
    mw, remote = bound(b, mr, MWType.TYPE_1)
    b.recv(1)
    a.qp.post_send(SendWR(3, WROpcode.SEND_WITH_INV, invalidate_rkey=remote.rkey))
    terminated(a, b, CANNOT_INVALIDATE)
    assert refused(mr.close) == errno.EBUSY
    mw.close()
    mr.close()


def test_a_new_bind_of_type_1_ends_the_one_before(two: Wire) -> None:
    a, b = opened(two)
    first, second = region(b), region(b)
    mw, old = bound(b, first, MWType.TYPE_1)
    new = mw.bind(b.qp, second)
    assert poll(b.scq)[0].ok
    assert new.rkey != old.rkey
    first.close()
    assert refused(second.close) == errno.EBUSY
    write(a, new, b"second")
    assert read(a, new, 6) == b"second"
    a.post(WRITE, 1, length=8, remote=old)
    terminated(a, b, INVALID)
    mw.close()
    second.close()


def test_local_invalidation_ends_a_region_of_one_queue_pair(two: Wire) -> None:
    a, b = opened(two)
    mr = MR(b.rig.pd, bytearray(100), LOCAL | RW | AccessFlag.REMOTE_INVALIDATE, qp=b.qp)
    write(a, mr.remote(), b"hello")
    assert read(a, mr.remote(), 5) == b"hello"
    b.qp.post_send(SendWR(4, WROpcode.LOCAL_INV, invalidate_rkey=mr.rkey))
    assert poll(b.scq)[0].check().opcode == WCOpcode.LOCAL_INV
    a.post(WRITE, 1, length=8, remote=mr.remote())
    terminated(a, b, INVALID)
    mr.close()


@pytest.mark.parametrize(
    ("kind", "how"),
    [(2, "request"), (2, "close"), (1, "request"), (1, "elsewhere"), (1, "close")],
)
def test_a_peer_that_stops_reading_an_answer_is_reset_when_the_window_ends(
    two: Wire, kind: MWType, how: str
) -> None:
    """Nothing of what the program writes there afterwards is sent."""
    size = 16 << 20  # more than TCP takes while nobody reads
    peer, end = accept_raw(two)
    _, other = opened(two)
    mr = region(end, size)
    mr.view[:] = b"\x11" * size
    mw, remote = bound(end, mr, kind)
    memory = mr.view.obj
    peer.fpdu(
        DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1)
        / ReadRequest(sink_stag=1, size=size, src_stag=remote.rkey, src_to=remote.addr)
    )
    until(lambda: end.rcq.poll() == [] and peer.unread() > 0)
    if how == "close":
        mw.close()
    elif how == "request":
        mw.invalidate(end.qp)
        assert poll(end.scq)[0].status == WCStatus.WR_FLUSH_ERR
    else:
        mw.invalidate(other.qp)
        assert poll(other.scq)[0].ok
    mr.close()
    memory[:] = b"\x22" * size  # what is the program's again
    got = peer.rest()
    assert b"\x11" * 1000 in got
    assert b"\x22" * 16 not in got
    assert len(got) < size
    end.is_over()
    peer.close()
    if not mw.closed:
        mw.close()


def test_a_region_goes_once_its_windows_are_invalid_though_a_peer_still_reads(two: Wire) -> None:
    """Whoever invalidated did not wait for its completion."""
    size = 16 << 20
    peer, end = accept_raw(two)
    mr = region(end, size)
    mr.view[:] = b"\x11" * size
    mw, remote = bound(end, mr)
    memory = mr.view.obj
    peer.fpdu(
        DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1)
        / ReadRequest(sink_stag=1, size=size, src_stag=remote.rkey, src_to=remote.addr)
    )
    until(lambda: end.rcq.poll() == [] and peer.unread() > 0)
    mw.invalidate(end.qp)
    mr.close()
    memory[:] = b"\x22" * size
    assert b"\x22" * 16 not in peer.rest()
    end.is_over()
    peer.close()
    mw.close()


# ---- UC


@pytest.mark.parametrize("kind", BOTH)
def test_windows_serve_the_writes_of_a_uc_peer(rig: Rig, kind: MWType) -> None:
    ends = Ends(rig, size=64)
    mr = MR(rig.pd, bytearray(64), LOCAL | BIND)
    mw = MW(rig.pd, kind)
    remote = mw.bind(ends.b, mr, 8, 16, access=AccessFlag.REMOTE_WRITE)
    assert poll(ends.idle)[0].check().opcode == WCOpcode.BIND_MW
    ends.recv(1)
    ends.send(b"through", opcode=WROpcode.RDMA_WRITE, remote=remote)
    ends.send(b"behind")
    assert [wc.ok for wc in ends.sent(2)] == [True, True]
    assert ends.received()[0].ok  # behind the Write, which is in memory then
    assert mr.read(7, 8) == b"through"
    mw.invalidate(ends.b)
    assert poll(ends.idle)[0].ok
    ends.recv(1)
    ends.send(b"no more", opcode=WROpcode.RDMA_WRITE, remote=remote)
    ends.send(b"behind")
    assert [wc.ok for wc in ends.sent(2)] == [True, True]
    assert ends.received()[0].ok  # in order behind the Write, which found nothing
    assert mr.read() == bytes(8) + b"through" + bytes(49)
    mw.close()
    mr.close()


def test_a_bind_that_fails_takes_a_uc_queue_pair_to_sqe_and_the_rest_flush(rig: Rig) -> None:
    ends = Ends(rig, size=64)
    mr, mw = MR(rig.pd, bytearray(64), LOCAL), MW(rig.pd)
    ends.a.modify(QPAttr(qp_state=QPState.SQD))
    for wr_id in (1, 2):
        mw.bind(ends.a, mr, wr_id=wr_id)
    mw.invalidate(ends.a, wr_id=3)
    ends.a.modify(QPAttr(qp_state=QPState.RTS))
    done = [(wc.wr_id, wc.status) for wc in ends.sent(3)]
    flushed = WCStatus.WR_FLUSH_ERR
    assert done == [(1, WCStatus.MW_BIND_ERR), (2, flushed), (3, flushed)]
    assert ends.a.qp_state == QPState.SQE
    mw.bind(ends.a, mr, wr_id=4)
    assert ends.sent()[0].status == flushed
    ends.a.to_rts()
    mr.rereg(access=LOCAL | BIND)
    mw.bind(ends.a, mr)
    assert ends.sent()[0].ok
    mw.close()
    mr.close()


# ---- what cannot be bound, and what holds what


def bad_bind(b: End, mw: MW, info: MWBindInfo, rkey: int | None = None) -> WCStatus:
    """Bind, and return how that ended; the queue pair is in ERR."""
    if mw.type == MWType.TYPE_1:
        b.qp.bind_mw(mw, MWBind(info))
    else:
        wr = SendWR(1, WROpcode.BIND_MW)
        wr.set_bind_wr(mw, info, rkey)
        b.qp.post_send(wr)
    status = WCStatus(poll(b.scq)[0].status)
    b.is_over()
    return status


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "why", ["no right", "before", "behind", "wraps", "read-only", "mr's domain", "mw's domain"]
)
def test_a_bind_that_reaches_too_far_fails_in_its_turn(two: Wire, kind: MWType, why: str) -> None:
    _, b = opened(two)
    mr = region(
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
    assert bad_bind(b, mw, MWBindInfo(mr, addr, length, RW)) == WCStatus.MW_BIND_ERR
    mw.close()
    mr.close()


def test_under_persona_roce_what_came_before_a_bad_bind_is_confirmed_first(two: Wire) -> None:
    a, b = opened(two, persona=Persona.ROCE)
    mr, mw = region(b, 4096, LOCAL), MW(b.rig.pd)
    a.recv(1)
    b.post(SEND, 1, length=8, flags=0)
    b.post(SEND, 2, length=0)
    a.recv(2)
    mw.bind(b.qp, mr, wr_id=3)
    done = [(wc.wr_id, wc.status) for wc in poll(b.scq, 2)]
    assert done == [(2, WCStatus.SUCCESS), (3, WCStatus.MW_BIND_ERR)]
    assert [wc.ok for wc in poll(a.rcq, 2)] == [True, True]
    mw.close()
    mr.close()


def test_remote_reading_needs_no_local_writing(ends: tuple[End, End]) -> None:
    a, b = ends
    mr = MR(b.rig.pd, b"for reading", BIND)
    mw, remote = bound(b, mr, access=AccessFlag.REMOTE_READ)
    assert read(a, remote, 11) == b"for reading"
    mw.close()
    mr.close()


@pytest.mark.parametrize("why", ["bound", "key", "nothing"])
def test_a_window_of_type_2_is_bound_when_it_is_invalid_and_under_its_own_key(
    two: Wire, why: str
) -> None:
    _, b = opened(two)
    mr = region(b)
    mw = MW(b.rig.pd)
    rkey = inc_rkey(mw.rkey)
    if why == "bound":
        mw.bind(b.qp, mr)
        assert poll(b.scq)[0].ok
        rkey = inc_rkey(rkey)
    if why == "key":
        rkey ^= 0x100
    info = MWBindInfo(mr, mr.addr, 0 if why == "nothing" else 8, RW)
    assert bad_bind(b, mw, info, rkey) == WCStatus.MW_BIND_ERR
    mw.close()


def test_any_low_octet_makes_a_key_of_type_2(ends: tuple[End, End]) -> None:
    a, b = ends
    mr = region(b)
    mw = MW(b.rig.pd)
    base = mw.rkey & ~0xFF
    for octet in (0, 255, 128, 1, 0):
        wr = SendWR(1, WROpcode.BIND_MW)
        wr.set_bind_wr(mw, MWBindInfo(mr, mr.addr, 8, RW), base | octet)
        mw.rkey = wr.rkey
        b.qp.post_send(wr)
        assert poll(b.scq)[0].ok
        mr.write(bytes([octet]) * 8)
        assert read(a, RemoteBuffer(mr.addr, 8, base | octet), 8) == bytes([octet]) * 8
        ended(mw, b)
    mw.close()


@pytest.mark.parametrize("why", ["never", "type 1", "region", "other queue pair", "twice"])
def test_what_is_not_of_this_queue_pair_cannot_be_invalidated(two: Wire, why: str) -> None:
    _a, b = opened(two)
    mr = region(b)
    mws = []
    rkey = mr.rkey if why == "region" else 0x12345678
    if why == "type 1":
        mw, remote = bound(b, mr, MWType.TYPE_1)
        mws, rkey = [mw], remote.rkey
    elif why == "other queue pair":
        _c, d = opened(two)  # beside the first, whose end nobody must collect
        mw, remote = bound(d, mr)
        mws, rkey = [mw], remote.rkey
    elif why == "twice":
        mw, remote = bound(b, mr)
        ended(mw, b)
        mws, rkey = [mw], remote.rkey
    b.qp.post_send(SendWR(1, WROpcode.LOCAL_INV, invalidate_rkey=rkey))
    assert poll(b.scq)[0].status == WCStatus.LOC_PROT_ERR
    b.is_over()
    if why in ("type 1", "other queue pair"):
        assert refused(mr.close) == errno.EBUSY
    for mw in mws:
        mw.close()
    mr.close()


@pytest.mark.parametrize("kind", BOTH)
def test_a_region_and_a_domain_stay_while_a_window_is_bound(
    ends: tuple[End, End], kind: MWType
) -> None:
    _, b = ends
    mr = region(b)
    mw, _ = bound(b, mr, kind)
    assert refused(mr.close) == refused(mr.rereg, access=LOCAL) == errno.EBUSY
    ended(mw, b)
    mr.rereg(access=LOCAL | BIND)
    mw.bind(b.qp, mr)
    assert poll(b.scq)[0].ok
    assert refused(mr.close) == errno.EBUSY
    mw.close()
    mr.close()
    other = PD(b.rig.ctx)
    kept = MW(other, kind)
    assert lib.siw_dealloc_pd(other._c) == -errno.EBUSY
    kept.close()
    other.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("end", ["reset", "error", "close"])
def test_a_bind_that_is_posted_holds_window_and_region_until_it_is_flushed(
    two: Wire, kind: MWType, end: str
) -> None:
    _, b = opened(two)
    mr, mw = region(b), MW(b.rig.pd, kind)
    b.qp.modify(QPAttr(qp_state=QPState.SQD))
    mw.bind(b.qp, mr)
    assert refused(mr.close) == refused(mw.close) == errno.EBUSY
    if end == "error":
        b.qp.modify(QPAttr(qp_state=QPState.ERR))
        assert poll(b.scq)[0].status == WCStatus.WR_FLUSH_ERR
        mw.bind(b.qp, mr)  # and one that comes too late
        assert poll(b.scq)[0].status == WCStatus.WR_FLUSH_ERR
    elif end == "reset":
        b.qp.modify(QPAttr(qp_state=QPState.RESET))
    else:
        b.close()
    mr.close()
    mw.close()


def test_a_bind_waits_in_sqd_for_its_turn(ends: tuple[End, End]) -> None:
    a, b = ends
    mr, mw = region(b), MW(b.rig.pd)
    b.qp.modify(QPAttr(qp_state=QPState.SQD))
    remote = mw.bind(b.qp, mr)
    assert b.scq.poll() == []
    b.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(b.scq)[0].ok
    assert read(a, remote, 8) == bytes(8)
    mw.close()


# ---- making and posting them


def test_windows_have_a_limit_that_can_be_reached(rig: Rig) -> None:
    most = rig.ctx.query_device().max_mw
    made = [lib.siw_alloc_mw(rig.pd._live(), 1 + i % 2) for i in range(most)]
    assert all(made)
    assert len({mw.rkey for mw in made}) == most
    assert not lib.siw_alloc_mw(rig.pd._live(), 1)
    assert ffi.errno == errno.ENOMEM
    assert [lib.siw_dealloc_mw(mw) for mw in made] == [0] * most
    MW(rig.pd).close()


def test_windows_are_of_two_types_and_end_once(rig: Rig) -> None:
    for kind in (0, 3, -1):
        assert refused(MW, rig.pd, kind) == errno.EINVAL
    assert lib.siw_alloc_mw(ffi.NULL, 1) == ffi.NULL
    assert lib.siw_dealloc_mw(ffi.NULL) == -errno.EINVAL
    mw = MW(rig.pd)
    c = mw._c
    mw.close()
    assert lib.siw_dealloc_mw(c) == -errno.EINVAL


def test_a_region_that_the_peer_may_end_takes_no_windows(rig: Rig) -> None:
    qp = rig.qp(qp_type=QPType.RC)
    access = LOCAL | BIND | AccessFlag.REMOTE_INVALIDATE
    assert refused(MR, rig.pd, bytearray(10), access, qp=qp) == errno.EINVAL
    MR(rig.pd, bytearray(10), LOCAL | BIND, qp=qp).close()


def test_a_window_does_not_open_a_region_of_one_queue_pair_to_others(two: Wire) -> None:
    a, b = opened(two)
    c, d = opened(two)
    mr = MR(b.rig.pd, bytearray(100), LOCAL | BIND, qp=b.qp)
    mw, remote = bound(d, mr, MWType.TYPE_1)
    assert read(a, remote, 4) == bytes(4)
    write(c, remote, b"no")
    terminated(c, d, NOT_OF_STREAM)
    other = MW(b.rig.pd)
    e, f = opened(two)
    assert bad_bind(f, other, MWBindInfo(mr, mr.addr, 8, RW)) == WCStatus.MW_BIND_ERR
    assert e.qp.qp_state is not None
    for window in (mw, other):
        window.close()
    mr.close()


def test_the_last_queue_pair_of_a_window_may_go_first(two: Wire) -> None:
    _, b = opened(two)
    mr = region(b)
    mw, _ = bound(b, mr)
    b.close()
    assert refused(mr.close) == errno.EBUSY
    mw.close()
    mr.close()


def test_the_layout_of_requests_is_that_of_ibv() -> None:
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


def test_the_next_key_differs_in_the_low_octet_alone() -> None:
    assert [inc_rkey(k) for k in (0, 0x1FF, 0xFFFFFFFF)] == [1, 0x100, 0xFFFFFF00]


def test_a_fence_lets_reads_end_before_the_invalidation(ends: tuple[End, End]) -> None:
    a, b = ends
    far = MR(a.rig.pd, bytearray(1 << 20), LOCAL | RW)
    mr = region(b, 1 << 20)
    mw, remote = bound(b, mr)
    b.qp.post_send(SendWR(1, READ, send_flags=0, sg=[mr.sge()], remote=far.remote()))
    mw.invalidate(b.qp, wr_id=2)
    b.recv(1)
    write(a, remote, b"still")  # the answer is not here: nobody polled
    assert poll(b.scq)[0].wr_id == 2
    assert mr.read(5) in (b"still", bytes(5))
    mw.close()


def test_bind_flags_of_requests(ends: tuple[End, End]) -> None:
    _, b = ends
    mr, mw = region(b), MW(b.rig.pd)
    wr = SendWR(1, WROpcode.BIND_MW, send_flags=SendFlag.INLINE)
    wr.set_bind_wr(mw, MWBindInfo(mr, mr.addr, 8, RW))
    assert refused(b.qp.post_send, wr) == errno.EINVAL
    inv = SendWR(1, WROpcode.LOCAL_INV, send_flags=SendFlag.INLINE, invalidate_rkey=1)
    assert refused(b.qp.post_send, inv) == errno.EINVAL
    mw.close()
