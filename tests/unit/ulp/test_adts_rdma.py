"""RC and RD channels on real sockets: units arrive, and closing releases all resources."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from harness.descriptors import count_open_descriptors
from unit.aio.aio_harness import (
    run_in_event_loop,
    settled_thread_count,
    thread_count_falls_to,
)

from siwarp.ulp.adts import endpoints
from siwarp.ulp.adts.channel import Channel, Limits
from siwarp.ulp.adts.endpoints import open_acceptors, open_channel
from siwarp.ulp.adts.receives import Receives
from siwarp.ulp.adts.wire import (
    RECORD_HEADER_SIZE,
    UNIT_HEADER_SIZE,
    parse_records,
    put_data_header,
)
from siwarp.verbs import Context

HOST = "127.0.0.1"
UNIT = 65536
LIMITS = Limits(unit=UNIT, memory=64 * UNIT)
START = UNIT_HEADER_SIZE + RECORD_HEADER_SIZE
OCTETS = os.urandom(UNIT - START)


async def send_numbered_units(channel: Channel, count: int) -> None:
    for number in range(count):
        unit = await channel.take_empty_unit()
        unit.view[START : START + len(OCTETS)] = OCTETS
        length = put_data_header(
            unit.view, UNIT_HEADER_SIZE, transfer=number, offset=0, length=len(OCTETS)
        )
        await channel.send(unit, length)
    await channel.flush()


async def receive_numbered_units(channel: Channel, count: int) -> None:
    for number in range(count):
        received = await channel.receive()
        (record,) = parse_records(received.view)
        assert (record.transfer, record.body) == (number, OCTETS)
        record.body.release()
        received.release()


KINDS = pytest.mark.parametrize("kind", ["rc", "rd"])


@KINDS
def test_channels_carry_units_and_leave_nothing_behind(kind: str) -> None:
    Context().close()  # the first device creates the counter page, which stays

    async def exchange_over_three_channels() -> None:
        before = count_open_descriptors()
        acceptors = await open_acceptors(HOST, LIMITS)
        acceptor = acceptors.rc if kind == "rc" else acceptors.rd
        for number in range(3):
            accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
            invitation = acceptor.expect_peer(bytes([number]) * 16, UNIT, 8, accepted.set_result)
            a = await open_channel("rc" if kind == "rc" else "rd", HOST, invitation, LIMITS)
            b = await accepted
            await asyncio.gather(
                send_numbered_units(a, 100),
                receive_numbered_units(b, 100),
                send_numbered_units(b, 100),
                receive_numbered_units(a, 100),
            )
            await a.close()
            await b.close()
        await acceptors.close()
        assert count_open_descriptors() == before

    threads = settled_thread_count()
    run_in_event_loop(exchange_over_three_channels)
    assert thread_count_falls_to(threads)


@KINDS
def test_100_sessions_share_64_mib_and_return_the_memory(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "IDLE_S", 0)
    free = Receives.close_srq_and_free_memory

    async def exchange_over_100_channels() -> None:
        left = asyncio.Event()

        def free_receives_and_note_last(receives: Receives) -> None:
            free(receives)
            if not device.receiving:
                left.set()

        monkeypatch.setattr(Receives, "close_srq_and_free_memory", free_receives_and_note_last)
        acceptors = await open_acceptors(HOST, Limits())
        device = acceptors._device
        before = device.pool.registered_count
        pairs = []
        for number in range(100):
            accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
            token = number.to_bytes(16, "big")
            invitation = acceptors.for_transport(kind).expect_peer(
                token, UNIT, 4, accepted.set_result
            )
            client = await open_channel(kind, HOST, invitation, Limits(window=4))
            pairs.append((client, await accepted))
        for a, b in pairs:
            await asyncio.gather(
                send_numbered_units(a, 1),
                receive_numbered_units(b, 1),
                send_numbered_units(b, 1),
                receive_numbered_units(a, 1),
            )
        assert before < device.pool.registered_count <= 64
        await asyncio.gather(*(end.close() for pair in pairs for end in pair))
        await left.wait()
        assert (device.pool.registered_count, device.pool.free_count) == (before, 64)
        await acceptors.close()

    run_in_event_loop(exchange_over_100_channels)
