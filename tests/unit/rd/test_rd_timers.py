"""What reliable datagrams do by time alone, with many peers."""

from __future__ import annotations

import random
import socket
import time

from _siwarp_layers import lib
from unit.llp.conftest import addr
from unit.rd.rd_kit import Endpoint, Stranger, run

from siwarp.inspect.rd import RDType

MANY = 3000


def test_each_of_many_peers_has_its_own_times_and_who_is_given_up_has_none(end):
    e = end()
    rng = random.Random(3)
    strangers = [Stranger(e) for _ in range(60)]
    peers = [e.peer(s.address) for s in strangers]
    for peer in peers:
        assert e.send(peer, b"x") == 1
        e.turn()
    given_up = rng.sample(range(60), 30)
    for s in strangers:
        s.hear(RDType.HELLO)
    for i in given_up:
        lib.siw_rd_reset(peers[i], lib.SIW_RD_CLOSED_END)
        strangers[i].drain()
    others = [s for i, s in enumerate(strangers) if i not in given_up]
    for _ in range(3):
        rng.shuffle(others)
        for s in others:
            s.hear(RDType.HELLO)
    for i in given_up:
        assert strangers[i].silence()
    for s in strangers:
        s.close()


def exchange(e: Endpoint, s: Stranger, first: int, n: int) -> float:
    """Seconds of CPU that n segments take, each of which is acknowledged by time."""
    used = time.process_time()
    for i in range(first, first + n):
        s.say(RDType.DATA, psn=s.epoch + i, body=b"x")
        while s.hear(RDType.ACK).acknowledged != s.epoch + i + 1:
            pass
    return time.process_time() - used


def test_what_is_due_costs_the_same_with_thousands_of_timers_that_are_not(end):
    e = end()
    s = Stranger(e)
    s.meet()
    exchange(e, s, 0, 100)
    alone = min(exchange(e, s, 100 + 200 * i, 200) for i in range(3))
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("0.0.0.0", 0))
    port = sink.getsockname()[1]
    for i in range(MANY):
        peer = e.peer(addr(f"127.1.{i // 250}.{i % 250 + 1}", port))
        assert e.send(peer, b"x") == 1
    # They are asked every half a second by then.
    stop = time.monotonic() + 1.3
    run(lambda: time.monotonic() > stop, e)
    beside = min(exchange(e, s, 700 + 200 * i, 200) for i in range(3))
    assert beside < 4 * alone
    sink.close()
