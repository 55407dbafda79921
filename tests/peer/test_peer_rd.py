"""RD with a peer that knows the page alone, on real sockets; tests/sim/peer has the rest."""

from __future__ import annotations

import random
import sys

import pytest
from peer.line import CLEAN
from peer.ours import SEED, TIMEOUT_S, octets, rounds
from peer.rd_ends import arrivals, ends
from peer.rdmap import Arrival

from siwarp.verbs import WROpcode

pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.mark.parametrize("first", ["peer", "siwarp"])
@pytest.mark.clause("DGRAM-RD-12", "DGRAM-RDV-1", "DGRAM-RDV-3")
def test_messages_arrive_whole_once_and_in_order(first: str) -> None:
    """Whoever begins. Sends of each kind, of any length, both ways at the same time."""
    count = rounds(40, 200)
    rng = random.Random(f"{SEED}/{first}")
    with ends(CLEAN) as both:
        to_siwarp, to_peer = [], []
        talk = None
        for i in range(count):
            payload = octets(f"to {i}", rng.choice([0, 1, 100, 3000, 20_000]))
            value = i.to_bytes(4, "big") if i % 3 == 0 else None
            to_siwarp.append(Arrival(payload, value, len(payload)))
            answer = octets(f"from {i}", rng.choice([0, 1, 100, 3000, 60_000]))
            to_peer.append(Arrival(answer, i.to_bytes(4, sys.byteorder), len(answer)))
            if first == "peer" or i:
                talk = talk or both.peer.talk(both.line.near)
                talk.send(payload, immediate=value, solicited=i % 2 == 0)
            both.ours.send(answer, WROpcode.SEND_WITH_IMM, ah=both.ah, imm_data=i)
            if i == 0:
                both.run(lambda: bool(both.peer.arrivals))
                if first == "siwarp":
                    talk = both.peer.talk(both.line.near)
                    talk.send(payload, immediate=value)
            if i % 64 == 63:  # no more than the send queue holds
                both.run(lambda i=i: len(both.ours.sent) > i - 200)
        both.run(lambda: len(both.ours.got) == count and len(both.peer.arrivals) == count)
        both.run(both.peer.idle)
        both.run(lambda: len(both.ours.sent) == count)
        assert arrivals(both.ours) == to_siwarp
        assert both.peer.arrivals == to_peer
        assert all(wc.ok for wc in both.ours.sent)
        assert {wc.source for wc, _ in both.ours.got} == {both.line.far}
