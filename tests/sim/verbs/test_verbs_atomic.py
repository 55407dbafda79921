"""FetchAdd and CmpSwap through queue pairs: their effects, order and errors."""

from __future__ import annotations

from harness.atomic_harness import (
    ADD,
    THERE,
    build_atomic_response,
    post_atomic,
    read_memory_uint64,
    receive_atomic_request,
    write_memory_uint64,
)
from harness.peer_harness import connected_plain_peer
from harness.rc_harness import READ, SEND, ListenerAndConnector
from harness.verbs_harness import assert_no_completion, counter_value, poll, wait_until

from siwarp.inspect import Opcode
from siwarp.verbs import (
    Persona,
    SendFlag,
    SendWR,
    WCOpcode,
)


def test_reads_and_atomics_together_do_not_exceed_the_ord(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector, ird=2) as (a, peer):
        post_atomic(a, ADD, THERE, 1)
        a.post(READ, 2, offset=8, length=8, remote=THERE)
        post_atomic(a, ADD, THERE, 3, offset=16)
        first = receive_atomic_request(peer)
        read = peer.receive_read_request()
        assert peer.is_silent()
        peer.send_segments(build_atomic_response(1, first, 11))
        third = receive_atomic_request(peer)
        peer.send_segments(
            peer.build_read_response(read, b"read it!"), build_atomic_response(2, third, 33)
        )
        assert [(w.wr_id, w.opcode) for w in poll(a.scq, 3)] == [
            (1, WCOpcode.FETCH_ADD),
            (2, WCOpcode.RDMA_READ),
            (3, WCOpcode.FETCH_ADD),
        ]
        assert (read_memory_uint64(a), a.mem.read(8, 8), read_memory_uint64(a, 16)) == (
            11,
            b"read it!",
            33,
        )


def test_a_fence_waits_for_an_atomic(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector) as (a, peer):
        post_atomic(a, ADD, THERE, 1)
        a.post(SEND, 2, flags=SendFlag.FENCE | SendFlag.SIGNALED)
        request = receive_atomic_request(peer)
        assert peer.is_silent()
        peer.send_segments(build_atomic_response(1, request, 0))
        head, _ = peer.receive_segment()
        assert head.opcode == Opcode.SEND
        assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]


def test_with_persona_roce_an_atomic_response_completes_earlier_sends(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        asks = SendWR(2, ADD, sg=[a.mem.sge(0, 8)], remote=THERE)
        a.qp.post_send([SendWR(1, SEND), asks])
        head, _ = peer.receive_segment()
        assert head.opcode == Opcode.SEND
        request = receive_atomic_request(peer)
        assert peer.is_silent()  # no zero-length Read is sent for confirmation
        assert_no_completion(a.scq)
        peer.send_segments(build_atomic_response(1, request, 0))
        assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]


def test_an_atomic_after_a_send_that_waits_for_a_receive_waits_too(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(persona=Persona.ROCE)
    write_memory_uint64(b, 5)
    before = counter_value("rnr_unexpected")
    asks = SendWR(2, ADD, sg=[a.mem.sge(0, 8)], remote=b.mem.remote(0, 8), compare_add=1)
    a.qp.post_send([SendWR(1, SEND), asks])
    wait_until(lambda: b.rcq.poll(1) or counter_value("rnr_unexpected") > before)
    assert_no_completion(a.scq)
    assert read_memory_uint64(b) == 5
    b.post_receive(9, 64, 8)
    assert poll(b.rcq)[0].wr_id == 9
    assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]
    assert read_memory_uint64(b) == 6
