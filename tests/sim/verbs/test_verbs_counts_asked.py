"""Delivery counts with a peer of unknown kind: the first zero-length Read requests them."""

from __future__ import annotations

import pytest
from harness.peer_harness import PlainPeer, answering
from harness.rc_harness import SEND, WRITE, End, Wire
from harness.verbs_harness import counted, nothing, poll, settings

from siwarp.cm import CMEventType
from siwarp.inspect import DeliveryCount, Opcode
from siwarp.verbs import Persona, RemoteBuffer, WCStatus, WROpcode

THERE = RemoteBuffer(0x1000, 1 << 20, 0x123456)
#: The source offset of such a Read: "SIWC" and a version.
ASKS = 0x5349574300000001
UNSPECIFIED = (0, 2, 0xFF)


def count(sends: int, writes: int) -> bytes:
    return bytes(DeliveryCount(sends=sends, writes=writes))


@pytest.mark.parametrize("opcode", [SEND, WRITE], ids=["send", "write"])
def test_a_peer_that_answers_with_a_count_is_asked_no_more(wire: Wire, opcode: WROpcode) -> None:
    sends = int(opcode == SEND)
    with (
        counted("confirm_reads", 1),
        counted("delivery_counts_rx", 2),
        answering(wire, persona=Persona.ROCE) as (a, peer),
    ):
        a.post(opcode, 1, length=8, remote=THERE)
        asked = peer.pull_read()
        assert (asked.size, asked.src_to) == (0, ASKS)
        peer.put(count(sends, 1 - sends))
        assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(1, WCStatus.SUCCESS)]
        # The Read Response confirms nothing new, and may arrive late.
        a.post(opcode, 2, length=8, remote=THERE)
        peer.put(peer.response(asked))
        assert peer.pull()[0].opcode in (Opcode.SEND, Opcode.RDMA_WRITE)
        nothing(a.scq)
        assert peer.is_silent()
        peer.put(count(2 * sends, 2 * (1 - sends)))
        assert [w.wr_id for w in poll(a.scq)] == [2]


def test_a_peer_that_only_answers_the_read_is_asked_each_time(wire: Wire) -> None:
    with counted("confirm_reads", 3), answering(wire, persona=Persona.ROCE) as (a, peer):
        for i in range(3):
            a.post(SEND, i, length=8)
            asked = peer.pull_read()
            assert (asked.size, asked.src_to) == (0, ASKS)
            nothing(a.scq)
            peer.put(peer.response(asked))
            assert [w.wr_id for w in poll(a.scq)] == [i]


def test_what_was_begun_before_the_answer_completes_by_it_in_order(wire: Wire) -> None:
    with answering(wire, persona=Persona.ROCE) as (a, peer):
        for i in range(6):
            a.post(SEND if i % 2 else WRITE, i, length=8, remote=THERE)
        asked = peer.pull_read()
        peer.rest()
        peer.put(count(1, 3))
        assert [w.wr_id for w in poll(a.scq, 3)] == [0, 1, 2]
        nothing(a.scq)
        peer.put(peer.response(asked), count(3, 3))
        assert [w.wr_id for w in poll(a.scq, 3)] == [3, 4, 5]


@pytest.mark.parametrize("said", [count(2, 0), count(0, 1), count(0, 0)])
def test_an_answer_that_cannot_be_ends_the_connection(wire: Wire, said: bytes) -> None:
    with answering(wire, gone=True, persona=Persona.ROCE) as (a, peer):
        a.post(SEND, 1, length=8)
        peer.pull_read()
        peer.put(said)
        found = peer.pull_terminate()
        assert (found.layer, found.etype, found.code) == UNSPECIFIED


def pull_count(peer: PlainPeer) -> tuple[int, int]:
    said = DeliveryCount(peer.pull_segment())
    assert (said.opcode, said.subcode) == (Opcode.PRIVATE, 4)
    return said.sends, said.writes


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE])
def test_a_peer_that_asks_is_told_in_front_of_the_response_and_from_then_on(
    wire: Wire, persona: Persona
) -> None:
    with answering(wire, persona=persona) as (a, peer):
        for i in range(3):
            a.recv(i)
        peer.put(peer.send(b"one"), peer.read(0, 1, ASKS))
        assert pull_count(peer) == (1, 0)
        assert peer.pull()[0].opcode == Opcode.RDMA_READ_RESPONSE
        peer.put(peer.send(b"two"))
        assert pull_count(peer) == (2, 0)
        assert poll(a.rcq, 2)[1].byte_len == 3


@pytest.mark.parametrize("to", [0, ASKS + 1, ASKS - 1])
def test_any_other_read_of_nothing_is_only_answered(wire: Wire, to: int) -> None:
    with answering(wire, persona=Persona.ROCE) as (a, peer):
        a.recv(1)
        peer.put(peer.send(b"one"), peer.read(0, 1, to))
        assert peer.pull()[0].opcode == Opcode.RDMA_READ_RESPONSE
        assert peer.is_silent()


def test_a_read_of_octets_at_that_offset_asks_nothing(wire: Wire) -> None:
    with answering(wire, gone=True, persona=Persona.ROCE) as (a, peer):
        a.recv(1)
        peer.put(peer.send(b"one"), peer.read(8, 0x123, ASKS))
        assert peer.pull()[0].opcode == Opcode.TERMINATE


def test_without_the_setting_nobody_asks_or_answers(wire: Wire) -> None:
    with settings(delivery_counts=0), answering(wire, persona=Persona.ROCE) as (a, peer):
        a.recv(1, 8)
        a.post(SEND, 1, length=8)
        asked = peer.pull_read()
        assert (asked.size, asked.src_to) == (0, 0)
        peer.put(peer.send(b"one"), peer.read(0, 1, ASKS), peer.response(asked))
        assert peer.pull()[0].opcode == Opcode.RDMA_READ_RESPONSE
        assert poll(a.scq)[0].ok
        assert peer.is_silent()


@pytest.mark.parametrize("other", [Persona.IWARP, Persona.ROCE])
def test_between_two_siwarps_one_read_is_enough(two: Wire, other: Persona) -> None:
    with settings(mpa_announce=0), counted("confirm_reads", 1), counted("confirm_none", 0):
        a = two.dial(size=1 << 16, persona=Persona.ROCE)
        b = End(two.passive, two.request().id, two.p_channel, size=1 << 16, persona=other)
        b.id.accept()
        assert a.event().type == b.event().type == CMEventType.ESTABLISHED
        for i in range(50):
            b.recv(i)
            a.post(SEND if i % 2 else WRITE, i, length=64, remote=b.mem.remote(0, 64))
            assert poll(a.scq)[0].wr_id == i
        assert len(poll(b.rcq, 25)) == 25
