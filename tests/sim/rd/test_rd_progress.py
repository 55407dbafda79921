"""Peers that are alive and give nothing of what they owe are lost, and those that give are not."""

from __future__ import annotations

import net
import pytest
from unit.rd.rd_kit import Stranger, run

from siwarp.inspect.rd import RDType

LIMIT = 0.5


def name(s: Stranger) -> str:
    """Return how an endpoint's list of events names it."""
    return "{}:{}".format(*s.sock.getsockname())


def until_gone(e, s, *others, each=None):
    """Let the strangers say PROBE again and again until one is gone; return how long that took."""
    began = last = net.now()

    def gone():
        nonlocal last
        if net.now() - last > LIMIT / 10:
            last = net.now()
            for one in (s, *others):
                one.say(RDType.PROBE)
                if each:
                    each(one)
        return ("gone", name(s)) in e.news

    run(gone, e)
    return net.now() - began


@pytest.mark.clause("DGRAM-FAIR-3")
def test_who_leaves_a_gap_and_speaks_is_lost_and_one_that_closes_gaps_is_not(end, strangers):
    e = end(peer_timeout_ns=int(LIMIT * 1e9))
    gap, good = strangers(e, 2)
    for s in (gap, good):
        s.meet()
        s.say(RDType.DATA, psn=s.epoch + 1, body=b"second")
    steps = [0]

    def more(one):
        if one is gap:  # more behind the gap, which is no progress
            one.say(RDType.DATA, psn=one.epoch + 2 + steps[0], body=b"more")
        else:  # closes it and leaves another
            one.say(RDType.DATA, psn=one.epoch + 2 * steps[0], body=b"fills")
            one.say(RDType.DATA, psn=one.epoch + 2 * steps[0] + 3, body=b"ahead")
            steps[0] += 1

    took = until_gone(e, gap, good, each=more)
    assert 0.8 * LIMIT <= took <= 1.3 * LIMIT
    assert ("gone", name(good)) not in e.news


@pytest.mark.clause("DGRAM-FAIR-3")
def test_who_has_room_and_acknowledges_nothing_is_lost_though_it_speaks(end, strangers):
    e = end(peer_timeout_ns=int(LIMIT * 1e9))
    (s,) = strangers(e, 1)
    s.meet()
    s.say(RDType.PROBE)
    peer = e.peer(s.address)
    for _ in range(4):
        assert e.send(peer, b"never acknowledged") == 1
    took = until_gone(e, s)
    assert 0.8 * LIMIT <= took <= 4 * LIMIT


@pytest.mark.clause("DGRAM-FAIR-3")
def test_who_has_no_room_may_speak_for_as_long_as_it_likes(end, strangers):
    e = end(peer_timeout_ns=int(LIMIT * 1e9))
    (s,) = strangers(e, 1)
    s.meet()
    s.say(RDType.ACK, credit=0)
    run(lambda: not e.recv(), e)
    peer = e.peer(s.address)
    assert e.send(peer, b"waits") == 1
    stop, last = net.now() + 3 * LIMIT, [0.0]

    def over():
        if net.now() - last[0] > LIMIT / 10:
            last[0] = net.now()
            s.say(RDType.PROBE, credit=0)
        return net.now() > stop

    run(over, e)
    assert ("gone", name(s)) not in e.news
