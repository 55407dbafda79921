"""Table 8.2 of spec/datagram-iwarp.md, row by row: reported errors and resulting states."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.errq_harness import (
    Stranger,
)
from harness.record_harness import GRANTED, QKEY, Target
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    counter_value,
    temporary_settings,
    wait_until,
)
from sim.verbs.test_verbs_record_err import OPCODE, UNSPECIFIED, read_error

from siwarp.inspect import DDPDatagram, RecordDatagram
from siwarp.verbs import MR, PD, AccessFlag, ErrorOrigin, ErrorPolicy, QPState

Err = tuple[int, int, int]
#: Header mistakes of the rows below, cumulative: the first check decides.
OP = {"ddp_opcode": 0}
KEY = {**OP, "llp_q_key": QKEY ^ 1}
PLACE = {**KEY, "llp_dest_index": 5}
RV = {**PLACE, "ddp_rv": 2}
DV = {**RV, "ddp_dv": 2}


def check_datagram(
    target: Target, who: Stranger, octets: bytes, why: str, told: Err | None = None,
    noted: Err | None = None,
) -> None:  # fmt: skip
    """Send a datagram to a queue pair under *error*; check counter, answer, error queue, state."""
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
        _, answer, _ = read_error(who.recv(1 << 16))
        assert (answer.layer, answer.etype, answer.code) == told
    assert who.has_empty_buffer() and target.qp.qp_state == state
    target.close()


def made(rig: Rig, **kwargs: int) -> Target:
    return Target(rig, error_policy=ErrorPolicy.ERROR, **kwargs)  # type: ignore[arg-type]


def wrong(target: Target, **fields: int) -> bytes:
    return target.build_segment(b"evil", 0, 5, 4, 0, **fields)


def credible(rig: Rig, who: Stranger) -> None:
    def meet(why: str, spoil: Callable[[Target], bytes]) -> None:
        target = made(rig)
        check_datagram(target, who, spoil(target), why)
        assert not any(target.memory.read(8))

    meet("drop_short", lambda t: wrong(t, **DV)[:21])
    meet("drop_crc", lambda t: wrong(t, **DV)[:-1] + b"!")
    meet("drop_version", lambda t: bytes(RecordDatagram(q_key=QKEY, segment=untagged())))
    meet("drop_version", lambda t: wrong(t, **DV))
    meet("drop_version", lambda t: wrong(t, ddp_rv=2, ddp_opcode=0))
    meet("drop_qn", lambda t: wrong(t, **PLACE))
    meet("drop_qkey", lambda t: wrong(t, **KEY))


def untagged() -> bytes:
    return bytes(DDPDatagram(q_key=QKEY, opcode=15)) + bytes(40)


def of_the_kind(rig: Rig, who: Stranger) -> None:
    for fields in ({"ddp_opcode": 0}, {"ddp_opcode": 7}, {"head_subcode": 2}):
        target = made(rig)
        # The segment also has the mistake of the next row of the table.
        check_datagram(target, who, wrong(target, head_length=3, **fields), "drop_opcode", OPCODE)
    target = made(rig)
    cut = bytes(RecordDatagram(wrong(target)).segment)[: 14 + 19]
    check_datagram(
        target, who, bytes(RecordDatagram(q_key=QKEY, segment=cut)), "drop_opcode", OPCODE
    )
    target = made(rig, max_write_records=0)
    check_datagram(target, who, wrong(target), "drop_opcode", OPCODE)


def in_its_message(rig: Rig, who: Stranger) -> None:
    for fields in (
        {"head_length": 5}, {"ddp_l": 0}, {"head_length": 3}, {"head_to": 1 << 63}
    ):  # fmt: skip
        target = made(rig)
        who.sendto(target.build_segment(b"whole", 0, 5, 5, 0), target.qp.addr)
        target.poll_records()
        # Belongs to a message already reported, and has an invalid STag.
        octets = wrong(target, ddp_stag=target.memory.rkey ^ 0x100, **fields)
        check_datagram(target, who, octets, "drop_header", UNSPECIFIED)


def told_of(rig: Rig, who: Stranger) -> None:
    target = made(rig)
    who.sendto(target.build_segment(b"whole", 0, 5, 5, 0), target.qp.addr)
    target.poll_records()
    # Also contradicts the earlier segments, and has an invalid STag.
    check_datagram(target, who, wrong(target, ddp_stag=target.memory.rkey ^ 0x100), "drop_late")


def something_else(rig: Rig, who: Stranger) -> None:
    with temporary_settings(record_timeout_ms=10_000):
        for change in ("length", "place", "STag"):
            target = made(rig)
            who.sendto(target.build_segment(b"half", 0, 5, 100, 0), target.qp.addr)
            stag = target.memory.rkey ^ 0x100
            octets = {
                "length": target.build_segment(b"half", 0, 5, 120, 4, ddp_stag=stag),
                "place": target.build_segment(b"half", 8, 5, 100, 4),
                "STag": target.build_segment(b"half", 0, 5, 100, 4, ddp_stag=stag),
            }[change]
            check_datagram(target, who, octets, "drop_header", UNSPECIFIED)


def access(rig: Rig, who: Stranger) -> None:
    target = made(rig)
    octets = wrong(target, ddp_stag=target.memory.rkey ^ 0x100)
    check_datagram(target, who, octets, "drop_access", noted=(1, 1, 0))
    target = made(rig)
    octets = target.build_segment(b"evil", (1 << 16) - 3, 5, 4, 0)
    check_datagram(target, who, octets, "drop_access", noted=(1, 1, 1))
    target = made(rig)
    target.memory = MR(PD(rig.ctx), bytearray(100), GRANTED)
    check_datagram(target, who, wrong(target), "drop_access", noted=(1, 1, 2))
    target = made(rig)
    target.memory = rig.reg_mr(bytearray(100), AccessFlag.LOCAL_WRITE)
    check_datagram(target, who, wrong(target), "drop_access", noted=(0, 1, 2))


def room(rig: Rig, who: Stranger) -> None:
    target = made(rig, max_write_records=2)
    before = counter_value("record_full")
    # No record is polled: as many records wait as the queue pair has places.
    for n in range(1, 21):
        who.sendto(target.build_segment(b"whole", 8 * n, n, 5, 0), target.qp.addr)
    wait_until(lambda: counter_value("record_full") > before)
    assert who.has_empty_buffer() and target.qp.errors() == [] and target.qp.qp_state == QPState.RTS
    assert [record.message_id for _, record in target.poll_records(2)] == [1, 2]
    target.close()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(credible, marks=pytest.mark.clause("DGRAM-REC-21#a")),
        pytest.param(of_the_kind, marks=pytest.mark.clause("DGRAM-REC-21#b")),
        pytest.param(in_its_message, marks=pytest.mark.clause("DGRAM-REC-21#c")),
        pytest.param(told_of, marks=pytest.mark.clause("DGRAM-REC-21#d")),
        pytest.param(something_else, marks=pytest.mark.clause("DGRAM-REC-21#e")),
        pytest.param(access, marks=pytest.mark.clause("DGRAM-REC-21#f")),
        pytest.param(room, marks=pytest.mark.clause("DGRAM-REC-21#g")),
    ],
    ids=lambda row: row.__name__,
)
def test_each_row_is_judged_before_those_below_it_and_answered_as_it_says(
    rig: Rig, row: Callable[[Rig, Stranger], None]
) -> None:
    with Stranger() as who:
        row(rig, who)
