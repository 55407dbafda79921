"""Write-Records on UD: the wire format, the reports of the target, and the limits."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator

import net
import pytest
from harness.record_harness import CUT, GRANTED, QKEY, WriteRecordTarget
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    counter_value,
    octet_pattern,
    poll,
    temporary_settings,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siwarp.base.library import lib
from siwarp.verbs import (
    AccessFlag,
    Error,
    EventType,
    QPAttr,
    QPState,
    QPType,
    SendWR,
    WROpcode,
)

SLOT = 1024


@pytest.fixture
def set_write_record_time_limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the times in ms to wait for late segments before and after the last segment."""
    ms = getattr(request, "param", 150)
    assert lib.siw_setting_set(b"record_reorder_us", ms * 1000) == 0
    assert lib.siw_setting_set(b"record_timeout_ms", ms) == 0
    yield
    lib.siw_setting_set(b"record_reorder_us", 2000)
    lib.siw_setting_set(b"record_timeout_ms", 100)


@pytest.fixture(name="target")
def write_record_target(rig: Rig) -> Iterator[WriteRecordTarget]:
    made = WriteRecordTarget(rig)
    yield made
    made.close()


# ---- received Write-Records, compared with a model


def merge_ranges(parts: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the union of the ranges as sorted ranges; adjacent ranges are merged."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(parts):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


@pytest.mark.clause("DGRAM-REC-4", "DGRAM-REC-5")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    sizes=st.lists(st.integers(0, SLOT), min_size=1, max_size=7),
    seed=st.integers(0, 1 << 32),
    trouble=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_the_reported_ranges_of_a_write_record_contain_the_octets_of_the_sender(
    set_write_record_time_limits: None, rig: Rig, sizes: list[int], seed: int, trouble: float
) -> None:
    rng = random.Random(seed)
    target = WriteRecordTarget(rig)
    sock = target.create_sender()
    data = [octet_pattern(size, seed % 89 + i) for i, size in enumerate(sizes)]
    arriving = []
    for i, octets in enumerate(data):
        for n, datagram in enumerate(target.build_message(octets, i * SLOT, i + 1)):
            for _ in range(2 if rng.random() < trouble else 1):
                if rng.random() >= trouble:
                    arriving.append((rng.random() if trouble else 0.0, i, n, datagram))
    arriving.sort(key=lambda one: one[0])
    late = counter_value("drop_late")
    for one in arriving:
        sock.send(one[3])
    came = {i for _, i, _, _ in arriving}
    told = {record.message_id - 1: record for _, record in target.poll_write_records(len(came))}
    assert_no_completion(target.cq)
    assert set(told) == came
    for i, record in told.items():
        octets = data[i]
        parts = [(n * CUT, min((n + 1) * CUT, len(octets))) for _, j, n, _ in arriving if j == i]
        model = merge_ranges(parts) if octets else ()
        assert record.length == len(octets)
        assert record.valid == sum(end - start for start, end in record.ranges)
        assert record.source == sock.getsockname()
        for start, end in record.ranges:
            here = target.memory.read(end - start, i * SLOT + start)
            assert here == octets[start:end]
            assert any(a <= start and end <= b for a, b in model)
        # Duplicates of complete messages count as late, and other segments are late only if the
        # machine stalled.
        if record.whole or counter_value("drop_late") == late:
            assert record.ranges == model
    target.qp.close()
    target.close()


@pytest.mark.clause("DGRAM-REC-5", "DGRAM-REC-6")
@pytest.mark.parametrize("set_write_record_time_limits", [30], indirect=True)
@pytest.mark.parametrize("lost", ["first", "last"])
def test_an_incomplete_write_record_is_reported_after_a_time_limit(
    set_write_record_time_limits: None, rig: Rig, lost: str
) -> None:
    target = WriteRecordTarget(rig)
    data = octet_pattern(200)
    cut = target.build_message(data, 0, 9)
    with assert_counter_grows("record_partial", 1):
        sock = target.create_sender()
        for datagram in cut[1:] if lost == "first" else cut[:-1]:
            sock.send(datagram)
        ((wc, record),) = target.poll_write_records()
    assert (wc.byte_len, record.length, record.valid) == (200, 200, 150)
    assert record.ranges == (((50, 200),) if lost == "first" else ((0, 150),))
    with assert_counter_grows("drop_late", 4):
        for datagram in cut:
            sock.send(datagram)
        assert_no_completion(target.cq, 0.06)
    assert target.memory.read(50) == (bytes(50) if lost == "first" else data[:50])
    target.close()


@pytest.mark.clause("DGRAM-REC-6")
def test_late_segments_of_the_last_reported_write_records_are_recognized(
    set_write_record_time_limits: None, rig: Rig
) -> None:
    target = WriteRecordTarget(rig, max_write_records=8)
    sock = target.create_sender()
    sent = [target.build_segment(b"whole", 8 * n, n, 5, 0) for n in range(1, 41)]
    for datagram in sent:
        sock.send(datagram)
        target.poll_write_records()
    for n in range(41, 45):  # four other messages stay incomplete meanwhile
        sock.send(target.build_segment(b"half", 8 * n, n, 8, 0))
    with assert_counter_grows("drop_late", 4):
        for datagram in sent[-4:]:
            sock.send(datagram)
        assert [record.message_id for _, record in target.poll_write_records(4)] == [41, 42, 43, 44]
    target.close()


@pytest.mark.clause("DGRAM-REC-8")
@pytest.mark.parametrize("why", ["beyond", "right"])
def test_write_record_octets_are_placed_only_where_the_key_allows(rig: Rig, why: str) -> None:
    target = WriteRecordTarget(rig)
    region = rig.reg_mr(bytearray(100), GRANTED if why == "beyond" else AccessFlag.LOCAL_WRITE)
    target.memory = region
    sock = target.create_sender()
    at = 97 if why == "beyond" else 0
    with assert_counter_grows("drop_access", 1):
        sock.send(target.build_segment(b"evil", at, 5, 4, 0))
        assert_no_completion(target.cq)
    assert region.read() == bytes(100)
    target.close()


@pytest.mark.clause("DGRAM-REC-9")
def test_a_ud_queue_pair_refuses_write_records_unless_they_were_enabled(rig: Rig) -> None:
    target = WriteRecordTarget(rig, max_write_records=0)
    with assert_counter_grows("drop_opcode", 1):
        target.create_sender().send(target.build_segment(b"evil", 0, 5, 4, 0))
        assert_no_completion(target.cq)
    assert target.memory.read(4) == bytes(4)
    target.close()
    with pytest.raises(Error, match="max_write_records"):
        rig.create_qp(qp_type=QPType.RC, max_write_records=1)
    with pytest.raises(Error, match="max_write_records"):
        rig.create_qp(max_write_records=1025)


@pytest.mark.clause("DGRAM-REC-10")
def test_a_host_that_starts_many_write_records_ends_its_own_oldest_records_early(
    set_write_record_time_limits: None, rig: Rig
) -> None:
    target = WriteRecordTarget(rig, max_write_records=8)
    sock = target.create_sender()
    with assert_counter_grows("record_early", 4):
        for number in range(1, 9):
            sock.send(target.build_segment(b"half", 8 * number, number, 8, 0))
        told = target.poll_write_records(4)
    assert [record.message_id for _, record in told] == [1, 2, 3, 4]
    assert all(record.ranges == ((0, 4),) for _, record in told)
    for number in range(5, 9):
        sock.send(target.build_segment(b"rest", 8 * number, number, 8, 4))
    assert all(record.whole for _, record in target.poll_write_records(4))
    target.close()


@pytest.mark.clause("DGRAM-REC-12")
def test_the_number_of_ranges_of_a_write_record_is_bounded(
    set_write_record_time_limits: None, rig: Rig
) -> None:
    target = WriteRecordTarget(rig)
    sock = target.create_sender()
    data = octet_pattern(400)
    with assert_counter_grows("record_ranges", 8):
        for i in range(0, 400, 10):
            sock.send(target.build_segment(data[i : i + 5], 0, 1, 400, i))
        ((_, record),) = target.poll_write_records()
    assert record.ranges == tuple((i, i + 5) for i in range(0, 320, 10))
    target.close()


def test_reset_discards_incomplete_write_records(
    set_write_record_time_limits: None, rig: Rig
) -> None:
    target = WriteRecordTarget(rig)
    sock = target.create_sender()
    sock.send(target.build_segment(b"half", 0, 1, 8, 0))
    assert_no_completion(target.cq)
    target.qp.modify(QPAttr(qp_state=QPState.RESET))
    target.qp.to_rts(QPAttr(qkey=QKEY))
    sock.send(target.build_segment(b"rest", 0, 1, 8, 4))
    ((_, record),) = target.poll_write_records()
    assert record.ranges == ((4, 8),)
    target.close()


def test_a_send_queue_is_drained_after_a_partly_transmitted_write_record_is_complete(
    rig: Rig,
) -> None:
    size = 64 << 20
    target = WriteRecordTarget(rig, size=8)
    with temporary_settings(progress_thread=0):  # only calls of this thread send anything
        mine = Rig()
    out, cq = mine.reg_mr(mmap.mmap(-1, size)), mine.create_cq()
    qp = mine.create_ud_qp(cq, qkey=QKEY)
    with net.open_udp_socket() as s:
        to, there = mine.create_ah(s.getsockname()), mine.create_ah(target.qp)
        remote = target.memory.remote()
        record = WROpcode.RDMA_WRITE_RECORD
        held = SendWR(2, record, sg=[out.sge(0, 8)], ah=there, remote=remote)
        qp.post_send([SendWR(1, record, sg=[out.sge()], ah=to, remote=remote), held])
        qp.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
        assert qp.query()[0].sq_draining
        assert [(wc.wr_id, wc.ok) for wc in poll(cq)] == [(1, True)]
        with mine.next_async_event() as event:
            assert (event.event_type, event.element) == (EventType.SQ_DRAINED, qp)
        assert_no_completion(target.cq)
        qp.to_rts()
        target.poll_write_records()
        assert poll(cq)[0].wr_id == 2
    mine.close()
