# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The common part of the RC and RD channels: sending units, credits, and receiving units."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from siwarp.ulp.adts.channel import CLOSE_S, Cause, Channel, ChannelEnded
from siwarp.ulp.adts.credit import CreditError, Credits, Role
from siwarp.ulp.adts.device import Device
from siwarp.ulp.adts.memory import Unit, Units
from siwarp.ulp.adts.receives import Receive, Receives
from siwarp.ulp.adts.registrations import Payload, Registration
from siwarp.ulp.adts.wire import (
    RECORD_HEADER_SIZE,
    UNIT_HEADER_SIZE,
    Reclaim,
    Record,
    Type,
    WireError,
    parse_records,
    parse_unit_header,
    put_unit_header,
)
from siwarp.verbs import QP, WC, Address, Error, SendWR, WCStatus

__all__ = ["SEND_DEPTH", "RDMAChannel"]

#: Maximum number of requests of one channel in the send queue. A request sends either a unit with
#: records, or a grant unit, which only announces credits.
SEND_DEPTH = 256


class RDMAChannel(Channel):
    """A channel whose units are Sends; they arrive in the shared receives ``receives``."""

    gathers = True

    def __init__(
        self,
        device: Device,
        receives: Receives,
        units: Units,
        credits: Credits,
        role: Role,
        name: str,
        window_limit: int,
        peer: Address,
        local: Address,
    ) -> None:
        super().__init__(name, receives.unit_size, peer, local)
        self.device = device
        self.credits = credits
        #: The largest window of this end, and maximum number of units that it fills and sends at a
        #: time.
        self.window_limit = window_limit
        #: The time of the last unit with records, and of the first RECLAIM that is unanswered.
        self._loop = asyncio.get_running_loop()
        self.last_unit = self._loop.time()
        self.asked_at: float | None = None
        #: Since when no posted unit has completed; ``None`` if no unit is posted.
        self.stalled_since: float | None = None
        #: Whether the channel closes the device, because no other channel uses it.
        self.owns_device = False
        #: Called when the transport has released all resources of the channel.
        self.on_released: Callable[[], None] | None = None
        self._role = role
        self._receives = receives
        self._units = units
        self._reserved = credits.reserved
        # The number of units that are being filled, the number of units that were posted and have
        # not completed, and the work request ids of all posted requests.
        self._filling = 0
        self._in_flight = 0
        self._posted: set[int] = set()
        self._turn: asyncio.Future[Unit] | None = None
        # The number of received units that were released while granting is paused; otherwise None.
        self._not_granted: int | None = None
        receives.add_channel(self)
        device.members[self] = None

    # ---- what differs between RC and RD

    @property
    @abstractmethod
    def _qp(self) -> QP:
        """The queue pair that sends to the peer."""

    def _address_send_request(self, wr: SendWR) -> None:
        """Set the destination of a send request, if the queue pair has none."""

    @abstractmethod
    def _describe_lost_connection(self) -> str:
        """Return the text that explains the end of the channel if the network or the peer has
        failed.
        """

    # ---- sending

    def take_empty_unit_nowait(self) -> Unit | None:
        """See ``Channel``."""
        self._check_open()
        if not self._may_fill_unit():
            return None
        unit = self._units.take_nowait()
        return None if unit is None else self._begin_filling_unit(unit)

    async def take_empty_unit(self) -> Unit:
        """See ``Channel``."""
        while True:
            unit = self.take_empty_unit_nowait()
            if unit is not None:
                return unit
            if not self._may_fill_unit():
                await self._wait_until_writers_are_woken()
                continue
            turn = self._turn = self._units.request_unit()
            self.device.watch_for_stalled_channels()
            try:
                unit = await turn
            except BaseException:
                self._units.withdraw_unit_request(turn)
                raise
            finally:
                self._turn = None
            if self.ended is None and self._may_fill_unit():
                return self._begin_filling_unit(unit)
            unit.release()  # a grant unit has used the last credit in the meantime

    def _may_fill_unit(self) -> bool:
        """Return whether there is credit and room in the window to fill one more unit."""
        filled = self._filling + self._in_flight
        return self.credits.sendable_unit_count > self._filling and filled < self.window_limit

    def _begin_filling_unit(self, unit: Unit) -> Unit:
        self._filling += 1
        unit.on_release = self._decrement_filling_count
        return unit

    def _decrement_filling_count(self) -> None:
        self._filling -= 1
        self._wake_writers()

    async def send(self, unit: Unit, length: int, payload: Payload | None = None) -> None:
        """Send a unit as ``Channel.send`` says; return when it is posted."""
        try:
            self._check_open()
            # A grant unit may have used the credit that was available when ``unit`` was taken.
            while not self.credits.sendable_unit_count:
                await self._wait_until_writers_are_woken()
                self._check_open()
        except BaseException:
            unit.release()
            raise
        self._post_unit(unit, length, payload)

    def _post_unit(self, unit: Unit, length: int, payload: Payload | None) -> None:
        registration = None
        try:
            sg = [unit.sge(length)]
            if payload is not None:
                registration = self._register_payload(payload)
                length += payload.length
                if registration is not None:
                    sg.append(registration.mr.sge(payload.offset, payload.length))
                else:
                    unit.view[length - payload.length : length] = payload.view
                    sg = [unit.sge(length)]
            put_unit_header(unit.view, length, *self.credits.count_sent_unit())
            self._update_reserved_receives()
            # The payload keeps the program's memory until the Send has completed.
            on_completion = partial(self._on_unit_sent, unit, payload, registration)
            self._post_send(SendWR(sg=sg), on_completion)
        except BaseException as error:
            if registration is not None:
                self.device.registrations.release(registration)
            unit.release()
            if isinstance(error, Error):
                self._end_channel(f"sending to {self._peer_name()}: {error.strerror}", Cause.LOST)
                raise self._ended_error() from None
            raise
        unit.on_release = None
        self._filling -= 1
        self._in_flight += 1
        if self.stalled_since is None:
            self.stalled_since = self._loop.time()
        self.sent_octets += length

    def _register_payload(self, payload: Payload) -> Registration | None:
        """Return the registration of the program's memory; ``None``: the device permits no more."""
        try:
            return self.device.registrations.take(payload.memory)
        except Error:
            return None

    def _post_send(self, wr: SendWR, on_completion: Callable[[WC], None]) -> None:
        self._address_send_request(wr)
        self._posted.add(self.device.post_send(self._qp, wr, on_completion))

    def _on_unit_sent(
        self, unit: Unit, payload: Payload | None, registration: Registration | None, wc: WC
    ) -> None:
        if registration is not None:
            self.device.registrations.release(registration)
        self._in_flight -= 1
        self.stalled_since = self._loop.time() if self._in_flight else None
        unit.release()
        self._on_send_completed(wc)

    def _on_send_completed(self, wc: WC) -> None:
        self._posted.discard(wc.wr_id)
        if wc.status and self.ended is None:
            self._end_by_failed_completion(wc)
        self._wake_writers()

    def complete_unfinished_sends(self) -> None:
        """Complete the sends in progress of an ended channel whose queue pair was closed."""
        for number in list(self._posted):
            self.device.complete_unfinished_send(number)

    async def flush(self) -> None:
        """See ``Channel``."""
        while self._posted:
            self._check_open()
            await self._wait_until_writers_are_woken()

    # ---- credits

    def _update_reserved_receives(self) -> None:
        """Update how many receives the peer's credits reserve, after the credits have changed."""
        reserved = self.credits.reserved
        self._receives.reserved += reserved - self._reserved
        self._reserved = reserved

    def _send_credit_grant_if_due(self) -> None:
        if self.ended is None and self.credits.is_grant_due and len(self._posted) < SEND_DEPTH:
            self._send_credit_grant()

    def _send_credit_grant(self) -> None:
        header = memoryview(bytearray(UNIT_HEADER_SIZE))
        put_unit_header(header, UNIT_HEADER_SIZE, *self.credits.count_sent_unit())
        self._update_reserved_receives()
        self._post_control_unit(bytes(header))

    def _post_control_unit(self, unit: bytes) -> None:
        try:
            self._post_send(self.device.control_send_wr(unit), self._on_control_unit_sent)
        except Error as error:
            self._end_channel(f"sending to {self._peer_name()}: {error.strerror}", Cause.LOST)

    def _on_control_unit_sent(self, wc: WC) -> None:
        self._on_send_completed(wc)
        self._send_credit_grant_if_due()

    def reclaim_credits(self) -> None:
        """Send RECLAIM, if credit permits: the peer must give back its credits beyond the
        window."""
        if (
            self.ended is None
            and self.credits.has_excess_credits
            and self.credits.sendable_unit_count
        ):
            self._send_control_message(Reclaim(keep=self.credits.window))

    def _send_control_message(self, message: Reclaim) -> None:
        unit = memoryview(bytearray(UNIT_HEADER_SIZE + RECORD_HEADER_SIZE + len(message.body())))
        message.put(unit, UNIT_HEADER_SIZE)
        put_unit_header(unit, len(unit), *self.credits.count_sent_unit())
        self._update_reserved_receives()
        self._post_control_unit(bytes(unit))

    def pause_granting_credits(self) -> None:
        """Stop granting; meanwhile other channels may use the receives of the released units."""
        if self._not_granted is None:
            self._not_granted = 0

    def resume_granting_credits(self) -> None:
        """See ``Channel``."""
        count, self._not_granted = self._not_granted or 0, None
        if self.ended is None:
            for _ in range(count):
                # While granting was paused, the receive may have been granted to another channel.
                if not self._receives.post_until_available(1) and self.credits.window > 1:
                    self.credits.set_credit_window(self.credits.window - 1)
                self.credits.count_released_receive()
                self._update_reserved_receives()
            self._send_credit_grant_if_due()

    # ---- receiving

    def on_receive(self, receive: Receive, wc: WC) -> None:
        """Handle a completed receive of this channel."""
        if wc.status or self.ended is not None:
            if self.ended is None:
                self._end_by_failed_completion(wc)
            self._repost_receive(receive)
            return
        view = receive.memory.view[: wc.byte_len]
        try:
            length, granted, returned = parse_unit_header(view, self.unit_size)
            if length != wc.byte_len:
                raise WireError(f"a unit of {wc.byte_len} octets says that it has {length}")
            grant_unit = length == UNIT_HEADER_SIZE
            self.credits.count_received_unit(granted, returned, grant_unit=grant_unit)
            if grant_unit:
                self._repost_receive(receive)
            elif view[UNIT_HEADER_SIZE] == Type.RECLAIM and self._role is Role.INITIATOR:
                self._process_credit_reclaim(next(parse_records(view)))
                self._repost_receive(receive)
                self.credits.count_released_receive()
            else:
                self._deliver_unit(receive, view)
        except (WireError, CreditError) as error:
            self._end_channel(
                f"{self._peer_name()} has violated the protocol: {error}", Cause.PROTOCOL
            )
            if receive.holder is not None:
                self._repost_receive(receive)
            return
        self._update_reserved_receives()
        self._send_credit_grant_if_due()
        self._wake_writers()

    def _repost_receive(self, receive: Receive) -> None:
        receive.holder = None
        self._receives.post_receive_again(receive)

    def _process_credit_reclaim(self, record: Record) -> None:
        self.credits.give_back_all_credits_but(Reclaim.unpack(record).keep)

    def _deliver_unit(self, receive: Receive, view: memoryview) -> None:
        self.last_unit = self._loop.time()
        if self._role is Role.ACCEPTOR:
            self._receives.adapt_credit_window_of_channel(self)
        receive.view = view
        self._queue_received_unit(receive)

    def on_release(self) -> None:
        """Grant the receive of a unit that was released."""
        if self.ended is not None:
            return
        if self._not_granted is not None:
            self._not_granted += 1
            return
        self.credits.count_released_receive()
        self._update_reserved_receives()
        self._send_credit_grant_if_due()

    # ---- the end

    def _end_by_failed_completion(self, wc: WC) -> None:
        if wc.vendor_err or wc.status in (WCStatus.LOC_LEN_ERR, WCStatus.REM_INV_REQ_ERR):
            try:
                wc.check()
            except Error as error:
                reason = f"{self._peer_name()} has violated the protocol: {error.strerror}"
                self._end_channel(reason, Cause.PROTOCOL)
        else:
            self._end_channel(self._describe_lost_connection(), Cause.LOST)

    def _end_channel(self, reason: str, cause: Cause) -> None:
        if self.ended is not None:
            return
        self._receives.reserved -= self._reserved
        self._reserved = 0
        self._receives.remove_channel(self)
        self.device.members.pop(self, None)
        super()._end_channel(reason, cause)
        if self._turn is not None and not self._turn.done():
            self._turn.set_exception(self._ended_error())

    async def close(self, reason: str = "this end has closed the channel") -> None:
        """See ``Channel``."""
        try:
            if self.ended is None:
                with contextlib.suppress(asyncio.TimeoutError, TimeoutError, ChannelEnded):
                    await asyncio.wait_for(self.flush(), CLOSE_S)
        finally:
            self.abort(reason)
        if self.owns_device:
            await self.device.wait_closed()
