"""The channels of FTP in a simulated network: tokens, strangers, lossy links, crashes, resume."""

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

#: The addresses of the hosts of the client, of the server and of a stranger.
A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
#: The octets of a file that takes many units.
DATA = random.Random(1).randbytes(500_000)

KINDS = pytest.mark.parametrize("kind", ["rd", "rc", "ud"])
MODES = pytest.mark.parametrize("mode", ["passive", "active"])
UPLOADS = pytest.mark.parametrize("upload", [False, True], ids=["download", "upload"])


@pytest.fixture(name="hosts", autouse=True)
def three_simulated_hosts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tprt, "UNIT", 16384)
    for address in (A, B, C):
        world.device(address)
    world.faults("delay=10ms")


def run_in_world(world: World, main: Coroutine[Any, Any, None], within: float = 600) -> None:
    world.run(asyncio.wait_for(main, within))


@asynccontextmanager
async def open_server_channels() -> AsyncIterator[ServerChannels]:
    """Yield the server's channels; check that no asyncio task is left after they are closed."""
    before = asyncio.all_tasks()
    server = ServerChannels()
    try:
        yield server
    finally:
        await server.close()
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not left, left


class Offer:
    """The client's view of a token of the server, which the reply to TPRT contains."""

    def __init__(self, server: ServerChannels, kind: str) -> None:
        self.server = server
        self.kind: Any = kind
        self.accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        self.rejected: list[str] = []
        self.invitation: Invitation

    async def request_invitation(self) -> Offer:
        kept = await self.server.expect_channel(
            self.kind, B, A, self.accepted.set_result, self.rejected.append
        )
        name = self.kind.upper()
        self.invitation = tprt.parse_reply(tprt.format_reply(name, kept), name, kept.port)
        assert self.invitation == kept
        return self

    async def open_passive_channel(self, source: str = A, token: bytes | None = None) -> Channel:
        """Let the client open the channel (passive mode)."""
        invitation = self.invitation
        if token is not None:
            invitation = dataclasses.replace(invitation, token=token)
        return await opening.open_channel_to_peer(self.kind, B, invitation, source)

    async def listen_in_active_mode(self) -> opening.Listener:
        """Let the client listen for the channel (active mode)."""
        self.server.forget_token(self.kind, B, self.invitation.token)
        return await opening.listen_for_channel(self.kind, B, self.invitation, A)

    async def open_active_channel(self, port: int) -> Channel:
        """Let the server open the channel to the client's port (active mode)."""
        invitation = tprt.make_active_mode_invitation(self.kind, self.invitation, port)
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


async def open_channel_pair(server: ServerChannels, kind: str, mode: str) -> Pair:
    offer = await Offer(server, kind).request_invitation()
    if mode == "passive":
        client = await offer.open_passive_channel()
        return Pair(client, await asyncio.wait_for(offer.accepted, 60), None)
    listener = await offer.listen_in_active_mode()
    channel = await offer.open_active_channel(listener.port)
    return Pair(await listener.accept(), channel, listener)


async def send_data_as_transfer(channel: Channel, data: bytes) -> None:
    """Send data as a transfer, and wait until the receiver has confirmed the transfer."""
    sender = stream.Sender(channel)
    try:
        rest = memoryview(data)
        while rest:
            into = await sender.wait_for_unit_memory()
            count = min(len(into), len(rest))
            into[:count] = rest[:count]
            rest = rest[count:]
            await sender.send(count)
        await sender.finish()
    finally:
        await sender.close()


async def receive_transfer(channel: Channel, into: bytearray) -> None:
    async with aclosing(stream.receive_transfer(channel)) as chunks:
        async for chunk in chunks:
            into += chunk


def sending_and_receiving_end(pair: Pair, upload: bool) -> tuple[Channel, Channel]:
    """Return the end that sends the file and the end that receives it."""
    return (pair.client, pair.server) if upload else (pair.server, pair.client)


async def transfer_data_and_check(
    server: ServerChannels, kind: str, mode: str, upload: bool
) -> None:
    pair = await open_channel_pair(server, kind, mode)
    source, sink = sending_and_receiving_end(pair, upload)
    received = bytearray()
    await asyncio.gather(send_data_as_transfer(source, DATA), receive_transfer(sink, received))
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

    async def transfer_over_lossy_link() -> None:
        async with open_server_channels() as server:
            await transfer_data_and_check(server, kind, mode, upload)

    run_in_world(world, transfer_over_lossy_link())


@KINDS
@MODES
@UPLOADS
def test_a_blackout_of_10_s_delays_a_transfer_and_does_not_end_it(
    world: World, kind: str, mode: str, upload: bool
) -> None:
    world.faults("delay=10ms,rate=10Mbit")

    async def transfer_over_blackout() -> None:
        async with open_server_channels() as server:
            pair = await open_channel_pair(server, kind, mode)
            source, sink = sending_and_receiving_end(pair, upload)
            received = bytearray()
            both = asyncio.gather(
                send_data_as_transfer(source, DATA), receive_transfer(sink, received)
            )
            await asyncio.sleep(0.1)
            world.partition(A, B)
            await asyncio.sleep(10)
            assert 0 < len(received) < len(DATA)
            world.heal()
            await both
            assert received == DATA
            await pair.close()

    run_in_world(world, transfer_over_blackout())


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

    async def transfer_until_crash() -> None:
        server = ServerChannels()
        pair = await open_channel_pair(server, kind, mode)
        source, sink = sending_and_receiving_end(pair, upload)
        sending = asyncio.create_task(send_data_as_transfer(source, DATA))
        receiving = asyncio.create_task(receive_transfer(sink, received))
        await asyncio.sleep(0.2)
        at = world.now
        world.crash(crashed)
        with pytest.raises(ChannelEnded) as error:
            await sending
        # The kernel of a crashed process closes the TCP connections of RC.
        assert error.value.cause in {Cause.LOST, Cause.PEER_CLOSED}
        # RD ends a channel only after a silence of 30 s, because a network failure may be short.
        assert world.now - at < 45
        # A receiver has nothing to send: it learns of the crash from the control connection.
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await pair.close()
        await server.close()

    run_in_world(world, transfer_until_crash())
    kept = len(received)
    assert 0 < kept < len(DATA)
    assert received == DATA[:kept]
    world.restart(crashed)

    async def send_rest_of_data() -> None:
        async with open_server_channels() as server:
            pair = await open_channel_pair(server, kind, mode)
            source, sink = sending_and_receiving_end(pair, upload)
            await asyncio.gather(
                send_data_as_transfer(source, DATA[kept:]), receive_transfer(sink, received)
            )
            await pair.close()

    run_in_world(world, send_rest_of_data())
    assert received == DATA


@KINDS
@MODES
@UPLOADS
def test_a_transfer_that_one_end_cancels_is_not_complete_at_the_other(
    world: World, kind: str, mode: str, upload: bool
) -> None:
    async def cancel_transfer_at_receiver() -> None:
        async with open_server_channels() as server:
            pair = await open_channel_pair(server, kind, mode)
            source, sink = sending_and_receiving_end(pair, upload)
            sending = asyncio.create_task(send_data_as_transfer(source, DATA * 10))
            async with aclosing(stream.receive_transfer(sink)) as chunks:
                await anext(chunks)
            await stream.cancel_transfer(sink, "enough")
            with pytest.raises(ChannelEnded, match=r"cancelled the transfer|closed the connection"):
                await sending
            await pair.close()

    run_in_world(world, cancel_transfer_at_receiver())


@KINDS
def test_the_end_that_has_sent_a_file_does_not_wait_for_a_peer_that_is_gone(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_answer = stream.Sender._await_expected_answer

    async def wait_a_second_and_check_answer(sender: stream.Sender, expected: list[Type]) -> None:
        """Process the peer's answer a second late, when the peer has already closed the channel."""
        assert sender._answer is not None
        await asyncio.wait({sender._answer})
        await asyncio.sleep(1)
        await check_answer(sender, expected)

    monkeypatch.setattr(stream.Sender, "_await_expected_answer", wait_a_second_and_check_answer)

    async def send_to_peer_that_leaves() -> None:
        async with open_server_channels() as server:
            pair = await open_channel_pair(server, kind, "passive")

            async def receive_all_and_leave() -> None:
                await receive_transfer(pair.client, bytearray())
                await stream.close_after_transfer(pair.client, sent=False)

            leaving = asyncio.create_task(receive_all_and_leave())
            await send_data_as_transfer(pair.server, DATA)
            assert leaving.done()
            began = world.now
            await stream.close_after_transfer(pair.server, sent=True)
            assert world.now - began < 0.1
            await pair.close()

    run_in_world(world, send_to_peer_that_leaves())


# ---- tokens


async def present_token_as_stranger(offer: Offer, host: str, invitation: Invitation) -> None:
    """Present a valid token from a stranger's address; the channel may open, but ends at once."""
    with contextlib.suppress(ChannelEnded):
        stranger = await opening.open_channel_to_peer(offer.kind, host, invitation, C)
        await stranger.close()


@KINDS
def test_a_wrong_token_is_refused_and_the_right_one_stays_valid(world: World, kind: str) -> None:
    async def open_channels_with_wrong_and_right_token() -> None:
        async with open_server_channels() as server:
            offer = await Offer(server, kind).request_invitation()
            for source in (A, C):
                with pytest.raises(ChannelEnded):
                    await offer.open_passive_channel(source, bytes(16))
            client = await offer.open_passive_channel()
            await asyncio.wait_for(offer.accepted, 60)
            assert offer.rejected == []
            await client.close()

    run_in_world(world, open_channels_with_wrong_and_right_token())


@KINDS
def test_a_token_admits_one_channel(world: World, kind: str) -> None:
    async def open_two_channels_with_one_token() -> None:
        async with open_server_channels() as server:
            offer = await Offer(server, kind).request_invitation()
            client = await offer.open_passive_channel()
            channel = await asyncio.wait_for(offer.accepted, 60)
            with pytest.raises(ChannelEnded):
                await offer.open_passive_channel()
            received = bytearray()
            await asyncio.gather(
                send_data_as_transfer(channel, DATA), receive_transfer(client, received)
            )
            assert received == DATA
            await client.close()

    run_in_world(world, open_two_channels_with_one_token())


@KINDS
def test_a_token_is_valid_for_30_s(world: World, kind: str) -> None:
    async def present_tokens_after_29_and_31_s() -> None:
        async with open_server_channels() as server:
            late, in_time = (
                await Offer(server, kind).request_invitation(),
                await Offer(server, kind).request_invitation(),
            )
            await asyncio.sleep(29)
            client = await in_time.open_passive_channel()
            await asyncio.sleep(2)
            with pytest.raises(ChannelEnded):
                await late.open_passive_channel()
            assert not late.accepted.done()
            await client.close()

    run_in_world(world, present_tokens_after_29_and_31_s())


@KINDS
def test_a_token_that_a_stranger_presents_first_is_void_and_reported(
    world: World, kind: str
) -> None:
    async def present_token_after_stranger() -> None:
        async with open_server_channels() as server:
            offer = await Offer(server, kind).request_invitation()
            await present_token_as_stranger(offer, B, offer.invitation)
            assert offer.rejected == [C]
            with pytest.raises(ChannelEnded):
                await offer.open_passive_channel()
            assert not offer.accepted.done()
            # a transfer with another token succeeds
            await transfer_data_and_check(server, kind, "passive", upload=False)

    run_in_world(world, present_token_after_stranger())


@KINDS
def test_a_token_of_the_active_mode_admits_nobody_at_the_server(world: World, kind: str) -> None:
    async def open_passive_channel_with_active_token() -> None:
        async with open_server_channels() as server:
            offer = await Offer(server, kind).request_invitation()
            listener = await offer.listen_in_active_mode()
            with pytest.raises(ChannelEnded):
                await offer.open_passive_channel()
            channel = await offer.open_active_channel(listener.port)
            client = await listener.accept()
            await channel.close()
            await client.close()
            await listener.close()

    run_in_world(world, open_passive_channel_with_active_token())


@KINDS
def test_a_client_in_active_mode_admits_only_the_server(world: World, kind: str) -> None:
    async def connect_strangers_to_active_client() -> None:
        async with open_server_channels() as server:
            offer = await Offer(server, kind).request_invitation()
            listener = await offer.listen_in_active_mode()
            invitation = tprt.make_active_mode_invitation(
                offer.kind, offer.invitation, listener.port
            )
            forged = dataclasses.replace(invitation, token=bytes(16))
            with pytest.raises(ChannelEnded):
                await opening.open_channel_to_peer(offer.kind, A, forged, C)
            await present_token_as_stranger(offer, A, invitation)
            with pytest.raises(ChannelEnded):
                await offer.open_active_channel(listener.port)
            with pytest.raises(ChannelEnded, match="the server did not open the channel"):
                await listener.accept()
            await listener.close()

    run_in_world(world, connect_strangers_to_active_client())


@KINDS
def test_a_client_in_active_mode_that_does_not_listen_is_an_error(world: World, kind: str) -> None:
    async def open_channel_to_closed_listener() -> None:
        async with open_server_channels() as server:
            offer = await Offer(server, kind).request_invitation()
            listener = await offer.listen_in_active_mode()
            await listener.close()
            with pytest.raises(ChannelEnded, match=rf"{A} port {listener.port}"):
                await offer.open_active_channel(listener.port)

    run_in_world(world, open_channel_to_closed_listener())


@KINDS
def test_channels_in_active_mode_are_limited(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAX_ACTIVE", 2)

    async def open_more_active_channels_than_allowed() -> None:
        async with open_server_channels() as server:
            pairs = [await open_channel_pair(server, kind, "active") for _ in range(2)]
            offer = await Offer(server, kind).request_invitation()
            listener = await offer.listen_in_active_mode()
            with pytest.raises(ChannelEnded, match="2 channels in active mode are open: use EPSV"):
                await offer.open_active_channel(listener.port)
            await pairs.pop().close()
            channel = await offer.open_active_channel(listener.port)
            client = await listener.accept()
            await channel.close()
            await client.close()
            await listener.close()
            await pairs.pop().close()

    run_in_world(world, open_more_active_channels_than_allowed())
