"""RD in asyncio: messages arrive with their source and without loss."""

from __future__ import annotations

import asyncio

import pytest
from unit.aio.aio_harness import cancel_and_wait, run_in_event_loop

from siwarp import LimitError, StateError, aio, faults

OCTETS = (bytes(range(256)) * 256)[:65_535]


def test_an_rd_endpoint_receives_messages_of_several_peers_in_order_and_answers() -> None:
    async def exchange_messages_with_two_peers() -> None:
        async with aio.open_rd() as server, aio.open_rd() as a, aio.open_rd() as b:

            async def echo_reversed() -> None:
                async for data, source in server:
                    await server.send(data[::-1], source)

            serving = asyncio.create_task(echo_reversed())
            for end in (a, b):
                for size in (0, 1, 1000, 65_535):
                    await end.send(OCTETS[:size], server.address)
                for size in (0, 1, 1000, 65_535):
                    assert await end.recv() == (OCTETS[:size][::-1], server.address)
            await cancel_and_wait(serving)

    run_in_event_loop(exchange_messages_with_two_peers)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_no_rd_message_is_lost_if_more_are_sent_than_receives_are_posted(host: str) -> None:
    async def send_more_messages_than_receives() -> None:
        async with aio.open_rd((host, 0), recv_depth=4) as end, aio.open_rd((host, 0)) as other:

            async def send_messages() -> None:
                for i in range(200):
                    await other.send(b"%d" % i, end.address)

            talking = asyncio.create_task(send_messages())
            got = []
            with faults("loss=5%,reorder=5%,seed=3"):
                for _ in range(200):
                    got.append(await end.recv())
                await talking
            assert [int(d.data) for d in got] == list(range(200))
            assert {d.source for d in got} == {other.address}

    run_in_event_loop(send_more_messages_than_receives)


def test_an_rd_send_in_asyncio_returns_only_after_the_peer_has_received_the_message() -> None:
    async def send_two_messages_to_one_receive() -> None:
        async with aio.open_rd(recv_depth=1) as end, aio.open_rd() as other:
            await other.send(b"has the only receive", end.address)
            sending = asyncio.create_task(other.send(b"waits", end.address))
            await asyncio.sleep(0.05)
            assert not sending.done()
            assert (await end.recv()).data == b"has the only receive"
            await sending
            assert (await end.recv()).data == b"waits"

    run_in_event_loop(send_two_messages_to_one_receive)


def test_a_cancelled_rd_receive_loses_no_message_and_invalid_sends_raise_errors() -> None:
    async def cancel_receives_and_send_invalid_messages() -> None:
        async with aio.open_rd(recv_size=100) as end, aio.open_rd() as other:
            with pytest.raises(LimitError, match="split it"):
                await other.send(bytes(65_536), end.address)
            for i in range(20):
                receiving = asyncio.create_task(end.recv())
                await asyncio.sleep(0)
                await other.send(b"%d" % i, end.address)
                await cancel_and_wait(receiving)
                got = await end.recv() if receiving.cancelled() else receiving.result()
                assert got.data == b"%d" % i
            assert "RDEndpoint at 127.0.0.1" in repr(end)
        with pytest.raises(StateError):
            await end.recv()
        with pytest.raises(StateError):
            await end.send(b"x", ("127.0.0.1", 1))
        assert "closed" in repr(end)

    run_in_event_loop(cancel_receives_and_send_invalid_messages)
