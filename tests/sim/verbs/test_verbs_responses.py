"""Responses to Read Requests that arrive together, to a peer that stops reading."""

from __future__ import annotations

from harness.rc_harness import Wire
from harness.verbs_harness import poll
from harness.wire_peer import ScriptedRCPeer, build_read_request, build_send, recv_exactly

from siwarp.inspect import FPDU, DDPTagged

REQUESTS = 3
#: Octets of a response: four times what the buffers of the simulated TCP hold at both ends.
LENGTH = 2 << 20
#: Octets of the pad and the CRC that follow a ULPDU.
TRAILER = 4


def receive_placed_octets(peer: ScriptedRCPeer, total: int) -> dict[int, bytes]:
    """Receive tagged segments with ``total`` octets of payload; return the payloads by offset."""
    placed: dict[int, bytes] = {}
    while sum(map(len, placed.values())) < total:
        length = recv_exactly(peer.sock, 2)
        octets = int.from_bytes(length, "big")
        fpdu = FPDU(length + recv_exactly(peer.sock, octets + -(octets + 2) % 4 + TRAILER))
        assert fpdu.crc == fpdu.crc_expected()
        assert isinstance(fpdu.ulpdu, DDPTagged)
        placed[fpdu.ulpdu.to] = bytes(fpdu.ulpdu.payload)
    return placed


def test_a_peer_that_reads_late_gets_all_responses_to_requests_that_arrived_together(
    wire: Wire,
) -> None:
    peer = ScriptedRCPeer.connect_to_siwarp(wire, size=LENGTH)
    data = bytes(i % 251 for i in range(LENGTH))
    peer.end.mem.write(data)
    remote = peer.end.mem.remote(0, LENGTH)
    peer.send_segments(
        *(
            build_read_request(LENGTH, remote.rkey, remote.addr, msn=i + 1, sink_to=i * LENGTH)
            for i in range(REQUESTS)
        )
    )
    # The peer does not read until siwarp has found the buffers full, and has received the Send.
    peer.end.post_receive(0, 0, 0)
    peer.send_segments(build_send())
    assert poll(peer.end.rcq)[0].ok
    placed = receive_placed_octets(peer, REQUESTS * LENGTH)
    assert b"".join(octets for _, octets in sorted(placed.items())) == data * REQUESTS
    assert list(placed) == sorted(placed)
    peer.close()
