"""Immediate data on RD: in the message of a Send, and in a second message after a Write."""

from __future__ import annotations

import os
import sys

import net
import pytest
from harness.rd_harness import RDEnd
from harness.rd_stranger import ScriptedRDPeer, scripted_peer
from harness.verbs_harness import Rig, assert_no_completion, octet_pattern, wait_until

from siwarp.inspect import DDP, Opcode, Queue
from siwarp.verbs import (
    AH,
    AccessFlag,
    ErrorOrigin,
    QPAttr,
    QPState,
    RecvWR,
    SendFlag,
    SendWR,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)

SEND, READ = WROpcode.SEND, WROpcode.RDMA_READ
WRITE_IMM, SEND_IMM = WROpcode.RDMA_WRITE_WITH_IMM, WROpcode.SEND_WITH_IMM
PRIVATE = 15
IMM = 0x01C2_83FE
SIZES = [0, 1, 64, 1023, 1025, 65_489, 65_536, 1 << 20]
MESSAGE_COUNT = 200 if "SANITIZER" in os.environ else 600


def encode_native_uint32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


def post_write_with_immediate(a: RDEnd, b: RDEnd, length: int, wr_id: int = 3, **more: int) -> None:
    a.post_rdma(b, WRITE_IMM, length, wr_id, imm_data=more.pop("imm", IMM), **more)


def post_to_scripted_peer(
    a: RDEnd, s: ScriptedRDPeer, opcode: WROpcode, length: int, **more: int
) -> AH:
    """Post a request to the scripted peer; the caller must keep the returned address handle."""
    ah = AH(a.rig.pd, s.addr)
    wr = SendWR(2, opcode, sg=[a.out.sge(0, length)], ah=ah, remote=a.into.remote(), **more)
    a.qp.post_send(wr)
    return ah


# ---- effects of immediate data


@pytest.mark.clause("DGRAM-IMM-3", "DGRAM-IMM-4")
@pytest.mark.parametrize("size", SIZES)
def test_an_rd_write_with_immediate_consumes_a_receive_but_not_its_buffer(
    rig: Rig, size: int
) -> None:
    a, b = RDEnd(rig, 1 << 20), RDEnd(rig, 1 << 20)
    spare = rig.reg_mr(bytearray(b"\xdd" * 64))
    a.out.view[:size] = octet_pattern(size, size)
    b.qp.post_recv(RecvWR(7, sg=[spare.sge()]))
    post_write_with_immediate(a, b, size, 8)
    (got,), (sent,) = b.poll_receives(), a.poll_sends()
    assert (sent.wr_id, sent.ok, sent.opcode) == (8, True, WCOpcode.RDMA_WRITE)
    assert (got.wr_id, got.ok, got.opcode) == (7, True, WCOpcode.RECV_RDMA_WITH_IMM)
    assert (got.wc_flags, got.imm_data, got.byte_len) == (WCFlag.WITH_IMM, IMM, size)
    assert (got.source, got.src_qp) == (a.qp.addr, a.qp.qp_num)
    assert b.into.read(size) == octet_pattern(size, size)
    assert spare.read() == b"\xdd" * 64


@pytest.mark.clause("DGRAM-IMM-5")
@pytest.mark.parametrize("size", SIZES)
def test_an_rd_send_with_immediate_delivers_payload_and_immediate_data(rig: Rig, size: int) -> None:
    a, b = RDEnd(rig, 1 << 20), RDEnd(rig, 1 << 20)
    b.into.view[:64] = b"\xee" * 64
    b.post_receive(7, size)
    a.send(b, octet_pattern(size, size), 8, opcode=SEND_IMM, imm_data=IMM)
    (got,), (sent,) = b.poll_receives(), a.poll_sends()
    assert (sent.wr_id, sent.ok, sent.opcode) == (8, True, WCOpcode.SEND)
    assert (got.wr_id, got.ok, got.opcode, got.byte_len) == (7, True, WCOpcode.RECV, size)
    assert (got.wc_flags, got.imm_data, got.source) == (WCFlag.WITH_IMM, IMM, a.qp.addr)
    assert b.into.read(size) == octet_pattern(size, size)
    assert set(b.into.read(max(0, 64 - size), size)) <= {0xEE}


def test_rd_requests_with_immediate_may_have_inline_data(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    flags = SendFlag.INLINE | SendFlag.SIGNALED
    a.out.view[:64] = octet_pattern(64)
    b.qp.post_recv([RecvWR(1), RecvWR(2, sg=[b.into.sge(64, 64)])])
    post_write_with_immediate(a, b, 64, flags=flags)
    a.send(b, octet_pattern(64, 5), opcode=SEND_IMM, imm_data=6, flags=flags)
    a.out.view[:64] = bytes(64)
    assert [w.imm_data for w in b.poll_receives(2)] == [IMM, 6]
    assert b.into.read(128) == octet_pattern(64) + octet_pattern(64, 5)
    assert all(w.ok for w in a.poll_sends(2))


def test_a_solicited_request_with_immediate_raises_the_solicited_completion_event(rig: Rig) -> None:
    channel = rig.create_channel()
    b = RDEnd(rig, channel=channel)
    a = RDEnd(rig)
    solicited = SendFlag.SIGNALED | SendFlag.SOLICITED
    for opcode in (WRITE_IMM, SEND_IMM):
        b.qp.post_recv([RecvWR(1), RecvWR(2)])
        b.rcq.req_notify(solicited_only=True)
        a.post_rdma(b, opcode, 0, imm_data=1)
        assert b.poll_receives()[0].ok
        assert channel.get_cq_event(0.02) is None
        a.post_rdma(b, opcode, 0, imm_data=2, flags=solicited)
        assert channel.get_cq_event(10) is b.rcq
        b.rcq.ack_events(1)
        assert b.poll_receives()[0].imm_data == 2
        assert all(w.ok for w in a.poll_sends(2))


def test_a_write_with_immediate_waits_for_a_receive_and_reports_its_own_length(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    for i, size in enumerate((70, 5)):
        post_write_with_immediate(a, b, size, i, imm=i)
    assert_no_completion(a.scq, 0.1)  # the wait is longer than the lifetime of idle streams
    for i in range(2):
        b.qp.post_recv(RecvWR(i))
    assert [(w.wr_id, w.imm_data, w.byte_len) for w in b.poll_receives(2)] == [
        (0, 0, 70),
        (1, 1, 5),
    ]
    assert [w.wr_id for w in a.poll_sends(2)] == [0, 1]


def test_flushed_requests_with_immediate_that_wait_for_a_receive_are_not_delivered(
    rig: Rig,
) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    post_write_with_immediate(a, b, 10, 1)
    a.send(b, b"x", 2, offset=64, opcode=SEND_IMM, imm_data=1)
    assert_no_completion(a.scq)
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    flushed = WCStatus.WR_FLUSH_ERR
    assert [(w.wr_id, w.status, w.source) for w in a.poll_sends(2)] == [
        (1, flushed, b.qp.addr),
        (2, flushed, b.qp.addr),
    ]
    net.sleep(0.001)  # wait until the peer has been notified of the flush
    b.post_receive()
    assert_no_completion(b.rcq)


def test_immediate_data_arrives_once_and_in_order_over_an_unreliable_network(rig: Rig) -> None:
    a, b = RDEnd(rig, depth=128), RDEnd(rig, depth=128)
    b.qp.post_recv([RecvWR(i, sg=[b.into.sge(40_000, 64)]) for i in range(128)])
    got, posted, done = [], 0, 0

    def post_requests_and_poll_completions() -> bool:
        nonlocal posted, done
        while posted < MESSAGE_COUNT and posted - done < 32:
            if posted % 3:
                post_write_with_immediate(a, b, posted % 7 * 5000, posted, imm=posted)
            else:
                a.send(b, b"", posted, opcode=SEND_IMM, imm_data=posted)
            posted += 1
        for wc in a.scq.poll(32):
            assert (wc.ok, wc.wr_id) == (True, done)
            done += 1
        for wc in b.rcq.poll(32):
            got.append((wc.imm_data, wc.byte_len))
            b.qp.post_recv(RecvWR(wc.wr_id, sg=[b.into.sge(40_000, 64)]))
        return done == MESSAGE_COUNT and len(got) == MESSAGE_COUNT

    with net.apply_fault_plan("loss=5%,dup=5%,reorder=10%,corrupt=0.1%,seed=7"):
        wait_until(post_requests_and_poll_completions, 60)
    assert got == [(i, i % 7 * 5000 if i % 3 else 0) for i in range(MESSAGE_COUNT)]


# ---- messages on the wire


@pytest.mark.clause("DGRAM-IMM-1", "DGRAM-IMM-2")
@pytest.mark.parametrize("solicited", [False, True])
def test_an_rd_write_with_immediate_is_sent_as_a_write_and_an_immediate_data_message(
    rig: Rig, solicited: bool
) -> None:
    a = RDEnd(rig)
    a.out.view[:100] = octet_pattern(100)
    flags = SendFlag.SIGNALED | (SendFlag.SOLICITED if solicited else 0)
    with scripted_peer(a, connect=False) as s:
        keep = (
            post_to_scripted_peer(a, s, SEND, 3),
            post_to_scripted_peer(a, s, WRITE_IMM, 100, imm_data=IMM, send_flags=flags),
        )
        head, octets = s.receive_segment()
        assert (head.opcode, head.qn, head.msn) == (Opcode.SEND, Queue.SEND, 1)
        head, octets = s.receive_segment()
        assert (head.opcode, head.l) == (Opcode.RDMA_WRITE, 1)
        assert (head.stag, head.to, octets) == (a.into.rkey, a.into.addr, octet_pattern(100))
        head, octets = s.receive_segment()
        assert head.opcode == (Opcode.IMMEDIATE_SE if solicited else Opcode.IMMEDIATE)
        assert (head.qn, head.msn, head.mo, head.l) == (Queue.SEND, 2, 0, 1)
        assert (head.inv_stag, head.rv) == (0, 1)
        assert octets == encode_native_uint32(IMM) + bytes(4)
        assert all(w.ok for w in a.poll_sends(2))
        del keep


@pytest.mark.clause("DGRAM-IMM-6")
@pytest.mark.parametrize("solicited", [False, True])
def test_an_rd_send_with_immediate_is_sent_as_a_private_message_with_a_header(
    rig: Rig, solicited: bool
) -> None:
    a = RDEnd(rig)
    a.out.view[:8] = b"payload!"
    flags = SendFlag.SIGNALED | (SendFlag.SOLICITED if solicited else 0)
    with scripted_peer(a, connect=False) as s:
        keep = post_to_scripted_peer(a, s, SEND_IMM, 8, imm_data=IMM, send_flags=flags)
        head, octets = s.receive_segment()
        assert (head.opcode, head.qn, head.msn, head.l) == (PRIVATE, Queue.SEND, 1, 1)
        assert (
            octets
            == bytes([2 if solicited else 1, 0, 0, 0]) + encode_native_uint32(IMM) + b"payload!"
        )
        assert a.poll_sends()[0].ok
        del keep


def build_immediate(s: ScriptedRDPeer, octets: bytes = bytes(8)) -> bytes:
    return s.build_untagged(Opcode.IMMEDIATE, octets)


def test_the_length_of_a_write_with_immediate_is_known_after_an_idle_time(rig: Rig) -> None:
    b = RDEnd(rig)
    b.qp.post_recv([RecvWR(i) for i in range(3)])
    with scripted_peer(b) as s:
        s.send_and_wait(s.build_write(octet_pattern(30), l=0), s.build_write(octet_pattern(20), 30))
        assert_no_completion(
            b.rcq, 0.15
        )  # the wait is longer than the time after which idle streams are released
        s.send_and_wait(build_immediate(s))
        assert b.poll_receives()[0].byte_len == 50
        s.send_and_wait(s.build_write(octet_pattern(30), l=0))
        assert_no_completion(b.rcq, 0.15)
        s.send_and_wait(s.build_write(octet_pattern(7), 30), build_immediate(s), build_immediate(s))
        assert [w.byte_len for w in b.poll_receives(2)] == [37, 0]


# ---- refused requests


@pytest.mark.clause("DGRAM-RDV-13")
@pytest.mark.parametrize("size", [10, 300_000])
def test_immediate_data_of_a_refused_write_consumes_no_receive(rig: Rig, size: int) -> None:
    a, b = RDEnd(rig, 1 << 19), RDEnd(rig, 1 << 19)
    closed = rig.reg_mr(1 << 19, AccessFlag.LOCAL_WRITE)
    b.post_receive(5, 64)
    a.post_rdma(b, WRITE_IMM, size, 1, remote=closed.remote(), imm_data=IMM)
    post_write_with_immediate(a, b, 20, 2, imm=9)
    (got,) = b.poll_receives()
    assert (got.wr_id, got.imm_data, got.byte_len) == (5, 9, 20)
    sent = a.poll_sends(2)
    # An error that was reported before the peer had all data is in the completion; any other error
    # is in the error queue.
    assert sent[0].status in (WCStatus.REM_ACCESS_ERR, WCStatus.SUCCESS) and sent[1].ok
    if sent[0].ok:
        (report,) = wait_until(a.qp.errors)
        assert (report.origin, report.source) == (ErrorOrigin.REPORTED, b.qp.addr)
    assert set(closed.read()) == {0}


@pytest.mark.clause("DGRAM-RDV-13")
def test_the_sender_of_a_refused_write_with_immediate_receives_one_error_message(rig: Rig) -> None:
    b = RDEnd(rig)
    b.post_receive(5, 64)
    with scripted_peer(b) as s:
        s.send_and_wait(
            s.build_write(b"bad", stag=1),
            build_immediate(s),
            s.build_write(b"good"),
            build_immediate(s),
        )
        told = s.receive_terminate()
        assert (told.layer, told.etype, told.code) == (1, 1, 0)
        assert (told.quoted_ddp.stag, told.quoted_ddp.to) == (1, b.into.addr)
        (got,) = b.poll_receives()
        assert (got.wr_id, got.byte_len) == (5, 4)
        b.post_receive(6, 64)
        s.send_and_wait(s.build_untagged(Opcode.SEND, b"x"))
        assert (b.poll_receives()[0].wr_id, s.got) == (6, [])


@pytest.mark.clause("DGRAM-RDV-14")
def test_an_rd_write_reported_invalid_while_it_is_sent_is_completed_after_its_last_segment(
    rig: Rig,
) -> None:
    size = 3 << 20
    a = RDEnd(rig, size)
    with scripted_peer(a, connect=False) as s:
        first: list[DDP] = []
        s.keeps = lambda head: bool(first) and head.to > first[0].to + (1 << 18)
        keep = post_to_scripted_peer(a, s, WRITE_IMM, size, imm_data=IMM)
        first.append(s.receive_segment()[0])
        s.send_error_message(first[0], (1, 1, 0))
        assert_no_completion(
            a.scq
        )  # No completion is expected yet, because siwarp still reads the memory of the Write.
        s.acknowledge_all_received_segments()
        end = s.receive_segment()[0]
        while end.opcode != Opcode.IMMEDIATE:
            end = s.receive_segment()[0]
        (wc,) = a.poll_sends()
        assert (wc.wr_id, wc.status) == (2, WCStatus.REM_ACCESS_ERR)
        del keep


def test_an_error_message_about_immediate_data_fails_its_write(rig: Rig) -> None:
    size = 1 << 20
    a = RDEnd(rig, size)
    with scripted_peer(a, connect=False) as s:
        s.keeps = lambda head: head.opcode == Opcode.IMMEDIATE
        keep = post_to_scripted_peer(a, s, WRITE_IMM, size, imm_data=IMM)
        head = s.receive_segment()[0]
        while head.opcode != Opcode.IMMEDIATE:
            head = s.receive_segment()[0]
        s.send_error_message(head, (0, 2, 0xFF))
        s.acknowledge_all_received_segments()
        (wc,) = a.poll_sends()
        assert (wc.wr_id, wc.status) == (2, WCStatus.REM_OP_ERR)
        del keep


@pytest.mark.parametrize("size", [0, 4, 7, 9, 100])
def test_immediate_data_of_invalid_size_is_refused_and_consumes_no_receive(
    rig: Rig, size: int
) -> None:
    b = RDEnd(rig)
    b.post_receive(4, 200)
    with scripted_peer(b) as s:
        s.send_and_wait(build_immediate(s, b"\xaa" * size), s.build_untagged(Opcode.SEND, b"good"))
        told = s.receive_terminate()
        assert (told.layer, told.etype, told.code) == (0, 2, 0xFF)
        assert told.quoted_ddp.msn == 1
        (got,) = b.poll_receives()
        assert (got.wr_id, got.byte_len, b.into.read(4)) == (4, 4, b"good")


@pytest.mark.clause("DGRAM-IMM-10")
@pytest.mark.parametrize("body", [b"", b"\1\0\0", b"\0" * 8, b"\3" + bytes(20)])
def test_an_unknown_private_message_is_refused_and_consumes_no_receive(
    rig: Rig, body: bytes
) -> None:
    b = RDEnd(rig)
    b.post_receive(4, 200)
    with scripted_peer(b) as s:
        s.send_and_wait(s.build_untagged(PRIVATE, body), s.build_untagged(Opcode.SEND, b"good"))
        told = s.receive_terminate()
        assert (told.layer, told.etype, told.code, told.quoted_ddp.msn) == (0, 2, 6, 1)
        (got,) = b.poll_receives()
        assert (got.wr_id, got.byte_len, b.into.read(4)) == (4, 4, b"good")
        assert b.qp.qp_state == QPState.RTS
