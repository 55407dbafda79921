"""Messages of length 0 in the TCP stream (RFC 5040 section 5, RFC 5041 section 5.2), and the RTR
messages of RFC 6581 section 9.2, which have length 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.rc_harness import READ, SEND, WRITE, ListenerAndConnector
from harness.verbs_harness import ALL_ACCESS, Rig, poll
from harness.wire_peer import (
    ScriptedRCPeer,
    build_read_request,
    build_read_response,
    build_send,
    build_write,
)
from scapy.packet import Raw

from siwarp.cm import CMEventType, ConnParam
from siwarp.inspect import MPARequest, Opcode, ReadRequest
from siwarp.verbs import MR, RemoteBuffer

#: Invalid STags, and offsets outside every region.
STAGS = [0, 1, 0x12345678, 0xFFFFFFFF]
OFFSETS = [0, 1, 2**63, 2**64 - 1]


@pytest.fixture(name="connector")
def listener_and_connector() -> Iterator[ListenerAndConnector]:
    """Yield a listener on 127.0.0.1 and a way to connect to the listener."""
    rig = Rig()
    yield ListenerAndConnector(rig)
    rig.close()


@pytest.mark.clause("RFC5040-5.2.1-14", "RFC5040-5.2.1-16", "RFC5040-5.2.1-17")
def test_a_read_of_length_0_is_answered_for_any_source(connector: ListenerAndConnector) -> None:
    sources = [(stag, to) for stag in STAGS for to in OFFSETS]
    with ScriptedRCPeer.connect_to_siwarp(
        connector, param=ConnParam(responder_resources=len(sources))
    ) as peer:
        for msn, (stag, to) in enumerate(sources, 1):
            peer.send_segments(build_read_request(0, stag, to, msn=msn, sink=msn, sink_to=to))
        for msn, (_, to) in enumerate(sources, 1):
            head = peer.receive_fpdu().ulpdu
            assert (head.opcode, head.l, head.stag, head.to) == (
                Opcode.RDMA_READ_RESPONSE,
                1,
                msn,
                to,
            )
            assert bytes(head.payload) == b""


@pytest.mark.clause("RFC5040-5.3-09", "RFC5040-5.3-10")
def test_a_send_of_length_0_consumes_a_receive_of_any_size(connector: ListenerAndConnector) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        end = peer.end
        end.mem.write(b"\xa5" * 16)
        end.post_receive(1, 0, 8)
        end.post_receive(2, 0, 0)
        end.post_receive(3, 0, 8)
        peer.send_segments(build_send(1), build_send(2), build_send(3) / Raw(b"abc"))
        assert [(w.wr_id, w.byte_len) for w in poll(end.rcq, 3)] == [(1, 0), (2, 0), (3, 3)]
        assert end.mem.read(16) == b"abc" + b"\xa5" * 13


@pytest.mark.clause("RFC5041-3-05")
def test_segments_of_length_0_may_begin_and_end_a_longer_message(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        there = MR(peer.end.rig.pd, bytearray(100), ALL_ACCESS)
        peer.end.post_receive(1, 0, 100)
        peer.send_segments(
            build_send(l=0), build_send(l=0) / Raw(b"abc"), build_send(mo=3, l=0), build_send(mo=3)
        )
        assert poll(peer.end.rcq)[0].byte_len == 3
        peer.send_segments(
            build_write(7, 7, l=0),
            build_write(there.rkey, there.addr) / Raw(b"xyz"),
            build_write(9, 9),
        )
        peer.end.post_receive(2, 0, 100)
        peer.send_segments(build_send(2))
        assert poll(peer.end.rcq)[0].byte_len == 0
        assert there.read(3) == b"xyz"


@pytest.mark.parametrize("sink", STAGS)
def test_a_read_response_of_length_0_is_accepted_for_any_sink(
    connector: ListenerAndConnector, sink: int
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector) as peer:
        peer.end.post(READ, 4, remote=RemoteBuffer(0x99, 0, 0x77))
        request = peer.receive_fpdu().ulpdu
        assert ReadRequest(bytes(request.payload)).size == 0
        peer.send_segments(build_read_response(sink, 0xFFFF))
        wc = poll(peer.end.scq)[0]
        assert (wc.wr_id, wc.ok, wc.byte_len) == (4, True, 0)


# ---- sending


@pytest.mark.parametrize("rkey", STAGS)
@pytest.mark.clause("RFC5041-5.2-08", "RFC5040-5.1-09")
def test_a_transmitted_message_of_length_0_is_one_segment(
    connector: ListenerAndConnector, rkey: int
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector) as peer:
        end = peer.end
        end.post(WRITE, 1, remote=RemoteBuffer(OFFSETS[-1], 0, rkey))
        end.post(SEND, 2)
        assert [w.wr_id for w in poll(end.scq, 2) if w.ok] == [1, 2]
        head = peer.receive_fpdu().ulpdu
        assert (head.t, head.l, head.opcode, head.stag, head.to) == (1, 1, 0, rkey, OFFSETS[-1])
        assert bytes(head.payload) == b""
        head = peer.receive_fpdu().ulpdu
        assert (head.t, head.l, head.opcode, head.msn, head.mo) == (0, 1, Opcode.SEND, 1, 0)
        assert bytes(head.payload) == b""


def test_after_start_up_a_send_of_length_0_needs_a_receive_like_any_send(
    connector: ListenerAndConnector,
) -> None:
    request = MPARequest(rev=2, s=1, a=1, b=1, ird=4, ord=4)
    for opening in (None, build_send(1)):
        msn = 1 if opening is None else 2
        with ScriptedRCPeer.connect_to_siwarp(connector, request, established=False) as peer:
            peer.send_segments(opening)
            assert peer.end.next_cm_event().type == CMEventType.ESTABLISHED
            peer.send_segments(build_send(msn))
            t = peer.receive_terminate()
            assert (t.layer, t.etype, t.code) == (1, 2, 2)
