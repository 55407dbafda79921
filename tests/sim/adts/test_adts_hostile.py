"""Clients of an ADTS server that send wrong values, send nothing, or do not finish a handshake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.descriptors import count_open_descriptors
from sim.adts.adts_sim_harness import KEY, LIMITS, B, Hosts, SlowDisk, read_files_below

from siwarp.sim import World
from siwarp.ulp.adts import ADTSError, ErrorCode, Server, Session, endpoints, handshake, wire
from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded
from siwarp.ulp.adts.handshake import Agreement
from siwarp.ulp.adts.session import receive_message, send_message
from siwarp.ulp.adts.wire import UNIT_HEADER_SIZE, Message, Option


@pytest.fixture(name="hosts", params=["rd", "rc"])
def two_simulated_hosts(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Hosts:
    return Hosts(world, tmp_path / "root", request.param)


async def open_session_as_initiator(hosts: Hosts) -> Agreement:
    """Open a session as the initiator; the test then sends the records itself."""
    rendezvous = await endpoints.connect_rendezvous("rc", (B, 18517))
    kinds = handshake.parse_channels([hosts.kind])
    return await handshake.initiate_session(rendezvous, B, KEY, kinds, LIMITS)


async def send_messages_in_one_unit(channel: Channel, *messages: tuple[int, Message]) -> None:
    unit = await channel.take_empty_unit()
    at = UNIT_HEADER_SIZE
    for transfer, message in messages:
        at = message.put(unit.view, at, transfer)
    await channel.send(unit, at)


async def wait_until_sessions_end(server: Server) -> None:
    while server.sessions:
        await asyncio.sleep(0.1)


def make_open_message(path: bytes = b"file", size: int = 10, **more: Any) -> wire.Open:
    return wire.Open(path=path, size=size, mtime_ns=0, mode=0o644, **more)


VIOLATIONS: dict[str, list[tuple[int, Message]]] = {
    "an even id": [(2, make_open_message())],
    "an id twice": [(1, make_open_message()), (1, make_open_message())],
    "an id that decreases": [(3, make_open_message()), (1, wire.List(b""))],
    "data that was not opened": [(9, wire.End(0, b"\0\0\0\0"))],
    "too many open files": [(2 * i + 1, make_open_message(b"%d" % i)) for i in range(65)],
    "a request with an even id": [(4, wire.Get(b"file"))],
    "an answer without a request": [(1, wire.RequestDone(0, 0))],
    "a handshake in a session": [(0, wire.Auth(bytes(32)))],
    "an entry": [(1, wire.Entry(b"a", wire.FileKind.FILE, 0, 0, 0))],
}


@pytest.mark.clause("ADTS-UNIT-5", "ADTS-FILE-1", "ADTS-END-4")
@pytest.mark.parametrize("what", VIOLATIONS)
def test_a_violation_ends_its_session_with_an_error_and_no_other(hosts: Hosts, what: str) -> None:
    async def send_protocol_violation() -> None:
        async with await hosts.start_server() as server, await hosts.connect_client() as honest:
            await honest.stat("")
            before = count_open_descriptors()
            liar = await open_session_as_initiator(hosts)
            await send_messages_in_one_unit(liar.channel, *VIOLATIONS[what])
            with pytest.raises(ADTSError) as error:
                while True:
                    await receive_message(liar.channel)
            assert error.value.code == ErrorCode.PROTOCOL
            liar.channel.abort("the end of the test")
            liar.rendezvous.abort("the end of the test")
            while server.sessions > 1:
                await asyncio.sleep(0.1)
            assert (await honest.put(b"x", "honest")).failures == []
            for _ in range(100):  # the device is closed some time after its last channel
                if count_open_descriptors() <= before:
                    break
                await asyncio.sleep(0.1)
            assert count_open_descriptors() <= before

    hosts.run_coroutine(send_protocol_violation())
    assert "honest" in read_files_below(hosts.root)


@pytest.mark.clause("ADTS-HELLO-4")
def test_a_peer_that_sends_nothing_or_half_a_handshake_is_closed_after_10_s(hosts: Hosts) -> None:
    async def send_part_and_wait_for_end(say: Callable[[Channel], Awaitable[None]]) -> None:
        rendezvous = await endpoints.connect_rendezvous("rc", (B, 18517))
        began = hosts.world.now
        await say(rendezvous)
        with pytest.raises((ADTSError, ChannelEnded)):
            while True:
                await receive_message(rendezvous)
        assert 9 <= hosts.world.now - began <= 12
        rendezvous.abort("the end of the test")

    async def stay_silent(rendezvous: Channel) -> None:
        pass

    async def send_hello(rendezvous: Channel) -> None:
        await send_message(rendezvous, handshake._make_hello((wire.ChannelKind.RD,), LIMITS, 8))

    async def stop_before_authentication_proof() -> None:
        async with await hosts.start_server() as server:
            await asyncio.gather(
                send_part_and_wait_for_end(stay_silent), send_part_and_wait_for_end(send_hello)
            )
            assert server.sessions == 0

    hosts.run_coroutine(stop_before_authentication_proof())


def test_a_peer_that_proves_the_key_and_opens_no_channel_is_closed(hosts: Hosts) -> None:
    async def complete_handshake_and_open_no_channel() -> None:
        async with await hosts.start_server() as server:
            rendezvous = await endpoints.connect_rendezvous("rc", (B, 18517))
            kinds = handshake.parse_channels([hosts.kind])
            await handshake._prove_and_verify(rendezvous, KEY, kinds, LIMITS)
            assert server.sessions == 1
            await wait_until_sessions_end(server)
            assert hosts.world.now < 40
            rendezvous.abort("the end of the test")

    hosts.run_coroutine(complete_handshake_and_open_no_channel())


@pytest.mark.clause("ADTS-CHAN-3")
def test_if_a_channel_does_not_open_the_next_one_is_used(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"rd": "rc", "rc": "rd"}[hosts.kind]
    open_channel = handshake.open_channel

    async def open_channel_unless_blocked_kind(kind: Any, *rest: Any) -> Channel:
        if kind == hosts.kind:
            await asyncio.sleep(3)
            raise ChannelEnded("the network drops its packets", Cause.TIMEOUT)
        return await open_channel(kind, *rest)

    monkeypatch.setattr(handshake, "open_channel", open_channel_unless_blocked_kind)

    async def connect_over_other_channel_kind() -> None:
        both = [hosts.kind, other]
        async with (
            await hosts.start_server(channels=["rd", "rc"]),
            await hosts.connect_client(channels=both) as session,
        ):
            assert session.channel == other
            assert "the network drops its packets" in session.refused[0]
            assert (await session.put(b"x", "file")).files == 1

    hosts.run_coroutine(connect_over_other_channel_kind())


@pytest.mark.clause("ADTS-END-3")
def test_a_session_that_stops_in_the_middle_of_a_file_is_closed_and_the_file_kept(
    hosts: Hosts,
) -> None:
    async def stop_in_the_middle_of_a_file() -> None:
        async with await hosts.start_server() as server:
            liar = await open_session_as_initiator(hosts)
            await send_messages_in_one_unit(
                liar.channel,
                (1, make_open_message(size=300_000, options=Option.RESUME)),
                (1, wire.Hole(0, 1000)),
            )
            await wait_until_sessions_end(server)
            assert 110 <= hosts.world.now <= 130
            for end in (liar.channel, liar.rendezvous):
                end.abort("the end of the test")

    hosts.run_coroutine(stop_in_the_middle_of_a_file())
    ((name, octets),) = read_files_below(hosts.root).items()
    assert name.startswith(".file.adts-") and octets == bytes(1000)
    assert "has not answered for 120 s" in hosts.events[-1]


def test_more_than_256_waiting_requests_are_refused_and_the_others_answered(hosts: Hosts) -> None:
    async def send_too_many_requests() -> list[wire.Message]:
        async with await hosts.start_server():
            liar = await open_session_as_initiator(hosts)
            await send_messages_in_one_unit(
                liar.channel, *((2 * i + 1, wire.List(b"")) for i in range(300))
            )
            answers: list[wire.Message] = []
            while len(answers) < 300:
                received = await liar.channel.receive()
                messages = map(wire.parse_message, wire.parse_records(received.view))
                answers += [m for m in messages if not isinstance(m, wire.Entry)]
                received.release()
            for end in (liar.channel, liar.rendezvous):
                end.abort("the end of the test")
            return answers

    answers = hosts.run_coroutine(send_too_many_requests())
    refused = [m for m in answers if isinstance(m, wire.Error)]
    assert {m.code for m in refused} == {ErrorCode.BUSY}
    assert len(refused) == 300 - 256


def test_when_receives_run_out_the_sessions_that_have_sent_most_are_paused(hosts: Hosts) -> None:
    async def check_that_busiest_sessions_are_paused() -> None:
        async with await hosts.start_server() as server:
            liars = [await open_session_as_initiator(hosts) for _ in range(3)]
            for i, liar in enumerate(liars):
                opened = make_open_message(b"%d" % i, size=1 << 20)
                await send_messages_in_one_unit(liar.channel, (1, opened))
                assert await receive_message(liar.channel) == [wire.Accept()]
                for at in range((2 - i) * 50):
                    await send_messages_in_one_unit(liar.channel, (1, wire.Hole(at, 1)))
            await asyncio.sleep(1)
            for is_scarce, message in ((True, wire.Pause()), (False, wire.Resume())):
                server._pause_or_resume_busiest_sessions(is_scarce)
                for liar in liars[:2]:
                    assert await receive_message(liar.channel) == [message]
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(receive_message(liars[2].channel), 1)
            for liar in liars:
                for end in (liar.channel, liar.rendezvous):
                    end.abort("the end of the test")

    hosts.run_coroutine(check_that_busiest_sessions_are_paused())


def test_sessions_that_are_paused_because_receives_run_out_complete_their_files(
    hosts: Hosts,
) -> None:
    paused: set[int] = set()

    async def put_to_slow_disk(session: Session, number: int) -> None:
        handle = session._exchange._handle_record

        def note_pause_and_handle_record(record: wire.Record) -> bool:
            if record.type == wire.Type.PAUSE:
                paused.add(number)
            return handle(record)

        session._exchange._handle_record = note_pause_and_handle_record  # type: ignore[method-assign]
        assert (await session.put(bytes(range(256)) * 1200, f"{number}")).failures == []

    async def put_over_24_sessions_to_slow_disk() -> None:
        async with await hosts.start_server() as server, AsyncExitStack() as stack:
            server.make_disk = lambda: SlowDisk(0.5)
            sessions = [
                await stack.enter_async_context(await hosts.connect_client()) for _ in range(24)
            ]
            await asyncio.gather(*(put_to_slow_disk(one, i) for i, one in enumerate(sessions)))

    hosts.run_coroutine(put_over_24_sessions_to_slow_disk())
    assert paused
    assert set(read_files_below(hosts.root).values()) == {bytes(range(256)) * 1200}
