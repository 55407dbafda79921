"""Reports of the command dissect about a capture: streams, messages, answers, errors and gaps."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import pytest
from scapy.layers.inet import IP, fragment
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from unit.inspect.inspect_harness import (
    READ_RESPONSE,
    RECORDED,
    A,
    B,
    TCPConversation,
    add_startup_frames,
    make_read_request_fpdu,
    make_send_fpdu,
    make_stream_with_markers,
    make_tagged_fpdu,
    make_terminate_fpdu,
    make_ud_datagram,
    make_udp_packet,
    message_kinds,
    write_capture,
)

from siwarp.inspect import (
    FPDU,
    DDPUntagged,
    Dissection,
    Opcode,
    QuotedTagged,
    QuotedUntagged,
    Terminate,
    TermLayer,
    examine,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SPEC = Path(__file__).resolve().parents[3] / "spec"
WRITE = Opcode.RDMA_WRITE


def dissect_conversation(
    link: TCPConversation, tmp_path: Path, suffix: str = ".pcapng"
) -> Dissection:
    return examine(write_capture(link.packets, tmp_path / f"x{suffix}"))


def errors_and_clauses(found: Dissection) -> list[tuple[str | None, str | None]]:
    return [(m.error, m.clause) for m in found.messages if m.error is not None]


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_dissect_reports_the_set_up_and_the_reads_of_a_recorded_connection(file: Path) -> None:
    found = examine(file)
    (stream,) = found.streams
    assert errors_and_clauses(found) == []
    assert (stream.errors, stream.retransmitted, stream.missing, stream.ended) == (
        0,
        0,
        0,
        "closed",
    )
    assert stream.crc is ("crc" in file.stem)
    assert stream.request is not None and stream.reply is not None
    assert (stream.request["rev"], stream.request["ird"], stream.reply["ord"]) == (2, 1, 1)
    assert stream.messages["SEND"] == 12
    assert (stream.octets["RDMA_WRITE"], stream.octets["RDMA_READ_RESPONSE"]) == (9000, 9000)
    reads = [m for m in found.messages if m.kind == "RDMA_READ_REQUEST"]
    by_number = {m.number: m for m in found.messages}
    for asked in reads:
        assert asked.answered_by is not None
        answer = by_number[asked.answered_by]
        assert (answer.answers, answer.segments) == (asked.number, 3)
        assert answer.latency == (answer.when_ns - asked.when_ns) / 1e9
    assert stream.read_latency is not None
    assert stream.read_latency["min"] <= stream.read_latency["median"] <= stream.read_latency["max"]


@pytest.mark.parametrize("suffix", [".pcap", ".pcapng"])
def test_dissect_reports_private_data_and_the_initiator(tmp_path: Path, suffix: str) -> None:
    link = add_startup_frames(
        TCPConversation().add_handshake(), private_data=b"hello", rev=1, s=0, c=0, reply_c=1
    )
    found = dissect_conversation(link.add_data(0, make_send_fpdu(1, b"x")), tmp_path, suffix)
    (stream,) = found.streams
    assert (stream.source, stream.dest) == ("10.1.0.1:4000", "10.1.0.2:5000")
    assert stream.request is not None
    assert stream.request["private_data"] == b"hello".hex()
    assert (stream.crc, stream.markers["10.1.0.1:4000"]) == (True, False)
    assert found.messages[1].latency == pytest.approx(0.001, abs=1e-5)


def test_dissect_detects_markers_from_the_frame_of_the_other_end_and_reports_wrong_markers(
    tmp_path: Path,
) -> None:
    fpdus = [make_send_fpdu(n, b"m" * 200) for n in range(1, 9)]
    link = add_startup_frames(TCPConversation().add_handshake(), reply_m=1).add_data(
        0, make_stream_with_markers(fpdus), [100, 412, 3]
    )
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found)[2:] == ["SEND"] * 8
    assert errors_and_clauses(found) == []
    assert found.streams[0].markers == {"10.1.0.1:4000": True, "10.1.0.2:5000": False}
    wrong = bytearray(make_stream_with_markers(fpdus))
    wrong[515] ^= 8
    found = dissect_conversation(
        add_startup_frames(TCPConversation().add_handshake(), reply_m=1).add_data(0, bytes(wrong)),
        tmp_path,
    )
    assert [e for e, _ in errors_and_clauses(found)] == ["wrong CRC"]


# Each entry contains octets that the initiator sends after the start-up frames, the error, and the
# RFC clause that the octets violate.
INVALID_STREAMS: dict[str, tuple[list[bytes], str, str]] = {
    "crc": ([make_send_fpdu(1, b"x")[:-1] + b"\0"], "wrong CRC", "RFC5044-8-01"),
    "version": (
        [bytes(FPDU(ulpdu=DDPUntagged(dv=2)))],
        "DDP version 2",
        "RFC5041-4.1-09",
    ),
    "rdmap version": (
        [bytes(FPDU(ulpdu=DDPUntagged(rv=3)))],
        "RDMAP version 3",
        "RFC5040-7.2-03",
    ),
    "opcode": ([make_send_fpdu(1, opcode=13)], "unknown opcode 0xd", "RFC5040-7.2-02"),
    "untagged write": ([make_send_fpdu(1, opcode=0)], "RDMA_WRITE in untagged", "RFC5040-4.1-05"),
    "tagged send": ([make_tagged_fpdu(Opcode.SEND, 1, 0, b"")], "SEND in tagged", "RFC5040-4.1-05"),
    "queue": ([make_send_fpdu(1, qn=1)], "queue 1 instead of 0", "RFC5040-4.1-07"),
    "msn": ([make_send_fpdu(1), make_send_fpdu(3)], "MSN 3, expected 2", "RFC5041-4.3-08"),
    "mo": ([make_send_fpdu(1, mo=4)], "MO 4, expected 0", "RFC5041-5.2-05"),
    "later mo": (
        [make_send_fpdu(1, b"1234", l=0), make_send_fpdu(1, b"56", mo=5)],
        "MO 5, expected 4",
        "RFC5041-5.2-05",
    ),
    "to": (
        [make_tagged_fpdu(WRITE, 5, 0, b"1234", last=0), make_tagged_fpdu(WRITE, 5, 3, b"5")],
        "does not follow",
        "RFC5041-5.3-03",
    ),
    "no header": ([bytes(FPDU(ulpdu=Raw(b"\x41\x43")))], "no DDP header", "RFC5041-4.3-01"),
    "nobody asked": (
        [make_tagged_fpdu(READ_RESPONSE, 1, 0, b"x")],
        "an unsolicited Read Response",
        "RFC5040-5.2-01",
    ),
    "cut terminate": (
        [bytes(FPDU(ulpdu=DDPUntagged(opcode=7, qn=2) / Raw(b"\x11")))],
        "a truncated Terminate",
        "RFC5040-4.8-01",
    ),
    "behind terminate": (
        [bytes(FPDU(ulpdu=DDPUntagged(opcode=7, qn=2) / Raw(bytes(4)))), make_send_fpdu(1)],
        "after its own Terminate",
        "RFC5040-5.4-08",
    ),
    "never ended": (
        [make_send_fpdu(1, b"x", l=0), make_send_fpdu(2, b"y")],
        "last segment is missing",
        "RFC5041-4.1-03",
    ),
}


@pytest.mark.parametrize("name", INVALID_STREAMS)
def test_dissect_reports_a_violated_rule_with_its_clause(name: str, tmp_path: Path) -> None:
    octets, error, clause = INVALID_STREAMS[name]
    found = dissect_conversation(
        add_startup_frames(TCPConversation().add_handshake()).add_data(0, b"".join(octets)),
        tmp_path,
    )
    told = errors_and_clauses(found)
    assert error in str(told[-1][0])
    assert told[-1][1] == clause
    assert found.streams[0].errors == len(told)


def test_every_clause_that_dissect_reports_is_in_the_specification() -> None:
    known = set()
    for file in SPEC.rglob("*.toml"):
        text = tomllib.loads(file.read_text("utf-8"))
        known |= {c["id"] for c in text.get("clause", [])}
    sources = (SPEC.parent / "siwarp" / "inspect").glob("*.py")
    named = {
        clause
        for source in sources
        for clause in re.findall(r'"(RFC\d{4}-[0-9.]+-\d\d)"', source.read_text("utf-8"))
    }
    assert len(named) > 15
    assert named <= known


def test_dissect_reports_a_read_response_that_does_not_match_its_request(tmp_path: Path) -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, make_read_request_fpdu(1, 7, 4) + make_read_request_fpdu(2, 8, 4)
    )
    link.add_data(
        1,
        make_tagged_fpdu(READ_RESPONSE, 7, 0, b"1234")
        + make_tagged_fpdu(READ_RESPONSE, 8, 0, b"123"),
    )
    found = dissect_conversation(link, tmp_path)
    assert errors_and_clauses(found) == [("differs from the Read Request", "RFC5040-5.2.2-07")]
    assert [m.answers for m in found.messages[-2:]] == [3, 4]


@pytest.mark.parametrize("tag", [True, False])
def test_dissect_reports_a_terminate_in_words_with_the_message_it_is_about(
    tmp_path: Path, tag: bool
) -> None:
    link = add_startup_frames(TCPConversation().add_handshake())
    link.add_data(
        0,
        make_tagged_fpdu(WRITE, 5, 100, b"x" * 50)
        + make_tagged_fpdu(WRITE, 6, 100, b"y")
        + make_send_fpdu(1)
        + make_send_fpdu(2),
    )
    quoted = QuotedTagged(opcode=0, stag=5, to=120) if tag else QuotedUntagged(opcode=3, msn=2)
    link.add_data(1, make_terminate_fpdu(quoted, layer=int(TermLayer.DDP)))
    last = dissect_conversation(link, tmp_path).messages[-1]
    assert (last.kind, last.about) == ("TERMINATE", 3 if tag else 6)
    assert last.error == "DDP: Tagged Buffer Error: Invalid STag"
    assert last.clause == "RFC5041-7.2-01"
    assert [last.fields[n] for n in ("layer", "etype", "code")] == [1, 1, 0]


@pytest.mark.parametrize(
    ("layer", "etype", "code", "words", "clause"),
    [
        (0, 1, 2, "Access rights violation", "RFC5040-4.8-03"),
        (2, 0, 2, "CRC mismatch", "RFC5044-8-01"),
        (2, 0, 6, "Insufficient IRD resources", "RFC6581-8"),
        (9, 9, 9, "layer 0x9", None),
    ],
)
def test_dissect_reports_a_terminate_with_the_clause_of_its_layer(
    tmp_path: Path, layer: int, etype: int, code: int, words: str, clause: str | None
) -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        1, make_terminate_fpdu(QuotedUntagged(), layer, etype, code)
    )
    (told,) = errors_and_clauses(dissect_conversation(link, tmp_path))
    assert words in str(told[0])
    assert told[1] == clause


def test_an_empty_fpdu_is_an_error_unless_it_was_offered_as_rtr(tmp_path: Path) -> None:
    empty = bytes(FPDU(ulpdu=Raw(b"")))
    offers = {"rev": 2, "s": 1, "a": 1, "b": 1}
    link = add_startup_frames(
        TCPConversation().add_handshake(), **offers, reply_rev=2, reply_s=1, reply_a=1, reply_b=1
    )
    found = dissect_conversation(link.add_data(0, empty + make_send_fpdu(1) + empty), tmp_path)
    assert message_kinds(found)[2:] == ["RTR", "SEND", "BROKEN"]
    assert errors_and_clauses(found) == [("no DDP header", "RFC5041-4.3-01")]


def test_dissect_reports_a_rejected_connection_as_an_error(tmp_path: Path) -> None:
    found = dissect_conversation(
        add_startup_frames(TCPConversation().add_handshake(), reply_r=1).add_fins(), tmp_path
    )
    assert errors_and_clauses(found) == [("the connection was rejected", None)]


# ---- segments missing from the capture


def test_dissect_counts_retransmissions_per_stream_and_message(tmp_path: Path) -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, make_send_fpdu(1, b"a" * 50) + make_send_fpdu(2, b"b" * 50), [40, 70]
    )
    link.packets += [link.packets[6], link.packets[6]]
    found = dissect_conversation(link.add_fins(), tmp_path)
    assert found.streams[0].retransmitted == 2
    assert [m.retransmitted for m in found.messages] == [0, 0, 2, 0]
    assert errors_and_clauses(found) == []


def test_dissect_reorders_segments(tmp_path: Path) -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, b"".join(make_send_fpdu(n, b"z" * 30) for n in range(1, 9)), [17] * 40
    )
    head, tail = link.packets[:5], link.packets[5:]
    link.packets = head + tail[::-1]
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found)[2:] == ["SEND"] * 8
    assert (errors_and_clauses(found), found.streams[0].missing) == ([], 0)


def test_dissect_reports_a_gap_and_reads_the_messages_after_it(tmp_path: Path) -> None:
    link = add_startup_frames(TCPConversation().add_handshake())
    for n in range(1, 7):
        link.add_data(0, make_send_fpdu(n, bytes([n]) * 40), [30])
    del link.packets[8:11]
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found) == [
        "MPA_REQUEST",
        "MPA_REPLY",
        "SEND",
        "PART",
        "GAP",
        "SEND",
        "SEND",
        "SEND",
    ]
    gap = found.messages[4]
    assert (gap.error, gap.whole) == (None, False)
    assert [m.fields["msn"] for m in found.messages if m.kind == "SEND"] == [1, 4, 5, 6]
    assert errors_and_clauses(found) == []
    assert found.streams[0].missing == gap.length


def test_a_connection_without_its_start_is_dissected_from_the_first_valid_fpdu(
    tmp_path: Path,
) -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, make_send_fpdu(1, b"q" * 99), [50]
    )
    for n in range(2, 6):
        link.add_data(0, make_send_fpdu(n, b"q" * 99))
    link.packets = link.packets[6:]
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found) == ["SEND"] * 4
    assert "begins after" in str(found.messages[0].note)
    assert errors_and_clauses(found) == []


def test_dissect_continues_after_a_gap_in_a_stream_with_markers(tmp_path: Path) -> None:
    link = add_startup_frames(TCPConversation().add_handshake(), reply_m=1)
    stream = make_stream_with_markers([make_send_fpdu(n, b"q" * 102) for n in range(1, 12)])
    link.add_data(0, stream, [132, *[128] * 20])
    del link.packets[7]
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found)[2:6] == ["SEND", "SEND", "GAP", "SEND"]
    assert errors_and_clauses(found) == []


def test_dissect_continues_after_a_gap_without_crc_where_a_header_fits(tmp_path: Path) -> None:
    link = add_startup_frames(TCPConversation().add_handshake(), c=0, reply_c=0)
    for n in range(1, 6):
        link.add_data(0, make_send_fpdu(n, b"q" * 30)[:-4] + bytes(4))
    del link.packets[6]
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found)[2:] == ["SEND", "GAP", "SEND", "SEND", "SEND"]
    assert errors_and_clauses(found) == []


def test_all_octets_after_a_gap_are_missing_if_no_fpdu_is_found(tmp_path: Path) -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(0, make_send_fpdu(1))
    link.next[0] += 10
    link.add_data(0, b"\xff" * 500)
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found)[2:] == ["SEND", "GAP"]
    assert found.streams[0].missing == 510


def test_two_connections_with_the_same_ports_are_two_streams(tmp_path: Path) -> None:
    link = (
        add_startup_frames(TCPConversation().add_handshake())
        .add_data(0, make_send_fpdu(1))
        .add_fins()
    )
    again = add_startup_frames(TCPConversation(packets=link.packets).add_handshake()).add_data(
        0, make_send_fpdu(1) + make_send_fpdu(2)
    )
    found = dissect_conversation(again, tmp_path)
    assert [(s.number, s.messages["SEND"], s.ended) for s in found.streams] == [
        (1, 1, "closed"),
        (2, 2, None),
    ]
    assert [m.stream for m in found.messages] == [1, 1, 1, 2, 2, 2, 2]
    assert errors_and_clauses(found) == []


def test_traffic_of_other_protocols_is_not_reported_as_a_stream(tmp_path: Path) -> None:
    link = (
        TCPConversation()
        .add_handshake()
        .add_data(0, b"GET / HTTP/1.1\r\n\r\n" * 20)
        .add_data(1, b"\x00\x16" * 500)
    )
    link.packets += [make_udp_packet(b"\x12\x34\x01\x00" + bytes(30)), make_udp_packet(b"")]
    assert dissect_conversation(link, tmp_path) == Dissection()


# ---- UDP


@pytest.mark.parametrize(
    ("fields", "error", "clause"),
    [
        ({"opcode": 4}, "SEND_INVALIDATE on UD", "DGRAM-UD-2"),
        ({"opcode": 6}, "SEND_SE_INVALIDATE on UD", "DGRAM-UD-2"),
        ({"l": 0}, "a part of a message on UD", "DGRAM-UD-1"),
        ({"mo": 5}, "a part of a message on UD", "DGRAM-UD-1"),
        ({"opcode": 5}, None, None),
    ],
)
def test_segments_invalid_on_ud_are_reported_with_their_requirement(
    tmp_path: Path, fields: dict[str, int], error: str | None, clause: str | None
) -> None:
    link = TCPConversation()
    link.packets = [make_udp_packet(make_ud_datagram(1, b"x", **fields))]
    (message,) = dissect_conversation(link, tmp_path).messages
    assert (message.error, message.clause) == (error, clause)


def test_dissect_reports_the_queue_pair_indexes_of_shared_sockets(tmp_path: Path) -> None:
    link = TCPConversation()
    link.packets = [
        make_udp_packet(make_ud_datagram(1, b"x", qn=7 << 16 | 200 << 8)),
        make_udp_packet(make_ud_datagram(2, b"y")),
    ]
    shared, alone = dissect_conversation(link, tmp_path).messages
    assert (shared.fields["source_index"], shared.fields["dest_index"]) == (7, 200)
    assert (alone.fields["source_index"], alone.fields["dest_index"]) == (0, 0)


def test_dissect_reports_the_rule_and_the_message_of_an_error_message(tmp_path: Path) -> None:
    told = Terminate(
        layer=1, etype=2, code=5, m=1, d=1, ddp_seg_len=23, quoted_ddp=QuotedUntagged(msn=2)
    )
    error = make_ud_datagram(1, bytes(told), opcode=7, qn=2)
    link = TCPConversation()
    link.packets = [
        make_udp_packet(make_ud_datagram(1, b"fits")),
        make_udp_packet(make_ud_datagram(2, b"does not")),
        make_udp_packet(make_ud_datagram(2, b"other way"), B, A),
        make_udp_packet(error, B, A),
        make_udp_packet(error, ("10.0.0.9", 5), A),
    ]
    found = dissect_conversation(link, tmp_path).messages
    assert [(m.kind, m.about) for m in found] == [
        ("SEND", None), ("SEND", None), ("SEND", None), ("TERMINATE", 2), ("TERMINATE", None),
    ]  # fmt: skip
    assert found[3].fields["code"] == 5 and found[3].clause == "RFC5041-7.2-01"
    assert "too long" in str(found[3].error)


def test_datagrams_between_two_addresses_are_a_stream_with_reported_errors(
    tmp_path: Path,
) -> None:
    link = TCPConversation()
    link.packets = [
        make_udp_packet(make_ud_datagram(1, b"hello")),
        make_udp_packet(make_ud_datagram(1, b"other way"), B, A),
        make_udp_packet(make_ud_datagram(2, b"broken")[:-1] + b"\xee"),
        make_udp_packet(b"short"),
        make_udp_packet(b"elsewhere", ("10.0.0.9", 53), ("10.0.0.8", 53)),
        make_udp_packet(make_ud_datagram(3, opcode=12)),
    ]
    found = dissect_conversation(link, tmp_path)
    assert [(m.stream, m.kind, m.error, m.clause) for m in found.messages] == [
        (1, "SEND", None, None),
        (1, "SEND", None, None),
        (1, "SEND", "wrong CRC", "RFC5041-3-07"),
        (1, "BROKEN", "no DDP header", "RFC5041-4.3-01"),
        (1, "opcode 0xc", "unknown opcode 0xc", "RFC5040-7.2-02"),
    ]
    assert found.streams[0].messages == {"SEND": 3, "BROKEN": 1, "opcode 0xc": 1}


def test_dissect_reassembles_a_fragmented_datagram(tmp_path: Path) -> None:
    whole = make_udp_packet(make_ud_datagram(1, b"f" * 9000))
    pieces = [Ether(src=whole.src, dst=whole.dst) / p for p in fragment(whole[IP], 1480)]
    link = TCPConversation()
    link.packets = [*pieces[::-1], make_udp_packet(make_ud_datagram(2))]
    found = dissect_conversation(link, tmp_path)
    assert [(m.kind, m.length, m.error) for m in found.messages] == [
        ("SEND", 9000, None),
        ("SEND", 0, None),
    ]
    assert found.messages[0].frame == len(pieces)


@pytest.mark.parametrize("lost", [0, 1, 6])
@pytest.mark.parametrize("alone", [True, False])
def test_a_datagram_that_lacks_a_fragment_is_reported_and_counted(
    tmp_path: Path, lost: int, alone: bool
) -> None:
    whole = make_udp_packet(make_ud_datagram(1, b"f" * 9000))
    pieces = [Ether(src=whole.src, dst=whole.dst) / p for p in fragment(whole[IP], 1480)]
    link = TCPConversation()
    link.packets = pieces[:lost] + pieces[lost + 1 :]
    if not alone:
        link.packets += [make_udp_packet(make_ud_datagram(2, b"good"))]
    elif lost == 0:  # another datagram shows which ports the flow used
        link.packets += [make_udp_packet(make_ud_datagram(1, b"back"), B, A)]
    found = dissect_conversation(link, tmp_path)
    assert (found.messages[0].source, found.messages[0].dest) == (
        "{}:{}".format(*A),
        "{}:{}".format(*B),
    )
    first = found.messages[0]
    assert first.kind == ("SEND" if lost else "PART") and not first.whole
    assert "IP fragments that the capture lacks" in str(first.note)
    assert first.frame == len(pieces) - 1
    assert found.streams[0].missing > 0 and len(found.streams) == 1
    assert (
        sum(found.streams[0].messages.values())
        == len(found.messages)
        == 1 + (lost == 0 or not alone)
    )
    assert errors_and_clauses(found) == []


@pytest.mark.parametrize("opcode", [Opcode.RDMA_WRITE, Opcode.RDMA_READ_RESPONSE])
def test_a_message_after_a_gap_is_reported_as_possibly_incomplete(
    tmp_path: Path, opcode: Opcode
) -> None:
    link = add_startup_frames(TCPConversation().add_handshake())
    for last, to in ((0, 0), (1, 1000)):
        link.add_data(0, make_tagged_fpdu(opcode, 7, to, b"w" * (8 if last else 1000), last))
    del link.packets[-2]
    link.add_data(0, make_send_fpdu(1, b"whole"))
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found)[2:] == ["GAP", opcode.name, "SEND"]
    rest, after = found.messages[-2:]
    assert not rest.whole and "beginning may be missing" in str(rest.note)
    assert after.whole and after.note is None


def test_a_message_that_begins_after_a_gap_is_complete(tmp_path: Path) -> None:
    link = (
        add_startup_frames(TCPConversation().add_handshake())
        .add_data(0, make_send_fpdu(1))
        .add_data(0, make_send_fpdu(2))
        .add_data(0, make_send_fpdu(3))
    )
    del link.packets[-2]
    found = dissect_conversation(link, tmp_path)
    assert message_kinds(found)[2:] == ["SEND", "GAP", "SEND"]
    assert found.messages[-1].whole and found.messages[-1].note is None


@pytest.mark.parametrize("size", [0, 1, 64, 1400])
def test_datagrams_captured_before_segmentation_offload_are_reported_one_by_one(
    tmp_path: Path, size: int
) -> None:
    batch = b"".join(make_ud_datagram(n, b"t" * size) for n in range(1, 21)) + make_ud_datagram(
        21, b"t" * (size // 2)
    )
    link = TCPConversation()
    link.packets = [
        make_udp_packet(batch),
        make_udp_packet(make_ud_datagram(22)),
        make_udp_packet(batch[:-1] + b"\xee"),
    ]
    found = dissect_conversation(link, tmp_path)
    assert [m.fields["msn"] for m in found.messages] == [*range(1, 23), 1]
    assert [m.length for m in found.messages[:21]] == [size] * 20 + [size // 2]
    assert errors_and_clauses(found) == [("wrong CRC", "RFC5041-3-07")]


def test_truncation_by_the_snapshot_length_is_reported_without_an_error(tmp_path: Path) -> None:
    link = (
        add_startup_frames(TCPConversation().add_handshake())
        .add_data(0, make_send_fpdu(1, b"x" * 400))
        .add_data(0, make_send_fpdu(2))
    )
    link.packets += [
        make_udp_packet(make_ud_datagram(1)),
        make_udp_packet(make_ud_datagram(2, b"y" * 400)),
    ]
    file = write_capture(link.packets, tmp_path / "x.pcap")
    octets, out = file.read_bytes(), bytearray(file.read_bytes()[:24])
    at = 24
    while at < len(octets):
        when, size, length = struct.unpack_from("<8sII", octets, at)
        out += (
            struct.pack("<8sII", when, min(size, 96), length) + octets[at + 16 :][: min(size, 96)]
        )
        at += 16 + size
    file.write_bytes(out)
    found = examine(file)
    assert errors_and_clauses(found) == []
    assert message_kinds(found) == [
        "MPA_REQUEST",
        "MPA_REPLY",
        "PART",
        "GAP",
        "SEND",
        "SEND",
        "SEND",
    ]
    assert "truncated" in str(found.messages[-1].note)
    assert found.damage is None
