"""Timers of reliable datagrams with many peers."""

from __future__ import annotations

import random

import net
from _siwarp_layers import lib
from unit.llp.llp_harness import siw_addr
from unit.rd.rd_kit import ScapyRdPeer, poll_until

from siwarp.inspect.rd import RDType


def test_each_of_many_peers_has_its_own_timers_and_a_reset_peer_has_none(make_endpoint):
    e = make_endpoint()
    rng = random.Random(3)
    strangers = [ScapyRdPeer(e) for _ in range(60)]
    peers = [e.get_or_create_peer(s.address) for s in strangers]
    for peer in peers:
        assert e.send(peer, b"x") == 1
        e.poll_once()
    given_up = rng.sample(range(60), 30)
    for s in strangers:
        s.receive_datagram(RDType.HELLO)
    for i in given_up:
        lib.siw_rd_end_peer_incarnation(peers[i], lib.SIW_RD_CLOSED_END)
        strangers[i].discard_datagrams_until_silent()
    others = [s for i, s in enumerate(strangers) if i not in given_up]
    for _ in range(3):
        rng.shuffle(others)
        for s in others:
            s.receive_datagram(RDType.HELLO)
    for i in given_up:
        assert strangers[i].receives_nothing()
    for s in strangers:
        s.close()


def test_memory_for_peers_that_timed_out_is_freed(make_endpoint):
    lib.siw_trim_free_memory()  # release memory that earlier tests have freed
    e = make_endpoint()
    for i in range(1024):
        assert (
            e.send(e.get_or_create_peer(siw_addr(f"10.9.{i // 200}.{1 + i % 200}", 7)), b"x") == 1
        )
    net.sleep(1.0)
    e.poll_once()
    assert not lib.siw_trim_free_memory(), (
        "memory was freed while the windows of the peers were in use"
    )
    poll_until(lambda: e.event_count("gone") == 1024, e, seconds=200)
    assert lib.siw_trim_free_memory()
