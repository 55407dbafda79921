"""Markers in siwarp.inspect: the figures of RFC 5044, and inserting and removing Markers."""

from __future__ import annotations

import crcmod.predefined
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from table import run_test_for_each_row

from siwarp.inspect import (
    FPDU,
    DDPUntagged,
    Direction,
    MPAReply,
    MPARequest,
    cut_streams,
    dissect_packets,
    mark,
    mark_stream,
    split_stream,
    tcp_streams,
    unmark,
)

crc32c_oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def make_send_fpdu(msn: int, size: int) -> FPDU:
    return FPDU(ulpdu=DDPUntagged(msn=msn) / Raw(bytes(size)))


def octets_from_hex(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


def test_markers_are_inserted_as_in_figures_5_and_6_of_rfc_5044() -> None:
    head = "4143 00000000 00000000 {} 00000000"
    figure_5 = (
        octets_from_hex("00000000 002a" + head.format("00000001"))
        + bytes(24)
        + octets_from_hex("52239983")
    )
    assert mark_stream([make_send_fpdu(1, 24)]) == figure_5
    assert len(mark_stream([make_send_fpdu(1, 464)])) == 0x1EC
    second = (
        octets_from_hex("002a" + head.format("00000002") + "00000014")
        + bytes(24)
        + octets_from_hex("84925898")
    )
    assert mark_stream([make_send_fpdu(1, 464), make_send_fpdu(2, 24)])[0x1EC:] == second


@run_test_for_each_row(
    ("at", "size", "where"),
    [
        (0, 24, [(0, 0)]),  # the Marker is before the first FPDU
        (512, 24, [(512, 0)]),  # the Marker is between two FPDUs
        (508, 24, [(512, 4)]),  # the Marker is in the DDP header
        (484, 24, [(512, 28)]),  # the Marker is in the payload
        (468, 24, [(512, 44)]),  # the Marker is between the ULPDU and the CRC
        (464, 24, []),  # the FPDU ends where the next Marker would start
        (500, 1016, [(512, 12), (1024, 524), (1536, 1036)]),
    ],
)
def test_a_marker_points_to_its_fpdu_at_any_position(
    at: int, size: int, where: list[tuple[int, int]]
) -> None:
    marked = mark(make_send_fpdu(1, size), at)
    plain, found = unmark(marked, at)
    assert found == where
    assert plain[:-4] == bytes(make_send_fpdu(1, size))[:-4]
    assert marked[-4:] == crc32c_oracle(marked[:-4]).to_bytes(4, "little")


@given(st.lists(st.integers(0, 700) | st.integers(0, 64768 - 18), max_size=6))
def test_inserting_and_removing_markers_are_inverse(sizes: list[int]) -> None:
    fpdus = [make_send_fpdu(i, size) for i, size in enumerate(sizes, 1)]
    marked = mark_stream(fpdus)
    frames = split_stream(marked, markers=True)
    assert [f.ulpdu.msn for f in frames.fpdus] == list(range(1, len(sizes) + 1))
    assert [len(f.ulpdu.payload) for f in frames.fpdus] == sizes
    assert all(f.crc == f.crc_expected() for f in frames.fpdus)
    assert [m.position for m in frames.markers] == list(range(0, len(marked), 512))
    assert all(m.agrees for m in frames.markers)
    assert frames.rest == b""
    assert sum(f.wire_len() for f in frames.fpdus) == len(marked)


@given(st.integers(0, 1384))
def test_a_truncated_stream_with_markers_leaves_a_rest(cut: int) -> None:
    marked = mark_stream([make_send_fpdu(1, 300), make_send_fpdu(2, 300), make_send_fpdu(3, 700)])[
        :cut
    ]
    frames = split_stream(marked, markers=True)
    assert sum(f.wire_len() for f in frames.fpdus) + len(frames.rest) == cut
    assert all(f.crc == f.crc_expected() for f in frames.fpdus)


def test_a_marker_with_a_wrong_pointer_does_not_agree_but_its_low_bits_are_ignored() -> None:
    marked = bytearray(mark_stream([make_send_fpdu(1, 600)]))
    marked[515] |= 3
    assert all(m.agrees for m in split_stream(bytes(marked), markers=True).markers)
    marked[515] -= 4
    assert [m.agrees for m in split_stream(bytes(marked), markers=True).markers] == [True, False]


@pytest.mark.parametrize("m_request", [0, 1])
@pytest.mark.parametrize("m_reply", [0, 1])
def test_a_capture_is_read_with_markers_if_the_other_end_requested_them(
    m_request: int, m_reply: int
) -> None:
    forth = Direction("10.1.0.1", 4000, "10.1.0.2", 5000)
    sends = [make_send_fpdu(1, 600), make_send_fpdu(2, 3)]

    def append_send_fpdus(frame: bytes, marked: int) -> bytes:
        return frame + (mark_stream(sends) if marked else b"".join(map(bytes, sends)))

    def make_tcp_packet(d: Direction, data: bytes) -> Ether:
        link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
        tcp = TCP(sport=d.source_port, dport=d.dest_port, seq=7, flags="A")
        return Ether(bytes(link / IP(src=d.source, dst=d.dest) / tcp / Raw(data)))

    packets = [
        make_tcp_packet(forth, append_send_fpdus(bytes(MPARequest(m=m_request)), m_reply)),
        make_tcp_packet(forth.reverse(), append_send_fpdus(bytes(MPAReply(m=m_reply)), m_request)),
    ]
    frames = cut_streams(tcp_streams(packets))
    for direction, marked in ((forth, m_reply), (forth.reverse(), m_request)):
        assert [len(f.ulpdu.payload) for f in frames[direction].fpdus] == [600, 3]
        assert [m.position for m in frames[direction].markers] == ([0, 512] if marked else [])
    messages = dissect_packets(packets)
    assert [m.kind for m in messages].count("SEND") == 4
    assert [m.error for m in messages] == [None] * 6
