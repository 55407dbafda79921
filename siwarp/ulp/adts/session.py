# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A session exchanges records over its channel; clients and servers use this same code.

Tasks of an ``Exchange``: a reader of the channel, a task that has received records carried out by
the disk, a writer that has units filled, a watch of the rendezvous, and a task for the time limits.
The first of them that ends, ends the session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from siwarp.base import system
from siwarp.ulp.adts import wire
from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded, Received
from siwarp.ulp.adts.disk import Disk
from siwarp.ulp.adts.memory import Unit
from siwarp.ulp.adts.transfer import (
    Filled,
    Outcome,
    Receiver,
    Sender,
    clip_error_text,
    errno_of_error_code,
)
from siwarp.ulp.adts.wire import UNIT_HEADER_SIZE, ErrorCode, Message, Record, Type
from siwarp.verbs import Address, Error

__all__ = [
    "FILES",
    "IDLE_S",
    "ADTSError",
    "Exchange",
    "ended_error",
    "format_address",
    "receive_message",
    "send_message",
]

#: Maximum number of open transfers of a session.
FILES = 64
#: Seconds after which a session without transfers and requests ends.
IDLE_S = 30
#: Seconds after which a peer that owes something ends the session in error. A unit of 1 MiB takes
#: 84 s at 100 kbit/s, and a blackout of 10 s must pass.
SILENCE_S = 120.0
#: Seconds of silence after which a peer that has sent PAUSE, because its disk is slow, ends the
#: session in error.
PAUSED_SILENCE_S = 600.0
#: The peer is asked to pause when a call to the file system has taken this number of seconds.
STALL_S = 5.0
#: Seconds between two checks of the time limits.
_TICK_S = 1.0
#: Seconds for which the end of a session waits for the disk.
_DISK_END_S = 5.0
#: Seconds between the end of the rendezvous and the end of the session, in which a BYE or ERROR
#: that the peer has sent on the channel arrives.
_LAST_WORDS_S = 0.5
#: Maximum number of received units that the disk has not stored; further units wait in the channel.
_RING = 4
#: Number of messages queued for sending at which this end stops receiving units.
_UNSENT = 1024

#: The types of the records of a transfer that its sender sends, and those that its receiver sends.
_OF_SENDERS = {Type.OPEN, Type.DATA, Type.HOLE, Type.END}
_OF_RECEIVERS = {Type.ACCEPT, Type.SKIP, Type.DONE}

_CODES = {
    Cause.LOST: ErrorCode.SHUTDOWN,
    Cause.PEER_CLOSED: ErrorCode.SHUTDOWN,
    Cause.CLOSED: ErrorCode.SHUTDOWN,
    Cause.REFUSED: ErrorCode.REFUSED,
    Cause.TIMEOUT: ErrorCode.TIMEOUT,
    Cause.PROTOCOL: ErrorCode.PROTOCOL,
}


class ADTSError(Error):
    """An error of a session or of a file; ``code`` is the kind of error."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(errno_of_error_code(code), text)
        self.code = code


def format_address(address: Address) -> str:
    """Return an address as the text HOST:PORT, for messages."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ended_error(ended: ChannelEnded) -> ADTSError:
    """Return the error of a session whose channel has ended."""
    return ADTSError(_CODES[ended.cause], ended.reason)


async def send_message(channel: Channel, *messages: Message) -> None:
    """Send messages about the session in one unit."""
    unit = await channel.take_empty_unit()
    try:
        at = UNIT_HEADER_SIZE
        for message in messages:
            at = message.put(unit.view, at)
    except BaseException:
        unit.release()
        raise
    await channel.send(unit, at)


async def receive_message(channel: Channel) -> list[Message]:
    """Receive a unit, and return its messages.

    Raises:
        WireError: the unit is invalid.
        ADTSError: the unit has an ERROR.
        ChannelEnded: the channel has ended.

    """
    received = await channel.receive()
    try:
        # The objects outlive the unit's memory, so they are made of a copy.
        messages = [
            wire.parse_message(r) for r in wire.parse_records(memoryview(bytes(received.view)))
        ]
    finally:
        received.release()
    for message in messages:
        if isinstance(message, wire.Error):
            raise ADTSError(message.code, message.text)
    return messages


class Exchange:
    """The exchange of records of one session.

    Args:
        channel: the session's channel; closed at the end.
        rendezvous: the connection whose end ends the session; None if it is the channel.
        disk: calls of ``sender`` and ``receiver`` are made there.
        first: the id of this end's first transfer: 1 for the initiator, 2 for the acceptor.
        files: the most transfers that are open at a time in each direction.
        idle: seconds after which a session without transfers ends; None: the peer decides.
        on_request: called with GET, LIST and DELETE; None: they violate the protocol.
        on_outcome: called with what has happened to files, and whether this end sends them.

    """

    def __init__(
        self,
        channel: Channel,
        rendezvous: Channel | None,
        disk: Disk,
        *,
        first: int,
        files: int = FILES,
        idle: float | None = None,
        on_request: Callable[[Record], None] | None = None,
        on_outcome: Callable[[Outcome, bool], None] | None = None,
    ) -> None:
        self.channel = channel
        self.sender = Sender(first, files)
        self.receiver = Receiver({}, files)
        #: Once ``run`` has returned: the error that ended the session, None if it ended normally.
        self.error: ADTSError | None = None
        #: For the id of each request of this end, the function that is called with each record of
        #: the answer: ENTRY, REQUEST_DONE or ERROR.
        self.requests: dict[int, Callable[[Record], None]] = {}
        self._rendezvous = rendezvous
        self._disk = disk
        self._first = first
        self._idle = idle
        self._on_request = on_request
        self._on_outcome = on_outcome
        self._control: deque[tuple[int, Message]] = deque()
        self._wake = asyncio.Event()
        #: Whether fewer than _UNSENT messages wait to be sent.
        self._has_room = asyncio.Event()
        self._has_room.set()
        # The answers of the peer are processed after the file records that arrived before them.
        self._ring: asyncio.Queue[asyncio.Future[Outcome] | Record] = asyncio.Queue(_RING)
        # Whether the peer has sent records that are invalid; set by the disk thread.
        self._is_violated = False
        self._last_id = 0
        self._paused_by_peer = False
        #: The reasons for which the peer was asked to pause; empty: it was not.
        self._pausing: set[str] = set()
        self._last_heard = self._last_active = system.monotonic()
        self._ending: asyncio.Event = asyncio.Event()

    # ---- for the owner

    def post(self, message: Message, transfer: int = 0) -> None:
        """Send a message as soon as possible."""
        self._control.append((transfer, message))
        if len(self._control) >= _UNSENT:
            self._has_room.clear()
        self._last_active = system.monotonic()
        self._wake.set()

    def set_peer_paused(self, reason: str, paused: bool) -> None:
        """Set or clear a reason to pause; the peer sends no files while there is a reason."""
        before = bool(self._pausing)
        if paused:
            self._pausing.add(reason)
        else:
            self._pausing.discard(reason)
        if bool(self._pausing) != before:
            self.post(wire.Resume() if before else wire.Pause())

    def wake_writer(self) -> None:
        """Wake the task that writes units; call this after ``sender.add_plan``."""
        self._last_active = system.monotonic()
        self._wake.set()

    async def run(self) -> None:
        """Exchange records until the session ends; then close channel, rendezvous and files.

        ``error`` then has the reason. Cancellation ends the session without a message to the peer.
        """
        tasks = [
            asyncio.ensure_future(part)
            for part in (
                self._read_units(),
                self._post_replies_in_order(),
                self._fill_and_send_units(),
                self._watch_time_limits(),
                *([self._watch_rendezvous()] if self._rendezvous else []),
            )
        ]
        try:
            ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await _cancel_tasks(others)
            # If several tasks have ended, prefer an error to the mere end of the channel as the
            # reason.
            errors = [e for task in ended if (e := task.exception()) is not None]
            errors.sort(key=lambda e: isinstance(e, ChannelEnded))
            await self._end_session(errors[0] if errors else None)
        finally:
            await _cancel_tasks(tasks)
            for end in (self.channel, self._rendezvous):
                if end is not None:
                    end.abort("the session has ended")
            await self._close_files()

    def close(self) -> None:
        """End the session normally, after the posted messages have been sent."""
        self.post(wire.Bye())
        self._ending.set()

    # ---- the end

    async def _end_session(self, error: BaseException | None) -> None:
        if error is None:
            await self.channel.close("the session has ended")
        elif isinstance(error, wire.WireError):
            peer = format_address(self.channel.peer)
            self.error = ADTSError(ErrorCode.PROTOCOL, f"{peer} violates the protocol: {error}")
            await self._report_end_to_peer(
                wire.Error(ErrorCode.PROTOCOL, clip_error_text(str(error)))
            )
        elif isinstance(error, ChannelEnded):
            self.error = ended_error(error)
        elif isinstance(error, _Own):
            self.error = ADTSError(error.code, error.text)
            await self._report_end_to_peer(wire.Error(error.code, clip_error_text(error.text)))
        elif isinstance(error, ADTSError):
            self.error = error
        else:
            raise error

    async def _report_end_to_peer(self, message: Message) -> None:
        """Send the peer the reason for the end of the session, if possible within a second."""
        with contextlib.suppress(ChannelEnded, asyncio.TimeoutError, Error):
            for end in (self.channel, self._rendezvous):
                unit = end.take_empty_unit_nowait() if end is not None else None
                if end is not None and unit is not None:
                    at = message.put(unit.view, UNIT_HEADER_SIZE)
                    await asyncio.wait_for(end.send(unit, at), 1)
                    await asyncio.wait_for(end.close("the session has ended"), 1)
                    return

    async def _close_files(self) -> None:
        closing = [
            self._disk.queue_call(self.sender.close),
            self._disk.queue_call(self.receiver.close),
        ]
        await asyncio.wait(closing, timeout=_DISK_END_S)
        self._disk.close()

    # ---- receiving

    async def _read_units(self) -> None:
        while True:
            # Receive nothing while too many answers of this end are queued because the peer does
            # not read.
            await self._has_room.wait()
            received = await self.channel.receive()
            self._last_heard = system.monotonic()
            records: list[Record] = []
            answers: list[Record] = []
            try:
                for record in wire.parse_records(received.view):
                    if self._is_record_for_receiver(record):
                        records.append(record)
                    elif self._is_answer_to_own_request(record):
                        answers.append(record._replace(body=memoryview(bytes(record.body))))
                    elif self._handle_record(record):
                        received.release()
                        return
            except BaseException:
                received.release()
                raise
            if records:
                done = self._disk.queue_call(self._process_records, records)
                # The disk thread uses the unit's memory even after this task is cancelled, so the
                # unit is released when the disk thread has finished.
                done.add_done_callback(partial(_release_processed_unit, received))
                await self._ring.put(done)
            else:
                received.release()
            for answer in answers:
                await self._ring.put(answer)

    def _is_own_transfer_id(self, transfer: int) -> bool:
        return transfer % 2 == self._first % 2

    def _check_new_transfer_id(self, record: Record) -> None:
        if self._is_own_transfer_id(record.transfer) or record.transfer <= self._last_id:
            raise wire.WireError(
                f"{record.type.name} with the id {record.transfer} after {self._last_id}"
            )
        self._last_id = record.transfer

    def _is_record_for_receiver(self, record: Record) -> bool:
        if record.type == Type.OPEN:
            self._check_new_transfer_id(record)
        if record.type in _OF_SENDERS:
            if not record.transfer or self._is_own_transfer_id(record.transfer):
                raise wire.WireError(f"{record.type.name} with the id {record.transfer}")
            return True
        about_file = record.type in {Type.ERROR, Type.CANCEL} and record.transfer != 0
        return about_file and not self._is_own_transfer_id(record.transfer)

    def _is_answer_to_own_request(self, record: Record) -> bool:
        """Return whether a record answers a request of this end."""
        return record.transfer in self.requests and record.type in {
            Type.ENTRY,
            Type.REQUEST_DONE,
            Type.ERROR,
        }

    def _handle_record(self, record: Record) -> bool:
        """Process a record that is not file data; return whether the session has ended."""
        kind = record.type
        if kind == Type.ERROR and not record.transfer:
            message = wire.Error.unpack(record)
            peer = format_address(self.channel.peer)
            raise ADTSError(message.code, f"{peer} has ended the session: {message.text}")
        if kind in _OF_RECEIVERS | {Type.ERROR, Type.CANCEL}:
            if self.sender.is_busy:
                self.sender.queue_reply(record)
                self._wake.set()
        elif kind in {Type.PAUSE, Type.RESUME}:
            self._paused_by_peer = kind == Type.PAUSE
            self._wake.set()
        elif kind == Type.BYE:
            return True
        elif kind in {Type.GET, Type.LIST, Type.DELETE} and self._on_request is not None:
            self._check_new_transfer_id(record)
            self._last_active = system.monotonic()
            self._on_request(record)
        else:
            raise wire.WireError(f"{kind.name} is not expected from this end in a session")
        return False

    def _process_records(self, records: list[Record]) -> Outcome:
        """Process the records of a unit, unless an earlier unit had an invalid record."""
        if self._is_violated:
            return Outcome()
        try:
            return self.receiver.process_records(records)
        except wire.WireError:
            self._is_violated = True
            raise

    async def _post_replies_in_order(self) -> None:
        while True:
            item = await self._ring.get()
            if isinstance(item, Record):
                if item.transfer in self.requests:
                    self.requests[item.transfer](item)
                continue
            outcome = await asyncio.shield(item)
            for transfer, message in outcome.replies:
                self.post(message, transfer)
            self._report_outcome(outcome, False)

    def _report_outcome(self, outcome: Outcome, is_sent: bool) -> None:
        self._last_active = system.monotonic()
        if self._on_outcome is not None:
            self._on_outcome(outcome, is_sent)

    # ---- sending

    async def _fill_and_send_units(self) -> None:
        filled: tuple[Unit, asyncio.Future[Filled]] | None = None
        try:
            while True:
                if filled is None:
                    self._wake.clear()
                    if not self._control and not self._is_sending_files():
                        if self._ending.is_set():
                            await self.channel.flush()
                            return
                        await self._wake.wait()
                        continue
                    filled = self._fill_unit(await self.channel.take_empty_unit())
                unit, filling = filled
                at, payload = await asyncio.shield(filling)
                self._report_outcome(self.sender.take_outcome(), True)
                filled = None
                if at == UNIT_HEADER_SIZE:
                    unit.release()
                    if not self._control and not self._wake.is_set():
                        await self._wake.wait()
                    continue
                # A disk thread fills the next unit while this one is being sent.
                following = (
                    self.channel.take_empty_unit_nowait() if self._is_sending_files() else None
                )
                if following is not None:
                    filled = self._fill_unit(following)
                await self.channel.send(unit, at, payload)
        finally:
            if filled is not None:
                # A disk thread may still write to the unit, so the unit is released later.
                unit, filling = filled
                filling.add_done_callback(lambda _: unit.release())

    def _is_sending_files(self) -> bool:
        return self.sender.is_busy and not self._paused_by_peer

    def _fill_unit(self, unit: Unit) -> tuple[Unit, asyncio.Future[Filled]]:
        """Begin to fill a unit; return the unit and a future of the length of its octets."""
        at = self._write_control_messages_to_unit(unit.view)
        if self._is_sending_files():
            fill = partial(self.sender.fill_unit_with_records, gathers=self.channel.gathers)
            return unit, self._disk.queue_call(fill, unit.view, at)
        filled: asyncio.Future[Filled] = asyncio.get_running_loop().create_future()
        filled.set_result(Filled(at))
        return unit, filled

    def _write_control_messages_to_unit(self, view: memoryview) -> int:
        at = UNIT_HEADER_SIZE
        while self._control and self._control[0][1].record_length() <= len(view) - at:
            transfer, message = self._control.popleft()
            at = message.put(view, at, transfer)
        if len(self._control) < _UNSENT:
            self._has_room.set()
        return at

    # ---- limits

    async def _watch_rendezvous(self) -> None:
        assert self._rendezvous is not None
        while True:
            try:
                messages = await receive_message(self._rendezvous)
            except ChannelEnded as e:
                if e.cause == Cause.PEER_CLOSED:
                    await asyncio.sleep(_LAST_WORDS_S)
                raise
            if any(not isinstance(message, wire.Bye) for message in messages):
                raise wire.WireError("a record on the rendezvous, while the session has a channel")

    async def _watch_time_limits(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = system.monotonic()
            if self._pause_peer_while_disk_is_slow(now):
                continue  # this end's disk is slow, so it is not the peer that delays the session
            peer = format_address(self.channel.peer)
            if self._is_waiting_for_peer():
                limit = PAUSED_SILENCE_S if self._paused_by_peer else SILENCE_S
                if now - max(self._last_heard, self._last_active) > limit:
                    raise _Own(
                        ErrorCode.TIMEOUT,
                        f"{peer} has not answered for {limit:.0f} s: the session ends; run the "
                        "same command again to continue",
                    )
            elif self._idle is not None and now - self._last_active > self._idle:
                self.post(wire.Bye())
                self._ending.set()
                self._idle = None

    def _is_waiting_for_peer(self) -> bool:
        """Return whether this end waits for the peer to answer or to grant credit."""
        return (
            self.sender.is_busy
            or bool(self.receiver.open_transfer_count)
            or bool(self._control)
            or bool(self.requests)
        )

    def _pause_peer_while_disk_is_slow(self, now: float) -> bool:
        """Ask the peer to pause while a file system call is slow; return whether a call is slow."""
        since = self._disk.busy_since
        stalls = since is not None and now - since > STALL_S
        self.set_peer_paused("disk", stalls)
        if since is not None and now - since > PAUSED_SILENCE_S:
            raise _Own(
                ErrorCode.IO,
                f"the file system has not answered for {PAUSED_SILENCE_S:.0f} s: check the disk",
            )
        if stalls:
            self._last_active = now
        return stalls


def _release_processed_unit(received: Received, done: asyncio.Future[Outcome]) -> None:
    if not done.cancelled():
        done.exception()  # retrieve the exception, or asyncio logs it if the session has ended
    received.release()


async def _cancel_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Own(Exception):
    """Raised by a task of a session to end the session, because a time limit was exceeded."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
