"""Each test has two hosts in a simulated world: exact times on its clock, and any fault."""

from __future__ import annotations

import threading

import pytest
from transfer import answer_requests, send_request_until_answered, write_region_to_peer

import siwarp
from siwarp.sim import World
from siwarp.testing import Pair, pair
from siwarp.verbs import MR


def test_each_write_takes_a_round_trip(rc_pair: Pair, world: World) -> None:
    a, b = rc_pair
    world.faults("delay=50ms")
    start = world.now
    with MR(a.pd, bytearray(range(256)) * 40) as data:
        writes = write_region_to_peer(a.qp, a.cq, data, b.mr.remote())
    a.send(b"done")
    assert b.recv() == b"done"
    assert b.mr.read(10240) == bytes(range(256)) * 40
    assert 0.05 <= world.now - start <= writes * 0.1 + 0.1


@pytest.mark.parametrize("world", range(5), indirect=True)  # the seeds of five different worlds
def test_a_region_arrives_complete_whatever_is_lost(rc_pair: Pair, world: World) -> None:
    a, b = rc_pair
    world.faults("loss=10%,delay=1ms")
    with MR(a.pd, bytearray(range(256)) * 40) as data:
        write_region_to_peer(a.qp, a.cq, data, b.mr.remote())
    a.send(b"done")
    assert b.recv() == b"done"
    assert b.mr.read(10240) == bytes(range(256)) * 40


def test_a_request_is_answered_after_an_outage_of_two_seconds(world: World) -> None:
    with pair("ud", sim=world, receives=0) as (a, b):
        stop = threading.Event()  # tasks only read the flag: waiting for it would stop the world
        world.spawn(answer_requests, b.qp, b.cq, b.mr, b.ah, stop)
        world.partition(a.device, b.device)

        def end_network_outage() -> None:
            world.sleep(2)
            world.heal()

        world.spawn(end_network_outage)
        said = send_request_until_answered(
            a.qp, a.cq, a.mr, a.ah, b"who?", number=0, tries=10, patience=0.3
        )
        assert said == b"WHO?"
        assert 2 <= world.now < 2.4
        stop.set()
        world.run_tasks()


def test_write_region_fails_when_the_host_of_the_peer_crashes(rc_pair: Pair, world: World) -> None:
    a, b = rc_pair
    there = b.mr.remote()
    world.crash(b.device)
    with MR(a.pd, 65536) as data, pytest.raises(siwarp.Error):
        write_region_to_peer(a.qp, a.cq, data, there)
        a.recv()
