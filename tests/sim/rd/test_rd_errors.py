"""RD: an error of one message does not affect other messages."""

from __future__ import annotations

import pytest
from harness.rd_harness import QKEY, RDEnd
from harness.rd_stranger import scripted_peer
from harness.verbs_harness import ALL_ACCESS, Rig, octet_pattern, wait_until

from siwarp.inspect import (
    DDPUntagged,
    Opcode,
    Queue,
    Terminate,
)
from siwarp.inspect.rd import RDReason, RDType
from siwarp.verbs import (
    AccessFlag,
    ErrorOrigin,
    ErrorPolicy,
    QPAttr,
    QPState,
    SendWR,
    WCStatus,
    WROpcode,
)


@pytest.mark.clause("DGRAM-RDV-7", "DGRAM-RDV-8")
@pytest.mark.parametrize("kind", ["stag", "bounds", "rights"])
def test_a_refused_rd_read_fails_and_the_next_read_succeeds(rig: Rig, kind: str) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    closed = rig.reg_mr(64, AccessFlag.LOCAL_WRITE)
    remote = b.into.remote()
    bad = {
        "stag": type(remote)(remote.addr, remote.length, remote.rkey ^ 0x5555),
        "bounds": type(remote)(remote.addr + b.size - 8, 64, remote.rkey),
        "rights": closed.remote(),
    }[kind]
    b.into.view[256:260] = b"good"
    a.post_rdma(b, WROpcode.RDMA_READ, 4, 1)
    a.post_rdma(b, WROpcode.RDMA_READ, 64, 2, offset=64, remote=bad)
    a.post_rdma(b, WROpcode.RDMA_READ, 4, 3, offset=256)
    assert [(w.wr_id, w.status) for w in a.poll_sends(3)] == [
        (1, WCStatus.SUCCESS),
        (2, WCStatus.REM_ACCESS_ERR),
        (3, WCStatus.SUCCESS),
    ]
    assert a.out.read(4, 256) == b"good"
    assert (a.qp.qp_state, b.qp.qp_state) == (QPState.RTS, QPState.RTS)
    (found,) = wait_until(b.qp.errors)
    assert (found.origin, found.source) == (ErrorOrigin.FOUND, a.qp.addr)


@pytest.mark.clause("DGRAM-RDV-7", "DGRAM-RDV-8")
def test_a_refused_rd_write_changes_no_memory_and_is_reported(rig: Rig) -> None:
    a, b = RDEnd(rig, 1 << 18), RDEnd(rig, 1 << 18)
    b.into.view[:] = b"\xee" * b.size
    remote = b.into.remote()
    bad = type(remote)(remote.addr, remote.length, remote.rkey ^ 1)
    a.post_rdma(b, WROpcode.RDMA_WRITE, 200_000, 1, remote=bad)
    a.post_rdma(b, WROpcode.RDMA_WRITE, 4, 2)
    sent = a.poll_sends(2)
    assert [w.wr_id for w in sent] == [1, 2] and sent[1].ok
    assert set(b.into.read(200_000, 4)) == {0xEE}
    if sent[0].ok:  # all data was acknowledged before the error message arrived
        (report,) = wait_until(a.qp.errors)
        assert (report.origin, report.source) == (ErrorOrigin.REPORTED, b.qp.addr)
    else:
        assert sent[0].status == WCStatus.REM_ACCESS_ERR
    assert wait_until(b.qp.errors)[0].origin == ErrorOrigin.FOUND
    assert b.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-RDV-7", "DGRAM-RDV-8")
def test_an_rd_write_beyond_the_end_of_a_region_is_placed_up_to_the_end(rig: Rig) -> None:
    b = RDEnd(rig, 1 << 12)
    b.post_receive(1, 64)
    with scripted_peer(b) as s:
        end = b.size
        parts = [
            s.build_write(b"good", end - 4, l=0),
            s.build_write(b"evil", end, l=0),
            s.build_write(b"more", end + 4),
        ]
        s.send_and_wait(*parts, s.build_untagged(Opcode.SEND, b"behind"))
        told = s.receive_terminate()
        assert (told.layer, told.etype, told.code) == (1, 1, 1)
        assert (told.quoted_ddp.stag, told.quoted_ddp.to) == (b.into.rkey, b.into.addr + end)
        assert b.poll_receives()[0].byte_len == 6
        assert b.into.read(6) == b"behind" and b.into.read(4, end - 4) == b"good"
        assert not any(b.into.read(end - 68, 64))
        assert not s.receives_segment_within(0.02), (
            "siwarp sent more than one error message for one message"
        )


@pytest.mark.clause("DGRAM-RDV-7", "DGRAM-RDV-8")
@pytest.mark.parametrize("what", ["another place", "another STag", "a Send"])
def test_a_segment_that_does_not_continue_a_refused_write_is_checked_separately(
    rig: Rig, what: str
) -> None:
    b = RDEnd(rig, 1 << 12)
    b.post_receive(1, 64)
    other = rig.reg_mr(bytearray(64), ALL_ACCESS)
    with scripted_peer(b) as s:
        s.send_and_wait(s.build_write(b"evil", b.size, l=0))
        assert s.receive_terminate().code == 1
        more = {
            "another place": lambda: s.build_write(b"good", 100),
            "another STag": lambda: s.build_write(
                b"good", b.size + 4, stag=other.rkey, to=other.addr
            ),
            "a Send": lambda: s.build_untagged(Opcode.SEND, b"good"),
        }[what]()
        s.send_and_wait(more)
        if what == "a Send":
            assert b.poll_receives()[0].byte_len == 4 and b.into.read(4) == b"good"
        else:
            s.send_and_wait(s.build_untagged(Opcode.SEND, b"behind it"))
            assert (
                b.poll_receives()[0].byte_len == 9
            )  # the preceding Write has been placed when this Send completes
            assert (b.into.read(4, 100) if what == "another place" else other.read(4)) == b"good"
        assert not s.receives_segment_within(0.02)


@pytest.mark.clause("DGRAM-RDV-7", "DGRAM-RDV-8")
@pytest.mark.parametrize("what", ["the rest of it", "a hole"])
def test_a_send_longer_than_its_receive_ends_with_its_last_segment(rig: Rig, what: str) -> None:
    b = RDEnd(rig)
    b.post_receive(1, 4)
    b.post_receive(2, 64, 100)
    with scripted_peer(b) as s:
        s.send_and_wait(s.build_untagged(Opcode.SEND, b"longer than it", l=0))
        told = s.receive_terminate()
        assert (told.layer, told.etype, told.code) == (1, 2, 5)
        if what == "the rest of it":
            s.send_and_wait(s.build_untagged(Opcode.SEND, b"and on", mo=14))
        else:
            s.send_and_wait(s.build_untagged(Opcode.SEND, b"behind it", mo=20))
            s.receive_terminate()
        s.send_and_wait(s.build_untagged(Opcode.SEND, b"on"))
        got = b.poll_receives(2)
        assert [(w.wr_id, w.status) for w in got] == [
            (1, WCStatus.LOC_LEN_ERR), (2, WCStatus.SUCCESS)
        ]  # fmt: skip
        assert b.into.read(2, 100) == b"on"


@pytest.mark.clause("DGRAM-RDV-7", "RFC5040-4.8-06")
@pytest.mark.parametrize("octets", [0, 1, 27])
def test_an_rd_read_request_of_wrong_length_is_an_unquoted_operation_error(
    rig: Rig, octets: int
) -> None:
    b = RDEnd(rig)
    b.post_receive(1, 64)
    with scripted_peer(b) as s:
        request = s.build_read_request(8)[: 18 + octets]
        s.send_and_wait(request, s.build_untagged(Opcode.SEND, b"on"))
        told = s.receive_terminate()
        assert (told.layer, told.etype, told.code) == (0, 2, 0xFF)
        assert (told.m, told.d, told.r) == (1, 1, 0)
        assert bytes(told) == bytes(told)[:6] + request[:18], (
            "the error message quotes a part of the Read Request"
        )
        assert b.poll_receives()[0].byte_len == 2


@pytest.mark.clause("DGRAM-RDV-7", "DGRAM-RDV-8")
@pytest.mark.parametrize("qn", [4, 5, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_send_to_an_undefined_queue_number_is_refused_and_the_next_send_arrives(
    rig: Rig, qn: int
) -> None:
    b = RDEnd(rig)
    b.post_receive(1, 64)
    with scripted_peer(b) as s:
        head = DDPUntagged(opcode=Opcode.SEND, qn=qn, msn=1)
        s.send_and_wait(bytes(head) + b"astray", s.build_untagged(Opcode.SEND, b"on"))
        told = s.receive_terminate()
        assert (told.layer, told.etype, told.code) == (1, 2, 1)
        assert told.quoted_ddp.qn == qn
        assert b.poll_receives()[0].byte_len == 2
    assert b.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-RDV-8")
def test_refused_rd_reads_are_answered_in_the_order_of_the_requests(rig: Rig) -> None:
    b = RDEnd(rig)
    with scripted_peer(b) as s:
        bad = (
            s.build_read_request(8, 0),
            s.build_read_request(8, 0, src_stag=1),
            s.build_read_request(8, b.size - 4),
            s.build_read_request(8, 64),
        )
        s.send_and_wait(*bad)
        answers = [s.receive_segment() for _ in range(4)]
        assert [head.opcode for head, _ in answers] == [
            Opcode.RDMA_READ_RESPONSE,
            Opcode.TERMINATE,
            Opcode.TERMINATE,
            Opcode.RDMA_READ_RESPONSE,
        ]
        for i, code in ((1, 0), (2, 1)):
            head, octets = answers[i]
            told = Terminate(octets)
            assert (head.qn, head.msn, head.mo, head.l) == (Queue.TERMINATE, i, 0, 1)
            assert (told.layer, told.etype, told.code) == (0, 1, code)
            assert (told.m, told.d, told.r, told.ddp_seg_len) == (1, 1, 1, 18 + 28)
            # An error message quotes the DDP header and the Read Request unchanged.
            assert octets[6:] == bad[i]


@pytest.mark.clause("DGRAM-RDV-8")
@pytest.mark.parametrize(
    ("body", "fields"),
    [
        *((body, {}) for body in (b"", bytes(3), b"\xff" * 6, b"\xff" * 52, bytes(200))),
        *((bytes(size), {}) for size in (257, 2000)),  # bodies longer than an error message may be
        (bytes(24), {"mo": 5, "msn": 1}),
        (bytes(24), {"rv": 3}),
        ("sound", {}),
    ],
)
def test_siwarp_never_answers_an_error_message_with_an_error_message(
    rig: Rig, body: bytes | str, fields: dict[str, int]
) -> None:
    b = RDEnd(rig)
    b.post_receive(1, 64)
    with scripted_peer(b) as s:
        if isinstance(body, str):  # an error message about a message that siwarp never sent
            s.send_error_message(DDPUntagged(opcode=Opcode.SEND, msn=7), (0, 2, 6))
        else:
            s.send_and_wait(s.build_untagged(Opcode.TERMINATE, body, qn=Queue.TERMINATE, **fields))
        s.send_and_wait(s.build_untagged(Opcode.SEND, b"on"), s.build_read_request(8))
        assert b.poll_receives()[0].byte_len == 2
        assert s.receive_segment()[0].opcode == Opcode.RDMA_READ_RESPONSE
        assert not s.receives_segment_within(0.02)
    assert b.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-RDV-12")
def test_a_message_longer_than_its_receive_completes_the_receive_with_a_length_error(
    rig: Rig,
) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    for size in (65, 20_000):
        b.into.view[:] = b"\xee" * b.size
        b.post_receive(1, 64)
        b.post_receive(2, 64, 128)
        a.send(b, octet_pattern(size), 1)
        a.send(b, b"fits", 2, offset=size)
        got = b.poll_receives(2)
        assert [(w.wr_id, w.status) for w in got] == [
            (1, WCStatus.LOC_LEN_ERR),
            (2, WCStatus.SUCCESS),
        ]
        assert b.into.read(4, 128) == b"fits"
        assert len(a.poll_sends(2)) == 2
        assert set(b.into.read(64, 64)) == set(b.into.read(b.size - 132, 132)) == {0xEE}


def test_with_error_policy_error_a_refused_message_moves_the_queue_pair_to_err(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig, policy=ErrorPolicy.ERROR)
    remote = b.into.remote()
    b.post_receive(5)
    a.post_rdma(b, WROpcode.RDMA_READ, 4, 1, remote=type(remote)(remote.addr, 64, remote.rkey ^ 1))
    assert a.poll_sends()[0].status in (WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR)
    wait_until(lambda: b.qp.qp_state == QPState.ERR)
    assert b.poll_receives()[0].status == WCStatus.WR_FLUSH_ERR
    for step in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS):
        b.qp.modify(QPAttr(qp_state=step, qkey=QKEY if step == QPState.INIT else None))
    b.post_receive(6)
    wait_until(lambda: a.send(b, b"again", 2) or a.poll_sends()[0].ok)
    assert b.poll_receives()[0].wr_id == 6


def test_an_invalid_local_key_moves_an_rd_send_queue_to_sqe_until_the_program_resumes_it(
    rig: Rig,
) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    b.post_receive(1)
    sge = a.out.sge(0, 4)
    sge.lkey ^= 1
    a.qp.post_send(SendWR(1, sg=[sge], ah=a.address_handle(b)))
    assert a.poll_sends()[0].status == WCStatus.LOC_PROT_ERR
    assert a.qp.qp_state == QPState.SQE
    a.send(b, b"late", 2)
    assert a.poll_sends()[0].status == WCStatus.WR_FLUSH_ERR
    a.qp.modify(QPAttr(qp_state=QPState.RTS))
    a.send(b, b"fine", 3)
    assert a.poll_sends()[0].ok and b.poll_receives()[0].byte_len == 4


@pytest.mark.clause("DGRAM-RDV-18")
@pytest.mark.parametrize("qn", [Queue.SEND, Queue.READ_REQUEST, Queue.TERMINATE])
@pytest.mark.parametrize("msn", [0, 3, 1 << 31])
def test_a_message_out_of_sequence_ends_the_incarnation_with_reason_sequence(
    rig: Rig, qn: Queue, msn: int
) -> None:
    opcodes = {
        Queue.SEND: Opcode.SEND,
        Queue.READ_REQUEST: Opcode.RDMA_READ_REQUEST,
        Queue.TERMINATE: Opcode.TERMINATE,
    }
    b, c = RDEnd(rig), RDEnd(rig)
    b.post_receive(1, 64)
    b.post_receive(2, 64)
    with scripted_peer(b) as s:
        s.send_and_wait(s.build_untagged(Opcode.SEND, b"one"))
        assert b.poll_receives()[0].wr_id == 1
        s.send_segment(s.build_untagged(opcodes[qn], bytes(28), qn=qn, msn=msn))
        while (d := s.receive_and_answer_datagram()).type != RDType.BYE:
            pass
        assert (d.source_epoch, d.dest_epoch, d.ird) == (s.other, s.epoch, RDReason.SEQUENCE)
        (found,) = wait_until(b.qp.errors)
        assert (found.origin, found.source) == (ErrorOrigin.FOUND, s.addr)
        assert b.qp.qp_state == QPState.RTS
        s.restart_and_connect()
        s.send_and_wait(s.build_untagged(Opcode.SEND, b"two"))
        assert b.poll_receives()[0].wr_id == 2
    b.post_receive(3, 64)
    c.send(b, b"others go on")
    assert c.poll_sends()[0].ok and b.poll_receives()[0].wr_id == 3
