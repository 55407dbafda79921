"""siwarp.aio connections in a simulated network: exact times, cancellation, crashes, thousands."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest
from harness.descriptors import count_open_descriptors
from sim.seeded_program import check_that_a_seed_determines_the_run

from siwarp import Error, PeerGone, RemoteBuffer, aio
from siwarp.sim import World
from siwarp.verbs import Context

A, B = "10.0.0.1", "10.0.0.2"
PORT = 7000


@pytest.fixture(name="hosts")
def two_simulated_hosts(world: World) -> tuple[Context, Context]:
    """Two hosts with a packet delay of 10 ms."""
    world.faults("delay=10ms")
    return world.device(A), world.device(B)


@contextlib.asynccontextmanager
async def connection_pair(**more: int) -> AsyncIterator[tuple[aio.Connection, aio.Connection]]:
    """Yield both ends of a connection, the connecting end first."""
    async with aio.listen((B, PORT), **more) as listener:
        accepting = asyncio.create_task(listener.accept())
        async with aio.connect((B, PORT), **more) as a, await accepting as b:
            yield a, b


@pytest.mark.usefixtures("hosts")
def test_asyncio_connecting_takes_two_round_trips_and_a_message_half_a_round_trip(
    world: World,
) -> None:
    async def connect_and_send() -> None:
        async with aio.listen((B, PORT)) as listener:
            accepting = asyncio.create_task(listener.accept(b"welcome"))
            async with aio.connect((B, PORT), private_data=b"hello") as a:
                assert world.now == 0.04
                assert (a.private_data, a.peer) == (b"welcome", (B, PORT))
                async with await accepting as b:
                    assert world.now == 0.05
                    assert b.private_data == b"hello"
                    await a.send(b"one")
                    assert await b.recv() == b"one"
                    assert world.now == 0.06

    world.run(connect_and_send())


def test_asyncio_connections_access_memory_of_the_peer_over_an_unreliable_network(
    world: World,
) -> None:
    world.faults("loss=3%,reorder=3%,delay=5ms,jitter=2ms")
    for address in (A, B):
        world.device(address)
    octets = bytes(range(256)) * 1024

    async def write_and_read_peer_memory() -> None:
        async with connection_pair() as (a, b):
            mr = b.register(len(octets))
            await b.send(mr.remote().pack())
            remote = RemoteBuffer.unpack(await a.recv())
            await a.write(remote, octets)
            assert await a.read(remote) == octets
            assert bytes(mr.read(len(octets))) == octets

    world.run(write_and_read_peer_memory())
    assert world.stats.lost > 0


@pytest.mark.usefixtures("hosts")
def test_a_listener_accepts_or_rejects_each_connection_request(world: World) -> None:
    async def connect_rejected_and_accepted_client() -> None:
        async with aio.listen((B, PORT)) as listener:

            async def accept_or_reject_requests() -> None:
                async for request in listener.requests():
                    if request.private_data == b"friend":
                        await request.accept(b"welcome")
                        return
                    request.reject(b"not you")

            deciding = asyncio.create_task(accept_or_reject_requests())
            with pytest.raises(PeerGone, match="with private data b'not you'"):
                await aio.connect((B, PORT), private_data=b"foe")
            assert world.now == 0.04
            async with aio.connect((B, PORT), private_data=b"friend") as conn:
                assert conn.private_data == b"welcome"
                await deciding

    world.run(connect_rejected_and_accepted_client())


@pytest.mark.usefixtures("hosts")
def test_a_connection_remains_usable_after_asyncio_wait_for_timed_out(world: World) -> None:
    async def receive_after_timeout() -> None:
        async with connection_pair() as (a, b):
            began = world.now
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(b.recv(), 3600)
            assert world.now == pytest.approx(began + 3600, abs=1e-6)
            await a.send(b"late")
            assert await b.recv() == b"late"

    world.run(receive_after_timeout())


@pytest.mark.usefixtures("hosts")
def test_receives_that_are_cancelled_at_random_times_lose_no_message(world: World) -> None:
    async def send_and_cancel_receives() -> None:
        rng = random.Random(7)
        async with connection_pair() as (a, b):

            async def send_messages() -> None:
                for i in range(100):
                    await a.send(b"%d" % i)
                    await asyncio.sleep(rng.random() * 0.03)

            sending = asyncio.create_task(send_messages())
            got: list[bytes] = []
            cancelled = 0
            while len(got) < 100:
                receiving = asyncio.create_task(b.recv())
                await asyncio.wait([receiving], timeout=rng.random() * 0.03)
                receiving.cancel()
                await asyncio.wait([receiving])
                if receiving.cancelled():
                    cancelled += 1
                else:
                    got.append(receiving.result())
            await sending
            assert got == [b"%d" % i for i in range(100)]
            assert cancelled > 20

    world.run(send_and_cancel_receives())


@pytest.mark.usefixtures("hosts")
def test_connecting_to_a_host_that_does_not_answer_fails_after_30_seconds(world: World) -> None:
    async def connect_to_silent_host() -> None:
        world.partition(A, B)
        with pytest.raises(PeerGone):
            await aio.connect((B, PORT))
        assert world.now == pytest.approx(30, abs=1e-6)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.connect((B, PORT))._open(), 5)
        assert world.now == pytest.approx(35, abs=1e-6)

    world.run(connect_to_silent_host())


@pytest.mark.usefixtures("hosts")
def test_asyncio_messages_to_a_busy_server_arrive_complete_and_in_order(world: World) -> None:
    async def send_to_busy_server() -> None:
        async with connection_pair() as (a, b):

            async def send_and_close() -> None:
                for i in range(200):
                    await a.send(bytes([i & 0xFF]) * 65536)
                await a.close()  # close immediately: all sent messages still arrive

            sending = asyncio.create_task(send_and_close())
            await asyncio.sleep(3)
            got = [message async for message in b]
            await sending
            assert got == [bytes([i & 0xFF]) * 65536 for i in range(200)]

    world.run(send_to_busy_server())


@pytest.mark.usefixtures("hosts")
def test_closing_a_connection_whose_peer_receives_nothing_takes_the_linger_time(
    world: World,
) -> None:
    async def close_after_blocked_send() -> None:
        async with connection_pair() as (a, _):
            with pytest.raises(asyncio.TimeoutError):
                while True:
                    await asyncio.wait_for(a.send(bytes(65536)), 0.3)
            began = world.now
            await a.close()
            # Closing lingers for the setting linger_ms.
            assert world.now - began == pytest.approx(2, abs=0.1)

    world.run(close_after_blocked_send())


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(("sends", "after"), [(False, 0.01), (True, 0.02)])
def test_a_crashed_peer_is_detected_by_its_fin_or_reset(
    world: World, sends: bool, after: float
) -> None:
    """Check the detection time: 10 ms by a FIN, or 20 ms by the reset that answers a message."""

    async def accept_and_receive() -> None:
        async with aio.listen((B, PORT)) as listener:
            conn = await listener.accept()
            with pytest.raises(Error) as error:
                await conn.recv()
            assert error.value.errno == errno.ESTALE

    async def crash_peer_and_expect_gone() -> None:
        async with aio.connect((B, PORT)) as a:
            await asyncio.sleep(60)
            world.crash(B)
            crashed = world.now
            with pytest.raises(PeerGone):
                while sends:
                    await a.send(bytes(60_000))
                await a.recv()
            assert world.now == pytest.approx(crashed + after, abs=1e-3)

    server = world.spawn(world.run, accept_and_receive(), on=B)
    world.run(crash_peer_and_expect_gone())
    world.run_until(server.done)
    server.result()


@pytest.mark.usefixtures("hosts")
def test_a_crash_of_a_host_ends_all_pending_operations_at_the_same_time(world: World) -> None:
    async def crash_with_pending_operations() -> None:
        async with connection_pair() as (a, b), aio.listen((B, PORT + 1)) as silent:
            waiting = [
                asyncio.create_task(call)
                for call in (
                    a.recv(),
                    b.recv(),
                    silent.accept(),
                    aio.connect((B, 9), private_data=b"x")._open(),
                )
            ]
            world.partition(A, B)
            await asyncio.sleep(1)
            began = world.now
            world.crash(A)
            world.crash(B)
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert world.now == began
        assert [getattr(end, "errno", end) for end in ends[:3]] == [errno.ESTALE] * 3
        assert isinstance(ends[3], Error)

    world.run(crash_with_pending_operations())


# ---- many connections


class Server:
    """A server that echoes messages reversed, with one task for each connection."""

    def __init__(self, listener: aio.Listener) -> None:
        self.serving: set[asyncio.Task[None]] = set()
        self.accepting = asyncio.create_task(self._accept_connections(listener))

    async def _accept_connections(self, listener: aio.Listener) -> None:
        async for conn in listener:
            task = asyncio.create_task(self._echo_messages(conn))
            self.serving.add(task)
            task.add_done_callback(self.serving.discard)

    async def _echo_messages(self, conn: aio.Connection) -> None:
        with contextlib.suppress(PeerGone):
            async with conn:
                async for message in conn:
                    await conn.send(message[::-1])

    async def close(self) -> None:
        self.accepting.cancel()
        while self.serving:
            await asyncio.sleep(0.1)


def run_and_check_descriptors(world: World, main: Coroutine[None, None, None]) -> None:
    before = count_open_descriptors()
    world.run(main)
    assert count_open_descriptors() <= before


@pytest.mark.usefixtures("hosts")
def test_thousands_of_connections_exchange_messages_in_one_event_loop(world: World) -> None:
    async def exchange_messages_with_all() -> None:
        async with aio.listen((B, PORT), recv_size=64, recv_depth=2) as listener:
            server = Server(listener)
            # At most 100 connections may be pending at a time because of the setting source_share.
            gate = asyncio.Semaphore(100)

            async def connect_client() -> aio.Connection:
                async with gate:
                    return await aio.connect((B, PORT), recv_size=64, recv_depth=2)

            clients = await asyncio.gather(*(connect_client() for _ in range(2000)))
            for text in (b"abc", b"defg"):
                await asyncio.gather(*(client.send(text) for client in clients))
                got = await asyncio.gather(*(client.recv() for client in clients))
                assert got == [text[::-1]] * len(clients)
            for client in clients:
                await client.close()
            await server.close()

    run_and_check_descriptors(world, exchange_messages_with_all())


@pytest.mark.parametrize("seed", range(4))
def test_random_cancellations_leave_no_open_descriptors(seed: int) -> None:
    rng = random.Random(seed)

    async def use_connection_and_endpoint(end: aio.UDEndpoint) -> None:
        async with aio.connect((B, PORT)) as conn:
            memory = conn.register(64)
            for size in (10, 1000, 100_000):
                with contextlib.suppress(PeerGone):
                    await conn.send(bytes(min(size, 60_000)))
                    await conn.recv()
                    await end.send(bytes(100), end.address)
            assert memory.length == 64
            await end.recv()

    async def cancel_clients_at_random() -> None:
        async with aio.listen((B, PORT)) as listener, aio.open_ud((A, 0), qkey=7) as end:
            server = Server(listener)
            await use_connection_and_endpoint(end)
            for _ in range(12):
                lives = [asyncio.create_task(use_connection_and_endpoint(end)) for _ in range(20)]
                for life in rng.sample(lives, len(lives)):
                    await asyncio.sleep(rng.random() * 0.02)
                    life.cancel()
                await asyncio.wait(lives)
                for life in lives:
                    if not life.cancelled():
                        assert life.exception() is None or isinstance(life.exception(), Error)
            await server.close()

    with World(seed, "delay=5ms,jitter=1ms") as world:
        for address in (A, B):
            world.device(address)
        run_and_check_descriptors(world, cancel_clients_at_random())


PROGRAM = """
import asyncio, contextlib, random, sys

import siwarp, siwarp.sim
from siwarp import Error, aio

A, B = "10.0.0.1", "10.0.0.2"

async def serve():
    serving = []
    async with aio.listen((B, 7000)) as listener:
        async for conn in listener:
            serving.append(asyncio.create_task(echo(conn)))

async def echo(conn):
    with contextlib.suppress(Error):
        async with conn:
            async for message in conn:
                await conn.send(message[::-1])

async def life(rng):
    with contextlib.suppress(Error):
        async with aio.connect((B, 7000)) as conn:
            for _ in range(5):
                await conn.send(bytes(rng.randrange(20_000)))
                await conn.recv()

async def use():
    rng = random.Random(3)
    lives = [asyncio.create_task(life(rng)) for _ in range(20)]
    for one in lives[::3]:
        await asyncio.sleep(rng.random() * 0.02)
        one.cancel()
    await asyncio.wait(lives)

def talk():
    with siwarp.connect((B, 7000)) as conn:
        for i in range(10):
            conn.send(b"%d" % i)
            conn.recv()

with siwarp.sim.World(int(sys.argv[1]), "loss=1%,delay=2ms,jitter=1ms") as world:
    world.device(A)
    world.device(B)
    world.spawn(world.run, serve(), on=B)
    users = [world.spawn(talk, on=A), world.spawn(world.run, use(), on=A)]
    world.run_until(lambda: all(user.done() for user in users))
    world.crash(B)
    print(f"{world.trace_hash:016x} {world.now_ns}")
"""


def test_a_seed_produces_the_same_run_in_every_process(tmp_path: Path) -> None:
    check_that_a_seed_determines_the_run(PROGRAM, tmp_path)
