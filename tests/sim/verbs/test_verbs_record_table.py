"""Table 8.2 of spec/datagram-iwarp.md, row by row: reported errors and resulting states."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.errq_harness import (
    PlainUDPSocket,
)
from harness.record_harness import GRANTED, QKEY, WriteRecordTarget
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    counter_value,
    temporary_settings,
    wait_until,
)
from sim.verbs.test_verbs_record_err import OPCODE, UNSPECIFIED, parse_write_record_error

from siwarp.inspect import DDPDatagram, RecordDatagram
from siwarp.verbs import MR, PD, AccessFlag, ErrorOrigin, ErrorPolicy, QPState

Err = tuple[int, int, int]
#: In its header the datagram of each row also has the mistakes of all later rows, so that the
#: first check decides.
OP = {"ddp_opcode": 0}
KEY = {**OP, "llp_q_key": QKEY ^ 1}
PLACE = {**KEY, "llp_dest_index": 5}
RV = {**PLACE, "ddp_rv": 2}
DV = {**RV, "ddp_dv": 2}


def check_handling_of_datagram(
    target: WriteRecordTarget, who: PlainUDPSocket, octets: bytes, why: str,
    told: Err | None = None, noted: Err | None = None,
) -> None:  # fmt: skip
    """Send a datagram under policy `error`; check the counter, answer, error queue and state."""
    state = QPState.RTS if told is None else QPState.ERR
    with assert_counter_grows(why, 1):
        who.sendto(octets, target.qp.addr)
        if told or noted:
            (found,) = wait_until(target.qp.errors)
            assert (found.origin, found.layer, found.type, found.code) == (
                ErrorOrigin.FOUND, *(told or noted or OPCODE)
            )  # fmt: skip
        else:
            assert_no_completion(target.cq)
            assert target.qp.errors() == []
    if told:
        _, answer, _ = parse_write_record_error(who.recv(1 << 16))
        assert (answer.layer, answer.etype, answer.code) == told
    assert who.has_empty_buffer() and target.qp.qp_state == state
    target.close()


def create_write_record_target(rig: Rig, **kwargs: int) -> WriteRecordTarget:
    return WriteRecordTarget(rig, error_policy=ErrorPolicy.ERROR, **kwargs)  # type: ignore[arg-type]


def build_invalid_segment(target: WriteRecordTarget, **fields: int) -> bytes:
    return target.build_segment(b"evil", 0, 5, 4, 0, **fields)


def check_error_table_row_credible_datagrams(rig: Rig, who: PlainUDPSocket) -> None:
    def check_datagram_dropped(why: str, spoil: Callable[[WriteRecordTarget], bytes]) -> None:
        target = create_write_record_target(rig)
        check_handling_of_datagram(target, who, spoil(target), why)
        assert not any(target.memory.read(8))

    check_datagram_dropped("drop_short", lambda t: build_invalid_segment(t, **DV)[:21])
    check_datagram_dropped("drop_crc", lambda t: build_invalid_segment(t, **DV)[:-1] + b"!")
    check_datagram_dropped(
        "drop_version",
        lambda t: bytes(RecordDatagram(q_key=QKEY, segment=build_untagged_segment())),
    )
    check_datagram_dropped("drop_version", lambda t: build_invalid_segment(t, **DV))
    check_datagram_dropped(
        "drop_version", lambda t: build_invalid_segment(t, ddp_rv=2, ddp_opcode=0)
    )
    check_datagram_dropped("drop_qn", lambda t: build_invalid_segment(t, **PLACE))
    check_datagram_dropped("drop_qkey", lambda t: build_invalid_segment(t, **KEY))


def build_untagged_segment() -> bytes:
    return bytes(DDPDatagram(q_key=QKEY, opcode=15)) + bytes(40)


def check_error_table_row_unexpected_opcode(rig: Rig, who: PlainUDPSocket) -> None:
    for fields in ({"ddp_opcode": 0}, {"ddp_opcode": 7}, {"head_subcode": 2}):
        target = create_write_record_target(rig)
        # The segment also has the mistake of the next row of the table.
        check_handling_of_datagram(
            target,
            who,
            build_invalid_segment(target, head_length=3, **fields),
            "drop_opcode",
            OPCODE,
        )
    target = create_write_record_target(rig)
    cut = bytes(RecordDatagram(build_invalid_segment(target)).segment)[: 14 + 19]
    check_handling_of_datagram(
        target, who, bytes(RecordDatagram(q_key=QKEY, segment=cut)), "drop_opcode", OPCODE
    )
    target = create_write_record_target(rig, max_write_records=0)
    check_handling_of_datagram(target, who, build_invalid_segment(target), "drop_opcode", OPCODE)


def check_error_table_row_invalid_position(rig: Rig, who: PlainUDPSocket) -> None:
    for fields in (
        {"head_length": 5}, {"ddp_l": 0}, {"head_length": 3}, {"head_to": 1 << 63}
    ):  # fmt: skip
        target = create_write_record_target(rig)
        who.sendto(target.build_segment(b"whole", 0, 5, 5, 0), target.qp.addr)
        target.poll_write_records()
        # The segment belongs to a message that was already reported, and has an invalid STag.
        octets = build_invalid_segment(target, ddp_stag=target.memory.rkey ^ 0x100, **fields)
        check_handling_of_datagram(target, who, octets, "drop_header", UNSPECIFIED)


def check_error_table_row_late_segment(rig: Rig, who: PlainUDPSocket) -> None:
    target = create_write_record_target(rig)
    who.sendto(target.build_segment(b"whole", 0, 5, 5, 0), target.qp.addr)
    target.poll_write_records()
    # The segment also contradicts the earlier segments, and has an invalid STag.
    check_handling_of_datagram(
        target, who, build_invalid_segment(target, ddp_stag=target.memory.rkey ^ 0x100), "drop_late"
    )


def check_error_table_row_contradictory_segment(rig: Rig, who: PlainUDPSocket) -> None:
    with temporary_settings(record_timeout_ms=10_000):
        for change in ("length", "place", "STag"):
            target = create_write_record_target(rig)
            who.sendto(target.build_segment(b"half", 0, 5, 100, 0), target.qp.addr)
            stag = target.memory.rkey ^ 0x100
            octets = {
                "length": target.build_segment(b"half", 0, 5, 120, 4, ddp_stag=stag),
                "place": target.build_segment(b"half", 8, 5, 100, 4),
                "STag": target.build_segment(b"half", 0, 5, 100, 4, ddp_stag=stag),
            }[change]
            check_handling_of_datagram(target, who, octets, "drop_header", UNSPECIFIED)


def check_error_table_row_inaccessible_memory(rig: Rig, who: PlainUDPSocket) -> None:
    target = create_write_record_target(rig)
    octets = build_invalid_segment(target, ddp_stag=target.memory.rkey ^ 0x100)
    check_handling_of_datagram(target, who, octets, "drop_access", noted=(1, 1, 0))
    target = create_write_record_target(rig)
    octets = target.build_segment(b"evil", (1 << 16) - 3, 5, 4, 0)
    check_handling_of_datagram(target, who, octets, "drop_access", noted=(1, 1, 1))
    target = create_write_record_target(rig)
    target.memory = MR(PD(rig.ctx), bytearray(100), GRANTED)
    check_handling_of_datagram(
        target, who, build_invalid_segment(target), "drop_access", noted=(1, 1, 2)
    )
    target = create_write_record_target(rig)
    target.memory = rig.reg_mr(bytearray(100), AccessFlag.LOCAL_WRITE)
    check_handling_of_datagram(
        target, who, build_invalid_segment(target), "drop_access", noted=(0, 1, 2)
    )


def check_error_table_row_full_write_record_queue(rig: Rig, who: PlainUDPSocket) -> None:
    target = create_write_record_target(rig, max_write_records=2)
    before = counter_value("record_full")
    # No Write-Record is polled, so that as many Write-Records wait as the queue pair has slots.
    for n in range(1, 21):
        who.sendto(target.build_segment(b"whole", 8 * n, n, 5, 0), target.qp.addr)
    wait_until(lambda: counter_value("record_full") > before)
    assert who.has_empty_buffer() and target.qp.errors() == [] and target.qp.qp_state == QPState.RTS
    assert [record.message_id for _, record in target.poll_write_records(2)] == [1, 2]
    target.close()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            check_error_table_row_credible_datagrams, marks=pytest.mark.clause("DGRAM-REC-21#a")
        ),
        pytest.param(
            check_error_table_row_unexpected_opcode, marks=pytest.mark.clause("DGRAM-REC-21#b")
        ),
        pytest.param(
            check_error_table_row_invalid_position, marks=pytest.mark.clause("DGRAM-REC-21#c")
        ),
        pytest.param(
            check_error_table_row_late_segment, marks=pytest.mark.clause("DGRAM-REC-21#d")
        ),
        pytest.param(
            check_error_table_row_contradictory_segment, marks=pytest.mark.clause("DGRAM-REC-21#e")
        ),
        pytest.param(
            check_error_table_row_inaccessible_memory, marks=pytest.mark.clause("DGRAM-REC-21#f")
        ),
        pytest.param(
            check_error_table_row_full_write_record_queue,
            marks=pytest.mark.clause("DGRAM-REC-21#g"),
        ),
    ],
    ids=lambda row: row.__name__,
)
def test_each_row_of_the_write_record_error_table_is_checked_before_later_rows(
    rig: Rig, row: Callable[[Rig, PlainUDPSocket], None]
) -> None:
    with PlainUDPSocket() as who:
        row(rig, who)
