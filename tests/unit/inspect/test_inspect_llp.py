"""Datagrams with the LLP header in captures, each of which dissect reports in one row."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet, Raw
from table import run_test_for_each_row

from siwarp.inspect import (
    DDPTagged,
    DDPUntagged,
    Dissection,
    LLPDatagram,
    Message,
    RDDatagram,
    RDType,
    RecordDatagram,
    RecordHeader,
    UCDatagram,
    UCReport,
    crc32c,
    dissect_packets,
)
from siwarp.inspect.capture import examine_packets
from siwarp.inspect.packets import packets_from_scapy
from siwarp.inspect.rd import make_ack_body


def dissect_datagram(datagram: Packet, spoil: bool = False) -> list[Message]:
    octets = bytearray(bytes(datagram))
    if spoil:
        octets[-6] ^= 1
    packet = IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1111, dport=2222) / Raw(bytes(octets))
    return dissect_packets([IP(bytes(packet))])


def test_dissect_reports_the_sequence_numbers_of_a_uc_segment() -> None:
    segment = bytes(DDPUntagged(opcode=3, msn=7, mo=100, l=0)) + bytes(50)
    (found,) = dissect_datagram(UCDatagram(q_key=5, psn=9, segment=segment))
    assert (found.transport, found.kind, found.length, found.error) == ("uc", "SEND", 50, None)
    told = {name: found.fields[name] for name in ("psn", "q_key", "msn", "mo", "last")}
    assert told == {"psn": 9, "q_key": 5, "msn": 7, "mo": 100, "last": 0}


def test_dissect_reports_the_target_of_a_uc_write_segment() -> None:
    (found,) = dissect_datagram(UCDatagram(segment=bytes(DDPTagged(opcode=0, stag=3, to=4)) + b"x"))
    assert (found.kind, found.length) == ("RDMA_WRITE", 1)
    assert (found.fields["stag"], found.fields["to"]) == (3, 4)


def test_dissect_reports_a_write_record_segment_as_a_write_record() -> None:
    segment = bytes(DDPTagged(opcode=15, stag=3, to=4)) + bytes(RecordHeader()) + b"xyz"
    (found,) = dissect_datagram(RecordDatagram(psn=1, segment=segment))
    assert (found.transport, found.kind, found.error) == ("ud", "WRITE_RECORD", None)


@pytest.mark.parametrize("spoil", [False, True])
def test_a_datagram_with_a_wrong_crc_is_not_dissected_as_llp(spoil: bool) -> None:
    segment = bytes(DDPUntagged(opcode=3)) + bytes(50)
    assert len(dissect_datagram(UCDatagram(segment=segment), spoil)) == (0 if spoil else 1)


EPOCHS = {"source_epoch": 0x11, "dest_epoch": 0x22, "acknowledged": 5, "credit": 60, "ird": 16}


def test_dissect_reports_the_sequence_numbers_and_epochs_of_an_rd_segment() -> None:
    segment = bytes(DDPUntagged(opcode=3, msn=7)) + bytes(50)
    (found,) = dissect_datagram(RDDatagram(psn=9, q_key=4, body=segment, **EPOCHS))
    assert (found.transport, found.kind, found.length, found.error) == ("rd", "SEND", 50, None)
    told = {name: found.fields[name] for name in ("psn", "q_key", "msn", "last", *EPOCHS)}
    assert told == {"psn": 9, "q_key": 4, "msn": 7, "last": 1, **EPOCHS}


@run_test_for_each_row("kind", [t for t in RDType if t != RDType.DATA])
def test_dissect_reports_the_fields_of_rd_control_datagrams(kind: RDType) -> None:
    body = make_ack_body(5, [7, 8, 300]) if kind == RDType.ACK else bytes(20)
    (found,) = dissect_datagram(RDDatagram(type=kind, psn=3, rd_flags=2, body=body, **EPOCHS))
    assert (found.transport, found.kind, found.error) == ("rd", f"RD_{kind.name}", None)
    assert (found.length, found.fields["rd_flags"]) == (len(body), 2)
    assert {name: found.fields[name] for name in EPOCHS} == EPOCHS
    assert found.fields.get("beyond") == (3 if kind == RDType.ACK else None)


@pytest.mark.parametrize("spoil", [False, True])
def test_an_rd_datagram_is_recognized_by_its_crc(spoil: bool) -> None:
    assert len(dissect_datagram(RDDatagram(type=RDType.ACK, **EPOCHS), spoil)) == (
        0 if spoil else 1
    )


@run_test_for_each_row("cut", range(41))
def test_a_truncated_rd_datagram_is_dissected_without_an_exception(cut: int) -> None:
    octets = bytes(RDDatagram(body=bytes(DDPUntagged()), **EPOCHS))[:cut]
    whole = octets + crc32c(octets).to_bytes(4, "little")
    found = dissect_datagram(Raw(whole))
    assert len(found) == (cut >= 36)
    assert [m.kind for m in found] == ["BROKEN"][: len(found)]


def test_rd_datagrams_captured_before_segmentation_are_reported_one_by_one() -> None:
    segment = bytes(DDPUntagged(opcode=3)) + bytes(64)
    batch = b"".join(bytes(RDDatagram(psn=n, body=segment, **EPOCHS)) for n in range(20))
    last = bytes(RDDatagram(psn=20, body=segment[:30], **EPOCHS))
    found = dissect_datagram(Raw(batch + last))
    assert [m.fields["psn"] for m in found] == list(range(21))
    assert {m.kind for m in found} == {"SEND"}


@run_test_for_each_row(
    "built",
    [
        UCDatagram(psn=9, segment=bytes(DDPUntagged(opcode=3)) + b"uc"),
        RecordDatagram(psn=1, segment=bytes(DDPTagged(opcode=15)) + bytes(RecordHeader()) + b"xyz"),
        UCReport(datagrams=3, octets=100),
        *(RDDatagram(type=kind, psn=7, source_epoch=5, body=bytes(64)) for kind in RDType),
    ],
    ids=lambda built: f"{type(built).__name__}-{int(built.type)}",
)
def test_an_llp_datagram_has_the_class_of_its_type_and_builds_the_same_octets(
    built: Packet,
) -> None:
    octets = bytes(built)
    found = LLPDatagram(octets)
    assert type(found) is type(built)
    assert (found.psn, bytes(found)) == (built.psn, octets)


@pytest.mark.parametrize("length", [0, 15, 16, 39])
def test_an_llp_datagram_that_is_too_short_for_its_type_is_raw(length: int) -> None:
    octets = bytes(RDDatagram(body=bytes(64)))[:length]
    assert type(LLPDatagram(octets)) is Raw


def dissect_udp_datagrams(*datagrams: Packet) -> Dissection:
    packets = [
        IP(bytes(IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=2) / Raw(bytes(d))))
        for d in datagrams
    ]
    return examine_packets(packets_from_scapy(packets))


def test_rd_segments_with_a_psn_seen_before_are_retransmissions_and_not_counted_again() -> None:
    segment = bytes(DDPUntagged(opcode=3, msn=1)) + bytes(50)
    found = dissect_udp_datagrams(
        RDDatagram(psn=1, body=segment, **EPOCHS),
        RDDatagram(psn=2, body=segment, **EPOCHS),
        RDDatagram(psn=1, body=segment, **EPOCHS),
        RDDatagram(psn=1, rd_flags=4, body=segment, **EPOCHS),  # a PSN in the space of responses
        RDDatagram(psn=1, body=segment, **{**EPOCHS, "source_epoch": 0x12}),  # a new incarnation
        RDDatagram(psn=1, body=segment, **EPOCHS),
    )
    assert [m.retransmits for m in found.messages] == [None, None, 1, None, None, 1]
    assert [m.retransmitted for m in found.messages] == [2, 0, 0, 0, 0, 0]
    (stream,) = found.streams
    assert (stream.messages, stream.retransmitted) == ({"SEND": 4}, 2)
