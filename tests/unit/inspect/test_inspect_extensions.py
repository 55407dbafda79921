"""The messages of RFC 7306 and siwarp's private messages: scapy layers and reports of dissect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.packet import Packet, Raw
from unit.inspect.inspect_harness import (
    TCPConversation,
    add_startup_frames,
    make_read_request_fpdu,
    make_send_fpdu,
    make_tagged_fpdu,
    write_capture,
)

from siwarp.inspect import (
    DDP,
    FPDU,
    AtomicCode,
    AtomicRequest,
    AtomicResponse,
    DDPUntagged,
    DeliveryCount,
    Dissection,
    ImmediateData,
    Opcode,
    PrivateCode,
    PrivateHead,
    Queue,
    Requester,
    examine,
)

WORD, HALF = st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1)


def make_untagged_fpdu(opcode: Opcode, body: Packet, msn: int = 1, **fields: Any) -> bytes:
    queue = {Opcode.ATOMIC_REQUEST: 1, Opcode.ATOMIC_RESPONSE: 3}.get(opcode, 0)
    head = DDPUntagged(**{"opcode": int(opcode), "qn": queue, "msn": msn, **fields})
    return bytes(FPDU(ulpdu=head / Raw(bytes(body))))


def make_atomic_request_fpdu(msn: int = 1, **fields: Any) -> bytes:
    given = {"request": msn, "stag": 5, "to": 0x100, "data": 3, **fields}
    return make_untagged_fpdu(Opcode.ATOMIC_REQUEST, AtomicRequest(**given), msn)


def make_atomic_response_fpdu(msn: int = 1, number: int | None = None) -> bytes:
    number = msn if number is None else number
    return make_untagged_fpdu(Opcode.ATOMIC_RESPONSE, AtomicResponse(request=number, old=7), msn)


def dissect_both_directions(there: bytes, back: bytes, tmp_path: Path) -> Dissection:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(0, there)
    return examine(
        write_capture((link.add_data(1, back) if back else link).packets, tmp_path / "x.pcapng")
    )


def test_an_atomic_request_has_the_layout_of_figure_4_of_rfc_7306() -> None:
    octets = bytes(
        AtomicRequest(
            code=AtomicCode.CMP_SWAP, request=0x01020304, stag=0x11121314, to=0x21, data=0x31,
            mask=0x41, compare=0x51, compare_mask=0x61,
        )
    )  # fmt: skip
    assert octets == bytes.fromhex(
        "00000002 01020304 11121314 0000000000000021 0000000000000031 0000000000000041"
        "0000000000000051 0000000000000061"
    )
    assert bytes(AtomicResponse(request=9, old=8)) == bytes.fromhex("00000009 0000000000000008")


@given(request=HALF, stag=HALF, to=WORD, data=WORD, mask=WORD, compare=WORD, over=WORD)
def test_atomic_requests_are_parsed_to_the_fields_they_were_built_from(
    request: int, stag: int, to: int, data: int, mask: int, compare: int, over: int
) -> None:
    fields = {"request": request, "stag": stag, "to": to, "data": data, "mask": mask}
    fields |= {"code": 2, "compare": compare, "compare_mask": over}
    back: Any = DDP(bytes(DDPUntagged(opcode=10, qn=1) / AtomicRequest(**fields)))
    assert isinstance(back, DDPUntagged) and AtomicRequest in back
    assert {name: getattr(back[AtomicRequest], name) for name in fields} == fields


@pytest.mark.parametrize(
    ("opcode", "queue", "layer"),
    [
        (Opcode.IMMEDIATE, Queue.SEND, ImmediateData),
        (Opcode.IMMEDIATE_SE, Queue.SEND, ImmediateData),
        (Opcode.ATOMIC_RESPONSE, Queue.ATOMIC_RESPONSE, AtomicResponse),
        (Opcode.PRIVATE, Queue.SEND, PrivateHead),
    ],
)
def test_each_layer_is_selected_by_its_opcode(opcode: Opcode, queue: Queue, layer: Any) -> None:
    octets = bytes(DDPUntagged(opcode=int(opcode), qn=int(queue)) / layer())
    assert layer in DDP(octets)
    assert bytes(DDP(octets)) == octets


def test_dissect_reports_atomics_with_their_fields_and_answers(tmp_path: Path) -> None:
    there = (
        make_atomic_request_fpdu(1)
        + make_atomic_request_fpdu(2, code=2, compare=4)
        + make_read_request_fpdu(3, 9, 2)
    )
    back = (
        make_atomic_response_fpdu(1)
        + make_atomic_response_fpdu(2)
        + make_tagged_fpdu(Opcode.RDMA_READ_RESPONSE, 9, 0, b"xy")
    )
    found = dissect_both_directions(there, back, tmp_path)
    assert [m.error for m in found.messages] == [None] * len(found.messages)
    one, two = (m for m in found.messages if m.kind == "ATOMIC_REQUEST")
    assert (two.fields["code"], two.fields["compare"], two.fields["stag"]) == (2, 4, 5)
    answers = [m for m in found.messages if m.kind == "ATOMIC_RESPONSE"]
    assert [m.answers for m in answers] == [one.number, two.number]
    assert (one.answered_by, answers[0].fields["old"]) == (answers[0].number, 7)
    assert all(m.latency is not None for m in answers)


def test_dissect_reports_immediate_data(tmp_path: Path) -> None:
    there = make_tagged_fpdu(Opcode.RDMA_WRITE, 5, 0, b"abc")
    there += make_untagged_fpdu(Opcode.IMMEDIATE, ImmediateData(data=0x41424344))
    there += make_untagged_fpdu(
        Opcode.PRIVATE, PrivateHead(subcode=PrivateCode.SEND_IMM, data=6) / b"hi", 2
    )
    found = dissect_both_directions(there + make_send_fpdu(3, b"x"), b"", tmp_path)
    assert [(m.kind, m.length) for m in found.messages[2:]] == [
        ("RDMA_WRITE", 3),
        ("IMMEDIATE", 8),
        ("PRIVATE", 10),
        ("SEND", 1),
    ]
    assert found.messages[3].fields["data"] == 0x41424344
    assert found.messages[4].fields["subcode"] == 1
    assert not any(m.error for m in found.messages)


def test_delivery_counts_and_requester_messages_have_the_specified_layout() -> None:
    said = bytes(DeliveryCount(sends=0x01020304, writes=0x11121314))
    assert said == bytes.fromhex("c14f 04000000 01020304 11121314")
    assert bytes(Requester(rnr_retry=6)) == bytes.fromhex("c14f 05000000 000000000000 01 06")
    # With a payload or another subcode, a message is neither a delivery count nor a requester
    # message.
    assert not isinstance(DDP(said + b"x"), DeliveryCount)
    assert not isinstance(DDP(said[:2] + b"\6" + said[3:]), DeliveryCount | Requester)


@given(sends=HALF, writes=HALF, retry=st.integers(0, 255), flags=st.integers(0, 255))
def test_delivery_counts_and_requester_messages_are_parsed_to_their_fields(
    sends: int, writes: int, retry: int, flags: int
) -> None:
    count: Any = DDP(bytes(DeliveryCount(sends=sends, writes=writes)))
    assert isinstance(count, DeliveryCount) and (count.sends, count.writes) == (sends, writes)
    asks: Any = DDP(bytes(Requester(rnr_retry=retry, flags=flags)))
    assert isinstance(asks, Requester)
    assert (asks.rnr_retry, int(asks.flags)) == (retry, flags)


def test_dissect_reports_delivery_counts_and_requester_messages_with_their_fields(
    tmp_path: Path,
) -> None:
    there = bytes(FPDU(ulpdu=Requester(rnr_retry=5))) + make_send_fpdu(1, b"hello")
    back = bytes(FPDU(ulpdu=DeliveryCount(sends=1, writes=0xFFFFFFFF)))
    found = dissect_both_directions(there, back, tmp_path)
    assert [m.kind for m in found.messages[2:]] == ["PRIVATE", "SEND", "PRIVATE"]
    assert found.messages[2].fields == {"subcode": 5, "wants_counts": 1, "rnr_retry": 5}
    assert found.messages[4].fields == {"subcode": 4, "sends": 1, "writes": 0xFFFFFFFF}
    assert not any(m.error for m in found.messages)


INVALID_MESSAGES = {
    "queue": (
        make_untagged_fpdu(Opcode.IMMEDIATE, ImmediateData(), qn=1),
        b"",
        "queue 1",
        "RFC7306-4.1-01",
    ),
    "tagged": (
        make_tagged_fpdu(Opcode.IMMEDIATE, 1, 0, b""),
        b"",
        "tagged segments",
        "RFC7306-4.1-01",
    ),
    "unasked": (
        b"",
        make_atomic_response_fpdu(1),
        "an unsolicited Atomic Response",
        "RFC7306-5.2.2-08",
    ),
    "identifier": (
        make_atomic_request_fpdu(1),
        make_atomic_response_fpdu(1, 2),
        "its identifier differs from the Atomic Request's",
        "RFC7306-5.2.1-13",
    ),
}


@pytest.mark.parametrize("what", INVALID_MESSAGES)
def test_dissect_reports_a_violated_rule_of_rfc_7306_with_its_clause(
    what: str, tmp_path: Path
) -> None:
    there, back, error, clause = INVALID_MESSAGES[what]
    found = dissect_both_directions(there or make_send_fpdu(1), back, tmp_path)
    ((told, by),) = [(m.error, m.clause) for m in found.messages if m.error]
    assert error in told and by == clause
