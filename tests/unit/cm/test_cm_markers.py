"""Markers on connections: the negotiation for each direction, and the transferred data."""

from __future__ import annotations

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import octet_pattern, poll
from harness.wire_peer import CONNECT, ScriptedRCPeer, build_read_request, build_send, build_write
from scapy.packet import Raw
from unit.cm.test_cm_connect import assert_transfers_work_both_ways

from siwarp._siwarp import lib
from siwarp.cm import CMEventType, ConnParam
from siwarp.inspect import MPAReply, MPARequest, Opcode, crc32c

# ---- between two endpoints of siwarp


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("answer", [False, True])
@pytest.mark.parametrize("crc", [False, True])
def test_each_end_requests_markers_separately_and_data_is_correct_in_both_directions(
    two_device_connector: ListenerAndConnector, ask: bool, answer: bool, crc: bool
) -> None:
    a, b = two_device_connector.begin_connect(ConnParam(markers=ask, crc=crc), size=1 << 16), None
    request = two_device_connector.next_connection_request()
    assert request.markers == ask
    b = End(two_device_connector.passive, request.id, two_device_connector.p_channel, size=1 << 16)
    b.id.accept(ConnParam(markers=answer, crc=crc))
    assert a.next_cm_event().markers == answer
    assert b.next_cm_event().markers == ask
    assert_transfers_work_both_ways(a, b)
    assert_transfers_work_both_ways(a, b, 20_000)


def test_large_transfers_in_both_directions_at_the_same_time_with_markers(
    two_device_connector: ListenerAndConnector,
) -> None:
    size = 4 << 20
    a, b = two_device_connector.connect(
        ConnParam(markers=True), ConnParam(markers=True), size=2 * size
    )
    for one, other in ((a, b), (b, a)):
        one.mem.write(octet_pattern(1 << 16) * (size >> 16))
        other.mem.view[size:] = bytes(size)
    a.post(WRITE, 1, length=size, remote=b.mem.remote(size, size))
    b.post(READ, 2, offset=size, length=size, remote=a.mem.remote(0, size))
    b.post_receive(3, offset=0, length=8)
    a.post(SEND, 4, length=8)
    assert [w.wr_id for w in poll(a.scq, 2) if w.ok] == [1, 4]
    assert [w.wr_id for w in poll(b.rcq) + poll(b.scq) if w.ok] == [3, 2]
    assert b.mem.read(size, size) == a.mem.read(size)


def test_the_setting_markers_is_the_default_of_a_connection(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        assert peer.ours.m == 0
    assert peer.end.next_cm_event().type == CMEventType.DISCONNECTED
    lib.siw_setting_set(b"markers", 1)
    try:
        with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
            assert peer.ours.m == 1
        assert peer.end.next_cm_event().type == CMEventType.DISCONNECTED
        with ScriptedRCPeer.accept_from_siwarp(connector) as peer:
            assert peer.ours.m == 1
    finally:
        lib.siw_setting_set(b"markers", 0)


# ---- with a peer that chooses whether Markers are used


@pytest.mark.parametrize("size", [0, 1, 400, 5000, 60_000])
@pytest.mark.parametrize("how", ["asking", "answering"])
def test_markers_interoperate_with_a_scapy_peer(
    connector: ListenerAndConnector, how: str, size: int
) -> None:
    data = octet_pattern(size, 5)
    frame = {
        "asking": MPARequest(rev=2, m=1, s=1, ird=4, ord=4),
        "answering": MPAReply(rev=2, m=1, s=1, ird=4, ord=4),
    }[how]
    with CONNECT[how](connector, frame, ConnParam(markers=True), size=1 << 17) as peer:
        end = peer.end
        end.post_receive(1)
        end.post_receive(2)
        peer.send_segments(
            build_send(1) / Raw(data), build_write(end.mem.rkey, end.mem.addr + 70_000) / Raw(data)
        )
        peer.send_segments(
            build_read_request(size, end.mem.rkey, end.mem.addr + 70_000, sink=9), build_send(2)
        )
        assert [w.byte_len for w in poll(end.rcq, 2)] == [size, 0]
        assert end.mem.read(size) == data
        end.mem.write(data)
        end.post(SEND, 3, length=size)
        assert poll(end.scq)[0].ok
        end.id.disconnect()
        heads = [(f.ulpdu.opcode, bytes(f.ulpdu.payload)) for f in peer.receive_to_end().fpdus]
        for opcode in (Opcode.RDMA_READ_RESPONSE, Opcode.SEND):
            assert b"".join(octets for op, octets in heads if op == opcode) == data


def test_a_wrong_marker_is_reported_by_a_terminate(connector: ListenerAndConnector) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector, param=ConnParam(markers=True)) as peer:
        octets = bytearray(peer.frame_segment(build_send(1) / Raw(bytes(600))))
        octets[515] -= 4
        octets[-4:] = crc32c(bytes(octets[:-4])).to_bytes(4, "little")
        peer.sock.sendall(octets)
        t = peer.receive_terminate()
    assert (t.layer, t.etype, t.code, t.m, t.d, t.r) == (2, 0, 3, 0, 0, 0)
    assert peer.end.next_cm_event().wire_error == 2 << 16 | 3
