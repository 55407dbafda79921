"""Errors of Write-Records: the recipients of reports, the effects, and accepted error messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from harness.errq_harness import (
    PlainUDPSocket,
    crc32c,
)
from harness.record_harness import GRANTED, QKEY, WriteRecordTarget
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    counter_value,
    poll,
    temporary_settings,
    wait_until,
)
from scapy.packet import Raw

from siwarp.inspect import (
    DDPDatagram,
    Opcode,
    QuotedTagged,
    RecordDatagram,
    RecordHeader,
    Terminate,
    UDDatagram,
    ud_qn,
)
from siwarp.verbs import (
    MR,
    PD,
    QP,
    AccessFlag,
    ErrorOrigin,
    ErrorPolicy,
    ErrorReport,
    EventType,
    QPAttr,
    QPState,
    SendWR,
    WROpcode,
)

ERROR, MESSAGE = ErrorPolicy.ERROR, ErrorPolicy.MESSAGE
OPCODE, UNSPECIFIED = (0, 2, 6), (0, 2, 0xFF)
#: Rules violated by a peer that has the Q_Key: segment fields, drop counter, error code.
RULE_VIOLATIONS: dict[str, tuple[dict[str, int], str, tuple[int, int, int]]] = {
    "a Write": ({"ddp_opcode": 0}, "drop_opcode", OPCODE),
    "a Read Response": ({"ddp_opcode": 2}, "drop_opcode", OPCODE),
    "a Terminate": ({"ddp_opcode": 7}, "drop_opcode", OPCODE),
    "subcode 2": ({"head_subcode": 2}, "drop_opcode", OPCODE),
    "not the last octet, and L": ({"head_length": 5}, "drop_header", UNSPECIFIED),
    "the last octet, and no L": ({"ddp_l": 0}, "drop_header", UNSPECIFIED),
    "beyond its message": ({"head_length": 3}, "drop_header", UNSPECIFIED),
    "before its message": ({"head_to": 1 << 63}, "drop_header", UNSPECIFIED),
    "a message that wraps": (
        {"head_to": (1 << 64) - 1, "ddp_to": (1 << 64) - 1}, "drop_header", UNSPECIFIED
    ),
}  # fmt: skip


def parse_write_record_error(octets: bytes) -> tuple[Any, Any, bytes]:
    """Check an error message; return its header, its Terminate, and data after the DDP header."""
    assert crc32c(octets[:-4]) == int.from_bytes(octets[-4:], "little")
    head = DDPDatagram(octets[:18])
    assert (head.t, head.l, head.dv, head.mo, head.opcode) == (0, 1, 1, 0, Opcode.TERMINATE)
    told = Terminate(octets[18:-4])
    assert (told.m, told.d, told.reserved) == (1, 1, 0)
    assert isinstance(told.quoted_ddp, QuotedTagged)
    more = octets[18 + 6 + 14 : -4]
    assert (told.r, len(more)) in ((0, 0), (1, 20))
    return head, told, more


@pytest.fixture
def sender_socket() -> Iterator[PlainUDPSocket]:
    with PlainUDPSocket() as made:
        yield made


def check_write_record_accepted(target: WriteRecordTarget, sender_socket: PlainUDPSocket) -> None:
    """Check that the target still receives another Write-Record."""
    sender_socket.sendto(target.build_segment(b"good", 200, 77, 4, 0), target.qp.addr)
    ((_, record),) = target.poll_write_records()
    assert (record.message_id, record.whole) == (77, True)
    assert target.memory.read(4, 200) == b"good"


# ---- errors found by this end


@pytest.mark.clause("DGRAM-REC-13", "DGRAM-REC-7")
@pytest.mark.parametrize("policy", [ERROR, MESSAGE])
@pytest.mark.parametrize("what", RULE_VIOLATIONS)
def test_a_rule_violation_in_a_write_record_is_reported_and_ends_an_abortive_queue_pair(
    rig: Rig, sender_socket: PlainUDPSocket, what: str, policy: ErrorPolicy
) -> None:
    fields, name, err = RULE_VIOLATIONS[what]
    target = WriteRecordTarget(rig, error_policy=policy)
    wrong = target.build_segment(b"evil", 0, 5, 4, 0, llp_source_index=9, **fields)
    with assert_counter_grows(name, 1), assert_counter_grows("err_sent", 1):
        sender_socket.sendto(wrong, target.qp.addr)
        (found,) = wait_until(target.qp.errors)
    octets, source = sender_socket.recvfrom(1 << 16)
    assert source == target.qp.addr and len(octets) <= len(wrong) + 24
    head, told, more = parse_write_record_error(octets)
    assert (head.q_key, head.qn) == (QKEY, ud_qn(2, 9, 0))
    assert (told.layer, told.etype, told.code) == err
    assert (told.ddp_seg_len, bytes(told.quoted_ddp)) == (len(wrong) - 16, wrong[12:26])
    private = "ddp_opcode" not in fields
    assert more == (wrong[26:46] if private else b"")
    assert found == ErrorReport(
        ErrorOrigin.FOUND,
        sender_socket.getsockname(),
        9 << 16 | sender_socket.getsockname()[1],
        *err,
        msn=5 if private else 0,
        wr_id=None,
        header=wrong[12:26],
        seg_len=len(wrong) - 16,
    )
    assert target.memory.read(8) == bytes(8)
    with rig.next_async_event() as event:
        abortive = policy == ERROR
        assert event.event_type == (EventType.QP_REQ_ERR if abortive else EventType.QP_ERR_QUEUED)
    assert target.qp.qp_state == (QPState.ERR if abortive else QPState.RTS)
    if not abortive:
        check_write_record_accepted(target, sender_socket)


@pytest.mark.clause("DGRAM-REC-13")
def test_a_truncated_write_record_header_is_an_unexpected_opcode(
    rig: Rig, sender_socket: PlainUDPSocket
) -> None:
    target = WriteRecordTarget(rig)
    whole = bytes(RecordDatagram(target.build_segment(b"", 0, 5, 0, 0)).segment)
    for n in range(14, 34):
        with assert_counter_grows("drop_opcode", 1):
            cut = bytes(RecordDatagram(q_key=QKEY, segment=whole[:n]))
            sender_socket.sendto(cut, target.qp.addr)
            (found,) = wait_until(target.qp.errors)
        assert (found.layer, found.type, found.code, found.msn) == (*OPCODE, 0)
        octets = sender_socket.recv(1 << 16)
        assert len(octets) <= len(cut) + 24 and parse_write_record_error(octets)[2] == b""
    check_write_record_accepted(target, sender_socket)


@pytest.mark.clause("DGRAM-REC-13")
def test_a_segment_that_contradicts_an_incomplete_write_record_is_reported(
    rig: Rig, sender_socket: PlainUDPSocket
) -> None:
    target = WriteRecordTarget(rig)
    data = bytes(range(100))
    first = target.build_segment(data[:50], 0, 5, 100, 0)
    other = target.build_segment(data[:50], 500, 5, 120, 50)
    # The message stays incomplete for longer than any machine stalls.
    with temporary_settings(record_timeout_ms=10_000):
        sender_socket.sendto(first, target.qp.addr)
        with assert_counter_grows("drop_header", 1):
            sender_socket.sendto(other, target.qp.addr)
            (found,) = wait_until(target.qp.errors)
        assert (found.layer, found.type, found.code, found.msn) == (*UNSPECIFIED, 5)
        assert (parse_write_record_error(sender_socket.recv(1 << 16))[2])[4:8] == bytes(
            [0, 0, 0, 5]
        )
        sender_socket.sendto(target.build_segment(data[50:], 0, 5, 100, 50), target.qp.addr)
        ((_, record),) = target.poll_write_records()
        assert record.whole and target.memory.read(100) == data
    with assert_counter_grows(
        "drop_late", 1
    ):  # the segment could belong to another incarnation of the sender
        sender_socket.sendto(other, target.qp.addr)
        assert_no_completion(target.cq)
    assert sender_socket.has_empty_buffer() and target.qp.errors() == []


@pytest.mark.clause("DGRAM-REC-9")
@pytest.mark.parametrize("policy", [ERROR, MESSAGE])
def test_a_write_record_to_a_queue_pair_without_write_records_is_an_unexpected_opcode(
    rig: Rig, sender_socket: PlainUDPSocket, policy: ErrorPolicy
) -> None:
    target = WriteRecordTarget(rig, max_write_records=0, error_policy=policy)
    sent = target.build_segment(b"evil", 0, 5, 4, 0)
    with assert_counter_grows("drop_opcode", 1):
        sender_socket.sendto(sent, target.qp.addr)
        (found,) = wait_until(target.qp.errors)
    assert (found.layer, found.type, found.code, found.msn) == (*OPCODE, 5)
    assert parse_write_record_error(sender_socket.recv(1 << 16))[2] == sent[26:46]
    assert target.qp.qp_state == (QPState.ERR if policy == ERROR else QPState.RTS)


def segment_to_inaccessible_memory(
    rig: Rig, target: WriteRecordTarget, why: str
) -> tuple[int, dict[str, int], tuple[int, int, int]]:
    """Return offset and fields of a segment of four octets, and the error that it causes."""
    if why == "no such STag":
        return 0, {"ddp_stag": target.memory.rkey ^ 0x100}, (1, 1, 0)
    if why == "beyond":
        return (1 << 16) - 3, {}, (1, 1, 1)
    if why == "before":
        return -1, {}, (1, 1, 1)
    if why == "another PD":
        target.memory = MR(PD(rig.ctx), bytearray(100), GRANTED)
        return 0, {}, (1, 1, 2)
    target.memory = rig.reg_mr(bytearray(100), AccessFlag.LOCAL_WRITE)
    return 0, {}, (0, 1, 2)


@pytest.mark.clause("DGRAM-REC-14", "DGRAM-REC-8")
@pytest.mark.parametrize("policy", [ERROR, MESSAGE])
@pytest.mark.parametrize("why", ["no such STag", "beyond", "before", "another PD", "right"])
def test_an_inaccessible_write_record_is_recorded_locally_and_not_reported(
    rig: Rig, sender_socket: PlainUDPSocket, why: str, policy: ErrorPolicy
) -> None:
    target = WriteRecordTarget(rig, error_policy=policy)
    first = target.memory
    at, fields, err = segment_to_inaccessible_memory(rig, target, why)
    wrong = target.build_segment(b"evil", at, 5, 4, 0, **fields)
    sent = counter_value("err_sent")
    with assert_counter_grows("drop_access", 1), assert_counter_grows("err_found", 1):
        sender_socket.sendto(wrong, target.qp.addr)
        (found,) = wait_until(target.qp.errors)
    assert (found.origin, found.layer, found.type, found.code) == (ErrorOrigin.FOUND, *err)
    assert (found.source, found.msn, found.header) == (sender_socket.getsockname(), 5, wrong[12:26])
    with rig.next_async_event() as event:
        assert (event.event_type, event.element) == (EventType.QP_ERR_QUEUED, target.qp)
    assert target.qp.qp_state == QPState.RTS
    assert not any(target.memory.read()) and not any(first.read())
    target.memory = first
    check_write_record_accepted(target, sender_socket)
    assert sender_socket.has_empty_buffer() and counter_value("err_sent") == sent


@pytest.mark.clause("DGRAM-REC-14", "DGRAM-ERR-2")
def test_probing_stags_by_write_records_reveals_nothing(
    rig: Rig, sender_socket: PlainUDPSocket
) -> None:
    target = WriteRecordTarget(rig)
    own = target.memory.rkey
    rng = random.Random(7)
    for stag in (own ^ 1, own ^ 0x100, 0, 0xFFFFFFFF, *(rng.getrandbits(32) for _ in range(20))):
        for at in (0, 1 << 20):
            sender_socket.sendto(
                target.build_segment(b"evil", at, 9, 4, 0, ddp_stag=stag), target.qp.addr
            )
    # The segment has the correct STag but is out of bounds.
    sender_socket.sendto(target.build_segment(b"evil", 1 << 20, 9, 4, 0), target.qp.addr)
    check_write_record_accepted(target, sender_socket)
    assert sender_socket.has_empty_buffer()


@pytest.mark.clause("DGRAM-ERR-2")
@pytest.mark.parametrize(
    "fields",
    [{"llp_q_key": QKEY ^ 1, "ddp_opcode": 0}, {"ddp_rv": 2, "head_subcode": 9},
     {"llp_dest_index": 4, "ddp_l": 0}, {"ddp_dv": 3, "ddp_l": 0}],
    ids=["Q_Key", "RDMAP version", "index", "DDP version"],
)  # fmt: skip
def test_a_write_record_segment_that_is_not_credible_causes_no_error(
    rig: Rig, sender_socket: PlainUDPSocket, fields: dict[str, int]
) -> None:
    target = WriteRecordTarget(rig, error_policy=ERROR)
    before = counter_value("err_found")
    sender_socket.sendto(target.build_segment(b"evil", 0, 5, 4, 0, **fields), target.qp.addr)
    check_write_record_accepted(target, sender_socket)
    assert (sender_socket.has_empty_buffer(), target.qp.errors(), counter_value("err_found")) == (
        True,
        [],
        before,
    )
    assert target.qp.qp_state == QPState.RTS


def test_a_queue_pair_accepts_write_records_again_after_an_abortive_error(
    rig: Rig, sender_socket: PlainUDPSocket
) -> None:
    target = WriteRecordTarget(rig, error_policy=ERROR)
    sender_socket.sendto(target.build_segment(b"half", 0, 1, 8, 0), target.qp.addr)
    sender_socket.sendto(target.build_segment(b"evil", 0, 2, 3, 0), target.qp.addr)
    wait_until(lambda: target.qp.qp_state == QPState.ERR)
    target.qp.modify(QPAttr(qp_state=QPState.RESET))
    target.qp.to_rts(QPAttr(qkey=QKEY))
    check_write_record_accepted(target, sender_socket)


# ---- errors reported by a peer


def build_write_record_error(
    wrong: bytes, err: tuple[int, int, int] = OPCODE, *, r: int = 1, more: bytes | None = None,
    quoted: dict[str, int] | None = None, **fields: Any,
) -> bytes:  # fmt: skip
    """Return the error message that a correct peer sends about a Write-Record datagram."""
    of = QuotedTagged(wrong[12:26])
    for name, value in (quoted or {}).items():
        setattr(of, name, value)
    body = Terminate(
        layer=err[0], etype=err[1], code=err[2], m=1, d=1, ddp_seg_len=len(wrong) - 16,
        quoted_ddp=of,
    )  # fmt: skip
    octets = bytearray(bytes(body)) + (wrong[26:46] if more is None else more)
    octets[2] |= 0x20 * r
    head = {"q_key": QKEY, "opcode": Opcode.TERMINATE, "qn": 2, **fields}
    return bytes(UDDatagram(segment=DDPDatagram(**head) / Raw(bytes(octets))))


def send_write_record_to_socket(
    rig: Rig, qp: QP, to: PlainUDPSocket, wr_id: int, octets: int = 100
) -> bytes:
    """Send a Write-Record from a queue pair to a plain socket; return its first datagram."""
    out = rig.reg_mr(bytearray(octets))
    remote = rig.reg_mr(bytearray(1)).remote()
    qp.post_send(
        SendWR(
            wr_id, WROpcode.RDMA_WRITE_RECORD, sg=[out.sge()], ah=rig.create_ah(to.getsockname()),
            remote=remote,
        )
    )  # fmt: skip
    assert poll(qp.scq)[0].ok
    first = to.recv(1 << 16)
    for _ in range((octets - 1) // (len(first) - 50)):
        to.recv(1 << 16)
    assert RecordHeader(first[26:46]).length == octets
    return first


@pytest.mark.clause("DGRAM-REC-15")
def test_an_error_message_about_a_write_record_names_the_request_and_counts_once(
    rig: Rig, sender_socket: PlainUDPSocket
) -> None:
    qp = rig.create_ud_qp(qkey=QKEY)
    wrongs = {
        wr_id: send_write_record_to_socket(rig, qp, sender_socket, wr_id, 100_000)
        for wr_id in range(1, 6)
    }
    for wr_id in (3, 1, 5):
        wrong = wrongs[wr_id]
        with assert_counter_grows("err_received", 1):
            sender_socket.sendto(
                build_write_record_error(wrong, quoted={"to": QuotedTagged(wrong[12:26]).to + 7}),
                qp.addr,
            )
            (found,) = wait_until(qp.errors)
        assert (found.origin, found.wr_id) == (ErrorOrigin.REPORTED, wr_id)
        assert (found.layer, found.type, found.code) == OPCODE
        assert found.msn == RecordHeader(wrong[26:46]).message_id
        assert (found.source, found.header[:6]) == (sender_socket.getsockname(), wrong[12:18])
        with assert_counter_grows("err_stale", 1):
            sender_socket.sendto(build_write_record_error(wrong), qp.addr)
            assert_no_completion(qp.scq)
            wait_until(lambda: qp.errors() == [])
    assert qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-REC-15", "DGRAM-ERR-11")
@pytest.mark.parametrize(
    "change",
    [{"q_key": QKEY ^ 1}, {"qn": ud_qn(2, 0, 3)}, {"r": 0}, {"r": 0, "more": b""},
     {"more": b"short"}, {"quoted": {"stag": 7}}, {"quoted": {"to": 1}},
     {"more": bytes(RecordHeader(message_id=9))}],
    ids=["Q_Key", "index", "R=0", "not quoted", "cut", "STag", "TO", "id"],
)  # fmt: skip
def test_an_error_message_that_does_not_match_a_sent_write_record_is_stale(
    rig: Rig, sender_socket: PlainUDPSocket, change: dict[str, Any]
) -> None:
    qp = rig.create_ud_qp(qkey=QKEY)
    wrong = send_write_record_to_socket(rig, qp, sender_socket, 1)
    before = counter_value("err_stale")
    sender_socket.sendto(build_write_record_error(wrong, **change), qp.addr)
    with PlainUDPSocket() as another:  # a socket that is not the Write-Record's destination
        another.sendto(build_write_record_error(wrong), qp.addr)
        wait_until(lambda: qp.errors() == [] and counter_value("err_stale") == before + 2)
    sender_socket.sendto(build_write_record_error(wrong), qp.addr)
    (found,) = wait_until(qp.errors)
    assert (found.wr_id, counter_value("err_stale")) == (1, before + 2)


def test_only_errors_about_the_latest_write_records_are_attributed_to_requests(
    rig: Rig, sender_socket: PlainUDPSocket
) -> None:
    with temporary_settings(err_window=4):
        qp = rig.create_ud_qp(qkey=QKEY)
        wrongs = [send_write_record_to_socket(rig, qp, sender_socket, n, 10) for n in range(6)]
    before = counter_value("err_stale")
    sender_socket.sendto(build_write_record_error(wrongs[0]), qp.addr)
    sender_socket.sendto(build_write_record_error(wrongs[1]), qp.addr)
    wait_until(lambda: qp.errors() == [] and counter_value("err_stale") == before + 2)
    for n in (2, 5):
        sender_socket.sendto(build_write_record_error(wrongs[n]), qp.addr)
        assert wait_until(qp.errors)[0].wr_id == n
