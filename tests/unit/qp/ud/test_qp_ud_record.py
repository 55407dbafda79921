"""Write-Record on UD: messages on the wire, completions at the target, and limits."""

from __future__ import annotations

import mmap
import socket
from collections.abc import Iterator

import crcmod.predefined
import pytest
from harness.record_harness import PRIVATE, QKEY, WriteRecordTarget
from harness.verbs_harness import (
    LIMIT,
    Pair,
    Rig,
    assert_counter_grows,
    counter_value,
    octet_pattern,
    poll,
    temporary_settings,
    wait_until,
)

from siwarp.inspect import DDPTagged, RecordDatagram, RecordHeader
from siwarp.verbs import (
    Error,
    QPAttr,
    QPState,
    RecvWR,
    SendWR,
    WCOpcode,
    WROpcode,
)

crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


@pytest.fixture(name="target")
def target_of_write_records(rig: Rig) -> Iterator[WriteRecordTarget]:
    made = WriteRecordTarget(rig)
    yield made
    made.close()


# ---- transmit


@pytest.mark.clause("DGRAM-REC-1", "DGRAM-REC-2", "DGRAM-REC-3")
@pytest.mark.parametrize("size", [0, 1, 65457, 65458, 150000])
def test_each_datagram_of_a_write_record_has_the_offset_of_its_payload(rig: Rig, size: int) -> None:
    most = 65507 - 12 - 14 - 20 - 4
    data = octet_pattern(size)
    out = rig.reg_mr(bytearray(data) if data else bytearray(1))
    remote = rig.reg_mr(bytearray(1)).remote()
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, qkey=QKEY)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.settimeout(LIMIT)
        to = rig.create_ah(s.getsockname())
        numbers: set[int] = set()
        for _ in range(2):
            opcode = WROpcode.RDMA_WRITE_RECORD
            qp.post_send(SendWR(7, opcode, sg=[out.sge(0, size)], ah=to, remote=remote))
            got = b""
            while True:
                octets = s.recv(1 << 16)
                found = RecordDatagram(octets)
                head = found.segment
                assert isinstance(head, DDPTagged)
                assert (found.type, found.mark, found.flags) == (2, 2, 0)
                assert (found.q_key, found.dest_index, found.source_index) == (QKEY, 0, 0)
                assert found.crc == crc32c(octets[:-4])
                assert (head.opcode, head.rv, head.stag) == (PRIVATE, 1, remote.rkey)
                assert head.to == remote.addr + len(got)
                record = RecordHeader(octets[26:46])
                assert (record.subcode, record.flags, record.reserved) == (3, 0, 0)
                assert (record.length, record.to) == (size, remote.addr)
                numbers.add(record.message_id)
                got += octets[46:-4]
                assert head.l == (len(got) == size)
                assert len(octets) - 50 == most or head.l
                if head.l:
                    break
            assert got == data
            (wc,) = poll(cq)
            assert (wc.wr_id, wc.ok, wc.opcode) == (7, True, WCOpcode.RDMA_WRITE)
    assert len(numbers) == 2 and (max(numbers) - min(numbers)) % (1 << 32) in (1, (1 << 32) - 1)


@pytest.mark.clause("DGRAM-REC-20")
def test_the_llp_header_of_a_write_record_has_both_queue_pair_indexes_and_a_psn(rig: Rig) -> None:
    first = rig.create_ud_qp(qkey=QKEY)
    qp = rig.create_ud_qp(qkey=QKEY, shared_socket_qp=first)
    out = rig.reg_mr(bytearray(70_000))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.settimeout(LIMIT)
        for n, size in enumerate((70_000, 0, 1)):
            wr = SendWR(
                1, WROpcode.RDMA_WRITE_RECORD, sg=[out.sge(0, size)],
                ah=rig.create_ah(s.getsockname()), remote=out.remote(),
                remote_qpn=5 << 16 | s.getsockname()[1], remote_qkey=0x77,
            )  # fmt: skip
            qp.post_send(wr)
            for psn in (0, 1) if n == 0 else (n + 1,):
                found = RecordDatagram(s.recv(1 << 16))
                assert (found.type, found.version, found.mark, found.flags) == (2, 1, 2, 0)
                assert (found.dest_index, found.source_index) == (5, qp.qp_num >> 16)
                assert (found.q_key, found.psn) == (0x77, psn)
            assert poll(qp.scq)[0].ok
    assert qp.qp_num >> 16


@pytest.mark.clause("DGRAM-REC-2")
def test_each_new_queue_pair_starts_its_message_ids_at_another_number(rig: Rig) -> None:
    target = WriteRecordTarget(rig)
    out = rig.reg_mr(bytearray(b"again"))
    ids = set()
    for _ in range(3):
        with rig.create_ud_qp() as qp:
            wr = SendWR(
                1, WROpcode.RDMA_WRITE_RECORD, sg=[out.sge()], ah=rig.create_ah(target.qp),
                remote=target.memory.remote(), remote_qkey=QKEY,
            )  # fmt: skip
            qp.post_send(wr)
            ((_, record),) = target.poll_write_records()
            ids.add(record.message_id)
            assert poll(qp.scq)[0].ok
    assert len(ids) == 3
    target.close()


def test_a_write_record_is_delivered_completely_and_consumes_no_receive(rig: Rig) -> None:
    pair = Pair(rig)
    size = 1 << 20
    data = octet_pattern(size)
    target = WriteRecordTarget(rig, size=size)
    target.qp.post_recv([RecvWR(i) for i in range(target.qp.cap.max_recv_wr)])
    out = rig.reg_mr(bytearray(data))
    ids = []
    for _ in range(3):
        target.memory.view[:] = bytes(size)
        wr = SendWR(
            1,
            WROpcode.RDMA_WRITE_RECORD,
            sg=[out.sge()],
            ah=rig.create_ah(target.qp),
            remote=target.memory.remote(),
            remote_qkey=QKEY,
        )
        pair.a.post_send(wr)
        assert poll(pair.scq)[0].ok
        ((wc, record),) = target.poll_write_records()
        assert (wc.byte_len, wc.src_qp, wc.source) == (size, pair.a.qp_num, pair.a.addr)
        assert record.source == pair.a.addr
        ids.append(record.message_id)
        assert (record.addr, record.rkey) == (target.memory.addr, target.memory.rkey)
        assert (record.length, record.ranges, record.whole) == (size, ((0, size),), True)
        assert target.memory.read() == data
    assert [(n - ids[0]) % (1 << 32) for n in ids] == [0, 1, 2]
    target.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert len(poll(target.cq, target.qp.cap.max_recv_wr)) == target.qp.cap.max_recv_wr


@pytest.mark.clause("DGRAM-REC-5")
@pytest.mark.parametrize(
    ("lost", "times"),
    [
        ("first", {"record_reorder_us": 250_000, "record_timeout_ms": 60_000}),
        ("last", {"record_reorder_us": 1_000_000, "record_timeout_ms": 250}),
        ("first", {"record_reorder_us": 1_000_000, "record_timeout_ms": 250}),
    ],
    ids=["behind the last segment", "without the last segment", "the one that is over first"],
)
def test_each_time_out_reports_an_incomplete_write_record(
    rig: Rig, lost: str, times: dict[str, int]
) -> None:
    # The shorter time-out exceeds the pause between two datagrams on a busy machine.
    with temporary_settings(**times):
        target = WriteRecordTarget(rig)
    cut = target.build_message(octet_pattern(200), 0, 9)
    sock = target.create_sender()
    for datagram in cut[1:] if lost == "first" else cut[:-1]:
        sock.send(datagram)
    ((_, record),) = target.poll_write_records()
    assert record.valid == 150
    target.close()


# ---- messages that are not accepted


@pytest.mark.clause("DGRAM-REC-7", "DGRAM-REC-8", "DGRAM-LLP-7")
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("drop_qkey", {"llp_q_key": QKEY + 1}),
        ("drop_qn", {"llp_dest_index": 3}),
        *(("drop_version", {"llp_type": kind}) for kind in range(16) if kind != 2),
        ("drop_version", {"llp_version": 0}),
        ("drop_version", {"llp_mark": 0}),
        ("drop_version", {"llp_mark": 3}),
        ("drop_version", {"ddp_t": 0}),
        ("drop_version", {"ddp_rv": 0}),
        ("drop_version", {"ddp_dv": 2}),
        ("drop_opcode", {"ddp_opcode": 0}),
        ("drop_opcode", {"head_subcode": 2}),
        ("drop_header", {"ddp_l": 0}),
        ("drop_header", {"head_length": 3}),
        ("drop_header", {"head_to": 1 << 63}),
        ("drop_access", {"ddp_stag": 1}),
    ],
)
def test_an_invalid_write_record_segment_is_dropped_and_starts_no_message(
    target: WriteRecordTarget, name: str, fields: dict[str, int]
) -> None:
    sock = target.create_sender()
    with assert_counter_grows(name, 1):
        sock.send(target.build_segment(b"evil", 0, 5, 4, 0, **fields))
        sock.send(target.build_segment(b"good", 100, 5, 4, 0))
        ((_, record),) = target.poll_write_records()
    assert (record.addr, record.whole) == (target.memory.addr + 100, True)
    assert target.memory.read(8) == bytes(8)
    assert target.memory.read(4, 100) == b"good"


@pytest.mark.clause("DGRAM-LLP-8", "DGRAM-REC-20")
def test_reserved_fields_of_a_write_record_are_ignored(target: WriteRecordTarget) -> None:
    nonsense = {"llp_flags": 0xFF, "llp_psn": 0xDEADBEEF, "ddp_ddp_rsvd": 15}
    sock = target.create_sender()
    sock.send(
        target.build_segment(b"good", 0, 5, 4, 0, head_reserved=0xFFFF, head_flags=0xFE, **nonsense)
    )
    ((_, record),) = target.poll_write_records()
    assert record.whole and target.memory.read(4) == b"good"


def test_a_segment_that_contradicts_earlier_segments_of_its_write_record_is_dropped(
    target: WriteRecordTarget,
) -> None:
    sock = target.create_sender()
    data = octet_pattern(100)
    with assert_counter_grows("drop_header", 1):
        sock.send(target.build_segment(data[:50], 0, 5, 100, 0))
        sock.send(target.build_segment(data[:50], 500, 5, 120, 50))
        sock.send(target.build_segment(data[50:], 0, 5, 100, 50))
        ((_, record),) = target.poll_write_records()
    assert record.whole and target.memory.read(100) == data
    assert target.memory.read(100, 500) == bytes(100)


# ---- limits


@pytest.mark.clause("DGRAM-REC-11")
def test_unpolled_write_records_delay_further_completions(rig: Rig) -> None:
    target = WriteRecordTarget(rig, max_write_records=8)
    sock = target.create_sender()
    behind = counter_value("drop_qkey")
    for number in range(1, 7):
        sock.send(target.build_segment(b"whole", 8 * number, number, 5, 0))
    sock.send(target.build_segment(b"other", 8 * 7, 7, 5, 0, llp_q_key=QKEY + 1))
    # once the last datagram, with the wrong Q_Key, was counted, all messages have been received
    wait_until(lambda: counter_value("drop_qkey") == behind + 1)
    got = target.cq.poll(16)
    assert len(got) == 4
    seen = [target.qp.record(wc).message_id for wc in got]
    seen += [record.message_id for _, record in target.poll_write_records(2)]
    assert seen == [1, 2, 3, 4, 5, 6]
    with pytest.raises(Error, match="max_write_records"):
        target.qp.record(got[0]._replace(wr_id=99))
    target.close()


def test_write_records_that_a_reset_removed_from_the_cq_count_as_polled(rig: Rig) -> None:
    """Write-Records that did not count as polled would block further completions for ever."""
    other = rig.create_cq()
    target = WriteRecordTarget(rig, max_write_records=8)
    sock = target.create_sender()
    for life in range(3):
        for number in range(1, 5):
            sock.send(target.build_segment(b"whole", 8 * number, 10 * life + number, 5, 0))
        wait_until(lambda: other.poll() or target.cq.pending == 4)
        target.qp.modify(QPAttr(qp_state=QPState.RESET))
        assert target.cq.poll(16) == []
        target.qp.to_rts(QPAttr(qkey=QKEY))
    sock.send(target.build_segment(b"whole", 8, 99, 5, 0))
    assert [record.message_id for _, record in target.poll_write_records()] == [99]
    target.close()


@pytest.mark.clause("DGRAM-REC-2")
def test_a_write_record_aborted_by_a_reset_has_consumed_its_message_id(rig: Rig) -> None:
    """A reused message id would make a message contradict the segments that the target stores."""
    size = 64 << 20  # a message too long to be sent completely within the post call
    out = rig.reg_mr(mmap.mmap(-1, size))
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, qkey=QKEY)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.settimeout(LIMIT)
        to, remote = rig.create_ah(s.getsockname()), rig.reg_mr(bytearray(1)).remote()
        ids = []
        for length in (size, 1, size, 2):
            wr = SendWR(
                1, WROpcode.RDMA_WRITE_RECORD, sg=[out.sge(0, length)], ah=to, remote=remote
            )
            qp.post_send([wr])
            head = RecordHeader()
            while head.length != length:
                head = RecordHeader(s.recv(1 << 16)[26:46])
            ids.append(head.message_id)
            qp.modify(QPAttr(qp_state=QPState.RESET))
            qp.to_rts(QPAttr(qkey=QKEY))
            cq.poll(8)
    assert [(n - ids[0]) % (1 << 32) for n in ids] == [0, 1, 2, 3]
