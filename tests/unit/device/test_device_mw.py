"""Memory windows: which peers may use them, from when and until when."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from harness.mw_harness import (
    BIND,
    BOTH,
    BOUNDS,
    CANNOT_INVALIDATE,
    INVALID,
    LOCAL,
    NO_RIGHT,
    NOT_OF_STREAM,
    READ_INVALID,
    RW,
    behind,
    bound,
    ended,
    opened,
    read,
    region,
    terminated,
    write,
)
from harness.rc_harness import READ, SEND, WRITE, End, Wire
from harness.uc_harness import Ends
from harness.verbs_harness import Rig, poll, refused, until
from hostile.peer import accept_raw

from siwarp.inspect import DDPUntagged, Opcode, ReadRequest
from siwarp.verbs import (
    MR,
    MW,
    AccessFlag,
    MWBindInfo,
    MWType,
    Persona,
    QPAttr,
    QPState,
    RecvWR,
    RemoteBuffer,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
    inc_rkey,
)


@pytest.fixture
def ends(two: Wire) -> Iterator[tuple[End, End]]:
    """Two connected endpoints on two devices, of which both may send."""
    yield opened(two)


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
        # the bind was unsignaled, so it created no completion
        assert [w.wr_id for w in poll(b.scq)] == [2]
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
    """Data that the program writes to that memory afterwards is not sent."""
    size = 16 << 20  # more than TCP accepts while the peer does not read
    peer, end = accept_raw(two)
    _, other = opened(two)
    mr = region(end, size)
    mr.view[:] = b"\x11" * size
    mw, remote = bound(end, mr, kind)
    memory = mr.view.obj
    peer.send_fpdus(
        DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1)
        / ReadRequest(sink_stag=1, size=size, src_stag=remote.rkey, src_to=remote.addr)
    )
    until(lambda: end.rcq.poll() == [] and peer.unread_octets() > 0)
    if how == "close":
        mw.close()
    elif how == "request":
        mw.invalidate(end.qp)
        assert poll(end.scq)[0].status == WCStatus.WR_FLUSH_ERR
    else:
        mw.invalidate(other.qp)
        assert poll(other.scq)[0].ok
    mr.close()
    memory[:] = b"\x22" * size  # memory that the program owns again
    got = peer.read_until_end()
    assert b"\x11" * 1000 in got
    assert b"\x22" * 16 not in got
    assert len(got) < size
    end.is_over()
    peer.close()
    if not mw.closed:
        mw.close()


def test_a_region_goes_once_its_windows_are_invalid_though_a_peer_still_reads(two: Wire) -> None:
    """The thread that posted the invalidation did not wait for its completion."""
    size = 16 << 20
    peer, end = accept_raw(two)
    mr = region(end, size)
    mr.view[:] = b"\x11" * size
    mw, remote = bound(end, mr)
    memory = mr.view.obj
    peer.send_fpdus(
        DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1)
        / ReadRequest(sink_stag=1, size=size, src_stag=remote.rkey, src_to=remote.addr)
    )
    until(lambda: end.rcq.poll() == [] and peer.unread_octets() > 0)
    mw.invalidate(end.qp)
    mr.close()
    memory[:] = b"\x22" * size
    assert b"\x22" * 16 not in peer.read_until_end()
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
    # the receive completes after the Write, which has been placed by then
    assert ends.received()[0].ok
    assert mr.read(7, 8) == b"through"
    mw.invalidate(ends.b)
    assert poll(ends.idle)[0].ok
    ends.recv(1)
    ends.send(b"no more", opcode=WROpcode.RDMA_WRITE, remote=remote)
    ends.send(b"behind")
    assert [wc.ok for wc in ends.sent(2)] == [True, True]
    # the receive completes after the Write, which found no valid window
    assert ends.received()[0].ok
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
