"""FetchAdd and CmpSwap through queue pairs: their effects, order and errors."""

from __future__ import annotations

from harness.atomic_harness import ADD, THERE, at, atomic, pull_atomic, put, response
from harness.peer_harness import answering
from harness.rc_harness import READ, SEND, Wire
from harness.verbs_harness import counter, nothing, poll, until

from siwarp.inspect import Opcode
from siwarp.verbs import (
    Persona,
    SendFlag,
    SendWR,
    WCOpcode,
)


def test_reads_and_atomics_share_the_ord(wire: Wire) -> None:
    with answering(wire, ird=2) as (a, peer):
        atomic(a, ADD, THERE, 1)
        a.post(READ, 2, offset=8, length=8, remote=THERE)
        atomic(a, ADD, THERE, 3, offset=16)
        first = pull_atomic(peer)
        read = peer.pull_read()
        assert peer.is_silent()
        peer.put(response(1, first, 11))
        third = pull_atomic(peer)
        peer.put(peer.response(read, b"read it!"), response(2, third, 33))
        assert [(w.wr_id, w.opcode) for w in poll(a.scq, 3)] == [
            (1, WCOpcode.FETCH_ADD),
            (2, WCOpcode.RDMA_READ),
            (3, WCOpcode.FETCH_ADD),
        ]
        assert (at(a), a.mem.read(8, 8), at(a, 16)) == (11, b"read it!", 33)


def test_a_fence_waits_for_an_atomic(wire: Wire) -> None:
    with answering(wire) as (a, peer):
        atomic(a, ADD, THERE, 1)
        a.post(SEND, 2, flags=SendFlag.FENCE | SendFlag.SIGNALED)
        request = pull_atomic(peer)
        assert peer.is_silent()
        peer.put(response(1, request, 0))
        head, _ = peer.pull()
        assert head.opcode == Opcode.SEND
        assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]


def test_with_persona_roce_an_answer_tells_of_what_was_sent_before(wire: Wire) -> None:
    with answering(wire, persona=Persona.ROCE) as (a, peer):
        asks = SendWR(2, ADD, sg=[a.mem.sge(0, 8)], remote=THERE)
        a.qp.post_send([SendWR(1, SEND), asks])
        head, _ = peer.pull()
        assert head.opcode == Opcode.SEND
        request = pull_atomic(peer)
        assert peer.is_silent()  # no zero-length Read is sent for confirmation
        nothing(a.scq)
        peer.put(response(1, request, 0))
        assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]


def test_an_atomic_behind_a_send_that_waits_for_a_receive_waits_too(wire: Wire) -> None:
    a, b = wire.connect(persona=Persona.ROCE)
    put(b, 5)
    before = counter("rnr_unexpected")
    asks = SendWR(2, ADD, sg=[a.mem.sge(0, 8)], remote=b.mem.remote(0, 8), compare_add=1)
    a.qp.post_send([SendWR(1, SEND), asks])
    until(lambda: b.rcq.poll(1) or counter("rnr_unexpected") > before)
    nothing(a.scq)
    assert at(b) == 5
    b.recv(9, 64, 8)
    assert poll(b.rcq)[0].wr_id == 9
    assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]
    assert at(b) == 6
