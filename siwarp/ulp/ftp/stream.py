# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One transfer of FTP on a channel: the octets of a file or a listing, in one direction.

The sender sends DATA records, one in a unit, and an END record with size and digest (CRC32C). The
receiver answers END with BYE. An end that gives up sends CANCEL, because on RD the peer does not
learn that a channel has ended. If a channel ends before BYE, the transfer is incomplete. So an
interrupted transfer never looks complete, as it may on a TCP connection of FTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from crc32c import crc32c

from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded, Received
from siwarp.ulp.adts.memory import Unit
from siwarp.ulp.adts.wire import (
    RECORD_HEADER_SIZE,
    UNIT_HEADER_SIZE,
    Bye,
    Cancel,
    End,
    Message,
    Type,
    WireError,
    parse_records,
    put_data_header,
)

__all__ = ["Sender", "cancel_transfer", "close_after_transfer", "receive_transfer"]

#: The number that identifies the transfer; a channel has only one transfer.
_TRANSFER = 1
_PAYLOAD = UNIT_HEADER_SIZE + RECORD_HEADER_SIZE
#: Seconds that this end waits for credit to send CANCEL.
_CANCEL_S = 5.0


class Sender:
    """The sending end: the caller writes octets to the memory of a unit, which ``send`` sends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._unit: Unit | None = None
        self._offset = 0
        self._crc = 0
        #: The task that receives the peer's answer: the reply to END, or a CANCEL.
        self._answer: asyncio.Task[Received] | None = None

    async def wait_for_unit_memory(self) -> memoryview:
        """Wait until the peer takes one more unit; return the memory for its octets.

        Raises:
            ChannelEnded: the channel has ended, or the receiver has cancelled the transfer.

        """
        if self._unit is None:
            self._unit = await self._take_unit()
        return self._unit.view[_PAYLOAD:]

    async def _take_unit(self) -> Unit:
        if self._answer is None:
            self._answer = asyncio.ensure_future(self._channel.receive())
        if self._answer.done():
            await self._await_expected_answer([])
        unit = self._channel.take_empty_unit_nowait()
        if unit is not None:
            return unit
        turn = asyncio.ensure_future(self._channel.take_empty_unit())
        try:
            await asyncio.wait({turn, self._answer}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            _cancel_unit_wait(turn)
            raise
        if not turn.done():
            _cancel_unit_wait(turn)
            await self._await_expected_answer([])
        return turn.result()

    async def _await_expected_answer(self, expected: list[Type]) -> None:
        """Wait for the receiver's answer, which has to consist of the expected records."""
        assert self._answer is not None
        received = await self._answer
        try:
            found = [record.type for record in parse_records(received.view)]
            if found == [Type.CANCEL]:
                raise ChannelEnded("the peer has cancelled the transfer", Cause.PEER_CLOSED)
            if found != expected:
                raise WireError(f"unexpected records: {', '.join(kind.name for kind in found)}")
        except WireError as e:
            raise ChannelEnded(f"the peer has violated the protocol: {e}", Cause.PROTOCOL) from None
        finally:
            received.release()

    async def send(self, length: int) -> None:
        """Send the first ``length`` octets of the memory."""
        unit, self._unit = self._unit, None
        assert unit is not None
        self._crc = crc32c(unit.view[_PAYLOAD : _PAYLOAD + length], self._crc)
        end = put_data_header(
            unit.view, UNIT_HEADER_SIZE, transfer=_TRANSFER, offset=self._offset, length=length
        )
        self._offset += length
        await self._channel.send(unit, end)

    async def finish(self) -> None:
        """Send END, and wait until the receiver has confirmed it.

        Raises:
            ChannelEnded: the channel ends without BYE.

        """
        await self.wait_for_unit_memory()
        unit, self._unit = self._unit, None
        assert unit is not None
        end = End(size=self._offset, digest=self._crc.to_bytes(4, "big"))
        await self._channel.send(unit, end.put(unit.view, UNIT_HEADER_SIZE, _TRANSFER))
        await self._await_expected_answer([Type.BYE])

    async def close(self) -> None:
        """Release the unit and the task that the sender holds, whether ``finish`` was called or
        not.
        """
        if self._unit is not None:
            self._unit.release()
            self._unit = None
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()
        if self._answer is not None:
            await asyncio.wait({self._answer})
            if not self._answer.cancelled():
                self._answer.exception()  # retrieve it: it was raised before, or does not matter


async def receive_transfer(channel: Channel) -> AsyncGenerator[memoryview, None]:
    """Yield the octets of the transfer in order; confirm the transfer after the last ones.

    A view is valid until the next one is requested.

    Raises:
        ChannelEnded: the channel has ended before the transfer, or size or digest are wrong.

    """
    offset = crc = 0
    while True:
        received = await channel.receive()
        try:
            for record in parse_records(received.view):
                if record.transfer != _TRANSFER:
                    raise WireError(f"a record of transfer {record.transfer}")
                if record.type == Type.END:
                    end = End.unpack(record)
                    if end.size != offset or end.digest != crc.to_bytes(4, "big"):
                        raise WireError(
                            f"{offset} octets with digest {crc:08x} have arrived, but "
                            f"{end.size} with digest {end.digest.hex()} were sent"
                        )
                    await _send_message(channel, Bye())
                    return
                if record.type == Type.CANCEL:
                    raise ChannelEnded("the peer has cancelled the transfer", Cause.PEER_CLOSED)
                if record.type != Type.DATA or record.offset != offset:
                    raise WireError(f"a {record.type.name} for offset {record.offset}: {offset}")
                offset += len(record.body)
                crc = crc32c(record.body, crc)
                yield record.body
        except WireError as e:
            raise ChannelEnded(f"the peer has violated the protocol: {e}", Cause.PROTOCOL) from None
        finally:
            received.release()


async def close_after_transfer(channel: Channel, *, sent: bool) -> None:
    """End a channel after a transfer that is complete at both ends.

    The end that has sent the octets has received BYE, after which the peer takes nothing: on RD, a
    grant that this end still sends would never be acknowledged. On UD the peer waits for the report
    that BYE has arrived.
    """
    if sent and channel.name != "ud":
        channel.abort("the transfer is complete")
    await channel.close("the transfer is complete")


async def cancel_transfer(channel: Channel, reason: str) -> None:
    """End a channel whose transfer is incomplete, after an attempt to send CANCEL to the peer."""
    try:
        if channel.ended is None:
            with contextlib.suppress(ChannelEnded, asyncio.TimeoutError):
                await asyncio.wait_for(_send_message(channel, Cancel()), _CANCEL_S)
                await channel.close(reason)
    finally:
        channel.abort(reason)


def _cancel_unit_wait(turn: asyncio.Task[Unit]) -> None:
    """Cancel a wait for a unit; a unit that arrives at the same time is released."""

    def release_late_unit(done: asyncio.Task[Unit]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().release()

    turn.cancel()
    turn.add_done_callback(release_late_unit)


async def _send_message(channel: Channel, message: Message) -> None:
    unit = await channel.take_empty_unit()
    await channel.send(unit, message.put(unit.view, UNIT_HEADER_SIZE, _TRANSFER))
