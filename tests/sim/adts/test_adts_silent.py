"""Servers that accept a connection and then answer nothing: the client ends within its limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sim.adts.adts_sim_harness import KEY, LIMITS, B, Hosts

from siwarp.cm import CMEvent
from siwarp.sim import World
from siwarp.ulp.adts import ADTSError, ErrorCode, Server, auth, endpoints, handshake, wire
from siwarp.ulp.adts.channel import Channel
from siwarp.ulp.adts.credit import Role
from siwarp.ulp.adts.session import receive_message, send_message
from siwarp.ulp.adts.wire import ChannelKind

KINDS = (ChannelKind.RD, ChannelKind.RC, ChannelKind.UD)

Answer = Callable[[Channel], Awaitable[None]]


@pytest.fixture(name="hosts")
def two_simulated_hosts(world: World, tmp_path: Path) -> Hosts:
    return Hosts(world, tmp_path / "root", "rd")


@asynccontextmanager
async def listen_and_answer(answer: Answer) -> AsyncIterator[None]:
    """Listen as a server that answers with ``answer``, and then keeps the connection open."""
    channels: list[Channel] = []
    tasks: list[asyncio.Future[None]] = []

    def start_answering(rendezvous: Channel) -> None:
        channels.append(rendezvous)
        tasks.append(asyncio.ensure_future(answer(rendezvous)))

    listener = await endpoints.listen_for_rendezvous("rc", (B, 18517), start_answering)
    try:
        yield
    finally:
        await asyncio.gather(*tasks)
        for channel in channels:
            channel.abort("the end of the test")
        await listener.close()


async def answer_nothing(rendezvous: Channel) -> None:
    pass


async def answer_hello_only(rendezvous: Channel) -> None:
    await handshake._receive_hello(rendezvous)
    await send_message(rendezvous, handshake._make_hello(KINDS, LIMITS, 0))


async def offer_a_port_without_a_listener(rendezvous: Channel) -> None:
    theirs, their_body = await handshake._receive_hello(rendezvous)
    hello = handshake._make_hello(KINDS, LIMITS, 0)
    await send_message(rendezvous, hello)
    await receive_message(rendezvous)
    proof = auth.make_proof(KEY, Role.ACCEPTOR, their_body, handshake._message_body(hello))
    offer = wire.UseChannel(theirs.channels[0], auth.make_token(), 9, 7, LIMITS.unit, 8)
    await send_message(rendezvous, wire.Auth(proof), offer)


async def complete_handshake_and_stay_silent(rendezvous: Channel) -> None:
    """Act as a server that completes its handshake, and answers nothing afterwards."""
    acceptors = await endpoints.open_acceptors(B, LIMITS)
    kinds = {ChannelKind.RD: acceptors.rd}
    await handshake.admit_initiator(rendezvous, KEY, (ChannelKind.RD,), kinds, LIMITS, lambda: None)
    await asyncio.sleep(200)
    await acceptors.close()


@pytest.mark.parametrize(
    ("answer", "limit", "words"),
    [
        (answer_nothing, 10, "did not answer within 10 s: is `siwarp serve` running there?"),
        (answer_hello_only, 10, "did not answer within 10 s: is `siwarp serve` running there?"),
        # RD is given up after 3 s, and then the CHANNEL for RC is not answered.
        (offer_a_port_without_a_listener, 13, "did not answer within 10 s: try again"),
        (
            complete_handshake_and_stay_silent,
            120,
            r"has not answered for 120 s: .* run the same command again",
        ),
    ],
)
def test_a_server_that_stops_answering_is_given_up_with_a_remedy(
    hosts: Hosts, answer: Answer, limit: float, words: str
) -> None:
    async def connect_and_stat_root() -> None:
        async with await hosts.connect_client(channels=["rd", "rc"]) as session:
            await session.stat("")

    async def check_that_session_times_out() -> None:
        async with listen_and_answer(answer):
            began = hosts.world.now
            with pytest.raises(ADTSError, match=rf"{B}:\d+ {words}") as error:
                await connect_and_stat_root()
            assert error.value.code == ErrorCode.TIMEOUT
            assert limit <= hosts.world.now - began <= limit + 5

    hosts.run_coroutine(check_that_session_times_out())


def make_acceptors_answer_nobody(server: Server) -> list[CMEvent]:
    """Let a server answer nobody who opens a channel; return the requests that it keeps."""
    opened = server._opened
    assert opened is not None
    kept: list[CMEvent] = []
    for acceptor in (opened.rd, opened.ud):
        acceptor._admit_peer = lambda *_: None  # type: ignore[attr-defined]
    opened.rc._listener._id.context = kept.append  # type: ignore[attr-defined]
    return kept


def test_channels_that_do_not_answer_are_given_up_after_3_s_each_with_a_remedy(
    hosts: Hosts,
) -> None:
    names = [kind.name.lower() for kind in KINDS]

    async def check_that_opening_channels_times_out() -> None:
        async with await hosts.start_server(channels=names) as server:
            kept = make_acceptors_answer_nobody(server)
            began = hosts.world.now
            with pytest.raises(ADTSError) as error:
                await hosts.connect_client(channels=names)
            assert error.value.code == ErrorCode.CHANNEL
            text = str(error.value.strerror)
            for kind in KINDS:
                assert f"no {kind.name} channel: " in text
            assert text.count("did not answer within 3 seconds") == len(KINDS)
            assert text.endswith(
                "let the firewalls between the ends pass TCP and UDP, or use the channel tcp"
            )
            # Closing a channel that did not open takes up to 2 s.
            assert 9 <= hosts.world.now - began <= 16
            while server.sessions:
                await asyncio.sleep(0.1)
            for event in kept:
                event.id.close()

    hosts.run_coroutine(check_that_opening_channels_times_out(), 60)
