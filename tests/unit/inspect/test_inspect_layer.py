"""Packets of siwarp's scapy layers whose fields have several values."""

from __future__ import annotations

from scapy.packet import Raw
from scapy.volatile import RandInt

from siwarp.inspect import FPDU, DDPUntagged


def test_a_packet_whose_field_has_several_values_is_built_with_the_first() -> None:
    several = DDPUntagged(msn=[5, 6]) / Raw(b"x")
    assert bytes(several) == bytes(DDPUntagged(msn=5) / Raw(b"x"))
    assert [one.msn for one in several] == [5, 6]
    assert bytes(FPDU(ulpdu=several)) == bytes(FPDU(ulpdu=DDPUntagged(msn=5) / Raw(b"x")))


def test_a_packet_with_a_random_field_has_one_value_in_all_its_octets() -> None:
    for _ in range(20):
        octets = bytes(FPDU(ulpdu=DDPUntagged(msn=RandInt())))
        assert FPDU(octets).crc == FPDU(octets).crc_expected()


def test_a_built_packet_can_be_changed_and_built_again() -> None:
    packet = DDPUntagged(msn=1) / Raw(b"x")
    before = bytes(packet)
    packet.msn = [2, 3]
    assert [one.msn for one in packet] == [2, 3]
    packet.msn = 1
    assert bytes(packet) == before
