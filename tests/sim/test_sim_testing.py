"""Pairs and fixtures of siwarp.testing in simulated worlds."""

from __future__ import annotations

from typing import get_args

import pytest

from siwarp import PeerGone, Timeout
from siwarp.sim import World
from siwarp.testing import Kind, Pair, aio_pair, pair
from siwarp.verbs import StateError

KINDS = get_args(Kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_simulated_pair_exchanges_messages_between_two_hosts(kind: Kind) -> None:
    with pair(kind, sim=True) as (a, b):
        a.send(b"to b")
        b.send(b"to a")
        assert (b.recv(), a.recv()) == (b"to b", b"to a")
        assert a.device.device.addresses != b.device.device.addresses
        assert a.world is b.world is not None
        if kind != "ud":
            a.write(b"written", 8)
            a.send(b"done")
            assert b.recv() == b"done"
            assert b.mr.read(7, 8) == b"written"


def test_the_faults_of_a_simulated_pair_act_in_virtual_time() -> None:
    with pair("rc", sim=True) as (a, b):
        world = a.world
        world.faults("delay=1s")
        before = world.now
        a.send(b"late")
        assert b.recv() == b"late"
        assert world.now == pytest.approx(before + 1, abs=0.01)
        with pytest.raises(Timeout):
            b.recv(timeout=3600)


def test_pairs_of_one_world_are_on_hosts_of_their_own(world: World) -> None:
    world.device("10.0.0.1")
    with pair("rd", sim=world) as (a, b), pair("rc", sim=world) as (c, d):
        first = [end.device.device.addresses[0] for end in (a, b, c, d)]
        assert first == ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]
        a.send(b"rd")
        c.send(b"rc")
        assert (b.recv(), d.recv()) == (b"rd", b"rc")
        world.crash(d.device)
        with pytest.raises(PeerGone):
            c.recv()


def test_a_second_world_of_a_pair_is_refused_with_advice(world: World) -> None:
    with pytest.raises(StateError, match="sim=world"), pair(sim=True):
        pass


def test_a_pair_on_real_sockets_is_refused_in_a_simulated_process() -> None:
    with pytest.raises(RuntimeError, match=r"pair\('ud', sim=True\)"), pair("ud"):
        pass


def test_device_and_sim_of_a_pair_exclude_each_other(world: World) -> None:
    with pytest.raises(ValueError, match="omit device"), pair("ud", "siw_lo", sim=world):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_fixtures_of_pairs_are_in_the_world_of_a_simulated_test(
    request: pytest.FixtureRequest, kind: Kind, world: World, faults
) -> None:
    ends: Pair = request.getfixturevalue(f"{kind}_pair")
    assert ends.a.world is world
    assert faults("delay=1s") == "delay=1s"
    before = world.now
    ends.a.send(b"late")
    assert ends.b.recv() == b"late"
    assert world.now >= before + 1


def test_asyncio_connections_of_a_pair_are_at_a_device_of_the_world(world: World) -> None:
    world.device("10.0.0.1")

    async def exchange_a_message(*host: str) -> bytes:
        async with aio_pair(*host) as (a, b):
            await a.send(b"hello")
            return await b.recv()

    assert world.run(exchange_a_message("10.0.0.1")) == b"hello"
    with pytest.raises(RuntimeError, match=r"aio_pair\('10\.0\.0\.1'\)"):
        world.run(exchange_a_message())
