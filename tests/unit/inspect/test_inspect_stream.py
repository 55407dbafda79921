"""Reassembly of TCP streams from segments in any order, and splitting streams into frames."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from siwarp.inspect import (
    FPDU,
    DDPTagged,
    DDPUntagged,
    Direction,
    MPARequest,
    split_stream,
    tcp_streams,
)

FORTH = Direction("10.1.0.1", 4000, "10.1.0.2", 5000)
# The addresses are set explicitly, because scapy would look up unset addresses in the network.
LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
STREAM = b"".join(
    [
        bytes(MPARequest(private_data=b"hello")),
        bytes(FPDU(ulpdu=DDPUntagged(msn=1) / Raw(b"x" * 33))),
        bytes(FPDU(ulpdu=DDPTagged(stag=7))),
        bytes(FPDU(ulpdu=DDPUntagged(msn=2))),
    ]
)


def make_tcp_segment(seq: int, payload: bytes = b"", flags: str = "A") -> Packet:
    ip = IP(src=FORTH.source, dst=FORTH.dest)
    tcp = TCP(sport=FORTH.source_port, dport=FORTH.dest_port, seq=seq % (1 << 32), flags=flags)
    return Ether(bytes(LINK / ip / tcp / Raw(payload)))


def split_into_pieces(octets: bytes, sizes: list[int]) -> list[tuple[int, bytes]]:
    """Return (offset, octets) of each piece; the sizes are used cyclically until the octets end."""
    pieces, at, turn = [], 0, 0
    while at < len(octets):
        size = sizes[turn % len(sizes)]
        pieces.append((at, octets[at : at + size]))
        at, turn = at + size, turn + 1
    return pieces


@settings(max_examples=15)  # each example builds and dissects over a hundred packets
@given(
    isn=st.integers(0, (1 << 32) - 1),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_segments_in_any_order_are_reassembled_across_a_sequence_number_wrap(
    isn: int, sizes: list[int], order: random.Random
) -> None:
    packets = [
        make_tcp_segment(isn + 1 + at, piece) for at, piece in split_into_pieces(STREAM, sizes)
    ]
    order.shuffle(packets)
    streams = tcp_streams([make_tcp_segment(isn, flags="S"), *packets])
    assert streams == {FORTH: STREAM}


def test_a_stream_whose_sequence_numbers_wrap_is_reassembled() -> None:
    isn = (1 << 32) - 20
    packets = [
        make_tcp_segment(isn + 1 + at, piece) for at, piece in split_into_pieces(STREAM, [7])
    ]
    assert tcp_streams([make_tcp_segment(isn, flags="S"), *packets]) == {FORTH: STREAM}


def test_retransmitted_and_overlapping_segments_are_counted_once() -> None:
    packets = [make_tcp_segment(100 + at, piece) for at, piece in split_into_pieces(STREAM, [10])]
    packets.insert(3, make_tcp_segment(100, STREAM[:25]))
    packets.append(make_tcp_segment(100, STREAM))
    assert tcp_streams([make_tcp_segment(99, flags="S"), *packets])[FORTH] == STREAM


def test_missing_octets_in_a_stream_raise_an_error_with_their_position() -> None:
    packets = [make_tcp_segment(1 + at, piece) for at, piece in split_into_pieces(STREAM, [16])]
    del packets[2]
    with pytest.raises(ValueError, match="octets are missing after 32 of"):
        tcp_streams([make_tcp_segment(0, flags="S"), *packets])


def test_padding_of_a_short_ethernet_frame_is_not_part_of_the_stream() -> None:
    packet = Ether(bytes(make_tcp_segment(1, b"ab")) + bytes(4))
    assert tcp_streams([packet]) == {FORTH: b"ab"}


def test_ipv6_tcp_streams_are_reassembled() -> None:
    ip, tcp = IPv6(src="::1", dst="::2"), TCP(sport=1, dport=2, seq=9, flags="A")
    packet = Ether(bytes(LINK / ip / tcp / Raw(b"six")))
    assert tcp_streams([packet]) == {Direction("::1", 1, "::2", 2): b"six"}


def test_a_truncated_stream_is_split_into_its_complete_frames_and_the_rest() -> None:
    whole = split_stream(STREAM)
    assert whole.startup is not None
    ends = [len(whole.startup.original)]
    for fpdu in whole.fpdus:
        ends.append(ends[-1] + len(fpdu.original))
    assert ends[-1] == len(STREAM)
    for length in range(len(STREAM) + 1):
        frames = split_stream(STREAM[:length])
        complete = [end for end in ends if end <= length]
        assert (frames.startup is not None) + len(frames.fpdus) == len(complete)
        assert frames.rest == STREAM[(complete[-1] if complete else 0) : length]


def test_a_stream_without_a_start_up_frame_consists_of_fpdus() -> None:
    only = bytes(FPDU(ulpdu=DDPUntagged(msn=5)))
    frames = split_stream(only + only)
    assert frames.startup is None
    assert [fpdu.ulpdu.msn for fpdu in frames.fpdus] == [5, 5]
    assert frames.rest == b""
