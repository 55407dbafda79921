"""Empty messages: RFC 5040 section 5, RFC 5041 section 5.2, and the RTR messages of RFC 6581.

The RTR messages of RFC 6581 section 9.2 are empty, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.rc_harness import SEND, ListenerAndConnector
from harness.verbs_harness import Rig, assert_no_completion, poll
from harness.wire_peer import (
    ScriptedRCPeer,
    build_read_request,
    build_read_response,
    build_send,
    build_write,
)
from scapy.packet import Packet, Raw

from siwarp.cm import RTR, CMEventType, ConnParam
from siwarp.inspect import MPAReply, MPARequest, Opcode, ReadRequest

#: STags that are invalid, and offsets outside of any region.
STAGS = [0, 1, 0x12345678, 0xFFFFFFFF]
OFFSETS = [0, 1, 2**63, 2**64 - 1]


@pytest.fixture
def connectable_listener() -> Iterator[ListenerAndConnector]:
    """A listener on 127.0.0.1 and a helper to connect to the listener."""
    rig = Rig()
    yield ListenerAndConnector(rig)
    rig.close()


# ---- received messages


@pytest.mark.clause("RFC5041-5.2-09", "RFC5041-5.2-10")
def test_an_empty_write_with_any_stag_and_offset_is_accepted_without_completion(
    connectable_listener: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connectable_listener) as peer:
        peer.end.post_receive(1)
        peer.send_segments(*[build_write(stag, to) for stag in STAGS for to in OFFSETS])
        peer.send_segments(build_send(1) / Raw(b"behind"))
        assert [(w.wr_id, w.byte_len) for w in poll(peer.end.rcq)] == [(1, 6)]
        assert_no_completion(peer.end.rcq)


# ---- RTR messages

RTR_KINDS: dict[str, tuple[dict[str, int], Packet | None, int]] = {
    # Each value has the start-up fields by which the Request offers the RTR, the first message of
    # the connection, and the MSN of the Send that follows.
    "empty FPDU": ({"b": 1}, None, 1),
    "empty Send": ({"b": 1}, build_send(1), 2),
    "empty Write": ({"c_rtr": 1}, build_write(1, 0), 1),
    "empty Write, STag 0": ({"c_rtr": 1}, build_write(0, 2**64 - 1), 1),
    "empty Read": ({"d_rtr": 1}, build_read_request(0, 1, 0), 1),
    "empty Read, STag 0": ({"d_rtr": 1}, build_read_request(0, 0, 0, sink=0), 1),
}


@pytest.mark.parametrize("posted", [0, 1])
@pytest.mark.parametrize("kind", RTR_KINDS)
@pytest.mark.clause("RFC6581-9.2-03")
def test_each_kind_of_rtr_establishes_the_connection_and_consumes_no_receive(
    connectable_listener: ListenerAndConnector, kind: str, posted: int
) -> None:
    bits, segment, msn = RTR_KINDS[kind]
    request = MPARequest(rev=2, s=1, a=1, ird=4, ord=4, **bits)
    with ScriptedRCPeer.connect_to_siwarp(connectable_listener, request, established=False) as peer:
        end = peer.end
        assert peer.ours.a == 1 and all(getattr(peer.ours, bit) for bit in bits)
        if posted:
            end.post_receive(1, 0, 100)
        peer.send_segments(segment)
        event = end.next_cm_event()
        assert event.type == CMEventType.ESTABLISHED
        assert_no_completion(end.rcq)
        if not posted:
            end.post_receive(1, 0, 100)
        peer.send_segments(build_send(msn) / Raw(b"abc"))
        assert [(w.wr_id, w.byte_len) for w in poll(end.rcq)] == [(1, 3)]
        # Messages that the responder delayed are sent now, after the response to the RTR.
        end.post(SEND, 2, length=3)
        assert poll(end.scq)[0].ok
        if "Read" in kind:
            assert peer.receive_fpdu().ulpdu.opcode == Opcode.RDMA_READ_RESPONSE
        assert peer.receive_fpdu().ulpdu.opcode == Opcode.SEND


@pytest.mark.parametrize(
    ("bits", "kind"),
    [({"b": 1}, RTR.FPDU), ({"c_rtr": 1}, RTR.WRITE), ({"d_rtr": 1}, RTR.READ)],
    ids=["FPDU", "Write", "Read"],
)
@pytest.mark.clause("RFC6581-9.2-09", "RFC6581-5-01")
def test_each_kind_of_rtr_that_siwarp_sends_is_empty_and_causes_no_completion(
    connectable_listener: ListenerAndConnector, bits: dict[str, int], kind: RTR
) -> None:
    reply = MPAReply(rev=2, s=1, a=1, ird=4, ord=4, **bits)
    with ScriptedRCPeer.accept_from_siwarp(
        connectable_listener, reply, ConnParam(peer_to_peer=kind)
    ) as peer:
        fpdu = peer.receive_fpdu()
        if kind == RTR.FPDU:
            assert fpdu.ulpdu_length == 0
        elif kind == RTR.WRITE:
            assert (fpdu.ulpdu.opcode, bytes(fpdu.ulpdu.payload)) == (Opcode.RDMA_WRITE, b"")
        else:
            request = ReadRequest(bytes(fpdu.ulpdu.payload))
            assert request.size == 0
            peer.send_segments(build_read_response(request.sink_stag, request.sink_to))
        assert_no_completion(peer.end.scq)
        peer.end.post_receive(1, 0, 8)
        peer.send_segments(build_send(1) / Raw(b"abc"))
        assert poll(peer.end.rcq)[0].byte_len == 3
