"""RFC 5044 section 4.1: the format of an FPDU."""

from __future__ import annotations

import pytest
from scapy.packet import Raw
from unit.mpa.mpa_harness import (
    MpaPoller,
    build_fpdu,
    crc32c,
    octet_pattern,
    recv_exactly,
    split_fpdus,
)

from siwarp.inspect import FPDU


@pytest.mark.clause("RFC5044-4.1-01")
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 18, 82, 257, 1442, 2049, 9000, 64_768])
def test_an_fpdu_consists_of_length_ulpdu_pad_and_crc(layer_poller: MpaPoller, size: int) -> None:
    stream = layer_poller.create_sender()
    ulpdu = octet_pattern(size)
    assert stream.frame_fpdu(ulpdu[:18], [ulpdu[18:]]) == 1
    stream.flush()
    octets = recv_exactly(stream.sock, len(build_fpdu(ulpdu)))
    assert octets == build_fpdu(ulpdu)
    assert len(octets) % 4 == 0


@pytest.mark.clause("RFC5044-4.1-02")
@pytest.mark.parametrize("size", [3, 4, 5, 301, 303, 304])
def test_pad_octets_are_sent_as_zero(layer_poller: MpaPoller, size: int) -> None:
    stream = layer_poller.create_sender()
    # When the second FPDU is framed, the memory of the pad is not zero beforehand.
    for fill in (0xFF, 0xAA):
        assert stream.frame_fpdu(bytes([fill]) * 3, [bytes([fill]) * (size - 3)]) == 1
        stream.flush()
        octets = recv_exactly(stream.sock, len(build_fpdu(bytes(size))))
        assert octets[2 + size : -4] == bytes(-(2 + size) % 4)


@pytest.mark.clause("RFC5044-4.1-02")
@pytest.mark.parametrize("size", [3, 4, 5, 20_001])
def test_received_pad_octets_other_than_zero_matter_only_for_the_crc(
    layer_poller: MpaPoller, size: int
) -> None:
    pad = b"\xde\xad\xbe"[: -(2 + size) % 4]
    body = size.to_bytes(2, "big") + octet_pattern(size) + pad
    stream = layer_poller.create_receiver()
    stream.sock.sendall(body + crc32c(body).to_bytes(4, "little"))
    assert stream.receive_ulpdu() == octet_pattern(size)


@pytest.mark.clause("RFC5044-4.1-03")
@pytest.mark.parametrize("size", [0, 50, 20_000])
@pytest.mark.parametrize("crc", [0, 0xFFFFFFFF, 0x12345678])
def test_without_crc_the_crc_field_is_present_and_may_have_any_value(
    layer_poller: MpaPoller, size: int, crc: int
) -> None:
    stream = layer_poller.create_receiver(crc=False)
    stream.sock.sendall(build_fpdu(octet_pattern(size), crc=crc) + build_fpdu(b"next", crc=crc))
    assert stream.receive_ulpdu() == octet_pattern(size)
    assert stream.receive_ulpdu() == b"next"


@pytest.mark.clause("RFC5044-4.4-09")
@pytest.mark.parametrize("size", [0, 50, 20_000])
def test_fpdus_sent_without_crc_also_have_the_crc_field(layer_poller: MpaPoller, size: int) -> None:
    stream = layer_poller.create_sender(crc=False)
    for _ in range(2):
        assert stream.frame_fpdu(b"", [octet_pattern(size)]) == 1
    stream.flush()
    octets = recv_exactly(stream.sock, 2 * len(build_fpdu(octet_pattern(size))))
    assert split_fpdus(octets, crc=False) == [octet_pattern(size)] * 2


def test_scapy_parses_the_fpdus_that_siwarp_sends(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_sender()
    assert stream.frame_fpdu(b"\x41\x43" + bytes(16), [b"payload"]) == 1
    stream.flush()
    read = FPDU(recv_exactly(stream.sock, 32))
    assert (read.ulpdu_length, bytes(read.ulpdu)[18:]) == (25, b"payload")
    assert bytes(FPDU(ulpdu=Raw(bytes(read.ulpdu)))) == bytes(read)
