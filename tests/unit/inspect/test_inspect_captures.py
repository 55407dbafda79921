"""Recorded traffic of Linux siw, dissected to the last octet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import crcmod.predefined
import pytest
from scapy.packet import Raw
from scapy.utils import rdpcap

from siwarp.inspect import (
    FPDU,
    DDPTagged,
    DDPUntagged,
    Direction,
    Frames,
    MPAReply,
    MPARequest,
    Opcode,
    ReadRequest,
    split_stream,
    tcp_streams,
)

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
PLAIN, CRC, P2P = "siw-rping.pcap", "siw-rping-crc.pcap", "siw-rping-p2p.pcap"
ALL = [PLAIN, CRC, P2P]
RPING_PORT = 7174
ROUNDS = 3
READ_SIZE = 3000

crc32c_oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def client_and_server_streams(name: str) -> tuple[Frames, Frames]:
    """Return the (client, server) streams of the only connection in a capture."""
    streams = tcp_streams(rdpcap(str(CAPTURES / name)))
    assert len(streams) == 2
    client = next(d for d in streams if d.dest_port == RPING_PORT)
    return split_stream(streams[client]), split_stream(streams[client.reverse()])


def count_opcodes(frames: Frames) -> Counter[Opcode]:
    return Counter(Opcode(fpdu.ulpdu.opcode) for fpdu in frames.fpdus)


@pytest.mark.parametrize("name", ALL)
def test_both_directions_of_a_capture_are_split_without_a_remaining_octet(name: str) -> None:
    client, server = client_and_server_streams(name)
    assert client.rest == server.rest == b""
    assert isinstance(client.startup, MPARequest)
    assert isinstance(server.startup, MPAReply)


@pytest.mark.parametrize("name", ALL)
def test_start_up_frames_of_linux_siw_have_revision_2_and_no_markers(name: str) -> None:
    for frames in client_and_server_streams(name):
        frame = frames.startup
        assert frame is not None
        assert (frame.rev, frame.s, frame.m, frame.r, frame.res) == (2, 1, 0, 0, 0)
        assert (frame.pd_length, frame.ird, frame.ord) == (4, 1, 1)
        assert frame.private_data == b""
        assert frame.c == (1 if name == CRC else 0)


@pytest.mark.parametrize("name", [PLAIN, CRC])
def test_linux_siw_in_client_server_mode_sets_none_of_the_bits_a_to_d(name: str) -> None:
    for frames in client_and_server_streams(name):
        frame = frames.startup
        assert frame is not None
        assert (frame.a, frame.b, frame.c_rtr, frame.d_rtr) == (0, 0, 0, 0)


def test_a_peer_to_peer_request_offers_write_and_read_and_the_reply_selects_write() -> None:
    client, server = client_and_server_streams(P2P)
    assert client.startup is not None and server.startup is not None
    offered, picked = client.startup, server.startup
    assert (offered.a, offered.b, offered.c_rtr, offered.d_rtr) == (1, 0, 1, 1)
    assert (picked.a, picked.b, picked.c_rtr, picked.d_rtr) == (1, 0, 1, 0)


def test_a_peer_to_peer_client_starts_with_an_empty_write_to_stag_1() -> None:
    rtr = client_and_server_streams(P2P)[0].fpdus[0].ulpdu
    assert isinstance(rtr, DDPTagged)
    assert (rtr.opcode, rtr.stag, rtr.to, rtr.l) == (Opcode.RDMA_WRITE, 1, 0, 1)
    assert bytes(rtr.payload) == b""


@pytest.mark.parametrize("name", ALL)
def test_every_opcode_occurs_as_often_as_in_the_protocol_of_rping(name: str) -> None:
    client, server = client_and_server_streams(name)
    rtr = Counter({Opcode.RDMA_WRITE: 1}) if name == P2P else Counter()
    assert count_opcodes(client) == rtr + Counter(
        {Opcode.SEND: 2 * ROUNDS, Opcode.RDMA_READ_RESPONSE: 3 * ROUNDS}
    )
    assert count_opcodes(server) == Counter(
        {Opcode.RDMA_READ_REQUEST: ROUNDS, Opcode.SEND: 2 * ROUNDS, Opcode.RDMA_WRITE: 3 * ROUNDS}
    )


@pytest.mark.parametrize("name", ALL)
def test_every_recorded_fpdu_contains_a_version_1_segment_of_its_length(name: str) -> None:
    for frames in client_and_server_streams(name):
        for fpdu in frames.fpdus:
            assert isinstance(fpdu.ulpdu, (DDPTagged, DDPUntagged))
            assert len(bytes(fpdu.ulpdu)) == fpdu.ulpdu_length
            assert (fpdu.ulpdu.dv, fpdu.ulpdu.rv) == (1, 1)
            assert (fpdu.ulpdu.ddp_rsvd, fpdu.ulpdu.rdmap_rsvd) == (0, 0)
            assert fpdu.pad == bytes(len(fpdu.pad))


def test_every_recorded_crc_equals_that_of_an_independent_implementation() -> None:
    judged = 0
    for frames in client_and_server_streams(CRC):
        for fpdu in frames.fpdus:
            octets = bytes(fpdu)
            assert octets[-4:] == crc32c_oracle(octets[:-4]).to_bytes(4, "little")
            assert fpdu.crc == fpdu.crc_expected()
            judged += 1
    assert judged == 33


@pytest.mark.parametrize("name", [PLAIN, P2P])
def test_every_crc_field_is_zero_in_captures_without_crc(name: str) -> None:
    crcs = [fpdu.crc for frames in client_and_server_streams(name) for fpdu in frames.fpdus]
    assert set(crcs) == {0}


@pytest.mark.parametrize("name", ALL)
def test_untagged_message_sequence_numbers_start_at_1_in_each_queue(name: str) -> None:
    for frames in client_and_server_streams(name):
        numbers: dict[int, list[int]] = {}
        for fpdu in frames.fpdus:
            if isinstance(fpdu.ulpdu, DDPUntagged):
                numbers.setdefault(fpdu.ulpdu.qn, []).append(fpdu.ulpdu.msn)
        for queue, seen in numbers.items():
            assert seen == list(range(1, len(seen) + 1)), queue


@pytest.mark.parametrize("name", ALL)
def test_read_responses_fill_the_buffer_of_their_request_completely(name: str) -> None:
    client, server = client_and_server_streams(name)
    requests = [f.ulpdu[ReadRequest] for f in server.fpdus if ReadRequest in f.ulpdu]
    responses = [f.ulpdu for f in client.fpdus if f.ulpdu.opcode == Opcode.RDMA_READ_RESPONSE]
    assert len(requests) == ROUNDS
    for request in requests:
        assert request.size == READ_SIZE
        to, left = request.sink_to, request.size
        while left:
            segment = responses.pop(0)
            assert (segment.stag, segment.to) == (request.sink_stag, to)
            length = len(segment[Raw].load)
            assert segment.l == (1 if length == left else 0)
            to, left = to + length, left - length
    assert responses == []


@pytest.mark.parametrize("name", ALL)
def test_the_rping_server_writes_back_the_octets_that_it_read(name: str) -> None:
    client, server = client_and_server_streams(name)
    read = b"".join(
        f.ulpdu[Raw].load for f in client.fpdus if f.ulpdu.opcode == Opcode.RDMA_READ_RESPONSE
    )
    written = b"".join(
        f.ulpdu[Raw].load for f in server.fpdus if f.ulpdu.opcode == Opcode.RDMA_WRITE
    )
    assert read == written
    assert len(read) == ROUNDS * READ_SIZE
    assert read.startswith(b"rdma-ping-0: ABCDEF")


@pytest.mark.parametrize("name", ALL)
def test_every_frame_rebuilt_from_its_fields_has_the_recorded_octets(name: str) -> None:
    streams = tcp_streams(rdpcap(str(CAPTURES / name)))
    for octets in streams.values():
        frames = split_stream(octets)
        assert frames.startup is not None
        for frame in (frames.startup, *frames.fpdus):
            recorded = frame.original
            frame.clear_cache()
            if isinstance(frame, FPDU):
                frame.ulpdu.clear_cache()
            assert frame.build() == recorded
        assert b"".join(f.original for f in (frames.startup, *frames.fpdus)) == octets


def test_a_direction_reversed_twice_is_the_original_direction() -> None:
    direction = Direction("10.0.0.1", 1, "10.0.0.2", 2)
    assert direction.reverse() == Direction("10.0.0.2", 2, "10.0.0.1", 1)
    assert direction.reverse().reverse() == direction
