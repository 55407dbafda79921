"""Persona roce in asyncio: when an await returns, the data is at the peer."""

from __future__ import annotations

import asyncio

import pytest
from unit.aio.aio_harness import LOOPBACK, connected, run, until

from siwarp import ProtocolError, RemoteBuffer, aio
from siwarp.verbs import Persona


def test_each_endpoint_has_its_configured_persona() -> None:
    async def main() -> None:
        async with aio.listen(LOOPBACK, persona=Persona.ROCE) as listener:
            accepting = asyncio.create_task(listener.accept())
            async with aio.connect(listener.address) as a, await accepting as b:
                assert a.qp.query()[1].persona == Persona.IWARP
                assert b.qp.query()[1].persona == Persona.ROCE
                await a.send(b"to roce")
                assert await b.recv() == b"to roce"

    run(main)


def test_a_sender_of_roce_waits_until_its_peer_receives() -> None:
    async def main() -> None:
        async with connected(recv_depth=4, persona=Persona.ROCE) as (a, b):
            sent: list[int] = []

            async def send() -> None:
                for i in range(20):
                    await a.send(bytes([i]) * 1000)
                    sent.append(i)

            task = asyncio.create_task(send())
            await until(lambda: len(sent) == 4)
            # with persona iwarp, the send would have completed within this time
            await asyncio.sleep(0.1)
            assert len(sent) == 4
            for i in range(20):
                assert await b.recv() == bytes([i]) * 1000
            await task

    run(main)


def test_with_persona_roce_a_refused_write_raises() -> None:
    async def main() -> None:
        async with connected(persona=Persona.ROCE) as (a, b):
            there = b.register(bytearray(100)).remote()
            await a.write(there, b"fits")
            wrong = RemoteBuffer(there.addr, 100, there.rkey ^ 0x100)
            with pytest.raises(ProtocolError):
                await a.write(wrong, b"does not")

    run(main)
