"""The two PSN spaces of reliable datagrams, requests and responses, and the credit of each."""

from __future__ import annotations

import os
from typing import Any

import pytest
from _siwarp_layers import lib
from unit.llp.llp_harness import temporary_setting
from unit.rd.rd_kit import REQUESTS, RESPONSES, Endpoint, ScapyRdPeer, poll_until

from siwarp.inspect.rd import RDDatagram, RDFlag, RDType, make_ack_body


def send_requests_and_responses(e: Endpoint, peer: Any, n: int) -> None:
    for i in range(n):
        assert e.send(peer, b"request %d" % i) == 1
        assert e.send(peer, b"response %d" % i, space=RESPONSES) == 1


def numbered_messages(kind: str, n: int) -> list[bytes]:
    return [f"{kind} {i}".encode() for i in range(n)]


@pytest.mark.clause("DGRAM-RD-37", "DGRAM-RD-12")
def test_a_request_that_cannot_be_accepted_delays_no_response(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    b.judge = lambda _who, data: "hold" if data.startswith(b"request") else "take"
    send_requests_and_responses(a, peer, 100)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, RESPONSES) == 100, a, b)
    assert b.received_data() == numbered_messages("response", 100)
    assert lib.siw_rd_total_accepted_segments(peer, REQUESTS) == 0
    b.judge = lambda _who, _data: "take"
    lib.siw_rd_resume_delivery(b.get_or_create_peer(a.local_addr), REQUESTS)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, REQUESTS) == 100, a, b)
    assert b.received_data()[100:] == numbered_messages("request", 100)


@pytest.mark.clause("DGRAM-RD-37", "DGRAM-RD-3", "DGRAM-RD-14")
def test_a_missing_request_delays_no_response(connected_endpoint):
    e, s = connected_endpoint
    s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=b"behind a gap")
    for i in range(3):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, rd_flags=int(RDFlag.RESPONSE), body=b"%d" % i)
    poll_until(lambda: e.received_data() == [b"0", b"1", b"2"], e)
    acks: list[RDDatagram] = []

    def responses_are_acknowledged() -> bool:
        acks.append(s.receive_datagram(RDType.ACK))
        return bool(acks[-1].response_acknowledged == s.epoch + 3)

    poll_until(responses_are_acknowledged, e)
    assert acks[-1].acknowledged == s.epoch
    assert acks[-1].received() == {s.epoch + 1} and acks[-1].received(responses=True) == set()


@pytest.mark.clause("DGRAM-RD-14", "DGRAM-RD-19")
def test_acknowledged_ranges_of_requests_and_of_responses_are_separate(connected_endpoint):
    e, s = connected_endpoint
    for psn in (2, 3, 7):
        s.send_datagram(RDType.DATA, psn=s.epoch + psn, body=b"x")
    for psn in (1, 5):
        s.send_datagram(RDType.DATA, psn=s.epoch + psn, rd_flags=int(RDFlag.RESPONSE), body=b"x")

    def both_ranges_are_acknowledged() -> bool:
        ack = s.receive_datagram(RDType.ACK)
        return bool(
            ack.received() == {s.epoch + 2, s.epoch + 3, s.epoch + 7}
            and ack.received(responses=True) == {s.epoch + 1, s.epoch + 5}
        )

    poll_until(both_ranges_are_acknowledged, e)


@pytest.mark.clause("DGRAM-RD-19", "DGRAM-RD-18")
def test_only_the_response_missing_from_an_acknowledged_range_is_retransmitted(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    s.send_datagram(RDType.ACK)
    s.discard_datagrams_until_silent()
    send_requests_and_responses(e, peer, 6)
    lib.siw_rd_flush(peer, new_uint64())
    first = [s.receive_datagram(RDType.DATA) for _ in range(12)]
    assert [d.psn - s.other for d in first if d.rd_flags & RDFlag.RESPONSE] == [*range(6)]
    body = make_ack_body(first_response=s.other, responses=[s.other + i for i in range(1, 6)])
    s.send_datagram(RDType.ACK, acknowledged=s.other + 6, body=body)
    again = s.receive_datagram(RDType.DATA)
    assert (again.psn, int(again.rd_flags)) == (s.other, RDFlag.RESPONSE)
    s.send_datagram(RDType.ACK, acknowledged=s.other + 6, response_acknowledged=s.other + 6)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, RESPONSES) == 6, e)


def new_uint64() -> Any:
    from _siwarp_layers import ffi

    return ffi.new("uint64_t *")


@pytest.mark.clause("DGRAM-RD-38")
def test_queued_responses_are_sent_before_queued_requests(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    s.send_datagram(RDType.ACK, credit=0)
    s.discard_datagrams_until_silent()
    send_requests_and_responses(e, peer, 5)
    assert s.receives_nothing()
    s.send_datagram(RDType.ACK)
    flags = [int(s.receive_datagram(RDType.DATA).rd_flags) for _ in range(10)]
    assert flags == [RDFlag.RESPONSE] * 5 + [0] * 5


@pytest.mark.clause("DGRAM-RD-38", "DGRAM-RD-20")
def test_requests_do_not_wait_for_the_credit_of_responses(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    s.send_datagram(RDType.ACK, credit=0)
    s.discard_datagrams_until_silent()
    send_requests_and_responses(e, peer, 5)
    s.send_datagram(RDType.ACK, credit=5, response_credit=2)
    flags = [int(s.receive_datagram(RDType.DATA).rd_flags) for _ in range(7)]
    assert flags == [RDFlag.RESPONSE] * 2 + [0] * 5
    assert s.receive_datagram().type == RDType.PROBE or not s.receives_nothing()


@pytest.mark.clause("DGRAM-RD-40")
def test_the_maximum_segment_length_follows_the_peers_credit(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    for credit, longest in ((16, 16 * 1024), (1, 1024), (0, 1024), (3, 3 * 1024)):
        s.send_datagram(RDType.ACK, credit=credit, response_credit=2 * credit)
        s.discard_datagrams_until_silent()
        assert lib.siw_rd_mulpdu(peer, REQUESTS) == longest
        assert lib.siw_rd_mulpdu(peer, RESPONSES) == 2 * longest


@pytest.mark.clause("DGRAM-RD-20", "DGRAM-RD-40")
def test_a_segment_longer_than_the_credit_waits_and_the_peer_is_probed(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    s.send_datagram(RDType.ACK, credit=64)
    s.discard_datagrams_until_silent()
    segment = os.urandom(63 * 1024 + 1)
    for credit in (16, 63, 0, 1):
        s.send_datagram(RDType.ACK, credit=credit)
        s.discard_datagrams_until_silent()
        assert not credit or lib.siw_rd_mulpdu(peer, REQUESTS) == credit * 1024
    # a segment as long as the credit allowed before it was reduced
    assert e.send(peer, segment) == 1
    asked = s.receive_datagram(seconds=5.0)
    assert asked.type == RDType.PROBE
    s.send_datagram(RDType.ACK, credit=63, psn=asked.psn, rd_flags=int(RDFlag.PROBED))
    assert s.receive_datagram(seconds=5.0).type == RDType.PROBE
    s.send_datagram(RDType.ACK, credit=64)
    data = s.receive_datagram()
    assert data.type == RDType.DATA and bytes(data.body) == segment


@pytest.mark.clause("DGRAM-RD-41", "DGRAM-RD-33")
def test_a_peer_without_stored_segments_is_granted_credit_for_the_longest_segment(make_endpoint):
    with temporary_setting("rd_total_window", 1 << 20):
        e = make_endpoint()
    far = [ScapyRdPeer(e, epoch=0x1000 * (i + 1)) for i in range(20)]
    s = ScapyRdPeer(e)
    # each peer sends segments after a gap up to its limit, until memory is nearly used up
    for one in far:
        one.connect()
        for i in range(1, 9):
            one.send_datagram(RDType.DATA, psn=one.epoch + i, body=bytes(30000))
        one.discard_datagrams_until_silent()
    s.connect()
    s.send_datagram(RDType.PROBE, psn=7)
    ack = s.receive_datagram(RDType.ACK)
    assert (ack.credit, ack.response_credit) == (64, 64)
    body = os.urandom(65000)
    s.send_datagram(RDType.DATA, body=body)
    poll_until(lambda: any(body in got for got in e.got.values()), e)
    for one in (*far, s):
        one.close()


@pytest.mark.clause("DGRAM-RD-42")
def test_an_outdated_acknowledgement_is_ignored_per_space(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    s.send_datagram(RDType.ACK)
    s.discard_datagrams_until_silent()
    send_requests_and_responses(e, peer, 4)
    lib.siw_rd_flush(peer, new_uint64())
    s.discard_datagrams_until_silent()
    s.send_datagram(
        RDType.ACK, acknowledged=s.other + 3, response_acknowledged=s.other + 1, credit=8
    )
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, REQUESTS) == 3, e)
    assert lib.siw_rd_mulpdu(peer, REQUESTS) == 8 * 1024
    # This ACK is outdated for requests and current for responses.
    body = make_ack_body(s.other + 1, [s.other + 3])
    fields = {"acknowledged": s.other + 1, "response_acknowledged": s.other + 4}
    s.send_datagram(RDType.ACK, **fields, credit=2, response_credit=3, body=body)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, RESPONSES) == 4, e)
    assert lib.siw_rd_total_accepted_segments(peer, REQUESTS) == 3
    assert lib.siw_rd_mulpdu(peer, REQUESTS) == 8 * 1024
    assert lib.siw_rd_mulpdu(peer, RESPONSES) == 3 * 1024
    # three ACKs that acknowledge the same PSN: the credit of the last one counts
    for credit in (5, 9, 4):
        s.send_datagram(RDType.ACK, **(fields | {"acknowledged": s.other + 3}), credit=credit)
        s.discard_datagrams_until_silent()
        assert lib.siw_rd_mulpdu(peer, REQUESTS) == credit * 1024


@pytest.mark.clause("DGRAM-RD-43")
def test_segments_acknowledged_by_a_range_are_kept_until_they_are_delivered(make_endpoint):
    with temporary_setting("rd_total_window", 1 << 20):
        e = make_endpoint()
    s, other = ScapyRdPeer(e), ScapyRdPeer(e, epoch=0x7000)
    s.connect()
    for i in range(1, 9):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=bytes([i]) * 20000)
    s.discard_datagrams_until_silent()
    s.send_datagram(RDType.PROBE)
    named = s.receive_datagram(RDType.ACK).received()
    assert named
    other.connect()
    for i in range(1, 65):  # more segments than the remaining memory can store
        other.send_datagram(RDType.DATA, psn=other.epoch + i, body=bytes(20000))
        other.discard_datagrams_until_silent()
    s.send_datagram(RDType.DATA, psn=s.epoch, body=b"first")
    goal = len(named) + 1
    poll_until(lambda: any(got[:1] == [b"first"] and len(got) == goal for got in e.got.values()), e)
    s.close()
    other.close()


@pytest.mark.clause("DGRAM-RD-38")
def test_an_endless_supply_of_responses_to_a_peer_does_not_block_a_request_to_it(
    connected_endpoint,
):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    s.send_datagram(RDType.ACK, credit=20000)
    s.discard_datagrams_until_silent()
    n = 0
    while e.send(peer, bytes(30000), space=RESPONSES) == 1:
        n += 1
    assert e.send(peer, b"request") == 1
    lib.siw_rd_flush(peer, new_uint64())
    came = 0
    for _ in range(n):  # responses that were queued before the request arrive first
        d = s.receive_datagram(RDType.DATA)
        if not d.rd_flags & RDFlag.RESPONSE:
            break
        came += 1
        s.send_datagram(
            RDType.ACK, response_acknowledged=(s.other + came) & 0xFFFFFFFF, credit=20000
        )
        while e.send(peer, bytes(30000), space=RESPONSES) == 1:
            pass
    else:
        raise AssertionError(f"the request was not sent before {came} responses")
    assert d.body == b"request" and came >= 2


@pytest.mark.clause("DGRAM-RD-37", "DGRAM-RD-33")
@pytest.mark.parametrize("octets", [100, 33_000_000, 5 << 20])
def test_responses_are_delivered_while_requests_are_paused(make_endpoint, octets: int) -> None:
    with temporary_setting("rd_total_window", 1 << 20 if octets == 5 << 20 else 64 << 20):
        a, b = make_endpoint(), make_endpoint()
    b.judge = lambda _who, data: "hold" if data.startswith(b"held") else "take"
    peer = a.get_or_create_peer(b.local_addr)
    sent = turns = 0
    # data that exceeds the endpoint's buffers waits in the layer above
    while sent < octets and turns < 200:
        part = b"held" + bytes(min(octets - sent, 30000) - 4)
        if a.send(peer, part) == 1:
            sent, turns = sent + len(part), 0
        a.poll_once(), b.poll_once()
        turns += 1
    assert sent == octets or lib.siw_rd_is_send_queue_full(peer, REQUESTS)
    for i in range(20):
        assert a.send(peer, b"%d" % i, bytes(5000), space=RESPONSES) == 1
        poll_until(lambda i=i: lib.siw_rd_total_accepted_segments(peer, RESPONSES) == i + 1, a, b)
    assert b.received_data() == [b"%d" % i + bytes(5000) for i in range(20)]
    assert lib.siw_rd_total_accepted_segments(peer, REQUESTS) == 0
    b.judge = lambda _who, _data: "take"
    lib.siw_rd_resume_delivery(b.get_or_create_peer(a.local_addr), REQUESTS)
    framed = lib.siw_rd_segments_ever_queued(peer, REQUESTS)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, REQUESTS) == framed, a, b)
    assert sum(len(d) for d in b.received_data()[20:]) == sent
