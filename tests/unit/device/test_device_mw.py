"""Memory windows: which peers may use a window, and from when until when."""

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
    assert_terminated,
    bind_new_memory_window,
    connect_and_exchange_send,
    invalidate_memory_window,
    read_remote_buffer,
    register_region,
    wait_until_writes_placed,
    write_and_wait_for_completion,
)
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.uc_harness import UCPair
from harness.verbs_harness import Rig, errno_raised_by, poll, wait_until
from hostile.peer import accept_raw_initiator

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
def connected_endpoints(two_device_connector: ListenerAndConnector) -> Iterator[tuple[End, End]]:
    """Two connected endpoints on two devices, of which both may send."""
    yield connect_and_exchange_send(two_device_connector)


# ---- access that a window grants


@pytest.mark.parametrize("kind", BOTH)
def test_a_memory_window_grants_access_to_its_part_of_the_region(
    connected_endpoints: tuple[End, End], kind: MWType
) -> None:
    a, b = connected_endpoints
    mr = register_region(b)
    mr.write(b"before" * 100)
    mw, remote = bind_new_memory_window(b, mr, kind, offset=100, length=50)
    assert remote == RemoteBuffer(mr.addr + 100, 50, mw.rkey)
    write_and_wait_for_completion(a, remote, b"x" * 50)
    assert read_remote_buffer(a, remote, 50) == b"x" * 50
    assert mr.read(600) == (b"before" * 100)[:100] + b"x" * 50 + (b"before" * 100)[150:600]
    mw.close()
    mr.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("offset", [99, 141, 150])
def test_octets_of_the_region_outside_its_memory_window_are_refused(
    two_device_connector: ListenerAndConnector, kind: MWType, offset: int
) -> None:
    a, b = connect_and_exchange_send(two_device_connector)
    mr = register_region(b)
    mw, remote = bind_new_memory_window(b, mr, kind, offset=100, length=50)
    write_and_wait_for_completion(a, RemoteBuffer(mr.addr + offset, 10, remote.rkey), b"0123456789")
    assert_terminated(a, b, BOUNDS)
    assert mr.read() == bytes(4096)
    mw.close()


@pytest.mark.parametrize("kind", BOTH)
def test_tagged_offsets_of_a_zero_based_memory_window_start_at_zero(
    connected_endpoints: tuple[End, End], kind: MWType
) -> None:
    a, b = connected_endpoints
    mr = register_region(b)
    mw, remote = bind_new_memory_window(
        b, mr, kind, offset=64, length=32, access=RW | AccessFlag.ZERO_BASED
    )
    assert remote.addr == 0
    write_and_wait_for_completion(a, remote.part(8, 4), b"zero")
    assert read_remote_buffer(a, remote, 32) == bytes(8) + b"zero" + bytes(20)
    assert mr.read(4, 72) == b"zero"
    write_and_wait_for_completion(a, RemoteBuffer(mr.addr + 64, 4, remote.rkey), b"zero")
    assert_terminated(a, b, BOUNDS)
    mw.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("reads", [True, False])
def test_a_memory_window_grants_only_the_access_rights_of_its_bind(
    two_device_connector: ListenerAndConnector, kind: MWType, reads: bool
) -> None:
    a, b = connect_and_exchange_send(two_device_connector)
    mr = register_region(b)
    access = AccessFlag.REMOTE_WRITE if reads else AccessFlag.REMOTE_READ
    mw, remote = bind_new_memory_window(b, mr, kind, access=access)
    a.post(READ if reads else WRITE, 1, length=8, remote=remote)
    assert_terminated(a, b, NO_RIGHT)
    mw.close()


def test_the_key_of_a_memory_window_is_no_local_key(connected_endpoints: tuple[End, End]) -> None:
    a, b = connected_endpoints
    mr = register_region(b)
    mw, remote = bind_new_memory_window(b, mr)
    wr = RecvWR(1, sg=[mr.sge(0, 8)])
    wr.sg[0].lkey = remote.rkey
    b.qp.post_recv(wr)
    a.post(SEND, 1, length=8)
    assert poll(b.rcq)[0].status == WCStatus.LOC_PROT_ERR
    mw.close()


def test_a_type_2_window_is_valid_for_one_queue_pair_and_a_type_1_window_for_its_pd(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_and_exchange_send(two_device_connector)
    c, d = connect_and_exchange_send(two_device_connector)
    mr = register_region(b)
    one, shared = bind_new_memory_window(b, mr, MWType.TYPE_1)
    write_and_wait_for_completion(c, shared, b"shared")
    assert read_remote_buffer(c, shared, 6) == read_remote_buffer(a, shared, 6) == b"shared"
    other, own = bind_new_memory_window(b, mr)
    assert read_remote_buffer(a, own, 6) == b"shared"
    write_and_wait_for_completion(c, own, b"forbidden")
    assert_terminated(c, d, NOT_OF_STREAM)
    assert mr.read(6) == b"shared"
    for mw in (one, other):
        mw.close()


def test_a_bind_posted_before_a_send_is_effective_when_the_send_arrives(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    mr = register_region(b)
    mw = MW(b.rig.pd)
    for turn in range(20):
        bind = SendWR(1, WROpcode.BIND_MW, send_flags=0)
        bind.set_bind_wr(mw, MWBindInfo(mr, mr.addr + turn, 8, RW))
        mw.rkey = bind.rkey
        b.mem.write(RemoteBuffer(mr.addr + turn, 8, bind.rkey).pack())
        a.post_receive(1, 0, 20)
        b.qp.post_send([bind, SendWR(2, sg=[b.mem.sge(0, 20)])])
        assert poll(a.rcq)[0].ok
        write_and_wait_for_completion(a, RemoteBuffer.unpack(a.mem.read(20)), bytes([turn]) * 8)
        # The bind was unsignaled and therefore created no completion.
        assert [w.wr_id for w in poll(b.scq)] == [2]
        wait_until_writes_placed(a, b)
        assert mr.read(8, turn) == bytes([turn]) * 8
        invalidate_memory_window(mw, b)
    mw.close()


def test_requests_before_and_after_a_bind_complete_in_order(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    far = MR(a.rig.pd, bytearray(1 << 20), LOCAL | RW)
    mr = register_region(b, 1 << 20)
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


def test_under_persona_roce_a_bind_completes_after_earlier_unsignaled_sends(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_and_exchange_send(two_device_connector, persona=Persona.ROCE)
    mr = register_region(b)
    mw = MW(b.rig.pd)
    a.post_receive(1)
    b.post(SEND, 1, length=8, flags=0)
    mw.bind(b.qp, mr, wr_id=7)
    assert poll(b.scq)[0].wr_id == 7
    assert poll(a.rcq)[0].ok
    invalidate_memory_window(mw, b)
    mw.close()


# ---- the end of a binding


@pytest.mark.parametrize("op", [READ, WRITE])
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("how", ["invalidate", "close"])
def test_an_invalidated_or_closed_memory_window_grants_no_access(
    two_device_connector: ListenerAndConnector, kind: MWType, how: str, op: WROpcode
) -> None:
    a, b = connect_and_exchange_send(two_device_connector)
    mr = register_region(b)
    mw, remote = bind_new_memory_window(b, mr, kind)
    write_and_wait_for_completion(a, remote, b"while it lives")
    assert read_remote_buffer(a, remote, 14) == b"while it lives"
    if how == "close":
        mw.close()
    else:
        invalidate_memory_window(mw, b)
    a.post(op, 1, length=8, remote=remote)
    assert_terminated(a, b, READ_INVALID if op == READ else INVALID)
    assert mr.read(14) == b"while it lives"
    mr.close()


def test_the_peer_may_invalidate_a_type_2_memory_window(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    mr = register_region(b)
    mw, remote = bind_new_memory_window(b, mr)
    assert errno_raised_by(mr.close) == errno.EBUSY
    b.post_receive(1)
    a.qp.post_send(
        SendWR(3, WROpcode.SEND_WITH_INV, sg=[a.mem.sge(0, 7)], invalidate_rkey=remote.rkey)
    )
    assert poll(b.rcq)[0].invalidated_rkey == remote.rkey
    assert poll(a.scq)[0].ok
    again = mw.bind(b.qp, mr)
    assert poll(b.scq)[0].ok
    assert again.rkey == inc_rkey(remote.rkey)
    write_and_wait_for_completion(a, again, b"again")
    assert read_remote_buffer(a, again, 5) == b"again"
    mw.close()
    mr.close()


def test_the_peer_may_not_invalidate_a_type_1_memory_window(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_and_exchange_send(two_device_connector)
    mr = register_region(b)
    mw, remote = bind_new_memory_window(b, mr, MWType.TYPE_1)
    b.post_receive(1)
    a.qp.post_send(SendWR(3, WROpcode.SEND_WITH_INV, invalidate_rkey=remote.rkey))
    assert_terminated(a, b, CANNOT_INVALIDATE)
    assert errno_raised_by(mr.close) == errno.EBUSY
    mw.close()
    mr.close()


def test_a_new_bind_of_a_type_1_memory_window_ends_the_previous_bind(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_and_exchange_send(two_device_connector)
    first, second = register_region(b), register_region(b)
    mw, old = bind_new_memory_window(b, first, MWType.TYPE_1)
    new = mw.bind(b.qp, second)
    assert poll(b.scq)[0].ok
    assert new.rkey != old.rkey
    first.close()
    assert errno_raised_by(second.close) == errno.EBUSY
    write_and_wait_for_completion(a, new, b"second")
    assert read_remote_buffer(a, new, 6) == b"second"
    a.post(WRITE, 1, length=8, remote=old)
    assert_terminated(a, b, INVALID)
    mw.close()
    second.close()


def test_local_invalidate_ends_remote_access_to_a_region_of_one_queue_pair(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_and_exchange_send(two_device_connector)
    mr = MR(b.rig.pd, bytearray(100), LOCAL | RW | AccessFlag.REMOTE_INVALIDATE, qp=b.qp)
    write_and_wait_for_completion(a, mr.remote(), b"hello")
    assert read_remote_buffer(a, mr.remote(), 5) == b"hello"
    b.qp.post_send(SendWR(4, WROpcode.LOCAL_INV, invalidate_rkey=mr.rkey))
    assert poll(b.scq)[0].check().opcode == WCOpcode.LOCAL_INV
    a.post(WRITE, 1, length=8, remote=mr.remote())
    assert_terminated(a, b, INVALID)
    mr.close()


@pytest.mark.parametrize(
    ("kind", "how"),
    [(2, "request"), (2, "close"), (1, "request"), (1, "elsewhere"), (1, "close")],
)
def test_the_connection_of_a_peer_amid_a_read_is_reset_when_its_memory_window_ends(
    two_device_connector: ListenerAndConnector, kind: MWType, how: str
) -> None:
    """Data that the program writes to the memory after the end of the window is not sent."""
    # The size exceeds what TCP accepts while the peer does not read.
    size = 16 << 20
    peer, end = accept_raw_initiator(two_device_connector)
    _, other = connect_and_exchange_send(two_device_connector)
    mr = register_region(end, size)
    mr.view[:] = b"\x11" * size
    mw, remote = bind_new_memory_window(end, mr, kind)
    memory = mr.view.obj
    peer.send_fpdus(
        DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1)
        / ReadRequest(sink_stag=1, size=size, src_stag=remote.rkey, src_to=remote.addr)
    )
    wait_until(lambda: end.rcq.poll() == [] and peer.count_unread_octets() > 0)
    if how == "close":
        mw.close()
    elif how == "request":
        mw.invalidate(end.qp)
        assert poll(end.scq)[0].status == WCStatus.WR_FLUSH_ERR
    else:
        mw.invalidate(other.qp)
        assert poll(other.scq)[0].ok
    mr.close()
    # After the region is closed, the program owns the memory again.
    memory[:] = b"\x22" * size
    got = peer.read_until_end()
    assert b"\x11" * 1000 in got
    assert b"\x22" * 16 not in got
    assert len(got) < size
    end.wait_for_error_state()
    peer.close()
    if not mw.closed:
        mw.close()


def test_a_region_can_be_closed_after_its_window_is_invalidated_amid_a_peers_read(
    two_device_connector: ListenerAndConnector,
) -> None:
    """The program closes the region without waiting for the completion of the invalidation."""
    size = 16 << 20
    peer, end = accept_raw_initiator(two_device_connector)
    mr = register_region(end, size)
    mr.view[:] = b"\x11" * size
    mw, remote = bind_new_memory_window(end, mr)
    memory = mr.view.obj
    peer.send_fpdus(
        DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1)
        / ReadRequest(sink_stag=1, size=size, src_stag=remote.rkey, src_to=remote.addr)
    )
    wait_until(lambda: end.rcq.poll() == [] and peer.count_unread_octets() > 0)
    mw.invalidate(end.qp)
    mr.close()
    memory[:] = b"\x22" * size
    assert b"\x22" * 16 not in peer.read_until_end()
    end.wait_for_error_state()
    peer.close()
    mw.close()


# ---- UC


@pytest.mark.parametrize("kind", BOTH)
def test_memory_windows_grant_access_to_the_writes_of_a_uc_peer(rig: Rig, kind: MWType) -> None:
    ends = UCPair(rig, size=64)
    mr = MR(rig.pd, bytearray(64), LOCAL | BIND)
    mw = MW(rig.pd, kind)
    remote = mw.bind(ends.b, mr, 8, 16, access=AccessFlag.REMOTE_WRITE)
    assert poll(ends.idle)[0].check().opcode == WCOpcode.BIND_MW
    ends.post_receive(1)
    ends.send(b"through", opcode=WROpcode.RDMA_WRITE, remote=remote)
    ends.send(b"behind")
    assert [wc.ok for wc in ends.poll_sends(2)] == [True, True]
    # The receive completes only after the earlier Write has been placed.
    assert ends.poll_receives()[0].ok
    assert mr.read(7, 8) == b"through"
    mw.invalidate(ends.b)
    assert poll(ends.idle)[0].ok
    ends.post_receive(1)
    ends.send(b"no more", opcode=WROpcode.RDMA_WRITE, remote=remote)
    ends.send(b"behind")
    assert [wc.ok for wc in ends.poll_sends(2)] == [True, True]
    # The receive completes after the earlier Write has been dropped for lack of a valid window.
    assert ends.poll_receives()[0].ok
    assert mr.read() == bytes(8) + b"through" + bytes(49)
    mw.close()
    mr.close()


def test_a_failed_bind_moves_a_uc_queue_pair_to_sqe_and_flushes_later_requests(rig: Rig) -> None:
    ends = UCPair(rig, size=64)
    mr, mw = MR(rig.pd, bytearray(64), LOCAL), MW(rig.pd)
    ends.a.modify(QPAttr(qp_state=QPState.SQD))
    for wr_id in (1, 2):
        mw.bind(ends.a, mr, wr_id=wr_id)
    mw.invalidate(ends.a, wr_id=3)
    ends.a.modify(QPAttr(qp_state=QPState.RTS))
    done = [(wc.wr_id, wc.status) for wc in ends.poll_sends(3)]
    flushed = WCStatus.WR_FLUSH_ERR
    assert done == [(1, WCStatus.MW_BIND_ERR), (2, flushed), (3, flushed)]
    assert ends.a.qp_state == QPState.SQE
    mw.bind(ends.a, mr, wr_id=4)
    assert ends.poll_sends()[0].status == flushed
    ends.a.to_rts()
    mr.rereg(access=LOCAL | BIND)
    mw.bind(ends.a, mr)
    assert ends.poll_sends()[0].ok
    mw.close()
    mr.close()
