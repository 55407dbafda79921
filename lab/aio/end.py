# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The server or client process of ``python -m lab.aio``: ``server WAY N`` or ``client WAY ...``.

The server returns each message, on N connections, and prints its port. The client has N connections
and one task for each connection; a task repeatedly sends a message and waits until the server has
returned the message. The client prints the seconds that all tasks took together.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable

from lab.aio.rates import LIMIT_S
from siwarp import aio
from siwarp.verbs import PeerGone

__all__ = ["AT_ONCE"]

HOST = "127.0.0.1"
#: Limit of concurrent connection attempts; further attempts wait.
AT_ONCE = 64

RoundTrip = Callable[[bytes], Awaitable[object]]


def _raise_open_file_limit() -> None:
    """Raise the limit of open files to the hard limit, which needs no root."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _EndedConnections:
    """A counter of connections that have ended; ``none_left`` is set when all ``n`` have ended."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.none_left = asyncio.Event()

    def note_ended_connection(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.none_left.set()


async def _serve_asyncio_streams(n: int, size: int) -> None:
    ends = _EndedConnections(n)

    async def echo_messages(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(await reader.readexactly(size))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
        finally:
            ends.note_ended_connection()

    server = await asyncio.start_server(echo_messages, HOST, 0, backlog=AT_ONCE)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ends.none_left.wait()
    server.close()


async def _serve_siwarp_connections(n: int, _size: int) -> None:
    ends = _EndedConnections(n)
    tasks = set()

    async def echo_messages(conn: aio.Connection) -> None:
        try:
            async with conn:
                async for message in conn:
                    await conn.send(message)
        except PeerGone:
            pass
        finally:
            ends.note_ended_connection()

    async with aio.listen((HOST, 0)) as listener:
        print(listener.address[1], flush=True)

        async def accept_connections() -> None:
            async for conn in listener:
                task = asyncio.create_task(echo_messages(conn))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        taking = asyncio.create_task(accept_connections())
        await ends.none_left.wait()
        taking.cancel()


async def _open_stream(port: int) -> tuple[RoundTrip, Callable[[], Awaitable[object]]]:
    reader, writer = await asyncio.open_connection(HOST, port)

    async def exchange_message(message: bytes) -> bytes:
        writer.write(message)
        await writer.drain()
        return await reader.readexactly(len(message))

    async def close_stream() -> None:
        writer.close()
        await writer.wait_closed()

    return exchange_message, close_stream


async def _open_connection(port: int) -> tuple[RoundTrip, Callable[[], Awaitable[object]]]:
    conn = await aio.connect((HOST, port))

    async def exchange_message(message: bytes) -> bytes:
        await conn.send(message)
        return await conn.recv()

    return exchange_message, conn.close


async def _run_client(way: str, port: int, n: int, size: int, trips: int) -> float:
    open_one = {"streams": _open_stream, "siwarp": _open_connection}[way]
    some = asyncio.Semaphore(AT_ONCE)

    async def open_next_connection() -> tuple[RoundTrip, Callable[[], Awaitable[object]]]:
        async with some:
            return await open_one(port)

    ways = await asyncio.gather(*(open_next_connection() for _ in range(n)))
    message = bytes(size)

    async def make_round_trips(exchange_message: RoundTrip) -> None:
        for _ in range(trips):
            await exchange_message(message)

    began = time.perf_counter()
    await asyncio.gather(*(make_round_trips(exchange_message) for exchange_message, _ in ways))
    took = time.perf_counter() - began
    for _, close in ways:
        await close()
    return took


def main(words: list[str]) -> int:
    """Run as the server or the client; return 1 and print the reason on failure."""
    role, way, *rest = words
    numbers = [int(word) for word in rest]
    _raise_open_file_limit()
    serve = {"streams": _serve_asyncio_streams, "siwarp": _serve_siwarp_connections}[way]
    try:
        if role == "server":
            asyncio.run(asyncio.wait_for(serve(*numbers), LIMIT_S))
        else:
            took = asyncio.run(asyncio.wait_for(_run_client(way, *numbers), LIMIT_S))
            print(json.dumps(took))
    except (OSError, asyncio.TimeoutError) as e:
        print(str(e) or f"not finished within {LIMIT_S} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
