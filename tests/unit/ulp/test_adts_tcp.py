"""The TCP channel on real sockets: it carries units and files, and survives cancelled calls."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from harness.descriptors import count_open_descriptors
from unit.aio.aio_harness import LIMIT, run_in_event_loop

from siwarp.ulp.adts import ADTSError, ErrorCode, Key, channel_tcp, client, handshake
from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded
from siwarp.ulp.adts.channel_tcp import (
    SILENCE_S,
    UNITS,
    TCPChannel,
    connect_tcp_channel,
    listen_tcp,
)
from siwarp.ulp.adts.endpoints import use_rendezvous_as_channel
from siwarp.ulp.adts.wire import (
    RECORD_HEADER_SIZE,
    UNIT_HEADER_SIZE,
    parse_records,
    put_data_header,
    put_unit_header,
)

UNIT = 65536
START = UNIT_HEADER_SIZE + RECORD_HEADER_SIZE


@asynccontextmanager
async def open_channel_pair(unit: int = UNIT) -> AsyncIterator[tuple[TCPChannel, TCPChannel]]:
    accepted: asyncio.Queue[TCPChannel] = asyncio.Queue()
    listener = await listen_tcp(("127.0.0.1", 0), accepted.put_nowait)
    a = await connect_tcp_channel(listener.address, 10)
    b = await accepted.get()
    await listener.close()
    for channel in (a, b):
        use_rendezvous_as_channel(channel, unit)
    try:
        yield a, b
    finally:
        await asyncio.gather(a.close(), b.close())


@asynccontextmanager
async def open_channel_to_raw_socket() -> AsyncIterator[tuple[socket.socket, TCPChannel]]:
    accepted: asyncio.Queue[TCPChannel] = asyncio.Queue()
    listener = await listen_tcp(("127.0.0.1", 0), accepted.put_nowait)
    with socket.create_connection(listener.address) as raw:
        channel = await accepted.get()
        await listener.close()
        yield raw, channel
        channel.abort("the test has ended")


async def send_unit(channel: Channel, number: int, octets: bytes) -> None:
    unit = await channel.take_empty_unit()
    unit.view[START : START + len(octets)] = octets
    length = put_data_header(
        unit.view, UNIT_HEADER_SIZE, transfer=number, offset=0, length=len(octets)
    )
    await channel.send(unit, length)


async def receive_unit(channel: Channel) -> tuple[int, bytes]:
    received = await channel.receive()
    (record,) = parse_records(received.view)
    got = record.transfer, bytes(record.body)
    record.body.release()
    received.release()
    return got


def test_units_of_all_sizes_arrive_in_order() -> None:
    sizes = [0, 1, 100, 5000, UNIT - START] * 20

    async def send_units_of_all_sizes() -> None:
        async with open_channel_pair() as (a, b):

            async def send_all_units() -> None:
                for number, size in enumerate(sizes):
                    await send_unit(a, number, bytes([number]) * size)

            sending = asyncio.create_task(send_all_units())
            for number, size in enumerate(sizes):
                assert await receive_unit(b) == (number, bytes([number]) * size)
            await sending
            assert a.sent_octets == b.received_octets

    run_in_event_loop(send_units_of_all_sizes)


def test_a_reader_that_holds_its_units_stops_the_sender() -> None:
    async def receive_and_hold_units() -> None:
        async with open_channel_pair() as (a, b):
            sent = 0

            async def send_1000_units() -> None:
                nonlocal sent
                for number in range(1000):
                    await send_unit(a, number, bytes(UNIT - START))
                    sent += 1

            sending = asyncio.create_task(send_1000_units())
            held = [await b.receive() for _ in range(UNITS)]
            assert b.receive_nowait() is None
            while not a._writers:  # the sender waits when the buffers of the sockets are full
                await asyncio.sleep(0)
            assert sent < 1000
            for received in held:
                received.release()
            for number in range(UNITS, 1000):
                assert (await receive_unit(b))[0] == number
            await sending

    run_in_event_loop(receive_and_hold_units)


def test_a_paused_channel_reads_nothing() -> None:
    async def pause_and_resume_reading() -> None:
        async with open_channel_pair() as (a, b):
            b.pause_granting_credits()
            await send_unit(a, 1, b"x")
            for _ in range(5):  # let the event loop poll the socket, whose buffer has the octets
                await asyncio.sleep(0)
            assert b.receive_nowait() is None
            b.resume_granting_credits()
            assert await receive_unit(b) == (1, b"x")

    run_in_event_loop(pause_and_resume_reading)


def test_keepalive_ends_a_connection_and_no_limit_applies_while_a_peer_takes_no_data() -> None:
    async def check_keepalive_options() -> None:
        async with open_channel_pair() as (a, _):

            def socket_option(name: int) -> int:
                return a._sock.getsockopt(socket.IPPROTO_TCP, name)

            probes = socket_option(socket.TCP_KEEPCNT) * socket_option(socket.TCP_KEEPINTVL)
            assert socket_option(socket.TCP_KEEPIDLE) + probes == SILENCE_S
            # With TCP_USER_TIMEOUT, Linux would end the connection while a paused peer reads
            # nothing, which it may do for 600 s.
            assert socket_option(socket.TCP_USER_TIMEOUT) == 0

    run_in_event_loop(check_keepalive_options)


def test_a_peer_that_closes_between_units_ends_the_channel_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # close() must not wait for its time limit, which is longer than that of the test.
    monkeypatch.setattr(channel_tcp, "CLOSE_S", 2 * LIMIT)

    async def close_after_last_unit() -> None:
        async with open_channel_pair() as (a, b):
            await send_unit(a, 1, b"last")
            closing = asyncio.create_task(a.close())
            assert await receive_unit(b) == (1, b"last")
            with pytest.raises(ChannelEnded, match="has closed the connection") as error:
                await b.receive()
            assert error.value.cause is Cause.PEER_CLOSED
            await b.close()
            await closing

    run_in_event_loop(close_after_last_unit)


def build_empty_unit(length: int) -> bytes:
    unit = memoryview(bytearray(length))
    put_unit_header(unit, length)
    return bytes(unit)


@pytest.mark.parametrize(
    ("octets", "cause", "words"),
    [
        (build_empty_unit(100)[:99], Cause.LOST, "in the middle of a unit"),
        (build_empty_unit(100) + build_empty_unit(50)[:10], Cause.LOST, "in the middle of a unit"),
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", Cause.PROTOCOL, "not with"),
        pytest.param(
            build_empty_unit(2049)[:24],
            Cause.PROTOCOL,
            "2049 octets",
            marks=pytest.mark.clause("ADTS-HELLO-4"),
        ),
    ],
)
def test_a_connection_that_ends_wrongly_says_why(octets: bytes, cause: Cause, words: str) -> None:
    async def send_and_close() -> None:
        async with open_channel_to_raw_socket() as (raw, channel):
            raw.sendall(octets)
            raw.close()
            with pytest.raises(ChannelEnded, match=words) as error:
                while True:
                    (await channel.receive()).release()
            assert error.value.cause is cause
            with pytest.raises(ChannelEnded, match=words):
                await channel.take_empty_unit()

    run_in_event_loop(send_and_close)


@pytest.mark.clause("ADTS-CHAN-6")
def test_counts_of_credits_are_sent_as_0_and_ignored() -> None:
    async def exchange_units_with_raw_socket() -> None:
        async with open_channel_to_raw_socket() as (raw, channel):
            unit = memoryview(bytearray(100))
            for granted, returned in ((5, 7), (0, 0), (3, 1 << 31)):
                put_unit_header(unit, 100, granted, returned)
                raw.sendall(unit)
                received = await channel.receive()
                assert received.view == unit
                received.release()
            await send_unit(channel, 1, b"octets")
            header = raw.recv(UNIT_HEADER_SIZE, socket.MSG_WAITALL)
            assert header[12:20] == bytes(8)

    run_in_event_loop(exchange_units_with_raw_socket)


def test_a_reset_ends_waiting_tasks() -> None:
    async def reset_while_channel_sends() -> None:
        async with open_channel_to_raw_socket() as (raw, channel):

            async def send_until_end() -> None:
                while True:
                    unit = await channel.take_empty_unit()
                    await channel.send(unit, 2048)

            sending = asyncio.create_task(send_until_end())
            reading = asyncio.create_task(channel.receive())
            while not channel.sent_octets:
                await asyncio.sleep(0)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.close()
            for task in (sending, reading):
                with pytest.raises(ChannelEnded, match="broke") as error:
                    await task
                assert error.value.cause is Cause.LOST

    run_in_event_loop(reset_while_channel_sends)


def test_connecting_without_a_listener_says_so() -> None:
    async def connect_without_listener() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = unused.getsockname()
            with pytest.raises(ChannelEnded, match="start the server") as error:
                await connect_tcp_channel(address, 10)
            assert error.value.cause is Cause.REFUSED
        with pytest.raises(ChannelEnded, match="correct the name") as error:
            await connect_tcp_channel(("name.invalid", 1), 10)
        assert error.value.cause is Cause.REFUSED

    run_in_event_loop(connect_without_listener)


def test_a_server_that_accepts_and_answers_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.01)

    async def connect_to_silent_server() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            key = Key(bytes(32))
            with pytest.raises(ADTSError, match="is `siwarp serve` running there") as error:
                await client.connect(silent.getsockname(), key=key)
            assert error.value.code == ErrorCode.TIMEOUT

    run_in_event_loop(connect_to_silent_server)


def test_a_cancelled_send_ends_the_channel_only_in_mid_unit() -> None:
    async def cancel_receive_and_send() -> None:
        async with open_channel_pair(1 << 20) as (a, b):
            reading = asyncio.create_task(b.receive())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await send_unit(a, 1, b"x")
            assert await receive_unit(b) == (1, b"x")
            b.pause_granting_credits()

            async def send_large_units() -> None:
                while True:
                    await send_unit(a, 2, bytes((1 << 20) - START))

            sending = asyncio.create_task(send_large_units())
            while not a._writers:  # the sender waits when the buffers of the sockets are full
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            with pytest.raises(ChannelEnded, match="when its task was cancelled"):
                await a.take_empty_unit()

    run_in_event_loop(cancel_receive_and_send)


def test_channels_leave_no_descriptor() -> None:
    async def open_and_close_five_pairs() -> None:
        before = count_open_descriptors()
        for _ in range(5):
            async with open_channel_pair() as (a, b):
                await send_unit(a, 1, b"x")
                assert await receive_unit(b) == (1, b"x")
        assert count_open_descriptors() == before

    run_in_event_loop(open_and_close_five_pairs)
