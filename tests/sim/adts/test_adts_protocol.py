"""The rules of spec/adts.md: each test sends units itself, among them ones that break a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crcmod.predefined import mkPredefinedCrcFun
from sim.adts.adts_sim_harness import KEY, LIMITS, B, Hosts, files_of

from siwarp.sim import World
from siwarp.ulp.adts import ADTSError, ErrorCode, auth, endpoints, handshake, wire
from siwarp.ulp.adts.channel import Channel, ChannelEnded
from siwarp.ulp.adts.channel_rdma import RDMAChannel
from siwarp.ulp.adts.credit import Role
from siwarp.ulp.adts.handshake import Agreement
from siwarp.ulp.adts.memory import Unit
from siwarp.ulp.adts.wire import UNIT_HEADER_SIZE, ChannelKind, Message, Option, Type

HELLO = wire.Hello(
    min_version=1,
    max_version=1,
    nonce=bytes(16),
    channels=(ChannelKind.RD, ChannelKind.RC),
    unit_size=16384,
    window=8,
    files=64,
    idle=30,
)


@pytest.fixture(params=["rd", "rc"])
def hosts(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Hosts:
    return Hosts(world, tmp_path / "root", request.param)


@asynccontextmanager
async def rendezvous_of(hosts: Hosts) -> AsyncIterator[Channel]:
    """Yield a rendezvous to a server on which nothing has been sent."""
    async with await hosts.serve():
        rendezvous = await endpoints.connect("rc", (B, 18517))
        try:
            yield rendezvous
        finally:
            rendezvous.abort("the end of the test")


@asynccontextmanager
async def session_of(hosts: Hosts, **limits: Any) -> AsyncIterator[Agreement]:
    """Yield a session with a server, as an initiator whose records the test sends itself."""
    async with rendezvous_of(hosts) as rendezvous:
        kinds = handshake.parse_channels([hosts.kind])
        joined = await handshake.initiate(rendezvous, B, KEY, kinds, replace(LIMITS, **limits))
        try:
            yield joined
        finally:
            joined.channel.abort("the end of the test")


async def send(channel: Channel, *messages: Message, transfer: int = 0) -> None:
    unit = await channel.buffer()
    at = UNIT_HEADER_SIZE
    for message in messages:
        at = message.put(unit.view, at, transfer)
    await channel.send(unit, at)


async def receive(channel: Channel) -> list[tuple[int, Message]]:
    """Return the messages of the next unit, each with its transfer."""
    received = await channel.receive()
    try:
        found = list(wire.records(memoryview(bytes(received.view))))
    finally:
        received.release()
    return [(r.transfer, wire.parse_message(r)) for r in found if r.type != Type.DATA]


async def receive_error(channel: Channel) -> wire.Error:
    while True:
        for _, message in await receive(channel):
            if isinstance(message, wire.Error):
                return message


async def is_silent(channel: Channel, seconds: float) -> bool:
    try:
        await asyncio.wait_for(receive(channel), seconds)
    except asyncio.TimeoutError:
        return True
    return False


@pytest.mark.clause("ADTS-HELLO-1", "ADTS-HELLO-3")
def test_a_hello_is_answered_with_a_hello_and_a_new_nonce(hosts: Hosts) -> None:
    nonces = set()

    async def say_hello() -> None:
        async with rendezvous_of(hosts) as rendezvous:
            assert await is_silent(rendezvous, 5)
            await send(rendezvous, HELLO)
            ((_, answer),) = await receive(rendezvous)
            assert isinstance(answer, wire.Hello)
            assert answer.window == 0
            nonces.add(answer.nonce)

    for _ in range(2):
        hosts.run(say_hello())
    assert len(nonces) == 2
    assert bytes(16) not in nonces


@pytest.mark.clause("ADTS-HELLO-1")
@pytest.mark.parametrize("first", [wire.Auth(bytes(32)), wire.Get(b""), wire.Bye()])
def test_a_session_that_does_not_begin_with_hello_is_refused(hosts: Hosts, first: Message) -> None:
    async def say_something_else() -> None:
        async with rendezvous_of(hosts) as rendezvous:
            await send(rendezvous, first)
            assert (await receive_error(rendezvous)).code == ErrorCode.PROTOCOL

    hosts.run(say_something_else())


@pytest.mark.clause("ADTS-HELLO-2")
def test_a_peer_without_a_common_version_is_told_so(hosts: Hosts) -> None:
    async def say_hello(lowest: int, highest: int) -> Message:
        async with rendezvous_of(hosts) as rendezvous:
            await send(rendezvous, replace(HELLO, min_version=lowest, max_version=highest))
            assert isinstance((await receive(rendezvous))[0][1], wire.Hello)
            if lowest > 1:
                return await receive_error(rendezvous)
            await send(rendezvous, wire.Auth(bytes(32)))
            return await receive_error(rendezvous)

    newer = hosts.run(say_hello(2, 3))
    assert isinstance(newer, wire.Error)
    assert newer.code == ErrorCode.VERSION
    both = hosts.run(say_hello(1, 3))
    assert isinstance(both, wire.Error)
    assert both.code == ErrorCode.REFUSED  # the versions match, but the key is wrong


@pytest.mark.clause("ADTS-AUTH-3")
@pytest.mark.parametrize("whose", [Role.ACCEPTOR, Role.INITIATOR, None])
def test_an_acceptor_that_does_not_know_the_key_gets_no_session(
    hosts: Hosts, whose: Role | None
) -> None:
    """Test an acceptor that sends the right proof, the initiator's own proof, and a wrong proof."""

    async def pretend(rendezvous: Channel) -> None:
        received = await rendezvous.receive()
        (record,) = wire.records(received.view)
        theirs = bytes(record.body)
        received.release()
        own = replace(HELLO, window=0)
        await send(rendezvous, own)
        await receive(rendezvous)
        key = KEY if whose else auth.Key(bytes(32))
        mac = auth.make_proof(key, whose or Role.ACCEPTOR, theirs, own.body())
        kind = handshake.parse_channels([hosts.kind])[0]
        await send(rendezvous, wire.Auth(mac), wire.UseChannel(kind))

    async def connect() -> ErrorCode:
        tasks: list[asyncio.Task[None]] = []
        channels: list[Channel] = []

        def accept(channel: Channel) -> None:
            channels.append(channel)
            tasks.append(asyncio.ensure_future(pretend(channel)))

        listener = await endpoints.listen("rc", (B, 18517), accept)
        try:
            with pytest.raises(ADTSError) as error:
                await hosts.connect()
            return error.value.code
        finally:
            await asyncio.gather(*tasks)
            for channel in channels:
                channel.abort("the end of the test")
            await listener.close()

    # After the right proof the session fails later, because CHANNEL has no port here.
    expected = ErrorCode.PROTOCOL if whose is Role.ACCEPTOR else ErrorCode.REFUSED
    assert hosts.run(connect()) == expected


def test_the_key_is_not_sent(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    send_unit = RDMAChannel.send

    async def note(channel: RDMAChannel, unit: Unit, length: int) -> None:
        wire.put_unit_header(unit.view, length)  # as the channel will
        sent.append(bytes(unit.view[:length]))
        await send_unit(channel, unit, length)

    monkeypatch.setattr(RDMAChannel, "send", note)

    async def put() -> None:
        async with await hosts.serve(), await hosts.connect() as session:
            await session.put(b"x", "file")

    hosts.run(put())
    types = {record.type for unit in sent for record in wire.records(memoryview(unit))}
    assert types >= {Type.HELLO, Type.AUTH, Type.CHANNEL, Type.OPEN, Type.DONE}
    for form in (bytes(range(32)), KEY.text.encode()):
        assert not any(form in unit for unit in sent)


@pytest.mark.clause("ADTS-HELLO-5")
def test_the_smaller_numbers_of_both_hellos_apply(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = handshake._hello

    def modest(kinds: Any, limits: Any, window: int) -> wire.Hello:
        made = hello(kinds, limits, window)
        return replace(made, files=2, idle=5) if window else made  # only the acceptor sends 0

    monkeypatch.setattr(handshake, "_hello", modest)
    large = wire.Open(path=b"file", size=300_000, mtime_ns=0, mode=0o644)

    async def be_idle() -> None:
        async with session_of(hosts) as joined:
            began = hosts.world.now
            assert await receive(joined.channel) == [(0, wire.Bye())]
            assert 4 <= hosts.world.now - began <= 8

    async def open_three_files() -> None:
        async with session_of(hosts) as joined:
            for transfer, path in ((1, b"a"), (3, b"b"), (5, b"c")):
                await send(joined.channel, replace(large, path=path), transfer=transfer)
            error = await receive_error(joined.channel)
            assert error.code == ErrorCode.PROTOCOL
            assert "2 open transfers" in error.text

    hosts.run(be_idle())
    hosts.run(open_three_files())


@pytest.mark.clause("ADTS-CRED-4")
def test_an_initiator_with_too_small_a_window_is_refused(hosts: Hosts) -> None:
    async def say_hello() -> None:
        async with rendezvous_of(hosts) as rendezvous:
            kind = handshake.parse_channels([hosts.kind])
            own = replace(HELLO, channels=kind, window=3)
            await send(rendezvous, own)
            ((_, theirs),) = await receive(rendezvous)
            assert isinstance(theirs, wire.Hello)
            mac = auth.make_proof(KEY, Role.INITIATOR, own.body(), theirs.body())
            await send(rendezvous, wire.Auth(mac))
            error = await receive_error(rendezvous)
            assert error.code == ErrorCode.PROTOCOL
            assert "HELLO grants 3 credits" in error.text

    hosts.run(say_hello())


@pytest.mark.clause("ADTS-CHAN-5")
def test_units_are_as_large_as_the_smaller_end_permits(hosts: Hosts) -> None:
    octets = bytes(range(256)) * 100
    (hosts.root / "file").write_bytes(octets)

    async def get_in_small_units() -> None:
        async with session_of(hosts, unit=4096) as joined:
            channel = joined.channel
            assert channel.unit_size == 4096
            await send(channel, wire.Get(b"file"), transfer=1)
            got = bytearray()
            while len(got) < len(octets):
                received = await channel.receive()
                assert len(received.view) <= 4096
                for record in wire.records(received.view):
                    got += record.body if record.type == Type.DATA else b""
                received.release()
            assert got == octets

    hosts.run(get_in_small_units())


@pytest.mark.clause("ADTS-FILE-10")
def test_a_cancelled_transfer_has_no_answer_and_can_be_resumed(hosts: Hosts) -> None:
    large = wire.Open(path=b"file", size=300_000, mtime_ns=0, mode=0o644, options=Option.RESUME)
    digest = mkPredefinedCrcFun("crc-32c")(bytes(1000)).to_bytes(4, "big")

    async def cancel() -> None:
        async with session_of(hosts) as joined:
            channel = joined.channel
            await send(channel, large, transfer=1)
            assert await receive(channel) == [(1, wire.Accept())]
            await send(channel, wire.Hole(offset=0, length=1000), wire.Cancel(), transfer=1)
            await send(channel, large, transfer=3)
            assert await receive(channel) == [(3, wire.Accept(offset=1000, digest=digest))]

    hosts.run(cancel())
    assert [len(octets) for octets in files_of(hosts.root).values()] == [1000]


@pytest.mark.clause("ADTS-FILE-10")
def test_a_receiver_can_cancel_a_transfer(hosts: Hosts) -> None:
    (hosts.root / "file").write_bytes(bytes(300_000))

    async def cancel() -> None:
        async with session_of(hosts) as joined:
            channel = joined.channel
            await send(channel, wire.Get(b"file"), transfer=1)
            ((transfer, opened),) = await receive(channel)
            assert isinstance(opened, wire.Open)
            assert opened.request == 1
            assert transfer % 2 == 0
            await send(channel, wire.Cancel(), transfer=transfer)
            assert await receive(channel) == [(1, wire.RequestDone(files=0, failed=1))]

    hosts.run(cancel())


@pytest.mark.clause("ADTS-FILE-9")
def test_an_end_that_was_asked_to_pause_sends_no_files_until_it_may(hosts: Hosts) -> None:
    (hosts.root / "small").write_bytes(b"x")

    async def pause() -> None:
        async with session_of(hosts) as joined:
            channel = joined.channel
            await send(channel, wire.Pause())
            await send(channel, wire.Get(b"small"), transfer=1)
            assert await is_silent(channel, 20)
            await send(channel, wire.Resume())
            types = [type(message) for _, message in await receive(channel)]
            assert types == [wire.Open, wire.End]  # and DATA between them

    hosts.run(pause())


@pytest.mark.clause("ADTS-END-3", "ADTS-END-4")
def test_an_error_of_the_peer_ends_its_session_and_is_reported(hosts: Hosts) -> None:
    large = wire.Open(path=b"file", size=300_000, mtime_ns=0, mode=0o644)

    async def end_by_error() -> None:
        async with session_of(hosts) as joined:
            await send(joined.channel, large, transfer=1)
            assert await receive(joined.channel) == [(1, wire.Accept())]
            await send(joined.channel, wire.Error(ErrorCode.SHUTDOWN, "the power fails"))
            with pytest.raises(ChannelEnded):
                await receive(joined.rendezvous)

    before = len(list(Path("/proc/self/fd").iterdir()))
    hosts.run(end_by_error())
    assert "has ended the session: the power fails" in hosts.events[-1]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.clause("ADTS-CHAN-1")
@pytest.mark.parametrize("order", [("rd", "rc", "ud"), ("ud", "rc"), ("tcp", "rc", "rd")])
def test_the_first_kind_of_the_initiator_that_the_acceptor_has_is_offered(
    hosts: Hosts, order: tuple[str, ...]
) -> None:
    async def ask() -> wire.UseChannel:
        async with await hosts.serve(channels=["rc", "rd"]):
            rendezvous = await endpoints.connect("rc", (B, 18517))
            kinds = handshake.parse_channels(order)
            _, offer = await handshake._prove_and_verify(rendezvous, KEY, kinds, LIMITS)
            rendezvous.abort("the end of the test")
            return offer

    offer = hosts.run(ask())
    assert offer.kind.name.lower() == next(name for name in order if name in {"rc", "rd"})
    assert len(offer.token) == 16 and offer.port and offer.unit_size and offer.window


@pytest.mark.clause("ADTS-CHAN-1")
@pytest.mark.parametrize("lack", ["token", "port", "unit_size", "window"])
def test_an_offer_that_lacks_what_a_channel_needs_is_invalid(lack: str) -> None:
    offer = wire.UseChannel(ChannelKind.RD, bytes(16), 9, 7, 16384, 8)
    handshake._check_offer(offer, ChannelKind.RD)
    nothing: Any = b"" if lack == "token" else 0
    with pytest.raises(wire.WireError, match="lacks what a channel of kind RD needs"):
        handshake._check_offer(replace(offer, **{lack: nothing}), ChannelKind.RD)


def test_a_server_with_as_many_sessions_as_it_permits_refuses_the_next(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siwarp.ulp.adts.server.SESSIONS", 2)

    async def connect_three_times() -> None:
        async with await hosts.serve() as server, AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(await hosts.connect())
            with pytest.raises(ADTSError, match="2 sessions, its limit: try again later") as error:
                await hosts.connect()
            assert error.value.code == ErrorCode.BUSY
            await stack.aclose()
            while server.sessions:
                await asyncio.sleep(0.1)
            async with await hosts.connect() as session:
                await session.stat("")

    hosts.run(connect_three_times())
