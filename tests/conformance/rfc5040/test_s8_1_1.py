"""RFC 5040 section 8.1.1 in the TCP stream: which memory a peer may access, and for how long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from harness.rc_harness import SEND, ListenerAndConnector
from harness.verbs_harness import ALL_ACCESS, Rig, octet_pattern, poll
from harness.wire_peer import ScriptedRCPeer, build_read_request, build_send, build_write
from scapy.packet import Raw

from siwarp.cm import ConnParam
from siwarp.inspect import DDPTagged, Opcode
from siwarp.verbs import MR, RemoteBuffer, SendWR, WROpcode


@pytest.fixture(name="connector")
def listener_and_connector() -> Iterator[ListenerAndConnector]:
    """Yield a listener on 127.0.0.1 and a way to connect to the listener."""
    rig = Rig()
    yield ListenerAndConnector(rig)
    rig.close()


def receive_terminate_numbers(peer: ScriptedRCPeer) -> tuple[int, int, int]:
    t = peer.receive_terminate()
    return (t.layer, t.etype, t.code)


@pytest.mark.parametrize("how", ["write", "read"])
@pytest.mark.clause("RFC5040-8.1.1-03")
def test_an_stag_bound_to_one_stream_is_refused_on_another(
    connector: ListenerAndConnector, how: str
) -> None:
    with (
        ScriptedRCPeer.connect_to_siwarp(connector) as one,
        ScriptedRCPeer.connect_to_siwarp(connector) as other,
    ):
        mr = MR(one.end.rig.pd, bytearray(b"mine" * 10), ALL_ACCESS, qp=one.end.qp)
        if how == "write":
            other.send_segments(build_write(mr.rkey, mr.addr) / Raw(b"not!"))
            assert receive_terminate_numbers(other) == (1, 1, 2)
        else:
            other.send_segments(build_read_request(4, mr.rkey, mr.addr))
            assert receive_terminate_numbers(other) == (0, 1, 3)
        assert mr.read(4) == b"mine"
        one.send_segments(build_read_request(4, mr.rkey, mr.addr))
        assert bytes(one.receive_fpdu().ulpdu.payload) == b"mine"


@pytest.mark.parametrize(
    ("at", "size", "good"),
    [
        (100, 50, True),
        (149, 1, True),
        (99, 1, False),
        (99, 52, False),
        (100, 51, False),
        (150, 1, False),
        (0, 1, False),
    ],
)
@pytest.mark.clause("RFC5040-8.1.1-05#a", "RFC5040-8.1.1-05#b")
def test_a_peer_can_write_only_the_registered_range_and_only_until_deregistration(
    connector: ListenerAndConnector, at: int, size: int, good: bool
) -> None:
    memory = bytearray(b"\xa5" * 250)
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        mr = MR(peer.end.rig.pd, memoryview(memory)[100:150], ALL_ACCESS)
        peer.send_segments(build_write(mr.rkey, mr.addr - 100 + at) / Raw(octet_pattern(size)))
        if not good:
            assert receive_terminate_numbers(peer) == (1, 1, 1)
            assert memory == b"\xa5" * 250
            return
        peer.end.post_receive(1)
        peer.send_segments(build_send(1))
        assert poll(peer.end.rcq)[0].ok
        rkey, there = mr.rkey, mr.addr
        mr.close()
        peer.send_segments(build_write(rkey, there) / Raw(b"late"))
        assert receive_terminate_numbers(peer) == (1, 1, 0)
    assert memory == b"\xa5" * at + octet_pattern(size) + b"\xa5" * (250 - at - size)


@pytest.mark.parametrize("size", [100, 20_000])
@pytest.mark.clause("RFC5040-8.1.1-07")
def test_writes_do_not_change_memory_after_its_deregistration(
    connector: ListenerAndConnector, size: int
) -> None:
    memory = bytearray(size)
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        mr = MR(peer.end.rig.pd, memory, ALL_ACCESS)
        rkey, there = mr.rkey, mr.addr
        octets = [
            peer.frame_segment(build_write(rkey, there) / Raw(octet_pattern(size, i)))
            for i in range(20)
        ]
        over = threading.Event()

        def flood_writes() -> None:
            # siwarp may close the connection before all octets are sent.
            with contextlib.suppress(OSError):
                for i in range(1_000_000):
                    if over.is_set():
                        return
                    peer.sock.sendall(octets[i % 20])

        flooding = threading.Thread(target=flood_writes)
        flooding.start()
        while not any(memory):
            peer.end.rcq.poll(1)
        mr.close()
        then = bytes(memory)
        assert receive_terminate_numbers(peer) == (1, 1, 0)
        over.set()
        flooding.join(10)
        assert bytes(memory) == then


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.clause("RFC5040-8.1.1-13")
def test_the_number_of_outstanding_reads_of_a_peer_is_limited(
    connector: ListenerAndConnector, limit: int
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(
        connector, param=ConnParam(responder_resources=limit)
    ) as peer:
        there = MR(peer.end.rig.pd, 64 << 20, ALL_ACCESS)
        for msn in range(1, limit + 2):
            peer.send_segments(build_read_request(64 << 20, there.rkey, there.addr, msn=msn))
        assert receive_terminate_numbers(peer) == (1, 2, 2)


@pytest.mark.clause("RFC5040-8.1.1-12")
def test_a_completion_queue_overflow_affects_only_the_streams_that_use_the_queue(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect()
    c, d = connector.connect()
    b.rcq.resize(2)
    for i in range(4):
        b.post_receive(i, length=8)
        d.post_receive(i, length=8)
    for i in range(4):
        a.post(SEND, i, length=4)
    b.wait_for_error_state()
    for i in range(4):
        c.post(SEND, i, length=4)
    assert [w.wr_id for w in poll(d.rcq, 4) if w.ok] == [0, 1, 2, 3]
    assert [w.wr_id for w in poll(c.scq, 4) if w.ok] == [0, 1, 2, 3]


# ---- one buffer per message (sections 5.1 and 5.2)


@pytest.mark.clause("RFC5040-5.2.2-01", "RFC5040-5.2.2-05")
def test_a_read_response_goes_to_the_tagged_buffer_that_the_request_names(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        mr = MR(peer.end.rig.pd, bytearray(octet_pattern(200_000)), ALL_ACCESS)
        sink, to = 0xC0FFEE01, 2**40 + 5
        peer.send_segments(build_read_request(200_000, mr.rkey, mr.addr, sink=sink, sink_to=to))
        got = b""
        while True:
            head = peer.receive_fpdu().ulpdu
            assert isinstance(head, DDPTagged)
            assert (head.opcode, head.stag, head.to) == (
                Opcode.RDMA_READ_RESPONSE,
                sink,
                to + len(got),
            )
            got += bytes(head.payload)
            if head.l:
                break
        assert got == octet_pattern(200_000)


@pytest.mark.clause("RFC5040-5.1-08", "RFC5040-5.2.1-10", "RFC5040-5.2.1-06")
def test_a_request_with_many_local_buffers_names_one_remote_buffer(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector, max_send_sge=3) as peer:
        end = peer.end
        end.mem.write(octet_pattern(50_000))
        sg = [end.mem.sge(0, 10_000), end.mem.sge(20_000, 1), end.mem.sge(30_000, 19_999)]
        there = RemoteBuffer(0x1234, 30_000, 0x77)
        end.qp.post_send(SendWR(1, WROpcode.RDMA_WRITE, sg=sg, remote=there))
        end.qp.post_send(SendWR(2, WROpcode.RDMA_READ, sg=sg, remote=there))
        written = b""
        while (head := peer.receive_fpdu().ulpdu).opcode == Opcode.RDMA_WRITE:
            assert (head.stag, head.to) == (0x77, 0x1234 + len(written))
            written += bytes(head.payload)
        data = octet_pattern(50_000)
        assert written == data[:10_000] + data[20_000:20_001] + data[30_000:49_999]
        assert (head.opcode, head.qn) == (Opcode.RDMA_READ_REQUEST, 1)
        request = head.payload
        assert (request.src_stag, request.src_to, request.size) == (0x77, 0x1234, 30_000)
