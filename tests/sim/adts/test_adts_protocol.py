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
from harness.descriptors import count_open_descriptors
from sim.adts.adts_sim_harness import KEY, LIMITS, B, Hosts, read_files_below

from siwarp.sim import World
from siwarp.ulp.adts import (
    ADTSError,
    ErrorCode,
    auth,
    channel_rd,
    channel_rdma,
    endpoints,
    handshake,
    wire,
)
from siwarp.ulp.adts.channel import Channel, ChannelEnded
from siwarp.ulp.adts.channel_rdma import RDMAChannel
from siwarp.ulp.adts.credit import Role
from siwarp.ulp.adts.handshake import Agreement
from siwarp.ulp.adts.memory import Unit
from siwarp.ulp.adts.wire import UNIT_HEADER_SIZE, ChannelKind, Message, Option, Type

CRC32C = mkPredefinedCrcFun("crc-32c")
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


@pytest.fixture(name="hosts", params=["rd", "rc"])
def two_simulated_hosts(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Hosts:
    return Hosts(world, tmp_path / "root", request.param)


@asynccontextmanager
async def connect_silent_rendezvous(hosts: Hosts) -> AsyncIterator[Channel]:
    """Yield a connection to a server (a rendezvous) on which nothing has been sent yet."""
    async with await hosts.start_server():
        rendezvous = await endpoints.connect_rendezvous("rc", (B, 18517))
        try:
            yield rendezvous
        finally:
            rendezvous.abort("the end of the test")


@asynccontextmanager
async def open_session_as_initiator(hosts: Hosts, **limits: Any) -> AsyncIterator[Agreement]:
    """Yield a session with a server, in which the test sends the initiator's records itself."""
    async with connect_silent_rendezvous(hosts) as rendezvous:
        kinds = handshake.parse_channels([hosts.kind])
        joined = await handshake.initiate_session(
            rendezvous, B, KEY, kinds, replace(LIMITS, **limits)
        )
        try:
            yield joined
        finally:
            joined.channel.abort("the end of the test")


async def send_messages(channel: Channel, *messages: Message, transfer: int = 0) -> None:
    unit = await channel.take_empty_unit()
    at = UNIT_HEADER_SIZE
    for message in messages:
        at = message.put(unit.view, at, transfer)
    await channel.send(unit, at)


async def receive_messages(channel: Channel) -> list[tuple[int, Message]]:
    """Return the messages of the next unit, each with its transfer."""
    received = await channel.receive()
    try:
        found = list(wire.parse_records(memoryview(bytes(received.view))))
    finally:
        received.release()
    return [(r.transfer, wire.parse_message(r)) for r in found if r.type != Type.DATA]


async def receive_until_error_message(channel: Channel) -> wire.Error:
    while True:
        for _, message in await receive_messages(channel):
            if isinstance(message, wire.Error):
                return message


async def is_silent(channel: Channel, seconds: float) -> bool:
    try:
        await asyncio.wait_for(receive_messages(channel), seconds)
    except asyncio.TimeoutError:
        return True
    return False


@pytest.mark.clause("ADTS-HELLO-1", "ADTS-HELLO-3")
def test_a_hello_is_answered_with_a_hello_and_a_new_nonce(hosts: Hosts) -> None:
    nonces = set()

    async def send_hello_and_save_nonce() -> None:
        async with connect_silent_rendezvous(hosts) as rendezvous:
            assert await is_silent(rendezvous, 5)
            await send_messages(rendezvous, HELLO)
            ((_, answer),) = await receive_messages(rendezvous)
            assert isinstance(answer, wire.Hello)
            assert answer.window == 0
            nonces.add(answer.nonce)

    for _ in range(2):
        hosts.run_coroutine(send_hello_and_save_nonce())
    assert len(nonces) == 2
    assert bytes(16) not in nonces


@pytest.mark.clause("ADTS-HELLO-1")
@pytest.mark.parametrize("first", [wire.Auth(bytes(32)), wire.Get(b""), wire.Bye()])
def test_a_session_that_does_not_begin_with_hello_is_refused(hosts: Hosts, first: Message) -> None:
    async def send_other_message_first() -> None:
        async with connect_silent_rendezvous(hosts) as rendezvous:
            await send_messages(rendezvous, first)
            assert (await receive_until_error_message(rendezvous)).code == ErrorCode.PROTOCOL

    hosts.run_coroutine(send_other_message_first())


@pytest.mark.clause("ADTS-HELLO-2")
def test_a_peer_without_a_common_version_is_told_so(hosts: Hosts) -> None:
    async def send_versions_and_get_error(lowest: int, highest: int) -> Message:
        async with connect_silent_rendezvous(hosts) as rendezvous:
            await send_messages(rendezvous, replace(HELLO, min_version=lowest, max_version=highest))
            assert isinstance((await receive_messages(rendezvous))[0][1], wire.Hello)
            if lowest > 1:
                return await receive_until_error_message(rendezvous)
            await send_messages(rendezvous, wire.Auth(bytes(32)))
            return await receive_until_error_message(rendezvous)

    newer = hosts.run_coroutine(send_versions_and_get_error(2, 3))
    assert isinstance(newer, wire.Error)
    assert newer.code == ErrorCode.VERSION
    both = hosts.run_coroutine(send_versions_and_get_error(1, 3))
    assert isinstance(both, wire.Error)
    # REFUSED, because the versions match but the key is wrong
    assert both.code == ErrorCode.REFUSED


@pytest.mark.clause("ADTS-AUTH-3")
@pytest.mark.parametrize("whose", [Role.ACCEPTOR, Role.INITIATOR, None])
def test_an_acceptor_that_does_not_know_the_key_gets_no_session(
    hosts: Hosts, whose: Role | None
) -> None:
    """Test an acceptor that sends the right proof, the initiator's own proof, and a wrong proof."""

    async def answer_as_acceptor(rendezvous: Channel) -> None:
        received = await rendezvous.receive()
        (record,) = wire.parse_records(received.view)
        theirs = bytes(record.body)
        received.release()
        own = replace(HELLO, window=0)
        await send_messages(rendezvous, own)
        await receive_messages(rendezvous)
        key = KEY if whose else auth.Key(bytes(32))
        mac = auth.make_proof(key, whose or Role.ACCEPTOR, theirs, own.body())
        kind = handshake.parse_channels([hosts.kind])[0]
        await send_messages(rendezvous, wire.Auth(mac), wire.UseChannel(kind))

    async def connect_and_get_error_code() -> ErrorCode:
        tasks: list[asyncio.Task[None]] = []
        channels: list[Channel] = []

        def start_answering(channel: Channel) -> None:
            channels.append(channel)
            tasks.append(asyncio.ensure_future(answer_as_acceptor(channel)))

        listener = await endpoints.listen_for_rendezvous("rc", (B, 18517), start_answering)
        try:
            with pytest.raises(ADTSError) as error:
                await hosts.connect_client()
            return error.value.code
        finally:
            await asyncio.gather(*tasks)
            for channel in channels:
                channel.abort("the end of the test")
            await listener.close()

    # With the right proof, the session fails only because the CHANNEL of this test has no port.
    expected = ErrorCode.PROTOCOL if whose is Role.ACCEPTOR else ErrorCode.REFUSED
    assert hosts.run_coroutine(connect_and_get_error_code()) == expected


def test_the_key_is_not_sent(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    send_unit = RDMAChannel.send

    async def save_sent_unit_and_send(
        channel: RDMAChannel, unit: Unit, length: int, payload: None = None
    ) -> None:
        wire.put_unit_header(unit.view, length)  # send_unit writes this header, too
        sent.append(bytes(unit.view[:length]))
        await send_unit(channel, unit, length, payload)

    monkeypatch.setattr(RDMAChannel, "send", save_sent_unit_and_send)

    async def put_a_file() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            await session.put(b"x", "file")

    hosts.run_coroutine(put_a_file())
    types = {record.type for unit in sent for record in wire.parse_records(memoryview(unit))}
    assert types >= {Type.HELLO, Type.AUTH, Type.CHANNEL, Type.OPEN, Type.DONE}
    for form in (bytes(range(32)), KEY.text.encode()):
        assert not any(form in unit for unit in sent)


@pytest.mark.clause("ADTS-HELLO-5")
def test_the_smaller_numbers_of_both_hellos_apply(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = handshake._make_hello

    def make_hello_with_small_limits(kinds: Any, limits: Any, window: int) -> wire.Hello:
        made = hello(kinds, limits, window)
        # the HELLO of an acceptor has window 0, and stays unchanged
        return replace(made, files=2, idle=5) if window else made

    monkeypatch.setattr(handshake, "_make_hello", make_hello_with_small_limits)
    large = wire.Open(path=b"file", size=300_000, mtime_ns=0, mode=0o644)

    async def wait_for_end_of_idle_session() -> None:
        async with open_session_as_initiator(hosts) as joined:
            began = hosts.world.now
            assert await receive_messages(joined.channel) == [(0, wire.Bye())]
            assert 4 <= hosts.world.now - began <= 8

    async def open_more_files_than_limit() -> None:
        async with open_session_as_initiator(hosts) as joined:
            for transfer, path in ((1, b"a"), (3, b"b"), (5, b"c")):
                await send_messages(joined.channel, replace(large, path=path), transfer=transfer)
            error = await receive_until_error_message(joined.channel)
            assert error.code == ErrorCode.PROTOCOL
            assert "2 open transfers" in error.text

    hosts.run_coroutine(wait_for_end_of_idle_session())
    hosts.run_coroutine(open_more_files_than_limit())


@pytest.mark.clause("ADTS-CRED-4")
def test_an_initiator_with_too_small_a_window_is_refused(hosts: Hosts) -> None:
    async def send_hello_with_small_window() -> None:
        async with connect_silent_rendezvous(hosts) as rendezvous:
            kind = handshake.parse_channels([hosts.kind])
            own = replace(HELLO, channels=kind, window=3)
            await send_messages(rendezvous, own)
            ((_, theirs),) = await receive_messages(rendezvous)
            assert isinstance(theirs, wire.Hello)
            mac = auth.make_proof(KEY, Role.INITIATOR, own.body(), theirs.body())
            await send_messages(rendezvous, wire.Auth(mac))
            error = await receive_until_error_message(rendezvous)
            assert error.code == ErrorCode.PROTOCOL
            assert "HELLO grants 3 credits" in error.text

    hosts.run_coroutine(send_hello_with_small_window())


@pytest.mark.clause("ADTS-CHAN-5")
def test_units_are_as_large_as_the_smaller_end_permits(hosts: Hosts) -> None:
    octets = bytes(range(256)) * 100
    (hosts.root / "file").write_bytes(octets)

    async def get_file_in_small_units() -> None:
        async with open_session_as_initiator(hosts, unit=4096) as joined:
            channel = joined.channel
            assert channel.unit_size == 4096
            await send_messages(channel, wire.Get(b"file"), transfer=1)
            got = bytearray()
            while len(got) < len(octets):
                received = await channel.receive()
                assert len(received.view) <= 4096
                for record in wire.parse_records(received.view):
                    got += record.body if record.type == Type.DATA else b""
                received.release()
            assert got == octets

    hosts.run_coroutine(get_file_in_small_units())


@pytest.mark.clause("ADTS-FILE-10")
def test_a_cancelled_transfer_has_no_answer_and_can_be_resumed(hosts: Hosts) -> None:
    large = wire.Open(path=b"file", size=300_000, mtime_ns=0, mode=0o644, options=Option.RESUME)
    digest = mkPredefinedCrcFun("crc-32c")(bytes(1000)).to_bytes(4, "big")

    async def cancel_transfer() -> None:
        async with open_session_as_initiator(hosts) as joined:
            channel = joined.channel
            await send_messages(channel, large, transfer=1)
            assert await receive_messages(channel) == [(1, wire.Accept())]
            await send_messages(
                channel, wire.Hole(offset=0, length=1000), wire.Cancel(), transfer=1
            )
            await send_messages(channel, large, transfer=3)
            assert await receive_messages(channel) == [(3, wire.Accept(offset=1000, digest=digest))]

    hosts.run_coroutine(cancel_transfer())
    assert [len(octets) for octets in read_files_below(hosts.root).values()] == [1000]


@pytest.mark.clause("ADTS-FILE-10")
def test_a_receiver_can_cancel_a_transfer(hosts: Hosts) -> None:
    (hosts.root / "file").write_bytes(bytes(300_000))

    async def cancel_transfer() -> None:
        async with open_session_as_initiator(hosts) as joined:
            channel = joined.channel
            await send_messages(channel, wire.Get(b"file"), transfer=1)
            ((transfer, opened),) = await receive_messages(channel)
            assert isinstance(opened, wire.Open)
            assert opened.request == 1
            assert transfer % 2 == 0
            await send_messages(channel, wire.Cancel(), transfer=transfer)
            assert await receive_messages(channel) == [(1, wire.RequestDone(files=0, failed=1))]

    hosts.run_coroutine(cancel_transfer())


@pytest.mark.clause("ADTS-FILE-9")
def test_an_end_that_was_asked_to_pause_sends_no_files_until_it_may(hosts: Hosts) -> None:
    (hosts.root / "small").write_bytes(b"x")

    async def send_pause_then_resume() -> None:
        async with open_session_as_initiator(hosts) as joined:
            channel = joined.channel
            await send_messages(channel, wire.Pause())
            await send_messages(channel, wire.Get(b"small"), transfer=1)
            assert await is_silent(channel, 20)
            await send_messages(channel, wire.Resume())
            types = [type(message) for _, message in await receive_messages(channel)]
            assert types == [wire.Open, wire.End]  # DATA records are no messages

    hosts.run_coroutine(send_pause_then_resume())


@pytest.mark.clause("ADTS-END-3", "ADTS-END-4")
def test_an_error_of_the_peer_ends_its_session_and_is_reported(hosts: Hosts) -> None:
    large = wire.Open(path=b"file", size=300_000, mtime_ns=0, mode=0o644)

    async def end_session_by_error_message() -> None:
        async with open_session_as_initiator(hosts) as joined:
            await send_messages(joined.channel, large, transfer=1)
            assert await receive_messages(joined.channel) == [(1, wire.Accept())]
            await send_messages(joined.channel, wire.Error(ErrorCode.SHUTDOWN, "the power fails"))
            with pytest.raises(ChannelEnded):
                await receive_messages(joined.rendezvous)

    before = count_open_descriptors()
    hosts.run_coroutine(end_session_by_error_message())
    assert "has ended the session: the power fails" in hosts.events[-1]
    assert count_open_descriptors() <= before


@pytest.mark.clause("ADTS-CHAN-1")
@pytest.mark.parametrize("order", [("rd", "rc", "ud"), ("ud", "rc"), ("tcp", "rc", "rd")])
def test_the_first_kind_of_the_initiator_that_the_acceptor_has_is_offered(
    hosts: Hosts, order: tuple[str, ...]
) -> None:
    async def request_channel_offer() -> wire.UseChannel:
        async with await hosts.start_server(channels=["rc", "rd"]):
            rendezvous = await endpoints.connect_rendezvous("rc", (B, 18517))
            kinds = handshake.parse_channels(order)
            _, offer = await handshake._prove_and_verify(rendezvous, KEY, kinds, LIMITS)
            rendezvous.abort("the end of the test")
            return offer

    offer = hosts.run_coroutine(request_channel_offer())
    assert offer.kind.name.lower() == next(name for name in order if name in {"rc", "rd"})
    assert len(offer.token) == 16 and offer.port and offer.unit_size and offer.window


@pytest.mark.clause("ADTS-CHAN-1")
@pytest.mark.parametrize("lack", ["token", "port", "unit_size", "window"])
def test_an_offer_that_lacks_what_a_channel_needs_is_invalid(lack: str) -> None:
    offer = wire.UseChannel(ChannelKind.RD, bytes(16), 9, 7, 16384, 8)
    handshake._check_channel_offer(offer, ChannelKind.RD)
    nothing: Any = b"" if lack == "token" else 0
    with pytest.raises(wire.WireError, match="lacks what a channel of kind RD needs"):
        handshake._check_channel_offer(replace(offer, **{lack: nothing}), ChannelKind.RD)


@pytest.mark.clause("ADTS-UNIT-4")
@pytest.mark.parametrize("changed", [False, True])
def test_flags_and_zero_fields_are_sent_as_zero_and_ignored_on_receipt(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    put_header = wire.put_unit_header
    types = set()

    def check_and_change_reserved_octets(into: memoryview, length: int, *counts: int) -> None:
        put_header(into, length, *counts)
        assert bytes(into[5:8]) == bytes(3)
        if changed:
            into[5:8] = b"\xff" * 3
            into[20:24] = CRC32C(bytes(into[:20])).to_bytes(4, "big")
        at = wire.UNIT_HEADER_SIZE
        while at < length:
            head, kind = bytes(into[at : at + 28]), into[at]
            size = int.from_bytes(head[24:], "big")
            body = b"" if kind == wire.Type.DATA else bytes(into[at + 32 : at + 32 + size])
            assert head[1:4] == bytes(3)
            if changed:
                head = head[:1] + b"\x7f\xff\xff" + head[4:]
                into[at : at + 32] = head + CRC32C(head + body).to_bytes(4, "big")
            types.add(wire.Type(kind))
            at += 32 + size
        assert at == length

    monkeypatch.setattr(channel_rdma, "put_unit_header", check_and_change_reserved_octets)
    monkeypatch.setattr(channel_rd, "put_unit_header", check_and_change_reserved_octets)

    async def send_records_of_most_types() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            await session.put(bytes(100), "small")
            await session.put(bytes(300_000), "large")
            into = bytearray(300_000)
            assert (await session.get("large", into)).files == 1
            assert len(await session.entries("", recursive=True)) == 3
            await session.delete("small")
            with pytest.raises(ADTSError):
                await session.stat("small")

    hosts.run_coroutine(send_records_of_most_types())
    names = "HELLO AUTH CHANNEL GET LIST ENTRY DELETE REQUEST_DONE OPEN ACCEPT DATA END DONE ERROR"
    assert {wire.Type[name] for name in names.split()} <= types


def test_a_server_with_as_many_sessions_as_it_permits_refuses_the_next(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siwarp.ulp.adts.server.SESSIONS", 2)

    async def connect_beyond_session_limit() -> None:
        async with await hosts.start_server() as server, AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(await hosts.connect_client())
            with pytest.raises(ADTSError, match="2 sessions, its limit: try again later") as error:
                await hosts.connect_client()
            assert error.value.code == ErrorCode.BUSY
            await stack.aclose()
            while server.sessions:
                await asyncio.sleep(0.1)
            async with await hosts.connect_client() as session:
                await session.stat("")

    hosts.run_coroutine(connect_beyond_session_limit())
