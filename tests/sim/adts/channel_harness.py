"""Channels between a server's acceptors and clients on two hosts of a simulated network."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from siwarp.ulp.adts.channel import Channel, ChannelEnded, Invitation, Limits, Received
from siwarp.ulp.adts.endpoints import Acceptors, open_acceptors, open_channel
from siwarp.ulp.adts.receives import Receives
from siwarp.ulp.adts.wire import (
    RECORD_HEADER_SIZE,
    UNIT_HEADER_SIZE,
    parse_records,
    put_data_header,
)

#: The address of the client's host, and that of the server's host.
A, B = "10.0.0.1", "10.0.0.2"
UNIT = 16384
#: Limits with memory for a pool of 64 units.
LIMITS = Limits(unit=UNIT, memory=64 * UNIT)
PAYLOAD = UNIT - UNIT_HEADER_SIZE - RECORD_HEADER_SIZE


class Server:
    """Acceptors on host B, and the receives of the transport under test."""

    def __init__(self, acceptors: Acceptors, kind: str) -> None:
        self.acceptors = acceptors
        self.acceptor = acceptors.rc if kind == "rc" else acceptors.rd
        self.kind: Any = kind
        self._tokens = itertools.count()

    def invite(self, window: int = 8, unit: int = UNIT) -> tuple[Invitation, asyncio.Future[Any]]:
        """Return an invitation, and the future of the accepted channel."""
        accepted = asyncio.get_running_loop().create_future()
        token = next(self._tokens).to_bytes(16, "big")
        invitation = self.acceptor.expect_peer(token, unit, window, accepted.set_result)
        return invitation, accepted

    async def open_channel_pair(self, window: int = 8, unit: int = UNIT) -> tuple[Channel, Channel]:
        """Return the client's channel and the server's."""
        invitation, accepted = self.invite(window, unit)
        limits = Limits(unit=unit, window=window)
        client = await open_channel(self.kind, B, invitation, limits)
        return client, await asyncio.wait_for(accepted, 60)

    @property
    def unit_receives(self) -> Receives:
        """The receives that the server's channels of this kind share."""
        return self.acceptor._get_or_create_receives(UNIT)[0]  # type: ignore[attr-defined]

    @property
    def pool(self) -> Any:
        return self.acceptors._device.pool

    def check_that_no_unit_or_credit_is_held(self, sessions: int = 0) -> None:
        """Check that each unit is free or in a posted receive, and that only open sessions have
        credits."""
        assert self.pool.free_count + self.unit_receives.total == self.pool.size
        assert self.unit_receives.posted == self.unit_receives.total
        assert (self.unit_receives.reserved > 0) == (sessions > 0)


@asynccontextmanager
async def run_acceptors(
    kind: str, limits: Limits = LIMITS, scarce: Any = None
) -> AsyncIterator[Server]:
    """Run acceptors on host B; check that no asyncio task is left after they are closed."""
    before = asyncio.all_tasks()
    acceptors = await open_acceptors(B, limits, scarce)
    try:
        yield Server(acceptors, kind)
    finally:
        await acceptors.close()
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not left, left


async def send_units(channel: Channel, count: int, payload: int = PAYLOAD, first: int = 0) -> None:
    """Send units, each with a DATA record whose transfer is the number of the unit."""
    for number in range(first, first + count):
        unit = await channel.take_empty_unit()
        fill = bytes([number % 251]) * payload
        at = UNIT_HEADER_SIZE + RECORD_HEADER_SIZE
        unit.view[at : at + payload] = fill
        length = put_data_header(
            unit.view, UNIT_HEADER_SIZE, transfer=number, offset=0, length=payload
        )
        await channel.send(unit, length)


def check_unit_and_return_number(received: Received) -> int:
    """Check the octets of a unit of ``send_units``, and return its number."""
    (record,) = parse_records(received.view)
    number = record.transfer
    assert record.body == bytes([number % 251]) * len(record.body)
    record.body.release()
    return number


async def receive_units(channel: Channel, count: int, first: int = 0) -> None:
    """Receive units of ``send_units``, and check that they arrive in order."""
    for number in range(first, first + count):
        received = await channel.receive()
        assert check_unit_and_return_number(received) == number
        received.release()


async def wait_for_end_of_channel(channel: Channel) -> ChannelEnded:
    """Receive until the channel ends, and return how it ended."""
    while True:
        try:
            (await channel.receive()).release()
        except ChannelEnded as ended:
            return ended
