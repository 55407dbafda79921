"""Recorded traffic of Linux siw, replayed through the complete receive path.

In a recording, each side learned the other's STags from Sends. The replay changes only the STags
and offsets that must refer to siwarp's memory.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _siwarp_layers import lib
from scapy.utils import rdpcap
from unit.rdmap.rdmap_harness import RdmapPoller, Stream

from siwarp.inspect import DDP, DDPUntagged, Opcode, split_stream, tcp_streams

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
RPING_PORT = 7174
ALL = ["siw-rping.pcap", "siw-rping-crc.pcap", "siw-rping-p2p.pcap"]
READ = 3000  # octets of each round of rping in these recordings
ROUNDS = 3


@cache
def client_and_server_segments(name: str) -> tuple[list[bytes], list[bytes]]:
    """Return the DDP segments that the client and the server of a recording sent."""
    streams = tcp_streams(rdpcap(str(CAPTURES / name)))
    client = next(d for d in streams if d.dest_port == RPING_PORT)

    def split_stream_into_segments(octets: bytes) -> list[bytes]:
        return [bytes(f)[2 : 2 + f.ulpdu_length] for f in split_stream(octets).fpdus]

    return split_stream_into_segments(streams[client]), split_stream_into_segments(
        streams[client.reverse()]
    )


def replace_header_fields(segment: bytes, **fields: Any) -> bytes:
    """Return the segment with other fields in its DDP or Read Request header."""
    packet = DDP(segment)
    layer = packet.payload if "src_stag" in fields else packet
    for name, value in fields.items():
        layer.setfieldval(name, value)
    octets = bytes(packet)
    assert len(octets) == len(segment)
    return octets


def post_receives(layer_poller: RdmapPoller, stream: Stream) -> list[Any]:
    received = [layer_poller.register_new_memory(16) for _ in range(2 * ROUNDS)]
    for i, m in enumerate(received):
        stream.recvs.post(i, m.sge())
    return received


@pytest.mark.parametrize("name", ALL)
def test_recorded_segments_of_a_linux_siw_client_are_processed_without_error(
    layer_poller: RdmapPoller, name: str
) -> None:
    client, server = client_and_server_segments(name)
    rtr = lib.SIW_MPA_RTR_WRITE if "p2p" in name else 0
    stream = layer_poller.create_responder(rtr=rtr, ird=1, ord=1, crc="crc" in name)
    received = post_receives(layer_poller, stream)
    sink = layer_poller.register_new_memory(READ)
    requests = [s for s in server if DDP(s).opcode == Opcode.RDMA_READ_REQUEST]
    asked, got, kinds, reading = 0, 0, [], b""
    for segment in client:
        packet = DDP(segment)
        if packet.opcode == Opcode.RDMA_READ_RESPONSE:
            # the segment is the first one of a Read Response
            if packet.to == DDP(requests[asked]).payload.sink_to:
                stream.begin_and_flush_operation(
                    lib.SIW_RDMAP_READ_REQUEST, [sink.sge()], user_data=asked, rkey=1
                )
                _, request = stream.read_sent_read_request()
                base, reading = packet.to, b""
            reading += segment[14:]
            segment = replace_header_fields(segment, stag=request.sink_stag, to=packet.to - base)
            asked += packet.l
        stream.inject_segments(segment)
        while True:
            e = stream.next_event(progress=True)
            kinds.append(e.kind)
            if e.kind != "STARTED" or rtr:
                break
        if e.kind == "RECV":
            assert (e.user_data, e.length) == (got, 16)
            assert received[got].octets() == segment[18:]
            got += 1
        if e.kind == "READ_DONE":
            assert e.length == READ
            assert sink.octets() == reading
    assert kinds[0] == "STARTED"
    assert (kinds.count("RECV"), kinds.count("READ_DONE")) == (2 * ROUNDS, ROUNDS)
    assert "ERROR" not in kinds


@pytest.mark.parametrize("name", ALL)
def test_recorded_segments_of_a_linux_siw_server_are_processed_without_error(
    layer_poller: RdmapPoller, name: str
) -> None:
    _, server = client_and_server_segments(name)
    stream = layer_poller.create_initiator(ird=1, ord=1, crc="crc" in name)
    received = post_receives(layer_poller, stream)
    source, target = (
        layer_poller.register_new_memory(READ, bytes(range(200)) * 15),
        layer_poller.register_new_memory(READ),
    )
    got, kinds, written, base = 0, [], b"", None
    for segment in server:
        packet = DDP(segment)
        if packet.opcode == Opcode.RDMA_READ_REQUEST:
            assert isinstance(packet, DDPUntagged)
            segment = replace_header_fields(segment, src_stag=source.stag, src_to=source.addr)
        if packet.opcode == Opcode.RDMA_WRITE:
            if base is None:
                base = packet.to
            written += segment[14:]
            to = target.addr + packet.to - base
            segment = replace_header_fields(segment, stag=target.stag, to=to)
            if packet.l:
                base = None
        stream.inject_segments(segment)
        e = stream.next_event(progress=True)
        kinds.append(e.kind)
        if e.kind == "REQUESTED":
            stream.flush()
            head, octets = stream.read_sent_message()
            asked = DDP(segment).payload
            assert (head.stag, head.to) == (asked.sink_stag, asked.sink_to)
            assert octets == source.octets()
        if e.kind == "RECV":
            assert received[got].octets()[: e.length] == segment[18:]
            got += 1
            if len(written) == READ:
                assert target.octets() == written
                written = b""
    assert (kinds.count("REQUESTED"), kinds.count("RECV")) == (ROUNDS, 2 * ROUNDS)
    assert "ERROR" not in kinds
