"""RFC 5044 sections 4.2 and 4.3, and the rules for Markers in sections 4.4, 4.5 and 8."""

from __future__ import annotations

import pytest
from _siwarp_layers import lib
from scapy.packet import Raw
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MPA_TYPE,
    MpaPoller,
    StreamError,
    crc32c,
    octet_pattern,
    recv_exactly,
    wait_until,
)

from siwarp.inspect import FPDU, mark_stream, split_stream


def send_and_return_marked_octets(layer_poller: MpaPoller, *sizes: int, at: int = 0) -> bytes:
    """Return the octets that a stream with Markers sends for ULPDUs of these sizes."""
    stream = layer_poller.create_sender(markers=True)
    lib.siw_mpa_set_position_for_tests(stream.handle, at)
    for i, n in enumerate(sizes):
        assert stream.frame_fpdu(b"", [octet_pattern(n, i)]) == 1
    stream.flush()
    want = mark_stream([FPDU(ulpdu=Raw(octet_pattern(n, i))) for i, n in enumerate(sizes)])
    return recv_exactly(stream.sock, len(want))


@pytest.mark.clause("RFC5044-4.3-01", "RFC5044-4.3-02", "RFC5044-4.3-07")
def test_markers_precede_the_first_fpdu_and_follow_at_every_512th_octet(
    layer_poller: MpaPoller,
) -> None:
    octets = send_and_return_marked_octets(layer_poller, 24, 2000, 700, 3)
    frames = split_stream(octets, markers=True)
    assert [m.position for m in frames.markers] == list(range(0, len(octets), 512))
    assert [bytes(f.ulpdu) for f in frames.fpdus] == [
        octet_pattern(n, i) for i, n in enumerate((24, 2000, 700, 3))
    ]


@pytest.mark.clause("RFC5044-4.2-01", "RFC5044-4.2-02", "RFC5044-4.2-03")
def test_a_marker_is_16_zero_bits_and_a_pointer_whose_two_lowest_bits_are_zero(
    layer_poller: MpaPoller,
) -> None:
    octets = send_and_return_marked_octets(layer_poller, *range(200), 60_000)
    for at in range(0, len(octets), 512):
        assert octets[at : at + 2] == b"\0\0"
        assert octets[at + 3] & 3 == 0
    assert all(m.agrees for m in split_stream(octets, markers=True).markers)


@pytest.mark.clause("RFC5044-4.3-03", "RFC5044-4.3-08")
def test_all_markers_in_a_long_fpdu_point_to_its_first_octet(layer_poller: MpaPoller) -> None:
    octets = send_and_return_marked_octets(layer_poller, 100, 5000)
    # The second FPDU follows a Marker and the short FPDU, which has 2 + 100 + 2 + 4 octets.
    first = 4 + 104 + 4
    for at in range(512, len(octets), 512):
        assert int.from_bytes(octets[at + 2 : at + 4], "big") == at - first


@pytest.mark.clause("RFC5044-4.3-04")
def test_marker_pointers_are_correct_when_stream_positions_wrap_around(
    layer_poller: MpaPoller,
) -> None:
    assert send_and_return_marked_octets(
        layer_poller, 3000, 40, at=2**32 - 1024
    ) == send_and_return_marked_octets(layer_poller, 3000, 40)


@pytest.mark.clause("RFC5044-4.3-05", "RFC5044-4.3-09", "RFC5044-4.4-11#b", "RFC5044-4.4-11#c")
def test_a_marker_between_two_fpdus_is_zero_and_covered_by_the_second_crc(
    layer_poller: MpaPoller,
) -> None:
    # The first FPDU ends after 4 + 2 + 502 + 4 octets, at the position of a Marker.
    octets = send_and_return_marked_octets(layer_poller, 502, 20)
    assert octets[512:516] == bytes(4)
    assert octets[516:518] == b"\0\x14"
    assert octets[508:512] == crc32c(octets[:508]).to_bytes(4, "little")
    assert octets[-4:] == crc32c(octets[512:-4]).to_bytes(4, "little")


@pytest.mark.clause("RFC5044-4.3-09")
def test_a_marker_points_to_the_start_of_the_short_fpdu_that_contains_the_marker(
    layer_poller: MpaPoller,
) -> None:
    octets = send_and_return_marked_octets(layer_poller, *[18] * 60)  # FPDUs of 24 octets each
    markers = split_stream(octets, markers=True).markers
    assert len(markers) == 3
    assert [m.fpduptr for m in markers] == [0, (512 - 4) % 24, (1024 - 8) % 24]


@pytest.mark.clause("RFC5044-4.4-11#a", "RFC5044-4.4-11#c")
def test_the_crc_covers_markers_within_the_fpdu_and_directly_after_the_pad(
    layer_poller: MpaPoller,
) -> None:
    inside = send_and_return_marked_octets(layer_poller, 1000)
    assert inside[-4:] == crc32c(inside[:-4]).to_bytes(4, "little")
    # The Marker after 4 + 2 + 505 octets and 1 octet of pad precedes the CRC.
    behind = send_and_return_marked_octets(layer_poller, 505)
    assert behind[512:516] == (508).to_bytes(4, "big")
    assert behind[516:] == crc32c(behind[:516]).to_bytes(4, "little")


@pytest.mark.clause("RFC5044-4.3-06")
@pytest.mark.parametrize("low", [1, 2, 3])
def test_the_two_lowest_bits_of_a_received_marker_pointer_are_ignored(
    layer_poller: MpaPoller, low: int
) -> None:
    octets = bytearray(mark_stream([FPDU(ulpdu=Raw(octet_pattern(700)))]))
    octets[3] |= low
    octets[515] |= low
    octets[-4:] = crc32c(bytes(octets[:-4])).to_bytes(4, "little")
    stream = layer_poller.create_receiver(markers=True)
    stream.sock.sendall(octets)
    assert stream.receive_ulpdu() == octet_pattern(700)


@pytest.mark.clause("RFC5044-4.3-10", "RFC5044-4.3-11", "RFC5041-3-08")
def test_ddp_receives_only_ulpdus_and_their_lengths_from_a_stream_with_markers(
    layer_poller: MpaPoller,
) -> None:
    sizes = [0, 1, 40, 500, 512, 1016, 4000]
    stream = layer_poller.create_receiver(markers=True)
    stream.sock.sendall(mark_stream([FPDU(ulpdu=Raw(octet_pattern(n, n))) for n in sizes]))
    for n in sizes:
        head, length, whole = wait_until(stream.peek_fpdu)
        assert (length, whole) == (n, True)
        assert stream.receive_ulpdu(min(14, n)) == octet_pattern(n, n)
        assert octet_pattern(n, n).startswith(head)


@pytest.mark.clause("RFC5044-8-01#c", "RFC5044-8-02", "RFC5044-8-07")
@pytest.mark.parametrize("pointer", [0, 504, 512, 0xFFFC])
def test_a_marker_that_contradicts_the_ulpdu_length_is_error_code_3(
    layer_poller: MpaPoller, pointer: int
) -> None:
    octets = bytearray(mark_stream([FPDU(ulpdu=Raw(octet_pattern(700)))]))
    octets[514:516] = pointer.to_bytes(2, "big")
    octets[-4:] = crc32c(bytes(octets[:-4])).to_bytes(4, "little")
    stream = layer_poller.create_receiver(markers=True)
    good = mark_stream([FPDU(ulpdu=Raw(b"next"))], len(octets))
    stream.sock.sendall(bytes(octets) + good)
    for _ in range(3):
        with pytest.raises(StreamError):
            wait_until(stream.peek_fpdu)
        assert stream.error == (LLP_LAYER, MPA_TYPE, 3)
    # After the error TCP stays open (RFC5044-8-08).
    assert stream.frame_fpdu(b"a diagnosis") == 1
    stream.flush()


@pytest.mark.clause("RFC5044-4.5-01")
@pytest.mark.parametrize("mss", [536, 1000, 1459, 1460, 1461, 1462, 8960, 8963])
def test_mulpdu_leaves_space_for_the_maximum_number_of_markers(
    layer_poller: MpaPoller, mss: int
) -> None:
    stream = layer_poller.create_sender(mss=mss, markers=True)
    emss = stream.emss()
    want = emss - (6 + 4 * -(-emss // 512) + emss % 4)
    assert lib.siw_mpa_mulpdu(stream.handle) == want
    octets = send_and_return_marked_octets(layer_poller, want)
    assert len(octets) <= emss
