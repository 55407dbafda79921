"""Many connections in one loop: one socket each and no thread; tests/sim has thousands."""

from __future__ import annotations

import asyncio
import contextlib

from unit.aio.aio_harness import (
    LOOPBACK,
    fds,
    gone,
    no_more_threads_than,
    run,
    threads,
    until,
)

from siwarp import PeerGone, aio

CONNECTIONS = 100
AT_ONCE = 10


async def serve(conn: aio.Connection) -> None:
    with contextlib.suppress(PeerGone):
        async with conn:
            async for message in conn:
                await conn.send(message[::-1])


class Server:
    """An echo server that reverses messages, with a task for each connection."""

    def __init__(self, listener: aio.Listener) -> None:
        self.serving: set[asyncio.Task[None]] = set()
        self.accepting = asyncio.create_task(self._accept(listener))

    async def _accept(self, listener: aio.Listener) -> None:
        async for conn in listener:
            task = asyncio.create_task(serve(conn))
            self.serving.add(task)
            task.add_done_callback(self.serving.discard)

    async def close(self) -> None:
        await gone(self.accepting)
        await until(lambda: not self.serving)


def test_many_connections_talk_in_one_loop() -> None:
    async def main() -> None:
        small = {"recv_size": 64, "recv_depth": 2}
        async with aio.listen(LOOPBACK, **small) as listener:
            server = Server(listener)
            gate = asyncio.Semaphore(AT_ONCE)
            before, working = fds(), threads()

            async def dial(n: int) -> aio.Connection:
                async with gate:
                    return await aio.connect(
                        listener.address, private_data=b"%d" % n, recv_size=64, recv_depth=2
                    )

            clients = await asyncio.gather(*(dial(n) for n in range(CONNECTIONS)))
            assert fds() - before == 2 * CONNECTIONS
            assert no_more_threads_than(working)
            for text in (b"abc", b"defg"):
                await asyncio.gather(*(client.send(text) for client in clients))
                got = await asyncio.gather(*(client.recv() for client in clients))
                assert got == [text[::-1]] * CONNECTIONS
            for client in clients:
                await client.close()
            await server.close()
            await until(lambda: fds() == before)

    fds_before, threads_before = fds(), threads()
    run(main)
    assert fds() == fds_before and no_more_threads_than(threads_before)
