"""RD queue pairs: Send, Write, Read and atomics to any number of peers, order and errors."""

from __future__ import annotations

import errno
import sys

import net
import pytest
from harness.rd_harness import QKEY, RDEnd
from harness.rd_stranger import scripted_peer
from harness.verbs_harness import (
    ALL_ACCESS,
    Rig,
    assert_no_completion,
    errno_raised_by,
    octet_pattern,
    poll,
    wait_until,
)

from siwarp.inspect import (
    AtomicRequest,
    AtomicResponse,
    Opcode,
    Queue,
    Terminate,
)
from siwarp.verbs import (
    AH,
    MR,
    MW,
    PD,
    AccessFlag,
    Error,
    MWBind,
    MWBindInfo,
    MWType,
    QPAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCStatus,
    WROpcode,
)


@pytest.mark.clause("DGRAM-RDV-3", "DGRAM-RDV-5")
def test_an_rd_send_completes_only_after_the_peer_has_received_the_message(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    a.send(b, b"early", 7)
    assert_no_completion(a.scq, 0.05)
    b.post_receive(8)
    assert b.poll_receives()[0].byte_len == 5
    assert [(w.wr_id, w.ok) for w in a.poll_sends()] == [(7, True)]


@pytest.mark.clause("DGRAM-RDV-2", "DGRAM-RDV-5")
def test_an_rd_send_without_a_receive_does_not_delay_messages_to_other_peers(rig: Rig) -> None:
    a, slow, quick = RDEnd(rig), RDEnd(rig), RDEnd(rig)
    for i in range(4):
        a.send(slow, b"wait", i)
    quick.post_receive()
    a.send(quick, b"go", 9, offset=8)
    assert [w.wr_id for w in a.poll_sends()] == [9]
    assert quick.poll_receives()[0].byte_len == 2
    for i in range(4):
        slow.post_receive(i, 16, 16 * i)
    assert [w.wr_id for w in slow.poll_receives(4)] == [0, 1, 2, 3]
    assert [w.wr_id for w in a.poll_sends(4)] == [0, 1, 2, 3]


def test_send_queue_slots_are_freed_although_the_oldest_request_is_incomplete(rig: Rig) -> None:
    a, stuck, quick = RDEnd(rig, depth=4), RDEnd(rig), RDEnd(rig)
    a.send(stuck, b"stuck", 1)
    for i in range(40):
        quick.post_receive()
        a.send(quick, bytes([i]), 100 + i, offset=8)
        assert a.poll_sends()[0].wr_id == 100 + i
        assert quick.poll_receives()[0].ok
    stuck.post_receive()
    assert a.poll_sends()[0].wr_id == 1


def test_inline_and_unsignaled_rd_sends_arrive_and_free_their_send_queue_slots(rig: Rig) -> None:
    a, b = RDEnd(rig, depth=8), RDEnd(rig)
    for turn in range(8):
        for i in range(7):
            b.post_receive(i, 64)
            a.send(b, bytes([turn, i]) * 4, flags=SendFlag.INLINE)
            a.out.view[:8] = b"\xff" * 8
            assert b.poll_receives()[0].wr_id == i
            assert b.into.read(8) == bytes([turn, i]) * 4
        b.post_receive(7, 64)
        a.send(b, b"told", 99)
        assert [w.wr_id for w in a.poll_sends()] == [99]
        assert b.poll_receives()[0].ok


def test_posting_to_a_full_rd_send_queue_fails_with_enomem(rig: Rig) -> None:
    a, b = RDEnd(rig, depth=4), RDEnd(rig)
    for i in range(4):
        a.send(b, b"x", i)
    assert errno_raised_by(a.send, b, b"x") == errno.ENOMEM
    for i in range(4):
        b.post_receive(i)
    assert len(a.poll_sends(4)) == 4
    a.send(b, b"y", 5)


def test_a_solicited_rd_send_raises_the_solicited_completion_event(rig: Rig) -> None:
    channel = rig.create_channel()
    a, b = RDEnd(rig), RDEnd(rig, channel=channel)
    for _ in range(2):
        b.post_receive()
    b.rcq.req_notify(solicited_only=True)
    a.send(b, b"plain")
    assert b.poll_receives()[0].byte_len == 5
    assert channel.get_cq_event(0.02) is None
    a.send(b, b"solicited", offset=8, flags=SendFlag.SIGNALED | SendFlag.SOLICITED)
    assert channel.get_cq_event(10) is b.rcq
    b.rcq.ack_events(1)
    assert b.poll_receives()[0].byte_len == 9
    assert all(w.ok for w in a.poll_sends(2))


def test_rd_queue_pairs_share_the_receives_of_a_shared_receive_queue(rig: Rig) -> None:
    srq = rig.create_srq(16)
    a, b, c = RDEnd(rig), RDEnd(rig, srq=srq), RDEnd(rig, srq=srq)
    mr = rig.reg_mr(1024)
    a.send(b, b"to b", 1)
    a.send(c, b"to c", 2, offset=64)
    for i in range(2):
        srq.post_recv(RecvWR(i, sg=[mr.sge(512 * i, 512)]))
    assert b.poll_receives()[0].byte_len == c.poll_receives()[0].byte_len == 4
    assert sorted(w.wr_id for w in a.poll_sends(2)) == [1, 2]


@pytest.mark.clause("DGRAM-RDV-9")
def test_rd_reads_beyond_the_responder_resources_of_the_peer_wait(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig, attr=QPAttr(qkey=QKEY, max_dest_rd_atomic=2))
    b.into.view[:4096] = octet_pattern(4096)
    for i in range(32):
        a.post_rdma(b, WROpcode.RDMA_READ, 128, i, offset=128 * i)
    assert [(w.wr_id, w.ok) for w in a.poll_sends(32)] == [(i, True) for i in range(32)]
    assert a.out.read(4096) == octet_pattern(4096)


@pytest.mark.clause("DGRAM-RDV-9")
@pytest.mark.parametrize(("tells", "most"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_rd_read_and_atomic_requests_do_not_exceed_the_limit_that_the_peer_states(
    rig: Rig, tells: int, most: int
) -> None:
    a = RDEnd(rig)
    with scripted_peer(a, connect=False) as s:
        s.ird, ah = tells, AH(rig.pd, s.addr)
        remote = RemoteBuffer(0x1000, 64, 0x123456)
        kinds = [WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD] * 3
        opcodes = [Opcode.RDMA_READ_REQUEST, Opcode.ATOMIC_REQUEST] * 3
        for i in range(most + 2):
            sg = [a.out.sge(64 * i, 8)]
            a.qp.post_send(SendWR(i, kinds[i], sg=sg, ah=ah, remote=remote))
        asked = [s.receive_segment() for _ in range(most)]
        assert [head.opcode for head, _ in asked] == opcodes[:most]
        assert not s.receives_segment_within()
        for i in range(2):  # each response permits one more request
            s.answer_request(*asked[i], b"%08d" % i)
            assert a.poll_sends()[0].wr_id == i
            asked.append(s.receive_segment())
            assert asked[-1][0].opcode == opcodes[most + i]
            assert asked[-1][0].msn == most + i + 1
            assert not s.receives_segment_within(0.02)
        assert a.out.read(8) == b"00000000"
        assert int.from_bytes(a.out.read(8, 64), sys.byteorder) == int.from_bytes(
            b"00000001", "big"
        )
        a.qp.modify(QPAttr(qp_state=QPState.ERR))


def test_a_fence_waits_for_reads_from_the_same_rd_peer(rig: Rig) -> None:
    a, b = RDEnd(rig, 1 << 20), RDEnd(rig, 1 << 20)
    b.into.view[:] = b"\x01" * b.size
    a.post_rdma(b, WROpcode.RDMA_READ, 1 << 19, 1)
    a.post_rdma(b, WROpcode.RDMA_WRITE, 1 << 19, 2, flags=SendFlag.SIGNALED | SendFlag.FENCE)
    assert [w.wr_id for w in a.poll_sends(2)] == [1, 2]
    assert set(b.into.read(1 << 19)) == {1}


@pytest.mark.clause("DGRAM-RDV-7", "DGRAM-RDV-8")
@pytest.mark.parametrize(
    ("why", "code"),
    [("misaligned", (0, 2, 7)), ("stag", (0, 1, 0)), ("bounds", (0, 1, 1)), ("rights", (0, 1, 2))],
)
def test_a_refused_rd_atomic_changes_no_memory_and_the_next_atomic_succeeds(
    rig: Rig, why: str, code: tuple[int, int, int]
) -> None:
    b = RDEnd(rig, 1 << 12)
    readable = rig.reg_mr(bytearray(64), ALL_ACCESS & ~AccessFlag.REMOTE_ATOMIC)
    b.into.view[:] = b"\x11" * b.size
    at = {"misaligned": 4, "bounds": b.size}.get(why, 0)
    stag = {"stag": b.into.rkey ^ 0x5555, "rights": readable.rkey}.get(why, b.into.rkey)
    where = readable.addr if why == "rights" else b.into.addr + at
    with scripted_peer(b) as s:
        bad, good = (
            s.build_untagged(
                Opcode.ATOMIC_REQUEST,
                bytes(AtomicRequest(request=n, stag=key, to=to, data=1)),
                qn=Queue.READ_REQUEST,
            )
            for n, key, to in ((7, stag, where), (8, b.into.rkey, b.into.addr + 16))
        )
        s.send_and_wait(bad, good)
        head, octets = s.receive_segment()
        told = Terminate(octets)
        assert (head.opcode, head.qn) == (Opcode.TERMINATE, Queue.TERMINATE)
        assert (told.layer, told.etype, told.code) == code
        assert (told.m, told.d, told.r, octets[6:]) == (1, 1, 0, bad[:18])
        head, octets = s.receive_segment()
        answer = AtomicResponse(octets)
        assert (head.opcode, answer.request) == (Opcode.ATOMIC_RESPONSE, 8)
        assert answer.old == int.from_bytes(b"\x11" * 8, "big")
    assert b.into.read(16) == b"\x11" * 16 and b.into.read(b.size - 24, 24) == b"\x11" * (
        b.size - 24
    )
    assert b.into.read(8, 16) == (0x1111111111111111 + 1).to_bytes(8, sys.byteorder)
    assert not any(readable.read())


def test_an_rd_send_with_invalidate_invalidates_the_stag_of_the_region(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    mr = MR(
        rig.pd,
        64,
        AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_INVALIDATE,
        qp=b.qp,
    )
    b.post_receive()
    a.send(b, b"inv", opcode=WROpcode.SEND_WITH_INV, invalidate=mr.rkey)
    (got,) = b.poll_receives()
    assert got.ok and got.invalidated_rkey == mr.rkey
    assert a.poll_sends()[0].ok


# ---- states and limits


def test_an_rd_send_that_arrives_before_state_rtr_waits(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig, ready=False)
    b.qp.to_init(QPAttr(qkey=QKEY))
    b.post_receive()
    a.send(b, b"early", 1)
    assert_no_completion(b.rcq, 0.05)
    assert_no_completion(a.scq)
    b.qp.to_rts()
    assert b.poll_receives()[0].byte_len == 5 and a.poll_sends()[0].ok


def test_in_sqd_an_rd_queue_pair_completes_started_requests_and_holds_later_requests(
    rig: Rig,
) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    a.send(b, b"begun", 1)
    a.qp.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
    a.send(b, b"held", 2, offset=64)
    for i in range(2):
        b.post_receive(i, 64, 64 * i)
    assert [w.wr_id for w in a.poll_sends()] == [1]
    assert rig.next_async_event().event_type.name == "SQ_DRAINED"
    assert_no_completion(a.scq)
    a.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert [w.wr_id for w in a.poll_sends()] == [2]
    assert [w.byte_len for w in b.poll_receives(2)] == [5, 4]


def test_moving_an_rd_queue_pair_to_err_flushes_its_requests_and_fails_sends_of_the_peer(
    rig: Rig,
) -> None:
    a, b, c = RDEnd(rig), RDEnd(rig), RDEnd(rig)
    a.post_receive(9)
    for i in range(3):
        a.send(b, b"x", i)
        a.send(c, b"x", 10 + i)
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    sent = a.poll_sends(6)
    assert {w.status for w in sent} == {WCStatus.WR_FLUSH_ERR}
    assert {w.source for w in sent} == {b.qp.addr, c.qp.addr}
    assert a.poll_receives()[0].status == WCStatus.WR_FLUSH_ERR
    a.send(b, b"late", 7, offset=8)
    assert a.poll_sends()[0].status == WCStatus.WR_FLUSH_ERR
    b.send(a, b"nobody", 1)
    assert not b.poll_sends()[0].ok


def test_an_rd_send_with_a_wrong_q_key_is_not_received(rig: Rig) -> None:
    a = RDEnd(rig, attr=QPAttr(qkey=QKEY + 1), peer_timeout=0.3)
    b = RDEnd(rig)
    b.post_receive()
    a.send(b, b"x", 4)
    assert [(w.wr_id, w.status) for w in a.poll_sends()] == [(4, WCStatus.RETRY_EXC_ERR)]
    assert_no_completion(b.rcq)


def test_invalid_rd_send_requests_are_refused_when_posted(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    with PD(rig.ctx) as pd, AH(pd, b.qp.addr) as foreign:
        assert errno_raised_by(a.qp.post_send, SendWR(1, ah=foreign)) == errno.EINVAL
    with AH(rig.pd, (net.HERE, 0)) as nowhere:
        assert errno_raised_by(a.qp.post_send, SendWR(1, ah=nowhere)) == errno.EINVAL
    assert errno_raised_by(a.qp.post_send, SendWR(1)) == errno.EINVAL
    big = rig.reg_mr(1 << 20)
    long = [big.sge(0, 1 << 20)] * 4
    for sge in long:
        sge.length = 1 << 29
    assert (
        errno_raised_by(a.qp.post_send, SendWR(1, sg=long, ah=a.address_handle(b))) == errno.EINVAL
    )
    b.post_receive()
    a.send(b, b"after all that")
    assert b.poll_receives()[0].byte_len == 14


@pytest.mark.clause("DGRAM-RDV-4")
def test_rd_messages_arrive_after_idle_streams_were_released(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    for i in range(3):
        b.post_receive(i)
        a.send(b, bytes([i]), i)
        assert b.poll_receives()[0].wr_id == i
        assert a.poll_sends()[0].ok
        a.post_rdma(b, WROpcode.RDMA_READ, 4)
        assert a.poll_sends()[0].ok
        assert_no_completion(
            a.scq, 0.15
        )  # the wait is longer than the time after which idle streams are released


@pytest.mark.clause("DGRAM-RDV-4")
def test_message_sequence_numbers_continue_after_idle_time_and_restart_at_1_with_an_incarnation(
    rig: Rig,
) -> None:
    a = RDEnd(rig)
    with scripted_peer(a) as s:
        ah = AH(rig.pd, s.addr)

        def check_sequence_numbers() -> None:
            for msn in (1, 2, 3):
                a.qp.post_send(SendWR(msn, sg=[a.out.sge(0, 4)], ah=ah))
                head, _ = s.receive_segment()
                assert (head.qn, head.msn) == (Queue.SEND, msn)
                a.post_receive(10 + msn, 64)
                s.send_and_wait(s.build_untagged(Opcode.SEND, b"and back"))
                assert (a.poll_sends()[0].ok, a.poll_receives()[0].byte_len) == (True, 8)
                assert_no_completion(
                    a.scq, 0.15
                )  # the wait is longer than the time after which idle streams are released

        check_sequence_numbers()
        s.restart_and_connect()
        check_sequence_numbers()


def test_closing_an_rd_queue_pair_with_pending_requests_leaves_its_peer_usable(rig: Rig) -> None:
    a, b, c = RDEnd(rig), RDEnd(rig), RDEnd(rig)
    for i in range(8):
        a.send(b, b"to nobody", i)
    b.post_receive()
    assert b.poll_receives()[0].ok
    a.qp.close()
    c.send(b, b"to somebody")
    for i in range(9):  # earlier messages of `a` may still arrive and consume some receives
        b.post_receive(i, 64)
    wait_until(lambda: [w for w in b.rcq.poll(1) if w.source == c.qp.addr and w.ok])
    assert c.poll_sends()[0].ok


@pytest.mark.clause("DGRAM-RDV-15")
@pytest.mark.parametrize("size", [8, 100_000])
def test_an_rd_request_completes_before_the_receive_of_the_answer(rig: Rig, size: int) -> None:
    b, both = RDEnd(rig, 1 << 18), rig.create_cq(64)
    a = RDEnd(rig, 1 << 18, cq=both)
    for i in range(30):
        a.post_receive(1000 + i)
        b.post_receive(1)
        a.post_rdma(b, WROpcode.RDMA_WRITE, size, 10 + i)
        a.send(b, octet_pattern(size, i), 100 + i, offset=size)
        assert b.poll_receives()[0].ok
        b.send(a, b"answer", i)
        assert [w.wr_id for w in poll(both, 3)] == [10 + i, 100 + i, 1000 + i]
        assert b.poll_sends()[0].ok


def test_memory_of_a_posted_send_may_be_deregistered_before_the_queue_pair_is_closed(
    rig: Rig,
) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    mr = rig.reg_mr(bytearray(b"sent, and not taken"))
    a.qp.post_send(SendWR(1, sg=[mr.sge()], ah=a.address_handle(b)))
    mr.close()
    b.post_receive()
    assert b.poll_receives()[0].byte_len == 19 and a.poll_sends()[0].ok
    assert b.into.read(19) == b"sent, and not taken"


@pytest.mark.clause("DGRAM-RDV-16")
def test_rd_peers_access_memory_through_windows_that_another_queue_pair_bound(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    region = rig.reg_mr(128, ALL_ACCESS | AccessFlag.MW_BIND)
    cq = rig.create_cq()
    binder = rig.create_qp(cq, qp_type=QPType.UC)
    binder.to_rts(QPAttr(ah_attr=(net.HERE, 9)))
    window = MW(rig.pd, MWType.TYPE_1)
    bind = MWBind(
        MWBindInfo(region, region.addr, 64, ALL_ACCESS & ~AccessFlag.LOCAL_WRITE), wr_id=1
    )
    with pytest.raises(Error, match="a memory window is for RC and UC QPs only"):
        b.qp.bind_mw(window, bind)
    binder.bind_mw(window, bind)
    assert poll(cq)[0].ok
    there = RemoteBuffer(region.addr, 64, window.rkey)
    a.out.view[:8] = (5).to_bytes(8, "little")
    a.post_rdma(b, WROpcode.RDMA_WRITE, 8, 1, remote=there)
    a.post_rdma(b, WROpcode.ATOMIC_FETCH_AND_ADD, 8, 2, offset=8, remote=there, compare_add=2)
    a.post_rdma(b, WROpcode.RDMA_READ, 8, 3, offset=16, remote=there)
    a.post_rdma(
        b, WROpcode.RDMA_READ, 8, 4, offset=24, remote=RemoteBuffer(region.addr + 60, 8, there.rkey)
    )
    assert [w.status for w in a.poll_sends(4)] == [WCStatus.SUCCESS] * 3 + [WCStatus.REM_ACCESS_ERR]
    assert [int.from_bytes(a.out.read(8, at), "little") for at in (8, 16)] == [5, 7]
    window.close()
    a.post_rdma(b, WROpcode.RDMA_READ, 8, 5, remote=there)
    assert a.poll_sends()[0].status == WCStatus.REM_ACCESS_ERR
