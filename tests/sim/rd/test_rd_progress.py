"""Peers that are alive but make no progress are reported lost; peers that make progress are not."""

from __future__ import annotations

import net
import pytest
from unit.llp.conftest import temporary_setting
from unit.rd.rd_kit import REQUESTS, RESPONSES, Stranger, poll_until

from siwarp.inspect.rd import RDFlag, RDType, ack_body

LIMIT = 0.5


def name(s: Stranger) -> str:
    """Return the name of a simulated peer in an endpoint's list of events."""
    return "{}:{}".format(*s.sock.getsockname())


def until_gone(e, s, *others, each=None, probe=True):
    """Let the peers send repeatedly until one is reported gone; return the time that took."""
    began = last = net.now()

    def gone():
        nonlocal last
        if net.now() - last > LIMIT / 10:
            last = net.now()
            for one in (s, *others):
                if probe:
                    one.send_datagram(RDType.PROBE)
                if each:
                    each(one)
        return ("gone", name(s)) in e.news

    poll_until(gone, e)
    return net.now() - began


@pytest.mark.clause("DGRAM-FAIR-3")
def test_who_leaves_a_gap_and_speaks_is_lost_and_one_that_closes_gaps_is_not(
    make_endpoint, make_strangers
):
    e = make_endpoint(peer_timeout_ns=int(LIMIT * 1e9))
    gap, good = make_strangers(e, 2)
    for s in (gap, good):
        s.connect()
        s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=b"second")
    steps = [0]

    def more(one):
        if one is gap:  # more data behind the gap, which is not progress
            one.send_datagram(RDType.DATA, psn=one.epoch + 2 + steps[0], body=b"more")
        else:  # a peer that makes progress: it closes a gap and leaves another one
            one.send_datagram(RDType.DATA, psn=one.epoch + 2 * steps[0], body=b"fills")
            one.send_datagram(RDType.DATA, psn=one.epoch + 2 * steps[0] + 3, body=b"ahead")
            steps[0] += 1

    took = until_gone(e, gap, good, each=more)
    assert 0.8 * LIMIT <= took <= 1.3 * LIMIT
    assert ("gone", name(good)) not in e.news


@pytest.mark.clause("DGRAM-FAIR-3")
def test_who_has_room_and_acknowledges_nothing_is_lost_though_it_speaks(
    make_endpoint, make_strangers
):
    e = make_endpoint(peer_timeout_ns=int(LIMIT * 1e9))
    (s,) = make_strangers(e, 1)
    s.connect()
    s.send_datagram(RDType.PROBE)
    peer = e.get_peer(s.address)
    for _ in range(4):
        assert e.send(peer, b"never acknowledged") == 1
    took = until_gone(e, s)
    assert 0.8 * LIMIT <= took <= 4 * LIMIT


def without_credit(make_endpoint, make_strangers, space, says):
    """Let one message wait for credit; ``says`` sends for the peer. Return both ends."""
    e = make_endpoint(peer_timeout_ns=int(LIMIT * 1e9))
    (s,) = make_strangers(e, 1)
    s.connect()
    says(s)
    poll_until(lambda: not e.handle_event(), e)
    assert e.send(e.get_peer(s.address), b"waits", space=space) == 1
    return e, s


@pytest.mark.clause("DGRAM-FAIR-3", "DGRAM-RD-41")
@pytest.mark.parametrize("space", [REQUESTS, RESPONSES])
def test_who_grants_no_credit_and_is_not_unready_is_lost_though_it_speaks(
    make_endpoint, make_strangers, space
):
    def says(s):
        s.send_datagram(RDType.PROBE, credit=0)

    e, s = without_credit(make_endpoint, make_strangers, space, says)
    took = until_gone(e, s, each=says, probe=False)
    assert LIMIT <= took <= 1.5 * LIMIT


@pytest.mark.clause("DGRAM-FAIR-3")
def test_who_grants_credit_now_and_then_and_acknowledges_nothing_is_lost(
    make_endpoint, make_strangers
):
    turns = [0]

    def says(s):
        turns[0] += 1
        s.send_datagram(RDType.PROBE, credit=turns[0] % 2)

    e, s = without_credit(make_endpoint, make_strangers, REQUESTS, says)
    took = until_gone(e, s, each=says, probe=False)
    assert 0.8 * LIMIT <= took <= 4 * LIMIT


@pytest.mark.clause("DGRAM-RD-41", "DGRAM-RDV-20")
def test_who_is_not_ready_may_be_so_for_as_long_as_it_likes(make_endpoint, make_strangers):
    def says(s):
        s.send_datagram(RDType.ACK, credit=0, rd_flags=RDFlag.NOT_READY, body=ack_body(rnr_timer=1))

    e, s = without_credit(make_endpoint, make_strangers, REQUESTS, says)
    stop, last = net.now() + 20 * LIMIT, [0.0]

    def over():
        if net.now() - last[0] > LIMIT / 10:
            last[0] = net.now()
            says(s)
        return net.now() > stop

    poll_until(over, e, seconds=60)
    assert ("gone", name(s)) not in e.news


@pytest.mark.clause("DGRAM-RD-41")
def test_a_receiver_whose_memory_is_used_grants_credit_for_what_fills_a_gap(
    make_endpoint, make_strangers
):
    with temporary_setting("rd_total_window", 1 << 20):
        e = make_endpoint()
    (behind,) = make_strangers(e, 1)
    behind.connect()
    behind.send_datagram(RDType.DATA, psn=behind.epoch + 1, body=b"second")
    for s in make_strangers(e, 60):
        s.connect()
        for i in range(1, 200):
            s.send_datagram(RDType.DATA, psn=s.epoch + i, body=bytes(30))
            if i % 16 == 0:
                s.end.poll_once()
    behind.drain()
    behind.send_datagram(RDType.PROBE)
    assert behind.receive_datagram(RDType.ACK).credit >= 1 + 64
