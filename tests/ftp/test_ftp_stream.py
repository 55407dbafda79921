"""The transfer of FTP on a channel, with a channel that is a queue in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from siwarp.ulp.adts.channel import Cause, ChannelEnded
from siwarp.ulp.adts.wire import (
    RECORD_HEADER_SIZE,
    UNIT_HEADER_SIZE,
    Bye,
    Cancel,
    End,
    Message,
    Pause,
    put_data_header,
    put_unit_header,
)
from siwarp.ulp.ftp import stream

UNIT = 4096


class FakeUnit:
    """A unit of memory; ``held`` is the number of units that were not released."""

    held = 0

    def __init__(self) -> None:
        self.view = memoryview(bytearray(UNIT))
        FakeUnit.held += 1

    def release(self) -> None:
        FakeUnit.held -= 1


class FakeChannel:
    """One end of a channel: sent messages are appended to ``sent``; ``queue`` has arriving ones."""

    def __init__(self, credit: int = 1000) -> None:
        self.queue: asyncio.Queue[FakeUnit | ChannelEnded] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.credit = credit
        self.ended: ChannelEnded | None = None

    def take_empty_unit_nowait(self) -> FakeUnit | None:
        if len(self.sent) >= self.credit:
            return None
        return FakeUnit()

    async def take_empty_unit(self) -> FakeUnit:
        while (unit := self.take_empty_unit_nowait()) is None:
            await asyncio.get_running_loop().create_future()  # wait until the task is cancelled
        return unit

    async def send(self, unit: FakeUnit, length: int) -> None:
        put_unit_header(unit.view, length)
        self.sent.append(bytes(unit.view[:length]))
        unit.release()
        await asyncio.sleep(0)  # let other tasks run, as they do while a real transport sends

    async def receive(self) -> FakeUnit:
        got = await self.queue.get()
        if isinstance(got, ChannelEnded):
            raise got
        return got

    def queue_messages(self, *octets: bytes) -> None:
        for each in octets:
            unit = FakeUnit()
            unit.view = memoryview(each)
            self.queue.put_nowait(unit)

    def abort(self, reason: str) -> None:
        self.ended = self.ended or ChannelEnded(reason, Cause.CLOSED)

    async def close(self, reason: str) -> None:
        self.abort(reason)


@pytest.fixture(autouse=True)
def check_that_every_unit_is_released() -> Any:
    FakeUnit.held = 0
    yield
    assert FakeUnit.held == 0


def encode_unit(*write_data_record: Callable[[memoryview, int], int]) -> bytes:
    view = memoryview(bytearray(UNIT))
    at = UNIT_HEADER_SIZE
    for each in write_data_record:
        at = each(view, at)
    put_unit_header(view, at)
    return bytes(view[:at])


def make_record_writer(what: Message, transfer: int = 1) -> Callable[[memoryview, int], int]:
    return lambda view, at: what.put(view, at, transfer)


def make_data_record_writer(
    octets: bytes, offset: int, transfer: int = 1
) -> Callable[[memoryview, int], int]:
    def write_data_record(view: memoryview, at: int) -> int:
        start = at + RECORD_HEADER_SIZE
        view[start : start + len(octets)] = octets
        return put_data_header(view, at, transfer=transfer, offset=offset, length=len(octets))

    return write_data_record


def make_end_record_writer(octets: bytes) -> Callable[[memoryview, int], int]:
    return make_record_writer(End(size=len(octets), digest=crc32c(octets).to_bytes(4, "big")))


async def receive_all_octets(channel: Any) -> bytes:
    return b"".join([bytes(chunk) async for chunk in stream.receive_transfer(channel)])


def test_a_transfer_is_sent_received_and_confirmed() -> None:
    async def send_receive_and_confirm_transfer() -> None:
        sender, receiver = FakeChannel(), FakeChannel()
        sending: Any = sender
        source = stream.Sender(sending)
        for part in (b"one ", b"", b"two"):
            into = await source.wait_for_unit_memory()
            into[: len(part)] = part
            await source.send(len(part))
        finishing = asyncio.ensure_future(source.finish())
        await asyncio.sleep(0)
        receiver.queue_messages(*sender.sent)
        assert await receive_all_octets(receiver) == b"one two"
        sender.queue_messages(*receiver.sent)
        await finishing
        await source.close()

    asyncio.run(send_receive_and_confirm_transfer())


@pytest.mark.parametrize(
    "wrong",
    [
        encode_unit(make_data_record_writer(b"abc", 1)),
        encode_unit(make_data_record_writer(b"abc", 0), make_data_record_writer(b"abc", 0)),
        encode_unit(make_data_record_writer(b"abc", 0, transfer=2)),
        encode_unit(make_data_record_writer(b"abc", 0), make_end_record_writer(b"abd")),
        encode_unit(make_data_record_writer(b"abc", 0), make_end_record_writer(b"abcd")),
        encode_unit(make_record_writer(Pause())),
        b"ADTS" + bytes(60),
    ],
    ids=["offset", "repeated", "transfer", "digest", "size", "type", "unit"],
)
def test_a_sender_that_violates_the_protocol_ends_the_transfer(wrong: bytes) -> None:
    async def receive_wrong_unit() -> None:
        channel = FakeChannel()
        channel.queue_messages(wrong)
        with pytest.raises(ChannelEnded, match="has violated the protocol") as raised:
            await receive_all_octets(channel)
        assert raised.value.cause == Cause.PROTOCOL
        assert channel.sent == []  # the receiver does not confirm the transfer with a BYE

    asyncio.run(receive_wrong_unit())


def test_a_channel_that_ends_before_the_end_is_no_end_of_the_file() -> None:
    async def receive_until_peer_crashes() -> None:
        channel = FakeChannel()
        channel.queue_messages(encode_unit(make_data_record_writer(b"abc", 0)))
        channel.queue.put_nowait(ChannelEnded("the peer crashed", Cause.LOST))
        with pytest.raises(ChannelEnded, match="the peer crashed"):
            await receive_all_octets(channel)

    asyncio.run(receive_until_peer_crashes())


def test_the_receiver_learns_that_the_sender_has_cancelled() -> None:
    async def receive_cancelled_transfer() -> None:
        channel = FakeChannel()
        channel.queue_messages(
            encode_unit(make_data_record_writer(b"abc", 0), make_record_writer(Cancel()))
        )
        with pytest.raises(ChannelEnded, match="has cancelled the transfer"):
            await receive_all_octets(channel)

    asyncio.run(receive_cancelled_transfer())


@pytest.mark.parametrize("credit", [0, 1000])
def test_the_sender_learns_that_the_receiver_has_cancelled(credit: int) -> None:
    async def send_until_receiver_cancels() -> None:
        channel: Any = FakeChannel(credit)
        source = stream.Sender(channel)
        channel.queue_messages(encode_unit(make_record_writer(Cancel())))
        with pytest.raises(ChannelEnded, match="has cancelled the transfer"):
            while True:
                await source.wait_for_unit_memory()
                await source.send(1)
        await source.close()

    asyncio.run(send_until_receiver_cancels())


def test_another_answer_to_end_than_bye_is_no_confirmation() -> None:
    async def finish_stream_with_wrong_answer() -> None:
        channel: Any = FakeChannel()
        source = stream.Sender(channel)
        channel.queue_messages(encode_unit(make_record_writer(Bye()), make_record_writer(Bye())))
        with pytest.raises(ChannelEnded, match="has violated the protocol"):
            await source.finish()
        await source.close()

    asyncio.run(finish_stream_with_wrong_answer())


def test_cancel_is_sent_if_the_peer_takes_it_and_ends_the_channel() -> None:
    async def exchange_cancel_record() -> None:
        channel: Any = FakeChannel()
        await stream.cancel_transfer(channel, "the reason")
        assert channel.sent == [encode_unit(make_record_writer(Cancel()))]
        assert channel.ended.reason == "the reason"
        peer: Any = FakeChannel()
        peer.queue_messages(*channel.sent)
        with pytest.raises(ChannelEnded):
            await receive_all_octets(peer)

    asyncio.run(exchange_cancel_record())
