"""Progress of siwarp.aio by the event loop, or by the progress thread if the loop is blocked."""

from __future__ import annotations

import asyncio
import threading

import pytest
from unit.aio.aio_harness import LOOPBACK, connected_endpoints, run_in_event_loop

import siwarp
from siwarp import StateError, aio
from siwarp.base.counters import read_own_counters
from siwarp.verbs import RemoteBuffer


def test_a_peer_writes_and_reads_while_the_loop_is_blocked_in_user_code() -> None:
    async def access_memory_while_loop_is_blocked() -> None:
        async with aio.listen(LOOPBACK) as listener:
            accepting = asyncio.ensure_future(anext(aiter(listener)))
            with await asyncio.to_thread(siwarp.connect, listener.address) as peer:
                conn = await accepting
                there = conn.register(64)
                await conn.send(there.remote().pack())
                remote = RemoteBuffer.unpack(await asyncio.to_thread(peer.recv))
                # These calls block the thread of the loop.
                for i in range(10):
                    peer.write(remote, b"%02d" % i)
                    assert peer.read(remote, 2) == b"%02d" % i
                await conn.close()

    run_in_event_loop(access_memory_while_loop_is_blocked)


async def connect_pair(listener: aio.Listener) -> tuple[aio.Connection, aio.Connection]:
    """Return both ends of a new connection."""
    accepting = asyncio.ensure_future(anext(aiter(listener)))
    return await aio.connect(listener.address), await accepting


async def exchange_messages_over_connections(n: int, messages: int) -> int:
    """Exchange messages over n connections of this loop; return the number of answers."""
    async with aio.listen(LOOPBACK) as listener:
        pairs = [await connect_pair(listener) for _ in range(n)]
        conns, ends = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

        async def echo(conn: aio.Connection) -> None:
            for _ in range(messages):
                await conn.send(await conn.recv())

        async def send_and_count_correct_answers(conn: aio.Connection) -> int:
            right = 0
            for i in range(messages):
                await conn.send(b"%d" % i)
                right += await conn.recv() == b"%d" % i
            return right

        rights = await asyncio.gather(*map(send_and_count_correct_answers, conns), *map(echo, ends))
        for conn in (*conns, *ends):
            await conn.close()
    return sum(right for right in rights if right is not None)


def test_two_loops_in_two_threads_use_one_device_at_the_same_time() -> None:
    found: list[int] = []

    def exchange_in_event_loop_of_thread() -> None:
        found.append(run_in_event_loop(lambda: exchange_messages_over_connections(4, 50)))

    threads = [threading.Thread(target=exchange_in_event_loop_of_thread) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200, 200]


def test_a_burst_of_more_completions_than_a_turn_handles_is_received_completely() -> None:
    assert run_in_event_loop(lambda: exchange_messages_over_connections(100, 3)) == 300


def test_tasks_that_receive_get_an_error_when_the_connection_is_closed_meanwhile() -> None:
    async def close_connection_while_tasks_receive() -> None:
        async with aio.listen(LOOPBACK) as listener:
            conn, end = await connect_pair(listener)
            waiting = [asyncio.create_task(conn.recv()) for _ in range(3)]
            await asyncio.sleep(0)
            conn.close_nowait()
            told = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(e) for e in told] == [StateError] * 3
            await end.close()

    run_in_event_loop(close_connection_while_tasks_receive)


@pytest.mark.parametrize("kind", ["rc", "ud", "rd"])
def test_a_message_is_counted_when_it_was_sent_although_nothing_is_received_afterwards(
    kind: str,
) -> None:
    async def send_and_count_tx_msgs() -> int:
        if kind == "rc":
            async with connected_endpoints() as (conn, _):
                before = read_own_counters()["tx_msgs"]
                for _ in range(3):
                    await conn.send(b"x")
                return read_own_counters()["tx_msgs"] - before
        open_endpoint = aio.open_ud if kind == "ud" else aio.open_rd
        async with open_endpoint(LOOPBACK) as a, open_endpoint(LOOPBACK) as b:
            before = read_own_counters()["tx_msgs"]
            for _ in range(3):
                await a.send(b"x", b.address)
            return read_own_counters()["tx_msgs"] - before

    assert run_in_event_loop(send_and_count_tx_msgs) == 3


@pytest.mark.parametrize("own_thread", [True, False])
def test_tasks_that_wait_get_an_error_when_their_device_is_closed_by_force(
    own_thread: bool,
) -> None:
    async def close_device_while_tasks_wait() -> None:
        listener = await aio.listen(LOOPBACK)
        conn, end = await connect_pair(listener)
        ud, rd = await aio.open_ud(LOOPBACK), await aio.open_rd(LOOPBACK)
        receivers = (conn.recv, end.recv, listener.accept, ud.recv, rd.recv)
        waiting = [asyncio.create_task(receive()) for receive in receivers]
        await asyncio.sleep(0)
        device = conn.pd.context
        if own_thread:
            device.close(force=True)
        else:
            await asyncio.to_thread(device.close, force=True)
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(e) for e in told] == [StateError] * len(receivers)
        assert conn.closed and end.closed
        # The new device may reuse the numbers of the closed descriptors.
        assert await exchange_messages_over_connections(2, 5) == 10

    run_in_event_loop(close_device_while_tasks_wait)


def test_a_cancelled_receive_loses_no_message() -> None:
    async def cancel_receives_and_check_messages() -> None:
        async with aio.listen(LOOPBACK) as listener:
            conn, end = await connect_pair(listener)
            got = []
            for i in range(50):
                receiving = asyncio.create_task(end.recv())
                await asyncio.sleep(0)
                await conn.send(b"%d" % i)
                receiving.cancel()
                try:
                    got.append(await receiving)
                except asyncio.CancelledError:
                    got.append(await end.recv())
            assert got == [b"%d" % i for i in range(50)]
            await conn.close()
            await end.close()

    run_in_event_loop(cancel_receives_and_check_messages)
