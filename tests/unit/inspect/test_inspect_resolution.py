"""UD resolution frames (spec/cm-udp.md) in captures: one row each, and answers next to queries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import dissect_to_json, run_siwarp_in_process
from harness.verbs_harness import Rig
from table import run_test_for_each_row
from unit.cm.ud_harness import SidrEndpoints
from unit.inspect.inspect_harness import make_udp_packet, write_capture

import siwarp as package
from siwarp.cm import CMEventType
from siwarp.inspect import SIDR, Message, SIDRType, UDDatagram, crc32c, dissect_packets, examine


@pytest.fixture(name="rig")
def loopback_device_rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


QUERIER, LISTENER = ("10.0.0.1", 40000), ("10.0.0.2", 7174)
ANSWER = {"type": SIDRType.ANSWER, "id": 7, "qpn": 0x10, "q_key": 0x77, "gid": "::ffff:10.0.0.2"}
REFUSAL = {"type": SIDRType.REFUSAL, "id": 7, "status": 2}
COOKIE = {"type": SIDRType.COOKIE, "id": 7, "cookie": 0x99}


def build_sidr_frame(**fields: Any) -> bytes:
    return bytes(SIDR(**fields))


def change_octet_and_fix_crc(octets: bytes, at: int, value: int) -> bytes:
    """Change one octet of a frame and recompute the CRC."""
    changed = octets[:at] + bytes([value]) + octets[at + 1 : -4]
    return changed + crc32c(changed).to_bytes(4, "little")


def dissect_exchange(*sent: tuple[str, bytes]) -> list[Message]:
    """Dissect datagrams to the listener ("ask") and from the listener ("tell") into messages."""
    ends = {"ask": (QUERIER, LISTENER), "tell": (LISTENER, QUERIER)}
    return dissect_packets(make_udp_packet(octets, *ends[way]) for way, octets in sent)


def test_dissect_reports_the_id_and_data_of_a_sidr_query() -> None:
    (found,) = dissect_exchange(("ask", build_sidr_frame(id=7, data=b"hello")))
    assert (found.transport, found.kind, found.length) == ("ud", "SIDR_QUESTION", 5)
    assert (found.fields, found.error) == ({"id": 7, "cookie": 0}, None)
    assert (found.source, found.dest) == ("10.0.0.1:40000", "10.0.0.2:7174")


def test_dissect_reports_the_fields_of_sidr_answers_refusals_and_cookies() -> None:
    answer, refusal, cookie = dissect_exchange(
        ("tell", build_sidr_frame(**ANSWER, data=b"me")),
        ("tell", build_sidr_frame(**REFUSAL)),
        ("tell", build_sidr_frame(**COOKIE)),
    )
    assert (answer.kind, answer.length) == ("SIDR_ANSWER", 2)
    assert answer.fields == {"id": 7, "qpn": 0x10, "q_key": 0x77, "gid": "10.0.0.2"}
    assert (refusal.kind, refusal.fields) == ("SIDR_REFUSAL", {"id": 7, "status": 2})
    assert (cookie.kind, cookie.fields) == ("SIDR_COOKIE", {"id": 7, "cookie": 0x99})
    assert {m.error for m in (answer, refusal, cookie)} == {None}


def test_each_sidr_answer_is_attributed_to_the_last_query_with_its_id() -> None:
    other = build_sidr_frame(**(ANSWER | {"id": 8}))
    first, cookie, again, answer, stray = dissect_exchange(
        ("ask", build_sidr_frame(id=7)),
        ("tell", build_sidr_frame(**COOKIE)),
        ("ask", build_sidr_frame(id=7, cookie=0x99)),
        ("tell", build_sidr_frame(**ANSWER)),
        ("tell", other),
    )
    assert (cookie.answers, first.answered_by) == (first.number, cookie.number)
    assert (answer.answers, again.answered_by) == (again.number, answer.number)
    assert stray.answers is None and answer.latency is not None


@run_test_for_each_row(
    ("octets", "why"),
    [
        (build_sidr_frame(id=7)[:-1], "231 octets instead of 232"),
        (build_sidr_frame(id=7)[:20], "20 octets instead of 232"),
        (build_sidr_frame(id=7, crc=5), "wrong CRC"),
        (
            change_octet_and_fix_crc(build_sidr_frame(id=7), 4, 2),
            "not the magic and version of UD resolution",
        ),
        (
            change_octet_and_fix_crc(build_sidr_frame(id=7), 0, 0x54),
            "not the magic and version of UD resolution",
        ),
        (build_sidr_frame(id=0), "id 0"),
        (change_octet_and_fix_crc(build_sidr_frame(id=7), 5, 9), "unknown type 9"),
        (change_octet_and_fix_crc(build_sidr_frame(id=7), 7, 181), "181 octets of private data"),
        (
            change_octet_and_fix_crc(build_sidr_frame(**ANSWER), 7, 137),
            "137 octets of private data",
        ),
        (change_octet_and_fix_crc(build_sidr_frame(**COOKIE), 7, 1), "1 octets of private data"),
        (build_sidr_frame(**(REFUSAL | {"status": 0})), "a refusal without status"),
        (build_sidr_frame(**(COOKIE | {"cookie": 0})), "a cookie frame without a cookie"),
        (build_sidr_frame(**(ANSWER | {"qpn": 0})), "QPN 0x0"),
        (build_sidr_frame(**(ANSWER | {"qpn": 0xFFFFFF})), "QPN 0xffffff"),
        (build_sidr_frame(**(ANSWER | {"gid": "ff02::1"})), "a group's GID"),
        (build_sidr_frame(**(ANSWER | {"gid": "::ffff:224.0.0.1"})), "a group's GID"),
    ],
)
def test_dissect_reports_invalid_sidr_frames_with_the_reason(octets: bytes, why: str) -> None:
    _, bad = dissect_exchange(("ask", build_sidr_frame(id=1)), ("ask", octets))
    assert bad.error == why


def test_dissect_reports_a_truncated_sidr_frame_as_incomplete() -> None:
    packet = make_udp_packet(build_sidr_frame(id=7, data=b"hello"), QUERIER, LISTENER)
    whole = bytes(packet)
    for length in range(46, len(whole)):
        packets = dissect_packets([type(packet)(whole[:length])])
        assert all(not m.whole and m.note for m in packets)
        assert len(packets) == 1


def test_sidr_frames_and_datagrams_of_queue_pairs_have_separate_rows() -> None:
    question, send = dissect_exchange(
        ("ask", build_sidr_frame(id=7)), ("ask", bytes(UDDatagram(segment=b"\x41\x43" + bytes(16))))
    )
    assert (question.kind, send.kind) == ("SIDR_QUESTION", "SEND")


def test_dissect_reports_a_ud_resolution_of_siwarp(tmp_path: Path, rig: Rig) -> None:
    file = tmp_path / "sidr.pcapng"
    with package.capture(file):
        ends = SidrEndpoints(rig)
        qp = ends.create_qp()
        ends.send_sidr_query(b"who is there")
        ends.accept(ends.next_connection_request(), qp, b"it is me")
        assert ends.next_query_result().type == CMEventType.ESTABLISHED
        ends.send_sidr_query(b"and who else")
        ends.next_connection_request().id.reject(b"nobody")
        assert ends.next_query_result().type == CMEventType.REJECTED
        deadline = time.monotonic() + 20
        while len(examine(file).messages) < 8 and time.monotonic() < deadline:
            time.sleep(0.05)
    found = dissect_to_json(file)
    assert {m["error"] for m in found} == {None}
    # Each frame is captured as sent and as received.
    assert [m["kind"] for m in found] == [
        *["SIDR_QUESTION"] * 2, *["SIDR_ANSWER"] * 2, *["SIDR_QUESTION"] * 2, *["SIDR_REFUSAL"] * 2
    ]  # fmt: skip
    assert [m["length"] for m in found[::2]] == [12, 8, 12, 6]
    answer, refusal = found[2]["fields"], found[6]["fields"]
    assert (answer["qpn"], answer["q_key"]) == (qp.qp_num, 0x01234567)
    assert (answer["gid"], refusal["status"]) == ("127.0.0.1", 2)
    assert all(m["answers"] and m["latency"] is not None for m in found[2:4] + found[6:])
    words = run_siwarp_in_process("dissect", file).stdout
    assert "ud SIDR_QUESTION" in words and "ud SIDR_ANSWER" in words


def test_dissect_reports_a_dropped_sidr_frame_with_the_reason(tmp_path: Path) -> None:
    packet = make_udp_packet(build_sidr_frame(id=7), QUERIER, LISTENER)
    packet.comment = b"drop_sidr_share: too many pending of one source"
    (found,) = examine(write_capture([packet], tmp_path / "x.pcapng")).messages
    assert found.kind == "SIDR_QUESTION" and found.dropped is not None
    assert found.error == "dropped by the receiver: drop_sidr_share: too many pending of one source"
