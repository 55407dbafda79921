"""Datagrams with the LLP header, in captures: a row each."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet, Raw

from siwarp.inspect import (
    DDPTagged,
    DDPUntagged,
    Message,
    RecordDatagram,
    RecordHeader,
    UCDatagram,
    dissect_packets,
)


def one(datagram: Packet, spoil: bool = False) -> list[Message]:
    octets = bytearray(bytes(datagram))
    octets[-6] ^= spoil
    packet = IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1111, dport=2222) / Raw(bytes(octets))
    return dissect_packets([IP(bytes(packet))])


def test_a_segment_on_uc_tells_its_numbers() -> None:
    segment = bytes(DDPUntagged(opcode=3, msn=7, mo=100, l=0)) + bytes(50)
    (found,) = one(UCDatagram(q_key=5, psn=9, segment=segment))
    assert (found.transport, found.kind, found.length, found.error) == ("uc", "SEND", 50, None)
    told = {name: found.fields[name] for name in ("psn", "q_key", "msn", "mo", "last")}
    assert told == {"psn": 9, "q_key": 5, "msn": 7, "mo": 100, "last": 0}


def test_a_segment_of_a_write_on_uc_tells_where_it_goes() -> None:
    (found,) = one(UCDatagram(segment=bytes(DDPTagged(opcode=0, stag=3, to=4)) + b"x"))
    assert (found.kind, found.length) == ("RDMA_WRITE", 1)
    assert (found.fields["stag"], found.fields["to"]) == (3, 4)


def test_a_segment_of_a_write_record_is_shown_as_one() -> None:
    segment = bytes(DDPTagged(opcode=15, stag=3, to=4)) + bytes(RecordHeader()) + b"xyz"
    (found,) = one(RecordDatagram(psn=1, segment=segment))
    assert (found.transport, found.kind, found.error) == ("ud", "WRITE_RECORD", None)


@pytest.mark.parametrize("spoil", [False, True])
def test_what_has_no_sound_crc_is_not_taken_for_one(spoil: bool) -> None:
    segment = bytes(DDPUntagged(opcode=3)) + bytes(50)
    assert len(one(UCDatagram(segment=segment), spoil)) == (0 if spoil else 1)
