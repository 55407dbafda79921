"""Table 6.1 of spec/datagram-iwarp.md, row by row: reported errors and resulting states."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from harness.errq_harness import (
    NOT_WHOLE,
    OPCODE,
    QKEY,
    TOO_LONG,
    PlainUDPSocket,
    build_datagram,
    build_wire_error_message,
    parse_error_message,
)
from harness.verbs_harness import Rig, assert_counter_grows, assert_no_completion, poll, wait_until

from siwarp.inspect import ud_qn
from siwarp.verbs import MR, QP, ErrorPolicy, QPState, RecvWR, WCStatus

LONG = 60
BODY = b"evil" * 15


def post_receive(rig: Rig, qp: QP, mr: MR) -> None:
    qp.post_recv(RecvWR(1, sg=[mr.sge()]))


def post_no_receive(rig: Rig, qp: QP, mr: MR) -> None:
    """Post nothing, so that the datagram finds no receive."""


def post_short_receive(rig: Rig, qp: QP, mr: MR) -> None:
    qp.post_recv(RecvWR(1, sg=[mr.sge(0, LONG - 1)]))


def post_receive_with_invalid_key(rig: Rig, qp: QP, mr: MR) -> None:
    gone = rig.reg_mr(bytearray(LONG))
    qp.post_recv(RecvWR(1, sg=[gone.sge()]))
    gone.close()


@dataclass
class InvalidDatagram:
    """A datagram for a row of the table, its counter, and its effects under policy `error`."""

    octets: bytes
    counter: str | None
    told: tuple[int, int, int] | None = None
    state: QPState = QPState.RTS
    before: Callable[[Rig, QP, MR], None] = post_receive
    completes: WCStatus | None = None


#: In its header the datagram of each row also has the mistakes of all later rows, so that the
#: first check decides.
OP = {"opcode": 4}
PARTS = {**OP, "l": 0}
TERMINATE = {"opcode": 7, "l": 0}
KEY = {**TERMINATE, "q_key": QKEY ^ 1}
QUEUE = {**KEY, "qn": 1}
VERSION = {**QUEUE, "rv": 2}
PLACE = {**VERSION, "qn": ud_qn(1, 5, 0)}

ROW_A = {
    "short": InvalidDatagram(build_datagram(**PLACE)[:21], "drop_short"),
    "a wrong CRC": InvalidDatagram(build_datagram(BODY, **PLACE)[:-1] + b"!", "drop_crc"),
    "DDP version": InvalidDatagram(build_datagram(BODY, **PLACE, dv=2), "drop_version"),
    "tagged": InvalidDatagram(build_datagram(BODY, **PLACE, t=1), "drop_header"),
}
ROW_D = {
    "queue 1": InvalidDatagram(build_datagram(BODY, **QUEUE), "drop_qn"),
    "queue 3": InvalidDatagram(build_datagram(BODY, **{**QUEUE, "qn": 3}), "drop_qn"),
    "a Send on queue 2": InvalidDatagram(build_datagram(BODY, qn=2, q_key=QKEY ^ 1), "drop_qn"),
}
ROW_E = {
    "about nothing that was sent": InvalidDatagram(build_wire_error_message(1), "err_stale"),
    "that is none": InvalidDatagram(build_datagram(BODY, opcode=7, qn=2), "err_malformed"),
}
ROW_H = {
    "L=0": InvalidDatagram(build_datagram(BODY, **PARTS), "drop_header", NOT_WHOLE, QPState.ERR),
    "MO=1": InvalidDatagram(
        build_datagram(BODY, **OP, mo=1), "drop_header", NOT_WHOLE, QPState.ERR
    ),
}
ROW_I = {
    f"opcode {op:#x}": InvalidDatagram(
        build_datagram(BODY, opcode=op), "drop_opcode", OPCODE, QPState.ERR, post_no_receive
    )
    for op in (0, 1, 2, 4, 6, 8, 9, 11, 12, 15)
}
NO_RECEIVE = InvalidDatagram(build_datagram(BODY), "drop_no_buffer", before=post_no_receive)
LONGER = InvalidDatagram(
    build_datagram(BODY), "drop_too_long", TOO_LONG, before=post_short_receive,
    completes=WCStatus.LOC_LEN_ERR,
)  # fmt: skip
BAD_KEY = InvalidDatagram(
    build_datagram(BODY), None, before=post_receive_with_invalid_key,
    completes=WCStatus.LOC_PROT_ERR,
)  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(ROW_A, marks=pytest.mark.clause("DGRAM-ERR-17#a"), id="a"),
        pytest.param(
            {"place 5": InvalidDatagram(build_datagram(BODY, **PLACE), "drop_qn")},
            marks=pytest.mark.clause("DGRAM-ERR-17#b"),
            id="b",
        ),
        pytest.param(
            {"2": InvalidDatagram(build_datagram(BODY, **VERSION), "drop_version")},
            marks=pytest.mark.clause("DGRAM-ERR-17#c"),
            id="c",
        ),
        pytest.param(ROW_D, marks=pytest.mark.clause("DGRAM-ERR-17#d"), id="d"),
        pytest.param(ROW_E, marks=pytest.mark.clause("DGRAM-ERR-17#e"), id="e"),
        pytest.param(
            {"another": InvalidDatagram(build_datagram(BODY, **KEY), "drop_qkey")},
            marks=pytest.mark.clause("DGRAM-ERR-17#f"),
            id="f",
        ),
        pytest.param(
            {
                "in parts": InvalidDatagram(build_datagram(BODY, **TERMINATE), "drop_header"),
                "whole": InvalidDatagram(build_datagram(BODY, opcode=7), "drop_opcode"),
            },
            marks=pytest.mark.clause("DGRAM-ERR-17#g"),
            id="g",
        ),
        pytest.param(ROW_H, marks=pytest.mark.clause("DGRAM-ERR-17#h"), id="h"),
        pytest.param(ROW_I, marks=pytest.mark.clause("DGRAM-ERR-17#i"), id="i"),
        pytest.param(
            {"none": NO_RECEIVE}, marks=pytest.mark.clause("DGRAM-ERR-17#j"), id="j"
        ),
        pytest.param({"by one": LONGER}, marks=pytest.mark.clause("DGRAM-ERR-17#k"), id="k"),
        pytest.param({"gone": BAD_KEY}, marks=pytest.mark.clause("DGRAM-ERR-17#l"), id="l"),
    ],
)  # fmt: skip
def test_each_row_of_the_error_table_is_checked_before_later_rows(
    rig: Rig, row: dict[str, InvalidDatagram]
) -> None:
    for name, wrong in row.items():
        with PlainUDPSocket() as who:
            check_handling_of_invalid_datagram(rig, who, name, wrong)


def check_handling_of_invalid_datagram(
    rig: Rig, who: PlainUDPSocket, name: str, wrong: InvalidDatagram
) -> None:
    """Send a datagram under policy `error`; check the counter, answer, completion and state."""
    qp = rig.create_ud_qp(qkey=QKEY, error_policy=ErrorPolicy.ERROR)
    mr = rig.reg_mr(bytearray(LONG))
    wrong.before(rig, qp, mr)
    with assert_counter_grows(wrong.counter, 1) if wrong.counter else contextlib.nullcontext():
        who.sendto(wrong.octets, qp.addr)
        if wrong.completes is not None:
            assert [wc.status for wc in poll(qp.rcq)] == [wrong.completes], name
        elif wrong.state == QPState.RTS:
            assert_no_completion(qp.rcq)
        else:
            wait_until(lambda: qp.qp_state == wrong.state)
    if wrong.told is not None:
        _, answer = parse_error_message(who.recv(1 << 16))
        assert (answer.layer, answer.etype, answer.code) == wrong.told, name
    assert who.has_empty_buffer() and qp.qp_state == wrong.state, name
    if wrong.state == QPState.RTS:
        assert mr.read() == bytes(LONG) or wrong.before is post_short_receive, name
        if wrong.before is not post_receive:
            post_receive(rig, qp, mr)
        who.sendto(build_datagram(b"good"), qp.addr)
        assert poll(qp.rcq)[0].ok and mr.read(4) == b"good" and who.has_empty_buffer(), name
    qp.close()
