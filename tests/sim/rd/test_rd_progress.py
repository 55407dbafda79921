"""RD: peers that send datagrams without progress are reported gone; peers with progress are not."""

from __future__ import annotations

import net
import pytest
from unit.llp.conftest import temporary_setting
from unit.rd.rd_kit import REQUESTS, RESPONSES, ScapyRdPeer, poll_until

from siwarp.inspect.rd import RDFlag, RDType, make_ack_body

PEER_TIMEOUT_S = 0.5


def peer_address_text(s: ScapyRdPeer) -> str:
    """Return the address of a scripted peer as the endpoint's list of events states it."""
    return "{}:{}".format(*s.sock.getsockname())


def seconds_until_peer_reported_gone(e, s, *others, each=None, probe=True):
    """Let the peers send repeatedly until the peer ``s`` is reported gone; return the seconds."""
    began = last = net.now()

    def send_and_check_peer_gone():
        nonlocal last
        if net.now() - last > PEER_TIMEOUT_S / 10:
            last = net.now()
            for one in (s, *others):
                if probe:
                    one.send_datagram(RDType.PROBE)
                if each:
                    each(one)
        return ("gone", peer_address_text(s)) in e.news

    poll_until(send_and_check_peer_gone, e)
    return net.now() - began


@pytest.mark.clause("DGRAM-FAIR-3")
def test_a_peer_that_never_fills_its_gap_is_reported_gone_although_it_sends_data(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint(peer_timeout_ns=int(PEER_TIMEOUT_S * 1e9))
    gap, good = make_scapy_rd_peers(e, 2)
    for s in (gap, good):
        s.connect()
        s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=b"second")
    steps = [0]

    def send_more_data(one):
        if one is gap:  # more data after the gap, which is not progress
            one.send_datagram(RDType.DATA, psn=one.epoch + 2 + steps[0], body=b"more")
        else:  # a peer that makes progress: the peer fills a gap and leaves another gap
            one.send_datagram(RDType.DATA, psn=one.epoch + 2 * steps[0], body=b"fills")
            one.send_datagram(RDType.DATA, psn=one.epoch + 2 * steps[0] + 3, body=b"ahead")
            steps[0] += 1

    took = seconds_until_peer_reported_gone(e, gap, good, each=send_more_data)
    assert 0.8 * PEER_TIMEOUT_S <= took <= 1.3 * PEER_TIMEOUT_S
    assert ("gone", peer_address_text(good)) not in e.news


@pytest.mark.clause("DGRAM-FAIR-3")
def test_a_peer_that_grants_credit_but_never_acknowledges_is_reported_gone(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint(peer_timeout_ns=int(PEER_TIMEOUT_S * 1e9))
    (s,) = make_scapy_rd_peers(e, 1)
    s.connect()
    s.send_datagram(RDType.PROBE)
    peer = e.get_or_create_peer(s.address)
    for _ in range(4):
        assert e.send(peer, b"never acknowledged") == 1
    took = seconds_until_peer_reported_gone(e, s)
    assert 0.8 * PEER_TIMEOUT_S <= took <= 4 * PEER_TIMEOUT_S


def connect_and_block_send_without_credit(make_endpoint, make_scapy_rd_peers, space, send_as_peer):
    """Connect a peer, call ``send_as_peer``, make a message wait for credit; return both ends."""
    e = make_endpoint(peer_timeout_ns=int(PEER_TIMEOUT_S * 1e9))
    (s,) = make_scapy_rd_peers(e, 1)
    s.connect()
    send_as_peer(s)
    poll_until(lambda: not e.handle_event(), e)
    assert e.send(e.get_or_create_peer(s.address), b"waits", space=space) == 1
    return e, s


@pytest.mark.clause("DGRAM-FAIR-3", "DGRAM-RD-41")
@pytest.mark.parametrize("space", [REQUESTS, RESPONSES])
def test_a_peer_without_credit_that_does_not_report_not_ready_is_reported_gone(
    make_endpoint, make_scapy_rd_peers, space
):
    def send_as_peer(s):
        s.send_datagram(RDType.PROBE, credit=0)

    e, s = connect_and_block_send_without_credit(
        make_endpoint, make_scapy_rd_peers, space, send_as_peer
    )
    took = seconds_until_peer_reported_gone(e, s, each=send_as_peer, probe=False)
    assert PEER_TIMEOUT_S <= took <= 1.5 * PEER_TIMEOUT_S


@pytest.mark.clause("DGRAM-FAIR-3")
def test_a_peer_that_grants_credit_at_times_but_never_acknowledges_is_reported_gone(
    make_endpoint, make_scapy_rd_peers
):
    turns = [0]

    def send_as_peer(s):
        turns[0] += 1
        s.send_datagram(RDType.PROBE, credit=turns[0] % 2)

    e, s = connect_and_block_send_without_credit(
        make_endpoint, make_scapy_rd_peers, REQUESTS, send_as_peer
    )
    took = seconds_until_peer_reported_gone(e, s, each=send_as_peer, probe=False)
    assert 0.8 * PEER_TIMEOUT_S <= took <= 4 * PEER_TIMEOUT_S


@pytest.mark.clause("DGRAM-RD-41", "DGRAM-RDV-20")
def test_a_peer_may_report_not_ready_without_time_limit(make_endpoint, make_scapy_rd_peers):
    def send_as_peer(s):
        s.send_datagram(
            RDType.ACK, credit=0, rd_flags=RDFlag.NOT_READY, body=make_ack_body(rnr_timer=1)
        )

    e, s = connect_and_block_send_without_credit(
        make_endpoint, make_scapy_rd_peers, REQUESTS, send_as_peer
    )
    stop, last = net.now() + 20 * PEER_TIMEOUT_S, [0.0]

    def send_and_check_deadline():
        if net.now() - last[0] > PEER_TIMEOUT_S / 10:
            last[0] = net.now()
            send_as_peer(s)
        return net.now() > stop

    poll_until(send_and_check_deadline, e, seconds=60)
    assert ("gone", peer_address_text(s)) not in e.news


@pytest.mark.clause("DGRAM-RD-41")
def test_a_receiver_without_free_memory_grants_credit_for_a_segment_that_fills_a_gap(
    make_endpoint, make_scapy_rd_peers
):
    with temporary_setting("rd_total_window", 1 << 20):
        e = make_endpoint()
    (behind,) = make_scapy_rd_peers(e, 1)
    behind.connect()
    behind.send_datagram(RDType.DATA, psn=behind.epoch + 1, body=b"second")
    for s in make_scapy_rd_peers(e, 60):
        s.connect()
        for i in range(1, 200):
            s.send_datagram(RDType.DATA, psn=s.epoch + i, body=bytes(30))
            if i % 16 == 0:
                s.end.poll_once()
    behind.discard_datagrams_until_silent()
    behind.send_datagram(RDType.PROBE)
    assert behind.receive_datagram(RDType.ACK).credit >= 1 + 64
