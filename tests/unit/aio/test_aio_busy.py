"""RC in asyncio with peers that are busy, that do not read, or that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import pytest
from pace import scale_limit
from unit.aio.aio_harness import (
    LOOPBACK,
    connected_endpoints,
    run_in_event_loop,
    wait_until_async,
)

from siwarp import PeerGone, ProtocolError, RemoteBuffer, aio


@pytest.mark.parametrize(
    ("count", "size", "busy"),
    [
        (40, 10, 0.3),
        (40, 0, 0.3),
        (2000, 1, 0.3),
        (40, 65536, 0.3),
        (200, 65536, 0.3),
        (200, 65536, 3.0),
        (8, 1 << 20, 0.3),
    ],
)
def test_messages_to_a_busy_server_arrive_completely_and_in_order(
    count: int, size: int, busy: float
) -> None:
    async def send_to_busy_server_and_check_messages() -> None:
        async with connected_endpoints(recv_size=max(size, 65536)) as (a, b):

            async def send_messages() -> None:
                for i in range(count):
                    await a.send(bytes([i & 0xFF]) * size)
                # close() does not wait, but data already sent arrives.
                await a.close()

            sending = asyncio.create_task(send_messages())
            await asyncio.sleep(busy)
            got = [message async for message in b]
            await sending
            assert len(got) == count
            assert all(message == bytes([i & 0xFF]) * size for i, message in enumerate(got))

    run_in_event_loop(send_to_busy_server_and_check_messages)


def test_a_server_that_handles_messages_slowly_receives_all_messages() -> None:
    async def receive_slowly_and_check_messages() -> None:
        async with connected_endpoints(recv_depth=2) as (a, b):

            async def send_messages() -> None:
                await asyncio.gather(*(a.send(b"%d" % i) for i in range(100)))
                await a.close()

            sending = asyncio.create_task(send_messages())
            got = []
            async for message in b:
                got.append(int(message))
                await asyncio.sleep(0.005)
            await sending
            assert sorted(got) == list(range(100))

    run_in_event_loop(receive_slowly_and_check_messages)


def test_a_send_to_a_peer_that_does_not_read_blocks_until_its_time_out() -> None:
    async def send_until_time_out_and_receive_all() -> None:
        limit = scale_limit(0.5)
        async with connected_endpoints() as (a, b):
            sent = 0
            with pytest.raises(asyncio.TimeoutError):
                while True:
                    await asyncio.wait_for(a.send(bytes(65536)), limit)
                    sent += 1
            # The receives, the staging buffer and the socket buffers hold this many messages.
            assert 16 <= sent < 2000
            # After the time-out, the connection still works and queued data is not lost.
            for _ in range(sent + 1):
                assert await b.recv() == bytes(65536)
            await a.send(b"and on")
            assert await b.recv() == b"and on"

    run_in_event_loop(send_until_time_out_and_receive_all)


PEER_PROGRAM = """
import asyncio, sys
from siwarp import aio

async def connect_and_send_or_stay_silent():
    conn = await aio.connect(("127.0.0.1", int(sys.argv[1])))
    if sys.argv[2] == "sends":
        while True:
            await conn.send(bytes(60_000))
    await asyncio.sleep(600)

asyncio.run(connect_and_send_or_stay_silent())
"""


@contextlib.asynccontextmanager
async def connected_peer_process(
    what: str,
) -> AsyncIterator[tuple[aio.Connection, asyncio.subprocess.Process]]:
    """Provide a connection to a process that sends without end or does not read.

    The process sends if ``what`` is "sends".
    """
    async with aio.listen(LOOPBACK) as listener:
        port = str(listener.address[1])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PEER_PROGRAM, port, what
        )
        try:
            async with await listener.accept() as conn:
                yield conn, process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def test_a_blocked_send_fails_when_the_peer_is_killed() -> None:
    async def send_until_killed_peer_is_noticed() -> None:
        async with connected_peer_process("takes nothing") as (conn, peer):
            asyncio.get_running_loop().call_later(1, peer.kill)
            with pytest.raises(PeerGone):
                while True:
                    await conn.send(bytes(65536))

    run_in_event_loop(send_until_killed_peer_is_noticed)


def test_messages_of_a_killed_peer_are_received_before_the_disconnect() -> None:
    async def receive_messages_of_killed_peer() -> None:
        async with connected_peer_process("sends") as (conn, peer):
            await wait_until_async(lambda: len(conn._inbox.items) >= 16)
            peer.kill()
            await peer.wait()
            got = 0
            with pytest.raises(PeerGone):
                while True:
                    assert await conn.recv() == bytes(60_000)
                    got += 1
            assert got >= 16

    run_in_event_loop(receive_messages_of_killed_peer)


def test_iterating_over_messages_raises_the_error_of_a_failed_connection() -> None:
    async def cause_protocol_error_while_iterating() -> None:
        async with connected_endpoints() as (a, b):
            there = b.register(100).remote()

            async def receive_all(conn: aio.Connection) -> None:
                async for _ in conn:
                    pass

            both = [asyncio.create_task(receive_all(conn)) for conn in (a, b)]
            with pytest.raises(ProtocolError):
                await a.write(RemoteBuffer(there.addr, 100, there.rkey ^ 0x100), b"x" * 100)
                await asyncio.gather(*both)
            for task in both:
                with pytest.raises(ProtocolError):
                    await task

    run_in_event_loop(cause_protocol_error_while_iterating)


def test_a_message_longer_than_a_receive_raises_an_error_when_iterating() -> None:
    async def send_message_longer_than_receive() -> None:
        async with connected_endpoints(recv_size=100) as (a, b):
            await a.send(b"short")
            with contextlib.suppress(PeerGone, ProtocolError):
                await a.send(bytes(101))
            got = []
            with pytest.raises(OSError) as caught:
                async for message in b:
                    got.append(message)
            assert got == [b"short"] and not isinstance(caught.value, asyncio.TimeoutError)

    run_in_event_loop(send_message_longer_than_receive)
