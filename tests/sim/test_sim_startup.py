"""Silent connections fill a listener's start-ups; a good client is still served within a second."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from harness.verbs_harness import temporary_settings
from sim.rc_harness import counter_value

from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.inspect import MPARequest
from siwarp.sim import World

LISTENER, GOOD, PORT = "10.0.0.1", "10.0.0.2", 7471
#: Seconds within which a good client is served.
SERVED = 1.0
#: The listener's limit of start-ups (setting max_startups), and the share of one source.
ROOM, SHARE = 1024, 768
REQUEST = bytes(MPARequest(rev=1, c=1))


class Listener:
    """A listener that rejects all connection requests."""

    def __init__(self, world: World) -> None:
        self.channel = CMEventChannel(world.device(LISTENER))
        self.id = CMID(self.channel)
        self.id.listen((LISTENER, PORT))
        world.spawn(self._serve)

    def _serve(self) -> None:
        while True:
            event = self.channel.get_event()
            if event is not None and event.type == CMEventType.CONNECT_REQUEST:
                event.id.reject()
                event.id.close()


def silent(world: World, n: int, source: str, octets: bytes = b"") -> list[Any]:
    """Make connections that do not send a complete Request."""
    made = []
    for _ in range(n):
        made.append(world.tcp_connect(source, (LISTENER, PORT)))
        if octets:
            made[-1].sendall(octets)
    return made


def is_served(world: World, source: str, within: float = SERVED) -> None:
    """Let a good client connect, and check that it is answered in time."""
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
@pytest.mark.parametrize("good", [GOOD, "10.0.0.9"])
def test_two_addresses_of_silent_connections_keep_no_good_client_out(
    world: World, good: str, octets: bytes
) -> None:
    Listener(world)
    began = world.now
    held = [silent(world, SHARE, source, octets) for source in ("10.0.0.8", "10.0.0.9")]
    assert world.now - began < 2.0, "before the first of them are given up"
    for _ in range(3):
        is_served(world, good)
    assert counter_value("startups_paused") > 0
    assert held


def test_silent_connections_are_closed_soon_where_there_are_many(world: World) -> None:
    Listener(world)
    held = silent(world, SHARE, "10.0.0.9")
    early, late = held[0], held[-1]
    for conn, within in ((late, 1.5), (early, 5.1)):
        conn.settimeout(within)
        assert conn.recv(1) == b""
    assert 4.9 < world.now < 5.5


@pytest.mark.parametrize("seed", range(6))
def test_a_newcomer_waits_only_until_a_start_up_of_any_source_is_old_enough(seed: int) -> None:
    """If two sources have equally many start-ups, the seed selects the one that loses one."""
    with temporary_settings(max_startups=64, source_share=75), World(seed) as world:
        Listener(world)
        held = [silent(world, 48, source) for source in ("10.0.0.8", "10.0.0.9")]
        is_served(world, GOOD, within=0.6)
        assert held


def test_start_ups_that_speak_while_they_make_room_are_not_served_any_more(world: World) -> None:
    """One progress round finds both newcomers and data of the start-ups that it closes for them."""
    with temporary_settings(max_startups=64, source_share=75, progress_thread=0):
        channel = CMEventChannel(world.device(LISTENER))
        with CMID(channel) as listener:
            listener.listen((LISTENER, PORT))
            held = [one for n in (8, 9) for one in silent(world, 32, f"10.0.0.{n}")]
            assert channel.get_event(0.6) is None
            before = counter_value("startups_refused")
            made = silent(world, 32, "10.0.0.7")
            for one in held:
                # the listener has already closed this start-up
                with contextlib.suppress(ConnectionResetError):
                    one.sendall(REQUEST[:1])
            world.run_for(0.001)
            assert channel.get_event(0.1) is None
            assert counter_value("startups_refused") - before >= len(made)
        channel.close()


def test_start_ups_are_closed_only_for_a_newcomer_that_is_there(world: World) -> None:
    """Servicing a full listener without a newcomer closes no start-up."""
    with temporary_settings(max_startups=64, source_share=75):
        Listener(world)
        held = [one for n in (8, 9) for one in silent(world, 32, f"10.0.0.{n}")]
        before = counter_value("startups_refused")
        world.run_for(1.0)  # all start-ups are old enough now
        for one in held:  # one progress round for each, which also services the listener
            one.sendall(REQUEST[:1])
            world.run_for(0.001)
        assert counter_value("startups_refused") == before
        is_served(world, GOOD)
        assert counter_value("startups_refused") == before + 1


def test_a_newcomer_that_is_refused_costs_no_other_source_a_start_up(world: World) -> None:
    """A source that has used up its share is refused before another source's start-up is closed."""
    with temporary_settings(max_startups=64, source_share=50):
        Listener(world)
        old = silent(world, 32, "10.0.0.8")
        world.run_for(0.6)
        young = silent(world, 31, "10.0.0.9")
        before = counter_value("startups_refused")
        more = silent(world, 4, "10.0.0.9")
        world.run_for(0.01)
        assert counter_value("startups_refused") == before + 3
        for one in old:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
        assert young
        assert more
