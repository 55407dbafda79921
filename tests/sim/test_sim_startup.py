"""Silent connections that use up a listener's limit of start-ups, and the effect on others."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from harness.verbs_harness import temporary_settings
from sim.rc_harness import counter_value

from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.inspect import MPARequest
from siwarp.sim import World

LISTENER, GOOD_CLIENT, PORT = "10.0.0.1", "10.0.0.2", 7471
#: Seconds within which a good client is answered.
ANSWER_LIMIT_S = 1.0
#: The listener's limit of connections in MPA start-up (setting max_startups), and the number of
#: them that one source address may have.
MAX_STARTUPS, SOURCE_SHARE = 1024, 768
REQUEST = bytes(MPARequest(rev=1, c=1))


class RejectingListener:
    """A listener that rejects all connection requests."""

    def __init__(self, world: World) -> None:
        self.channel = CMEventChannel(world.device(LISTENER))
        self.id = CMID(self.channel)
        self.id.listen((LISTENER, PORT))
        world.spawn(self._reject_requests)

    def _reject_requests(self) -> None:
        while True:
            event = self.channel.get_event()
            if event is not None and event.type == CMEventType.CONNECT_REQUEST:
                event.id.reject()
                event.id.close()


def open_silent_connections(world: World, n: int, source: str, octets: bytes = b"") -> list[Any]:
    """Open connections, and send at most a part of an MPA Request on each; return them."""
    made = []
    for _ in range(n):
        made.append(world.tcp_connect(source, (LISTENER, PORT)))
        if octets:
            made[-1].sendall(octets)
    return made


def check_good_client_is_served(world: World, source: str, within: float = ANSWER_LIMIT_S) -> None:
    """Connect as a good client, and check that the listener answers in time."""
    began = world.now
    conn = world.tcp_connect(source, (LISTENER, PORT))
    conn.settimeout(10)
    conn.sendall(REQUEST)
    answer = b""
    while len(answer) < 16 and (part := conn.recv(16 - len(answer))):
        answer += part
    assert answer == b"MPA ID Rep Frame"
    assert world.now - began < within, f"{world.now - began:.3f} s"
    conn.close()


@pytest.mark.parametrize("octets", [b"", REQUEST[:19]])
@pytest.mark.parametrize("good", [GOOD_CLIENT, "10.0.0.9"])
def test_silent_connections_of_two_addresses_do_not_prevent_a_good_client_from_connecting(
    world: World, good: str, octets: bytes
) -> None:
    RejectingListener(world)
    began = world.now
    held = [
        open_silent_connections(world, SOURCE_SHARE, source, octets)
        for source in ("10.0.0.8", "10.0.0.9")
    ]
    assert world.now - began < 2.0, "the first silent connections may have timed out"
    for _ in range(3):
        check_good_client_is_served(world, good)
    assert counter_value("startups_paused") > 0
    assert held


def test_silent_connections_are_closed_earlier_if_there_are_many(world: World) -> None:
    RejectingListener(world)
    held = open_silent_connections(world, SOURCE_SHARE, "10.0.0.9")
    early, late = held[0], held[-1]
    for conn, within in ((late, 1.5), (early, 5.1)):
        conn.settimeout(within)
        assert conn.recv(1) == b""
    assert 4.9 < world.now < 5.5


@pytest.mark.parametrize("seed", range(6))
def test_a_new_client_waits_until_the_oldest_start_up_may_be_closed(seed: int) -> None:
    """Check two sources with equally many start-ups; the seed decides which source loses one."""
    with temporary_settings(max_startups=64, source_share=75), World(seed) as world:
        RejectingListener(world)
        held = [open_silent_connections(world, 48, source) for source in ("10.0.0.8", "10.0.0.9")]
        check_good_client_is_served(world, GOOD_CLIENT, within=0.6)
        assert held


def test_a_start_up_closed_for_a_new_client_is_not_serviced_when_its_data_arrives(
    world: World,
) -> None:
    """Check a progress round that finds new clients, and data on connections that it closes."""
    with temporary_settings(max_startups=64, source_share=75, progress_thread=0):
        channel = CMEventChannel(world.device(LISTENER))
        with CMID(channel) as listener:
            listener.listen((LISTENER, PORT))
            held = [
                one for n in (8, 9) for one in open_silent_connections(world, 32, f"10.0.0.{n}")
            ]
            assert channel.get_event(0.6) is None
            before = counter_value("startups_refused")
            made = open_silent_connections(world, 32, "10.0.0.7")
            for one in held:
                # The listener has already closed this connection.
                with contextlib.suppress(ConnectionResetError):
                    one.sendall(REQUEST[:1])
            world.run_for(0.001)
            assert channel.get_event(0.1) is None
            assert counter_value("startups_refused") - before >= len(made)
        channel.close()


def test_start_ups_are_closed_only_when_a_new_client_connects(world: World) -> None:
    """Check that a full listener that is serviced without a new client closes no connection."""
    with temporary_settings(max_startups=64, source_share=75):
        RejectingListener(world)
        held = [one for n in (8, 9) for one in open_silent_connections(world, 32, f"10.0.0.{n}")]
        before = counter_value("startups_refused")
        world.run_for(1.0)  # all connections are old enough to be closed
        for one in held:  # one progress round per connection, which also services the listener
            one.sendall(REQUEST[:1])
            world.run_for(0.001)
        assert counter_value("startups_refused") == before
        check_good_client_is_served(world, GOOD_CLIENT)
        assert counter_value("startups_refused") == before + 1


def test_a_refused_new_client_does_not_close_a_start_up_of_another_source(world: World) -> None:
    """Check that refusing a source that used up its share closes no other source's connection."""
    with temporary_settings(max_startups=64, source_share=50):
        RejectingListener(world)
        old = open_silent_connections(world, 32, "10.0.0.8")
        world.run_for(0.6)
        young = open_silent_connections(world, 31, "10.0.0.9")
        before = counter_value("startups_refused")
        more = open_silent_connections(world, 4, "10.0.0.9")
        world.run_for(0.01)
        assert counter_value("startups_refused") == before + 3
        for one in old:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
        assert young
        assert more
