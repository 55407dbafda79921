"""Thousands of connections in one loop, and a storm of cancelling, after which nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
from collections.abc import Iterator

import pytest
from pace import slowness
from unit.aio.aio_harness import (
    LOOPBACK,
    SANITIZED,
    fds,
    gone,
    no_more_threads_than,
    run,
    threads,
    until,
)

from siwarp import Error, PeerGone, aio
from siwarp.aio import listener as listening
from siwarp.cli.settings import settings

#: Under a sanitizer everything takes ten times as long.
CONNECTIONS = 150 if SANITIZED else 2000
AT_ONCE = 100
LIMIT = 120.0


@pytest.fixture
def many_fds() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * CONNECTIONS + 300
    assert hard >= needed, f"this test needs `ulimit -Hn` of {needed}, and it is {hard}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def serve(conn: aio.Connection) -> None:
    with contextlib.suppress(PeerGone):
        async with conn:
            async for message in conn:
                await conn.send(message[::-1])


class Server:
    """Echoes backwards, a task for each connection."""

    def __init__(self, listener: aio.Listener) -> None:
        self.serving: set[asyncio.Task[None]] = set()
        self.accepting = asyncio.create_task(self._accept(listener))

    async def _accept(self, listener: aio.Listener) -> None:
        async for conn in listener:
            task = asyncio.create_task(serve(conn))
            self.serving.add(task)
            task.add_done_callback(self.serving.discard)

    async def close(self, limit: float) -> None:
        await gone(self.accepting)
        await until(lambda: not self.serving, limit)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """How long to wait for everything, where starting connections has as much more time, too.

    An end that is not served in time is given up, as is right; on a busy machine the one loop that
    serves both ends may come to it late.
    """
    times = slowness()
    monkeypatch.setattr(listening, "START_UP_S", listening.START_UP_S * times)
    (timeout,) = (setting for setting in settings() if setting.name == "mpa_timeout_ms")
    assert timeout.set(str(int(timeout.value * times)))
    yield LIMIT * times
    assert timeout.set(str(timeout.value))


@pytest.mark.usefixtures("many_fds")
@pytest.mark.scales
@pytest.mark.timeout(300)
def test_thousands_of_connections_talk_in_one_loop(patience: float) -> None:
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
            await server.close(patience)
            await until(lambda: fds() == before, patience)

    fds_before, threads_before = fds(), threads()
    run(main, patience)
    assert fds() == fds_before and no_more_threads_than(threads_before)


@pytest.mark.scales
@pytest.mark.timeout(300)
def test_a_storm_of_cancelling_leaves_nothing_behind(patience: float) -> None:
    rng = random.Random(11)

    async def one_life(address: tuple[str, int], end: aio.UDEndpoint) -> None:
        async with aio.connect(address) as conn:
            memory = conn.register(64)
            for size in (10, 1000, 100_000):
                with contextlib.suppress(PeerGone):
                    await conn.send(bytes(min(size, 60_000)))
                    await conn.recv()
                    await end.send(bytes(100), end.address)
            assert memory.length == 64
            await end.recv()

    async def main() -> None:
        async with aio.listen(LOOPBACK) as listener, aio.open_ud() as end:
            server = Server(listener)
            await one_life(listener.address, end)
            await until(lambda: not server.serving)
            before, working = fds(), threads()
            for _ in range(4 if SANITIZED else 12):
                lives = [asyncio.create_task(one_life(listener.address, end)) for _ in range(20)]
                for life in rng.sample(lives, len(lives)):
                    await asyncio.sleep(rng.random() * 0.004)
                    life.cancel()
                await asyncio.wait(lives)
                for life in lives:
                    if not life.cancelled():
                        assert life.exception() is None or isinstance(life.exception(), Error)
            await until(lambda: not server.serving)
            await server.close(patience)
            await until(lambda: fds() == before, patience)
            assert no_more_threads_than(working)

    fds_before, threads_before = fds(), threads()
    run(main, patience)
    assert fds() == fds_before and no_more_threads_than(threads_before)
