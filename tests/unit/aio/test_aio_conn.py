"""RC in asyncio: messages, access to memory of the peer, errors, and cancellation."""

from __future__ import annotations

import asyncio
import errno
import random
import socket

import pytest
from harness.descriptors import count_open_descriptors
from unit.aio.aio_harness import (
    LOOPBACK,
    cancel_and_wait,
    connected_endpoints,
    run_in_event_loop,
    settled_thread_count,
    thread_count_falls_to,
    wait_until_async,
)

from siwarp import Error, LimitError, PeerGone, ProtocolError, RemoteBuffer, StateError, aio


def test_messages_of_any_size_arrive_completely_in_both_directions() -> None:
    async def exchange_messages_of_each_size() -> None:
        async with connected_endpoints(recv_size=1 << 20) as (a, b):
            for size in (0, 1, 256, 257, 5000, 65536, 65537, 1 << 20):
                data = bytes(i * 7 & 0xFF for i in range(size))
                await a.send(data)
                assert await b.recv() == data
                await b.send(bytearray(data))
                assert await a.recv() == data

    run_in_event_loop(exchange_messages_of_each_size)


def test_private_data_is_exchanged_when_connecting_in_asyncio() -> None:
    async def connect_and_compare_private_data() -> None:
        async with aio.listen(LOOPBACK) as listener:
            accepting = asyncio.create_task(listener.accept(b"welcome"))
            dialled = aio.connect(listener.address, private_data=b"it is me")
            async with dialled as ours, await accepting as theirs:
                assert (ours.private_data, theirs.private_data) == (b"welcome", b"it is me")
                assert ours.peer == theirs.local == listener.address
                assert ours.local == theirs.peer

    run_in_event_loop(connect_and_compare_private_data)


def test_each_connection_request_can_be_accepted_or_rejected() -> None:
    async def connect_accepted_and_rejected_clients() -> None:
        async with aio.listen(LOOPBACK) as listener:
            met: list[aio.Connection] = []

            async def accept_or_reject() -> None:
                async for request in listener.requests():
                    assert request.peer[0] == "127.0.0.1"
                    if request.private_data == b"friend":
                        met.append(await request.accept(b"come in"))
                    else:
                        request.reject(b"not you")

            deciding = asyncio.create_task(accept_or_reject())
            async with aio.connect(listener.address, private_data=b"friend") as ours:
                assert ours.private_data == b"come in"
            with pytest.raises(PeerGone, match="not you"):
                await aio.connect(listener.address, private_data=b"foe")
            await listener.close()
            await deciding
            await met[0].close()

    run_in_event_loop(connect_accepted_and_rejected_clients)


def test_iterating_over_a_connection_yields_messages_until_the_peer_closes() -> None:
    async def send_close_and_iterate_over_messages() -> None:
        async with connected_endpoints() as (a, b):
            for i in range(10):
                await a.send(b"%d" % i)
            await a.close()
            assert [m async for m in b] == [b"%d" % i for i in range(10)]
            with pytest.raises(PeerGone):
                await b.recv()
            with pytest.raises(PeerGone):
                await b.send(b"too late")
            with pytest.raises(StateError, match="closed"):
                await a.send(b"closed here")

    run_in_event_loop(send_close_and_iterate_over_messages)


def test_memory_of_the_peer_is_written_and_read() -> None:
    async def write_and_read_memory_of_peer() -> None:
        async with connected_endpoints() as (a, b):
            memory = b.register(300_000)
            there = RemoteBuffer.unpack(memory.remote().pack())
            big = random.Random(1).randbytes(200_000)
            await a.write(there, b"small", 10)
            await a.write(there, big[:3000], 1000)
            await a.write(there, big, 100_000)
            assert await a.read(there, 5, 10) == b"small"
            assert await a.read(there, 3000, 1000) == big[:3000]
            assert await a.read(there, 200_000, 100_000) == big
            into = bytearray(100)
            await a.read_into(there, into, 1000)
            assert into == big[:100]
            await a.send(b"done")
            assert await b.recv() == b"done"
            assert memory.read(200_000, 100_000) == big

    run_in_event_loop(write_and_read_memory_of_peer)


def test_access_beyond_the_remote_buffer_is_refused_locally_without_a_disconnect() -> None:
    async def access_beyond_remote_buffer() -> None:
        async with connected_endpoints() as (a, b):
            there = b.register(100).remote()
            for offset, length in ((60, 50), (0, 101), (-1, 4), (101, 0), (0, 70_000)):
                for attempt in (
                    a.write(there, bytes(length), offset),
                    a.read(there, length, offset),
                    a.read_into(there, bytearray(length), offset),
                ):
                    with pytest.raises(
                        LimitError,
                        match="has 100 octets according to its RemoteBuffer; stay",
                    ):
                        await attempt
            await a.write(there, b"x" * 50, 50)
            assert await a.read(there, 1, 99) == b"x"

    run_in_event_loop(access_beyond_remote_buffer)


def test_the_error_of_a_refused_read_names_its_rfc_clause() -> None:
    async def read_beyond_registered_memory() -> None:
        async with connected_endpoints() as (a, b):
            there = b.register(100).remote()
            with pytest.raises(ProtocolError, match="bounds") as caught:
                await a.read(RemoteBuffer(there.addr, 200, there.rkey))
            assert caught.value.clause.startswith("RFC504")

    run_in_event_loop(read_beyond_registered_memory)


def test_messages_that_many_tasks_send_on_a_connection_arrive_completely() -> None:
    async def send_from_many_tasks_at_once() -> None:
        async with connected_endpoints(recv_size=70_000, recv_depth=64) as (a, b):
            messages = [bytes([i]) * (1 + i * 997) for i in range(60)]
            await asyncio.gather(*(a.send(m) for m in messages))
            got = [await b.recv() for _ in messages]
            assert sorted(got) == sorted(messages)

    run_in_event_loop(send_from_many_tasks_at_once)


def test_errors_of_asyncio_connect_and_listen_name_their_cause() -> None:
    async def connect_and_listen_at_bad_addresses() -> None:
        with socket.socket() as s:
            s.bind(LOOPBACK)
            with pytest.raises(PeerGone) as caught:
                await aio.connect(s.getsockname())
            assert caught.value.errno == errno.ECONNREFUSED
        with pytest.raises(Error, match="name"):
            await aio.connect(("no.such.host.invalid", 1))
        with pytest.raises(Error):
            await aio.listen(("192.0.2.1", 0))

    run_in_event_loop(connect_and_listen_at_bad_addresses)


def test_an_event_loop_opens_one_device_and_one_socket_for_each_connection() -> None:
    async def count_descriptors_of_20_connections() -> None:
        async with aio.listen(LOOPBACK) as listener:
            before, working = count_open_descriptors(), settled_thread_count()
            ends: list[aio.Connection] = []
            for _ in range(20):
                accepting = asyncio.create_task(listener.accept())
                ends += [await aio.connect(listener.address), await accepting]
            assert count_open_descriptors() - before == 40
            assert thread_count_falls_to(working)
            for end in ends:
                await end.close()
            await wait_until_async(lambda: count_open_descriptors() == before)

    fds_before, threads_before = count_open_descriptors(), settled_thread_count()
    run_in_event_loop(count_descriptors_of_20_connections)
    assert count_open_descriptors() == fds_before and thread_count_falls_to(threads_before)


# ---- cancellation


def test_a_cancelled_recv_loses_no_message() -> None:
    """How many receives are cancelled depends on the machine; tests/sim counts them."""

    async def cancel_receives_at_random_times() -> None:
        rng = random.Random(7)
        async with connected_endpoints() as (a, b):
            got: list[bytes] = []

            async def send_messages() -> None:
                for i in range(300):
                    await a.send(b"%d" % i)
                    # The pause limits the messages in flight to the number of receives.
                    if i % 8 == 7:
                        await wait_until_async(lambda i=i: len(got) > i - 4)

            sending = asyncio.create_task(send_messages())
            while len(got) < 300:
                receiving = asyncio.create_task(b.recv())
                await asyncio.wait([receiving], timeout=rng.random() * 0.0005)
                if receiving.cancel():
                    await asyncio.wait([receiving])
                if not receiving.cancelled():
                    got.append(receiving.result())
            await sending
            assert got == [b"%d" % i for i in range(300)]

    run_in_event_loop(cancel_receives_at_random_times)


def test_a_cancelled_accept_loses_no_connection() -> None:
    async def cancel_accepts_while_clients_connect() -> None:
        async with aio.listen(LOOPBACK) as listener:
            ours: list[aio.Connection] = []
            theirs: list[aio.Connection] = []
            for i in range(10):
                accepting = asyncio.create_task(listener.accept())
                connecting = asyncio.create_task(connect_to_address(listener.address))
                await asyncio.wait([accepting, connecting], timeout=0.0003 * i)
                accepting.cancel()
                await asyncio.wait([accepting])
                if not accepting.cancelled():
                    theirs.append(accepting.result())
                again = asyncio.create_task(listener.accept()) if len(theirs) == i else None
                ours.append(await connecting)
                if again is not None:
                    theirs.append(await again)
            for n, end in enumerate(ours):
                await end.send(b"%d" % n)
            assert sorted([int(await end.recv()) for end in theirs]) == list(range(10))
            for end in ours + theirs:
                await end.close()

    run_in_event_loop(cancel_accepts_while_clients_connect)


async def connect_to_address(address: tuple[str, int]) -> aio.Connection:
    return await aio.connect(address)


def test_a_cancelled_connect_closes_its_socket() -> None:
    async def cancel_connects_to_silent_listener() -> None:
        async with aio.open_ud() as keeps_the_device_open:
            with socket.socket() as silent:
                silent.bind(LOOPBACK)
                silent.listen(64)
                before = count_open_descriptors()
                begun = [
                    asyncio.create_task(connect_to_address(silent.getsockname())) for _ in range(30)
                ]
                await wait_until_async(lambda: count_open_descriptors() - before == 30)
                for task in begun:
                    await cancel_and_wait(task)
                    assert task.cancelled()
                await wait_until_async(lambda: count_open_descriptors() == before)
            assert keeps_the_device_open.address

    run_in_event_loop(cancel_connects_to_silent_listener)


def test_a_time_out_of_asyncio_wait_for_does_not_affect_the_connection() -> None:
    async def receive_after_time_out() -> None:
        async with connected_endpoints() as (a, b):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(b.recv(), 0.01)
            await a.send(b"later")
            assert await b.recv() == b"later"

    run_in_event_loop(receive_after_time_out)


@pytest.mark.parametrize("size", [8, 30_000])
def test_a_cancelled_send_transmits_a_complete_message_or_none(size: int) -> None:
    async def cancel_every_third_send() -> None:
        async with connected_endpoints(recv_depth=64) as (a, b):
            tasks = [asyncio.create_task(a.send(bytes([i]) * size)) for i in range(50)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            await asyncio.wait(tasks)
            await a.send(b"last")
            got = []
            while (message := await b.recv()) != b"last":
                got.append(message)
            assert all(m == m[:1] * size for m in got)
            sent = {m[0] for m in got}
            assert len(sent) == len(got)
            assert sent >= {i for i in range(50) if not tasks[i].cancelled()}

    run_in_event_loop(cancel_every_third_send)


def test_cancelling_a_write_closes_the_connection_and_releases_the_memory() -> None:
    async def cancel_write_in_progress() -> None:
        async with connected_endpoints() as (a, b):
            there = b.register(32 << 20).remote()
            memory = bytearray(32 << 20)
            writing = asyncio.create_task(a.write(there, memory))
            await asyncio.sleep(0)
            with pytest.raises(BufferError):
                memory.append(0)
            await cancel_and_wait(writing)
            if writing.cancelled():
                with pytest.raises(StateError):
                    await a.send(b"x")
            memory.append(0)

    run_in_event_loop(cancel_write_in_progress)


def test_closing_a_connection_or_listener_wakes_tasks_that_wait_on_it() -> None:
    async def close_connection_and_listener_of_waiting_tasks() -> None:
        async with aio.listen(LOOPBACK) as listener:
            accepting = asyncio.create_task(listener.accept())
            conn = await aio.connect(listener.address)
            other = await accepting
            waiting = [
                asyncio.create_task(conn.recv()),
                asyncio.create_task(listener.accept()),
                asyncio.create_task(receive_first_request(listener)),
            ]
            await asyncio.sleep(0.01)
            await conn.close()
            await listener.close()
            await asyncio.wait(waiting)
            assert [type(task.exception()) for task in waiting[:2]] == [StateError, StateError]
            assert waiting[2].result() is None
            with pytest.raises(PeerGone):
                await other.recv()
            await other.close()

    run_in_event_loop(close_connection_and_listener_of_waiting_tasks)


async def receive_first_request(listener: aio.Listener) -> aio.Request | None:
    async for request in listener.requests():
        return request
    return None


def test_connecting_without_an_event_loop_raises_an_error_that_names_asyncio_run() -> None:
    opening = aio.connect(("127.0.0.1", 1)).__await__()
    with pytest.raises(RuntimeError, match=r"asyncio\.run"):
        next(opening)
