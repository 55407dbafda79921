"""The channels of FTP in a simulated network: tokens, strangers, bad lines, crashes, resume."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from siwarp.sim import World
from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded, Invitation
from siwarp.ulp.adts.wire import Type
from siwarp.ulp.ftp import opening, stream, tprt
from siwarp.ulp.ftp.opening import ServerChannels

#: The client's host, the server's, and a stranger's.
A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
#: A file of many units.
DATA = random.Random(1).randbytes(500_000)

KINDS = pytest.mark.parametrize("kind", ["rd", "rc", "ud"])
MODES = pytest.mark.parametrize("mode", ["passive", "active"])
UPLOADS = pytest.mark.parametrize("upload", [False, True], ids=["download", "upload"])


@pytest.fixture(autouse=True)
def hosts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tprt, "UNIT", 16384)
    for address in (A, B, C):
        world.device(address)
    world.faults("delay=10ms")


def run(world: World, main: Coroutine[Any, Any, None], within: float = 600) -> None:
    world.run(asyncio.wait_for(main, within))


@asynccontextmanager
async def serve() -> AsyncIterator[ServerChannels]:
    """Open the server's end; check that closing it leaves no task."""
    before = asyncio.all_tasks()
    server = ServerChannels()
    try:
        yield server
    finally:
        await server.close()
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not left, left


class Offer:
    """A token of the server for a client on host A, as the reply to TPRT tells it."""

    def __init__(self, server: ServerChannels, kind: str) -> None:
        self.server = server
        self.kind: Any = kind
        self.accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        self.rejected: list[str] = []
        self.invitation: Invitation

    async def make(self) -> Offer:
        kept = await self.server.expect(
            self.kind, B, A, self.accepted.set_result, self.rejected.append
        )
        name = self.kind.upper()
        self.invitation = tprt.parse_reply(tprt.format_reply(name, kept), name, kept.port)
        assert self.invitation == kept
        return self

    async def connect(self, source: str = A, token: bytes | None = None) -> Channel:
        """Open the channel in passive mode."""
        invitation = self.invitation
        if token is not None:
            invitation = dataclasses.replace(invitation, token=token)
        return await opening.connect(self.kind, B, invitation, source)

    async def listen(self) -> opening.Listener:
        """Let the client listen, in active mode."""
        self.server.forget(self.kind, B, self.invitation.token)
        return await opening.listen(self.kind, B, self.invitation, A)

    async def call(self, port: int) -> Channel:
        """Open the channel in active mode."""
        invitation = tprt.active_invitation(self.kind, self.invitation, port)
        return await self.server.connect(self.kind, B, A, invitation)


class Pair:
    """The two ends of an open channel."""

    def __init__(self, client: Channel, server: Channel, listener: opening.Listener | None) -> None:
        self.client = client
        self.server = server
        self._listener = listener

    async def close(self) -> None:
        await self.client.close()
        await self.server.close()
        if self._listener is not None:
            await self._listener.close()


async def open_pair(server: ServerChannels, kind: str, mode: str) -> Pair:
    offer = await Offer(server, kind).make()
    if mode == "passive":
        client = await offer.connect()
        return Pair(client, await asyncio.wait_for(offer.accepted, 60), None)
    listener = await offer.listen()
    channel = await offer.call(listener.port)
    return Pair(await listener.accept(), channel, listener)


async def send(channel: Channel, data: bytes) -> None:
    """Send a transfer, and wait until the receiver has confirmed it."""
    sender = stream.Sender(channel)
    try:
        rest = memoryview(data)
        while rest:
            into = await sender.fill()
            count = min(len(into), len(rest))
            into[:count] = rest[:count]
            rest = rest[count:]
            await sender.send(count)
        await sender.finish()
    finally:
        await sender.close()


async def receive(channel: Channel, into: bytearray) -> None:
    async with aclosing(stream.receive(channel)) as chunks:
        async for chunk in chunks:
            into += chunk


def ends_of(pair: Pair, upload: bool) -> tuple[Channel, Channel]:
    """Return the end that sends and the one that receives."""
    return (pair.client, pair.server) if upload else (pair.server, pair.client)


async def transfer(server: ServerChannels, kind: str, mode: str, upload: bool) -> None:
    pair = await open_pair(server, kind, mode)
    source, sink = ends_of(pair, upload)
    received = bytearray()
    await asyncio.gather(send(source, DATA), receive(sink, received))
    assert received == DATA
    await pair.close()


# ---- lines


@KINDS
@MODES
@UPLOADS
def test_a_file_arrives_over_a_line_that_loses_5_percent(
    world: World, kind: str, mode: str, upload: bool
) -> None:
    world.faults("delay=10ms,loss=5%")

    async def main() -> None:
        async with serve() as server:
            await transfer(server, kind, mode, upload)

    run(world, main())


@KINDS
@MODES
@UPLOADS
def test_a_blackout_of_10_s_delays_a_transfer_and_does_not_end_it(
    world: World, kind: str, mode: str, upload: bool
) -> None:
    world.faults("delay=10ms,rate=10Mbit")

    async def main() -> None:
        async with serve() as server:
            pair = await open_pair(server, kind, mode)
            source, sink = ends_of(pair, upload)
            received = bytearray()
            both = asyncio.gather(send(source, DATA), receive(sink, received))
            await asyncio.sleep(0.1)
            world.partition(A, B)
            await asyncio.sleep(10)
            assert 0 < len(received) < len(DATA)
            world.heal()
            await both
            assert received == DATA
            await pair.close()

    run(world, main())


# ---- the end of a peer


@KINDS
@MODES
@UPLOADS
@pytest.mark.parametrize("crashed", [A, B], ids=["client", "server"])
def test_a_transfer_that_a_crash_has_cut_continues_where_it_was(
    world: World, kind: str, mode: str, upload: bool, crashed: str
) -> None:
    world.faults("delay=10ms,rate=10Mbit")
    received = bytearray()

    async def cut() -> None:
        server = ServerChannels()
        pair = await open_pair(server, kind, mode)
        source, sink = ends_of(pair, upload)
        sending = asyncio.create_task(send(source, DATA))
        receiving = asyncio.create_task(receive(sink, received))
        await asyncio.sleep(0.2)
        at = world.now
        world.crash(crashed)
        with pytest.raises(ChannelEnded) as error:
            await sending
        # The kernel of a crashed process closes the TCP connections of RC.
        assert error.value.cause in {Cause.LOST, Cause.PEER_CLOSED}
        # RD waits for a silent peer for 30 s, because the network may only be broken for a while.
        assert world.now - at < 45
        # A receiver has nothing to send: it learns of the crash from the control connection.
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await pair.close()
        await server.close()

    run(world, cut())
    kept = len(received)
    assert 0 < kept < len(DATA)
    assert received == DATA[:kept]
    world.restart(crashed)

    async def resume() -> None:
        async with serve() as server:
            pair = await open_pair(server, kind, mode)
            source, sink = ends_of(pair, upload)
            await asyncio.gather(send(source, DATA[kept:]), receive(sink, received))
            await pair.close()

    run(world, resume())
    assert received == DATA


@KINDS
@MODES
@UPLOADS
def test_a_transfer_that_one_end_cancels_is_not_complete_at_the_other(
    world: World, kind: str, mode: str, upload: bool
) -> None:
    async def main() -> None:
        async with serve() as server:
            pair = await open_pair(server, kind, mode)
            source, sink = ends_of(pair, upload)
            sending = asyncio.create_task(send(source, DATA * 10))
            async with aclosing(stream.receive(sink)) as chunks:
                await anext(chunks)
            await stream.cancel(sink, "enough")
            with pytest.raises(ChannelEnded, match=r"cancelled the transfer|closed the connection"):
                await sending
            await pair.close()

    run(world, main())


@KINDS
def test_the_end_that_has_sent_a_file_does_not_wait_for_a_peer_that_is_gone(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_answer = stream.Sender._check_answer

    async def check_late(sender: stream.Sender, expected: list[Type]) -> None:
        """Handle BYE as a busy process does: its peer has left before the next grant is sent."""
        assert sender._answer is not None
        await asyncio.wait({sender._answer})
        await asyncio.sleep(1)
        await check_answer(sender, expected)

    monkeypatch.setattr(stream.Sender, "_check_answer", check_late)

    async def main() -> None:
        async with serve() as server:
            pair = await open_pair(server, kind, "passive")

            async def receive_and_leave() -> None:
                await receive(pair.client, bytearray())
                await stream.end(pair.client, sent=False)

            leaving = asyncio.create_task(receive_and_leave())
            await send(pair.server, DATA)
            assert leaving.done()
            began = world.now
            await stream.end(pair.server, sent=True)
            assert world.now - began < 0.1
            await pair.close()

    run(world, main())


# ---- tokens


async def present_token(offer: Offer, host: str, invitation: Invitation) -> None:
    """Present a valid token from a stranger's address; the channel may open, but ends at once."""
    with contextlib.suppress(ChannelEnded):
        stranger = await opening.connect(offer.kind, host, invitation, C)
        await stranger.close()


@KINDS
def test_a_wrong_token_is_refused_and_the_right_one_stays_valid(world: World, kind: str) -> None:
    async def main() -> None:
        async with serve() as server:
            offer = await Offer(server, kind).make()
            for source in (A, C):
                with pytest.raises(ChannelEnded):
                    await offer.connect(source, bytes(16))
            client = await offer.connect()
            await asyncio.wait_for(offer.accepted, 60)
            assert offer.rejected == []
            await client.close()

    run(world, main())


@KINDS
def test_a_token_admits_one_channel(world: World, kind: str) -> None:
    async def main() -> None:
        async with serve() as server:
            offer = await Offer(server, kind).make()
            client = await offer.connect()
            channel = await asyncio.wait_for(offer.accepted, 60)
            with pytest.raises(ChannelEnded):
                await offer.connect()
            received = bytearray()
            await asyncio.gather(send(channel, DATA), receive(client, received))
            assert received == DATA
            await client.close()

    run(world, main())


@KINDS
def test_a_token_is_valid_for_30_s(world: World, kind: str) -> None:
    async def main() -> None:
        async with serve() as server:
            late, in_time = await Offer(server, kind).make(), await Offer(server, kind).make()
            await asyncio.sleep(29)
            client = await in_time.connect()
            await asyncio.sleep(2)
            with pytest.raises(ChannelEnded):
                await late.connect()
            assert not late.accepted.done()
            await client.close()

    run(world, main())


@KINDS
def test_a_token_that_a_stranger_presents_first_is_void_and_reported(
    world: World, kind: str
) -> None:
    async def main() -> None:
        async with serve() as server:
            offer = await Offer(server, kind).make()
            await present_token(offer, B, offer.invitation)
            assert offer.rejected == [C]
            with pytest.raises(ChannelEnded):
                await offer.connect()
            assert not offer.accepted.done()
            await transfer(server, kind, "passive", upload=False)  # with another token

    run(world, main())


@KINDS
def test_a_token_of_the_active_mode_admits_nobody_at_the_server(world: World, kind: str) -> None:
    async def main() -> None:
        async with serve() as server:
            offer = await Offer(server, kind).make()
            listener = await offer.listen()
            with pytest.raises(ChannelEnded):
                await offer.connect()
            channel = await offer.call(listener.port)
            client = await listener.accept()
            await channel.close()
            await client.close()
            await listener.close()

    run(world, main())


@KINDS
def test_a_client_in_active_mode_admits_only_the_server(world: World, kind: str) -> None:
    async def main() -> None:
        async with serve() as server:
            offer = await Offer(server, kind).make()
            listener = await offer.listen()
            invitation = tprt.active_invitation(offer.kind, offer.invitation, listener.port)
            forged = dataclasses.replace(invitation, token=bytes(16))
            with pytest.raises(ChannelEnded):
                await opening.connect(offer.kind, A, forged, C)
            await present_token(offer, A, invitation)
            with pytest.raises(ChannelEnded):
                await offer.call(listener.port)
            with pytest.raises(ChannelEnded, match="the server did not open the channel"):
                await listener.accept()
            await listener.close()

    run(world, main())


@KINDS
def test_a_client_in_active_mode_that_does_not_listen_is_an_error(world: World, kind: str) -> None:
    async def main() -> None:
        async with serve() as server:
            offer = await Offer(server, kind).make()
            listener = await offer.listen()
            await listener.close()
            with pytest.raises(ChannelEnded, match=rf"{A} port {listener.port}"):
                await offer.call(listener.port)

    run(world, main())


@KINDS
def test_channels_in_active_mode_are_limited(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAX_ACTIVE", 2)

    async def main() -> None:
        async with serve() as server:
            pairs = [await open_pair(server, kind, "active") for _ in range(2)]
            offer = await Offer(server, kind).make()
            listener = await offer.listen()
            with pytest.raises(ChannelEnded, match="2 channels in active mode are open: use EPSV"):
                await offer.call(listener.port)
            await pairs.pop().close()
            channel = await offer.call(listener.port)
            client = await listener.accept()
            await channel.close()
            await client.close()
            await listener.close()
            await pairs.pop().close()

    run(world, main())
