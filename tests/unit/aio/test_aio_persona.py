"""Persona roce in asyncio, with which a send returns after the peer has received the data."""

from __future__ import annotations

import asyncio

import pytest
from unit.aio.aio_harness import LOOPBACK, connected_endpoints, run_in_event_loop, wait_until_async

from siwarp import ProtocolError, RemoteBuffer, aio
from siwarp.verbs import Persona


def test_each_asyncio_endpoint_has_its_configured_persona() -> None:
    async def connect_iwarp_endpoint_to_roce_endpoint() -> None:
        async with aio.listen(LOOPBACK, persona=Persona.ROCE) as listener:
            accepting = asyncio.create_task(listener.accept())
            async with aio.connect(listener.address) as a, await accepting as b:
                assert a.qp.query()[1].persona == Persona.IWARP
                assert b.qp.query()[1].persona == Persona.ROCE
                await a.send(b"to roce")
                assert await b.recv() == b"to roce"

    run_in_event_loop(connect_iwarp_endpoint_to_roce_endpoint)


def test_with_persona_roce_a_send_in_asyncio_waits_until_the_peer_receives() -> None:
    async def send_more_messages_than_receives() -> None:
        async with connected_endpoints(recv_depth=4, persona=Persona.ROCE) as (a, b):
            sent: list[int] = []

            async def send_messages() -> None:
                for i in range(20):
                    await a.send(bytes([i]) * 1000)
                    sent.append(i)

            task = asyncio.create_task(send_messages())
            await wait_until_async(lambda: len(sent) == 4)
            # With persona iwarp, the fifth send would complete during the sleep.
            await asyncio.sleep(0.1)
            assert len(sent) == 4
            for i in range(20):
                assert await b.recv() == bytes([i]) * 1000
            await task

    run_in_event_loop(send_more_messages_than_receives)


def test_with_persona_roce_a_refused_write_in_asyncio_raises_an_error() -> None:
    async def write_with_wrong_stag() -> None:
        async with connected_endpoints(persona=Persona.ROCE) as (a, b):
            there = b.register(bytearray(100)).remote()
            await a.write(there, b"fits")
            wrong = RemoteBuffer(there.addr, 100, there.rkey ^ 0x100)
            with pytest.raises(ProtocolError):
                await a.write(wrong, b"does not")

    run_in_event_loop(write_with_wrong_stag)
