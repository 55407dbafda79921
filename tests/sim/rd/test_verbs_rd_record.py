"""Write-Records on RD: the same messages as on UD, but delivered complete, once and in order."""

from __future__ import annotations

import os

import net
import pytest
from harness.rd_harness import RDEnd
from harness.rd_stranger import ScriptedRDPeer, scripted_peer
from harness.verbs_harness import (
    Rig,
    assert_no_completion,
    errno_raised_by,
    octet_pattern,
    poll,
    wait_until,
)

from siwarp.inspect import DDPTagged, Opcode, RecordHeader
from siwarp.verbs import (
    AH,
    WC,
    AccessFlag,
    QPAttr,
    QPState,
    Record,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
)

RECORD = WROpcode.RDMA_WRITE_RECORD
PRIVATE = 15
REMOTE = RemoteBuffer(0x1000, 1 << 20, 0x123456)
SIZES = [0, 1, 64, 1400, 65_457, 65_536, 1 << 20]
MESSAGE_COUNT = 100 if "SANITIZER" in os.environ else 300


def poll_write_records(peer: RDEnd, n: int = 1) -> list[tuple[WC, Record]]:
    found = []
    for wc in peer.poll_receives(n):
        assert (wc.status, wc.opcode) == (0, WCOpcode.RECV_WRITE_RECORD)
        found.append((wc, peer.qp.record(wc)))
    return found


def consecutive_message_ids(first: int, n: int) -> list[int]:
    return [(first + i) & 0xFFFFFFFF for i in range(n)]


@pytest.mark.clause("DGRAM-REC-17")
@pytest.mark.parametrize("size", SIZES)
def test_an_rd_write_record_is_reported_once_complete_and_consumes_no_receive(
    rig: Rig, size: int
) -> None:
    a, b = RDEnd(rig, 1 << 20), RDEnd(rig, 1 << 20, max_write_records=4)
    b.post_receive(77, 64)
    a.out.view[:size] = octet_pattern(size, size)
    ids: list[int] = []
    for number in (1, 2):
        a.post_rdma(b, RECORD, size, number)
        ((wc, record),) = poll_write_records(b)
        assert (wc.byte_len, wc.source, wc.src_qp) == (size, a.qp.addr, a.qp.qp_num)
        ids.append(record.message_id)
        assert record.source == a.qp.addr and ids == consecutive_message_ids(ids[0], number)
        assert (record.addr, record.rkey) == (b.into.addr, b.into.rkey)
        assert (record.length, record.valid, record.whole) == (size, size, True)
        assert record.ranges == (((0, size),) if size else ())
        (sent,) = a.poll_sends()
        assert (sent.wr_id, sent.ok, sent.opcode) == (number, True, WCOpcode.RDMA_WRITE)
    assert b.into.read(size) == octet_pattern(size, size)
    a.send(b, b"plain")
    assert b.poll_receives()[0].wr_id == 77


@pytest.mark.clause("DGRAM-REC-16", "DGRAM-REC-2")
@pytest.mark.parametrize("size", [0, 1, 150_000])
def test_each_segment_of_a_write_record_states_its_position_in_the_message(
    rig: Rig, size: int
) -> None:
    a = RDEnd(rig, 1 << 18)
    a.out.view[:size] = octet_pattern(size)
    with scripted_peer(a, connect=False) as s:
        ah, ids = AH(rig.pd, s.addr), []
        sg = [a.out.sge(0, size)]
        for flags in (SendFlag.SIGNALED, SendFlag.SIGNALED | SendFlag.SOLICITED):
            a.qp.post_send(SendWR(7, RECORD, sg=sg, ah=ah, remote=REMOTE, send_flags=flags))
        a.qp.post_send(SendWR(8, ah=ah))
        # The two messages were posted together and arrive one after the other.
        for number in (1, 2):
            got, last = b"", 0
            while not last:
                head, octets = s.receive_segment()
                record, last = RecordHeader(octets[:20]), head.l
                assert (head.opcode, head.rv, head.stag) == (PRIVATE, 1, REMOTE.rkey)
                assert head.to == REMOTE.addr + len(got)
                assert (record.subcode, record.flags, record.reserved) == (3, number - 1, 0)
                assert (record.to, record.length) == (REMOTE.addr, size)
                ids.append(record.message_id)
                got += octets[20:]
            assert got == octet_pattern(size)
        assert s.receive_segment()[0].opcode == Opcode.SEND
        assert [(w.wr_id, w.ok) for w in a.poll_sends(3)] == [(7, True), (7, True), (8, True)]
        # The first segments of the first message are short because they are built before the
        # incarnation is established.
        first = ids.count(ids[0])
        assert ids == [ids[0]] * first + [(ids[0] + 1) & 0xFFFFFFFF] * (len(ids) - first)


def test_write_records_arrive_once_and_complete_over_an_unreliable_network(rig: Rig) -> None:
    a, b = RDEnd(rig, 1 << 16, depth=64), RDEnd(rig, 1 << 16, max_write_records=64)
    got: list[tuple[int, int]] = []
    posted = done = 0

    def post_requests_and_poll_completions() -> bool:
        nonlocal posted, done
        while posted < MESSAGE_COUNT and posted - done < 32:
            a.post_rdma(b, RECORD, posted % 5 * 4000, posted)
            posted += 1
        done += len(a.scq.poll(32))
        for wc in b.rcq.poll(32):
            record = b.qp.record(wc)
            assert record.whole
            got.append((record.message_id, record.length))
        return done == MESSAGE_COUNT and len(got) == MESSAGE_COUNT

    with net.apply_fault_plan("loss=5%,dup=5%,reorder=10%,corrupt=0.1%,seed=3"):
        wait_until(post_requests_and_poll_completions, 60)
    assert [i for i, _ in got] == consecutive_message_ids(got[0][0], MESSAGE_COUNT)
    assert [size for _, size in got] == [i % 5 * 4000 for i in range(MESSAGE_COUNT)]


@pytest.mark.clause("DGRAM-REC-19")
def test_write_records_wait_at_their_sender_if_the_receiver_does_not_poll(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig, max_write_records=8)
    other = RDEnd(rig)
    for i in range(20):
        a.post_rdma(b, RECORD, 8, i)
    assert [w.wr_id for w in a.poll_sends(4)] == [0, 1, 2, 3]
    assert_no_completion(a.scq)
    b.post_receive(5, 64)
    other.send(b, b"another's goes on")
    assert other.poll_sends()[0].ok
    got = poll(b.rcq, 5)
    assert sorted(w.opcode for w in got) == [WCOpcode.RECV] + [WCOpcode.RECV_WRITE_RECORD] * 4
    ids = [b.qp.record(w).message_id for w in got if w.opcode == WCOpcode.RECV_WRITE_RECORD]
    while len(ids) < 20:
        ids += [record.message_id for _, record in poll_write_records(b)]
    assert ids == consecutive_message_ids(ids[0], 20)
    assert [w.wr_id for w in a.poll_sends(16)] == list(range(4, 20))
    assert errno_raised_by(b.qp.record, got[0]._replace(wr_id=99)) is not None


# ---- refused Write-Records


@pytest.mark.clause("DGRAM-REC-18")
@pytest.mark.parametrize("kind", ["stag", "bounds", "rights", "queue pair"])
@pytest.mark.parametrize("size", [64, 200_000])
def test_a_refused_rd_write_record_is_not_reported_and_changes_no_memory(
    rig: Rig, kind: str, size: int
) -> None:
    a, b = RDEnd(rig, 1 << 18), RDEnd(rig, 1 << 18, max_write_records=4)
    memory = rig.reg_mr(bytearray(size), AccessFlag.LOCAL_WRITE) if kind == "rights" else b.into
    to = memory.remote()
    if kind == "stag":
        to = RemoteBuffer(to.addr, to.length, to.rkey ^ 0x5555)
    elif kind == "bounds":
        to = RemoteBuffer(to.addr + b.size - size + 1, size, to.rkey)
    elif kind == "queue pair":
        b.qp.modify(QPAttr(qp_state=QPState.RTS, qp_access_flags=AccessFlag.REMOTE_READ))
    a.out.view[:size] = octet_pattern(size)
    a.post_rdma(b, RECORD, size, 1, remote=to)
    b.post_receive(5, 8)
    a.send(b, b"behind", 2, offset=size)
    assert b.poll_receives()[0].wr_id == 5
    first, second = a.poll_sends(2)
    assert (first.wr_id, second.wr_id, second.ok) == (1, 2, True)
    if first.ok:  # all data was acknowledged before the error message arrived
        assert wait_until(a.qp.errors)[0].source == b.qp.addr
    else:
        assert first.status == WCStatus.REM_ACCESS_ERR
    if kind != "bounds":
        assert set(memory.read(size, 8 if memory is b.into else 0)) == {0}
    assert_no_completion(b.rcq)


def build_write_record_segment(
    s: ScriptedRDPeer, octets: bytes, number: int, length: int, at: int, **fields: int
) -> bytes:
    base = s.end.into.addr
    head = {"message_id": number, "to": base, "length": length}
    ddp = {"stag": s.end.into.rkey, "to": base + at, "l": int(at + len(octets) == length)}
    for name, value in fields.items():
        kind, _, field = name.partition("_")
        (head if kind == "head" else ddp)[field] = value
    made = bytes(DDPTagged(opcode=PRIVATE, **ddp)) + bytes(RecordHeader(**head))
    return made + octets


@pytest.mark.clause("DGRAM-REC-18")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"head_subcode": 2}, 6),
        ({"ddp_l": 0}, 0xFF),
        ({"head_length": 3}, 0xFF),
        ({"head_to": 1 << 63}, 0xFF),
    ],
)
def test_an_invalid_write_record_segment_is_refused_with_an_error_message(
    rig: Rig, fields: dict[str, int], code: int
) -> None:
    b = RDEnd(rig, max_write_records=4)
    with scripted_peer(b) as s:
        s.send_and_wait(build_write_record_segment(s, b"evil", 1, 4, 0, **fields))
        answer = s.receive_terminate()
        assert (answer.layer, answer.etype, answer.code) == (0, 2, code)
        s.send_and_wait(build_write_record_segment(s, b"good", 2, 4, 0))
        ((_, record),) = poll_write_records(b)
        assert (record.message_id, record.ranges) == (2, ((0, 4),))
        assert b.into.read(4) == b"good"


@pytest.mark.clause("DGRAM-REC-18")
@pytest.mark.parametrize("other", [{"head_message_id": 6}, {"head_length": 9}, {"ddp_to": 3}])
def test_a_segment_that_does_not_continue_its_write_record_ends_the_message(
    rig: Rig, other: dict[str, int]
) -> None:
    b = RDEnd(rig, max_write_records=4)
    if "ddp_to" in other:
        other = {"ddp_to": b.into.addr + 5}
    with scripted_peer(b) as s:
        s.send_and_wait(
            build_write_record_segment(s, b"half", 5, 8, 0),
            build_write_record_segment(s, b"rest", 5, 8, 4, **other),
        )
        answer = s.receive_terminate()
        assert (answer.layer, answer.etype, answer.code) == (0, 2, 0xFF)
        s.send_and_wait(s.build_write(b"x", 100), build_write_record_segment(s, b"", 9, 0, 0))
        assert poll_write_records(b)[0][1].message_id == 9


@pytest.mark.clause("DGRAM-REC-9")
def test_an_rd_queue_pair_refuses_write_records_unless_they_were_enabled(rig: Rig) -> None:
    b = RDEnd(rig)
    b.post_receive(1, 8)
    with scripted_peer(b) as s:
        s.send_and_wait(
            build_write_record_segment(s, b"evil", 1, 4, 0), s.build_untagged(Opcode.SEND, b"")
        )
        answer = s.receive_terminate()
        assert (answer.layer, answer.etype, answer.code) == (0, 2, 6)
        assert b.poll_receives()[0].byte_len == 0
        assert b.into.read(4) == bytes(4)
