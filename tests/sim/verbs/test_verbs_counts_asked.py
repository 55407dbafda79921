"""Delivery counts with a peer of unknown kind, requested by the first zero-length Read."""

from __future__ import annotations

import pytest
from harness.peer_harness import PlainPeer, connected_plain_peer
from harness.rc_harness import SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import (
    assert_counter_grows,
    assert_no_completion,
    poll,
    temporary_settings,
)

from siwarp.cm import CMEventType
from siwarp.inspect import DeliveryCount, Opcode
from siwarp.verbs import Persona, RemoteBuffer, WCStatus, WROpcode

PEER_MEMORY = RemoteBuffer(0x1000, 1 << 20, 0x123456)
#: The source offset of a Read that requests delivery counts: "SIWC" and a version.
COUNT_REQUEST_OFFSET = 0x5349574300000001
UNSPECIFIED = (0, 2, 0xFF)


def build_delivery_count_message(sends: int, writes: int) -> bytes:
    return bytes(DeliveryCount(sends=sends, writes=writes))


@pytest.mark.parametrize("opcode", [SEND, WRITE], ids=["send", "write"])
def test_a_peer_that_sends_a_delivery_count_receives_no_further_confirming_reads(
    connector: ListenerAndConnector, opcode: WROpcode
) -> None:
    sends = int(opcode == SEND)
    with (
        assert_counter_grows("confirm_reads", 1),
        assert_counter_grows("delivery_counts_rx", 2),
        connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer),
    ):
        a.post(opcode, 1, length=8, remote=PEER_MEMORY)
        asked = peer.receive_read_request()
        assert (asked.size, asked.src_to) == (0, COUNT_REQUEST_OFFSET)
        peer.send_segments(build_delivery_count_message(sends, 1 - sends))
        assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(1, WCStatus.SUCCESS)]
        # The Read Response confirms nothing new, and may arrive late.
        a.post(opcode, 2, length=8, remote=PEER_MEMORY)
        peer.send_segments(peer.build_read_response(asked))
        assert peer.receive_segment()[0].opcode in (Opcode.SEND, Opcode.RDMA_WRITE)
        assert_no_completion(a.scq)
        assert peer.is_silent()
        peer.send_segments(build_delivery_count_message(2 * sends, 2 * (1 - sends)))
        assert [w.wr_id for w in poll(a.scq)] == [2]


def test_a_peer_that_only_answers_the_confirming_read_receives_one_per_request(
    connector: ListenerAndConnector,
) -> None:
    with (
        assert_counter_grows("confirm_reads", 3),
        connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer),
    ):
        for i in range(3):
            a.post(SEND, i, length=8)
            asked = peer.receive_read_request()
            assert (asked.size, asked.src_to) == (0, COUNT_REQUEST_OFFSET)
            assert_no_completion(a.scq)
            peer.send_segments(peer.build_read_response(asked))
            assert [w.wr_id for w in poll(a.scq)] == [i]


def test_requests_started_before_the_first_delivery_count_complete_in_order(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        for i in range(6):
            a.post(SEND if i % 2 else WRITE, i, length=8, remote=PEER_MEMORY)
        asked = peer.receive_read_request()
        peer.receive_until_silent()
        peer.send_segments(build_delivery_count_message(1, 3))
        assert [w.wr_id for w in poll(a.scq, 3)] == [0, 1, 2]
        assert_no_completion(a.scq)
        peer.send_segments(peer.build_read_response(asked), build_delivery_count_message(3, 3))
        assert [w.wr_id for w in poll(a.scq, 3)] == [3, 4, 5]


@pytest.mark.parametrize(
    "said",
    [
        build_delivery_count_message(2, 0),
        build_delivery_count_message(0, 1),
        build_delivery_count_message(0, 0),
    ],
)
def test_an_impossible_first_delivery_count_ends_the_connection(
    connector: ListenerAndConnector, said: bytes
) -> None:
    with connected_plain_peer(connector, gone=True, persona=Persona.ROCE) as (a, peer):
        a.post(SEND, 1, length=8)
        peer.receive_read_request()
        peer.send_segments(said)
        found = peer.receive_terminate()
        assert (found.layer, found.etype, found.code) == UNSPECIFIED


def receive_delivery_count(peer: PlainPeer) -> tuple[int, int]:
    said = DeliveryCount(peer.receive_segment_octets())
    assert (said.opcode, said.subcode) == (Opcode.PRIVATE, 4)
    return said.sends, said.writes


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE])
def test_a_confirming_read_by_a_peer_is_answered_with_delivery_counts(
    connector: ListenerAndConnector, persona: Persona
) -> None:
    with connected_plain_peer(connector, persona=persona) as (a, peer):
        for i in range(3):
            a.post_receive(i)
        peer.send_segments(
            peer.build_send(b"one"), peer.build_read_request(0, 1, COUNT_REQUEST_OFFSET)
        )
        assert receive_delivery_count(peer) == (1, 0)
        assert peer.receive_segment()[0].opcode == Opcode.RDMA_READ_RESPONSE
        peer.send_segments(peer.build_send(b"two"))
        assert receive_delivery_count(peer) == (2, 0)
        assert poll(a.rcq, 2)[1].byte_len == 3


@pytest.mark.parametrize("to", [0, COUNT_REQUEST_OFFSET + 1, COUNT_REQUEST_OFFSET - 1])
def test_a_zero_length_read_at_another_offset_does_not_request_delivery_counts(
    connector: ListenerAndConnector, to: int
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        a.post_receive(1)
        peer.send_segments(peer.build_send(b"one"), peer.build_read_request(0, 1, to))
        assert peer.receive_segment()[0].opcode == Opcode.RDMA_READ_RESPONSE
        assert peer.is_silent()


def test_a_read_with_a_length_at_the_request_offset_does_not_request_delivery_counts(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, gone=True, persona=Persona.ROCE) as (a, peer):
        a.post_receive(1)
        peer.send_segments(
            peer.build_send(b"one"), peer.build_read_request(8, 0x123, COUNT_REQUEST_OFFSET)
        )
        assert peer.receive_segment()[0].opcode == Opcode.TERMINATE


def test_no_delivery_counts_are_requested_or_sent_if_the_setting_is_off(
    connector: ListenerAndConnector,
) -> None:
    with (
        temporary_settings(delivery_counts=0),
        connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer),
    ):
        a.post_receive(1, 8)
        a.post(SEND, 1, length=8)
        asked = peer.receive_read_request()
        assert (asked.size, asked.src_to) == (0, 0)
        peer.send_segments(
            peer.build_send(b"one"),
            peer.build_read_request(0, 1, COUNT_REQUEST_OFFSET),
            peer.build_read_response(asked),
        )
        assert peer.receive_segment()[0].opcode == Opcode.RDMA_READ_RESPONSE
        assert poll(a.scq)[0].ok
        assert peer.is_silent()


@pytest.mark.parametrize("other", [Persona.IWARP, Persona.ROCE])
def test_between_two_siwarp_ends_one_confirming_read_is_enough(
    two_device_connector: ListenerAndConnector, other: Persona
) -> None:
    with (
        temporary_settings(mpa_announce=0),
        assert_counter_grows("confirm_reads", 1),
        assert_counter_grows("confirm_none", 0),
    ):
        a = two_device_connector.begin_connect(size=1 << 16, persona=Persona.ROCE)
        b = End(
            two_device_connector.passive,
            two_device_connector.next_connection_request().id,
            two_device_connector.p_channel,
            size=1 << 16,
            persona=other,
        )
        b.id.accept()
        assert a.next_cm_event().type == b.next_cm_event().type == CMEventType.ESTABLISHED
        for i in range(50):
            b.post_receive(i)
            a.post(SEND if i % 2 else WRITE, i, length=64, remote=b.mem.remote(0, 64))
            assert poll(a.scq)[0].wr_id == i
        assert len(poll(b.rcq, 25)) == 25
