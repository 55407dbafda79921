"""Many connections in one event loop, each with one socket; tests/sim tests thousands."""

from __future__ import annotations

import asyncio
import contextlib

from harness.descriptors import count_open_descriptors
from unit.aio.aio_harness import (
    LOOPBACK,
    cancel_and_wait,
    run_in_event_loop,
    settled_thread_count,
    thread_count_falls_to,
    wait_until_async,
)

from siwarp import PeerGone, aio

CONNECTIONS = 100
CONCURRENT_CONNECTS = 10


async def echo_reversed(conn: aio.Connection) -> None:
    with contextlib.suppress(PeerGone):
        async with conn:
            async for message in conn:
                await conn.send(message[::-1])


class EchoServer:
    """An echo server that reverses messages, with a task for each connection."""

    def __init__(self, listener: aio.Listener) -> None:
        self.serving: set[asyncio.Task[None]] = set()
        self.accepting = asyncio.create_task(self._accept_connections(listener))

    async def _accept_connections(self, listener: aio.Listener) -> None:
        async for conn in listener:
            task = asyncio.create_task(echo_reversed(conn))
            self.serving.add(task)
            task.add_done_callback(self.serving.discard)

    async def close(self) -> None:
        await cancel_and_wait(self.accepting)
        await wait_until_async(lambda: not self.serving)


def test_many_connections_exchange_messages_in_one_event_loop() -> None:
    async def exchange_over_many_connections() -> None:
        small = {"recv_size": 64, "recv_depth": 2}
        async with aio.listen(LOOPBACK, **small) as listener:
            server = EchoServer(listener)
            gate = asyncio.Semaphore(CONCURRENT_CONNECTS)
            before, working = count_open_descriptors(), settled_thread_count()

            async def connect_client(n: int) -> aio.Connection:
                async with gate:
                    return await aio.connect(
                        listener.address, private_data=b"%d" % n, recv_size=64, recv_depth=2
                    )

            clients = await asyncio.gather(*(connect_client(n) for n in range(CONNECTIONS)))
            assert count_open_descriptors() - before == 2 * CONNECTIONS
            assert thread_count_falls_to(working)
            for text in (b"abc", b"defg"):
                await asyncio.gather(*(client.send(text) for client in clients))
                got = await asyncio.gather(*(client.recv() for client in clients))
                assert got == [text[::-1]] * CONNECTIONS
            for client in clients:
                await client.close()
            await server.close()
            await wait_until_async(lambda: count_open_descriptors() == before)

    fds_before, threads_before = count_open_descriptors(), settled_thread_count()
    run_in_event_loop(exchange_over_many_connections)
    assert count_open_descriptors() == fds_before and thread_count_falls_to(threads_before)
