# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The UD channel: each unit is one datagram, which is repeated until it has arrived (repeat.py).

A datagram is a unit or a report, and a trailer: the session's token, by which both ends know the
session, and the number of the unit. Datagrams without a token that is expected, or from an address
other than the session's, cost nothing but the time to look at them.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable

from siwarp.ulp.adts.channel import CLOSE_S, Cause, Channel, ChannelEnded, Received
from siwarp.ulp.adts.channel_rd import random_qkey
from siwarp.ulp.adts.device import Device
from siwarp.ulp.adts.memory import Pool, Unit
from siwarp.ulp.adts.registrations import Payload
from siwarp.ulp.adts.repeat import REPORT_S, Inbound, Outbound, Report
from siwarp.ulp.adts.wire import WireError, parse_unit_header, put_unit_header
from siwarp.verbs import (
    AH,
    MR,
    QP,
    WC,
    AccessFlag,
    Address,
    Error,
    ErrorPolicy,
    QPCap,
    QPInitAttr,
    QPType,
    SendWR,
    StateError,
)

__all__ = ["UD_UNIT_SIZE", "UDChannel", "UDPort", "open_ud_channel"]

#: Octets of a unit. With the trailer (24), the headers of UD (22) and those of UDP and IPv6 (48), a
#: packet has at most 1,280 octets, which every path for IPv6 carries, and in practice every path.
UD_UNIT_SIZE = 1184
#: The trailer of a datagram: the channel's token, and the number of the unit.
_TRAILER = struct.Struct(">16sQ")
_ROOM = UD_UNIT_SIZE + _TRAILER.size
#: Number of receives of a queue pair, and maximum number of datagrams that it sends at a time.
RECEIVES, SENDS = 512, 256
#: Maximum number of units that one end of a session stores in each direction.
WINDOW = 512
#: Seconds of silence after which a peer that owes a report is lost, as on RD.
SILENCE_S = 30.0
#: Seconds for which a receiver goes on to report missing units after the last datagram.
_REPORTING_S = 1.0
#: Number of times that the last report of a channel is sent: after the end the peer cannot ask for
#: a lost one again.
_LAST_REPORTS = 3


class UDPort:
    """A UD queue pair, its receives, and its channels by token.

    ``admit`` gets a token without a channel, the port and the source, and returns the new channel,
    or ``None`` if the token is not valid.
    """

    def __init__(
        self,
        device: Device,
        address: Address,
        qkey: int | None = None,
        admit: Callable[[bytes, UDPort, Address], UDChannel | None] | None = None,
    ) -> None:
        self.device = device
        #: The Q_Key: it is random for an acceptor, and known to the peers that were invited.
        self.qkey = random_qkey() if qkey is None else qkey
        self.channels: dict[bytes, UDChannel] = {}
        self._admit = admit
        self._sends = MR(device.pd, SENDS * _ROOM, AccessFlag(0))
        self._free = [
            (SendWR(sg=[self._sends.sge(at, _ROOM)]), self._sends.view[at : at + _ROOM])
            for at in range(0, SENDS * _ROOM, _ROOM)
        ]
        init = QPInitAttr(
            QPType.UD,
            scq=device.cq,
            rcq=device.cq,
            addr=address,
            cap=QPCap(SENDS, RECEIVES, 1, 1),
            error_policy=ErrorPolicy.MESSAGE,
            qkey=self.qkey,
        )
        self.qp = QP(device.pd, init)
        self.qp.to_rts()
        #: The address of the queue pair.
        self.address = self.qp.addr
        memory = MR(device.pd, RECEIVES * _ROOM, AccessFlag.LOCAL_WRITE)
        for at in range(0, RECEIVES * _ROOM, _ROOM):
            self._post_receive(memory, at)

    def _post_receive(self, memory: MR, at: int) -> None:
        view = memory.view[at : at + _ROOM]

        def on_completion(wc: WC) -> None:
            if wc.ok:
                self._on_datagram(view[: wc.byte_len], wc)
            if not self.device.closed:
                with contextlib.suppress(StateError):  # the device was lost
                    self.qp.post_recv(wr)

        wr = self.device.make_receive_request([memory.sge(at, _ROOM)], on_completion)
        self.qp.post_recv(wr)

    def _on_datagram(self, datagram: memoryview, wc: WC) -> None:
        length = len(datagram) - _TRAILER.size
        if length < 0 or wc.source is None:
            return
        token, number = _TRAILER.unpack_from(datagram, length)
        channel = self.channels.get(token)
        if channel is None and self._admit is not None:
            channel = self._admit(token, self, wc.source)
        if channel is not None:
            channel.on_datagram(datagram[:length], number, wc.source)

    def send(self, to: AH, octets: bytes | memoryview, token: bytes, number: int = 0) -> None:
        """Send a datagram; it is lost if too many are being sent."""
        if not self._free or self.device.closed:
            return
        wr, view = slot = self._free.pop()
        length = len(octets)
        view[:length] = octets
        _TRAILER.pack_into(view, length, token, number)
        wr.sg[0].length = length + _TRAILER.size
        wr.set_wr_ud(to)
        try:
            self.device.post_send(self.qp, wr, lambda wc: self._free.append(slot))
        except Error:  # the send queue is full, or the network is currently unreachable
            self._free.append(slot)


class _ReceivedUnit(Received):
    __slots__ = ("_channel",)

    def __init__(self, channel: UDChannel, octets: bytes) -> None:
        self._channel = channel
        self.view = memoryview(octets)

    def release(self) -> None:
        """See ``Received``."""
        self.view.release()
        self._channel._on_unit_release()


class UDChannel(Channel):
    """A channel to one peer of a UD queue pair.

    ``window``: units that this end stores in each direction, at most.
    """

    def __init__(self, port: UDPort, token: bytes, window: int, peer: Address) -> None:
        super().__init__("ud", UD_UNIT_SIZE, peer, port.address)
        self._loop = asyncio.get_running_loop()
        self._port = port
        self._token = token
        self._handle = AH(port.device.pd, peer)
        self._window = window
        self._sends = Pool(None, window * UD_UNIT_SIZE, UD_UNIT_SIZE)
        self._outbound: Outbound[tuple[Unit, int]] = Outbound()
        self._inbound: Inbound[bytes] = Inbound(window)
        # Whether a task waits for room, so that a report of the peer is expected.
        self._waits = False
        self._is_paused = False
        # The times of the last datagram and of the last unit, and since when reports are expected.
        self._heard_at = self._unit_at = self._expected_since = self._loop.time()
        self._send_timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.TimerHandle | None = None
        self._report_is_due = False
        self._question_timer: asyncio.TimerHandle | None = None
        #: Whether the device was opened for this channel alone, which then closes the device.
        self.owns_device = False
        #: Called when the channel has ended.
        self.on_released: Callable[[], None] | None = None
        #: A future that the first datagram of the peer completes.
        self.answered: asyncio.Future[None] = self._loop.create_future()
        #: An attribute of every channel of a device; here always None, because a UD channel has its
        #: own units.
        self.stalled_since: float | None = None
        port.channels[token] = self
        port.device.members[self] = None

    @property
    def destination(self) -> Address:
        """The numeric address of the peer's queue pair."""
        return self._handle.dest

    # ---- sending

    def take_empty_unit_nowait(self) -> Unit | None:
        """See ``Channel``."""
        self._check_open()
        if (
            self._outbound.room
            <= self._window - self._sends.free_count - self._outbound.unacknowledged
        ):
            return None  # the units that are being filled also occupy room
        return self._sends.take_nowait()

    async def take_empty_unit(self) -> Unit:
        """See ``Channel``."""
        while (unit := self.take_empty_unit_nowait()) is None:
            self._waits = True
            self._start_timer_for_expected_report()
            try:
                await self._wait_until_writers_are_woken()
            finally:
                self._waits = False
        return unit

    async def send(self, unit: Unit, length: int, payload: Payload | None = None) -> None:
        """Send a unit as ``Channel.send`` says; return when it is queued."""
        try:
            self._check_open()
            put_unit_header(unit.view, length)
        except BaseException:
            unit.release()
            raise
        self._outbound.queue_unit((unit, length), self._loop.time())
        self.sent_octets += length
        self._send_due_units()
        self._start_timer_for_expected_report()

    def _send_due_units(self) -> None:
        """Send the units that are due, and start the timer for those that are due later."""
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        if self.ended is not None:
            return
        for number, (unit, length) in self._outbound.take_due_units(self._loop.time()):
            self._port.send(self._handle, unit.view[:length], self._token, number)
        delay = self._outbound.seconds_until_due()
        if delay is not None:
            # The timer of at least 1 ms sends several units at a time, if the rate is above one
            # unit a millisecond.
            self._send_timer = self._loop.call_later(max(delay, 0.001), self._send_due_units)

    async def flush(self) -> None:
        """Wait until all sent units have arrived."""
        while self._outbound.unacknowledged:
            self._check_open()
            await self._wait_until_writers_are_woken()

    # ---- reports

    def ask_for_report(self) -> None:
        """Send a report that the peer answers with its own."""
        self._send_report(ask=True)

    def _send_report(self, *, ask: bool = False) -> None:
        self._port.send(self._handle, self._inbound.make_report(ask=ask).pack(), self._token)

    def _schedule_report(self) -> None:
        self._report_is_due = True
        if self._report_timer is None and self.ended is None:
            self._report_timer = self._loop.call_later(REPORT_S, self._send_report_if_due)

    def _send_report_if_due(self) -> None:
        self._report_timer = None
        if self.ended is not None:
            return
        recent = self._loop.time() - self._unit_at < _REPORTING_S
        if self._report_is_due or (self._inbound.has_gaps and recent):
            self._report_is_due = False
            self._send_report()
            self._report_timer = self._loop.call_later(REPORT_S, self._send_report_if_due)

    def _start_timer_for_expected_report(self) -> None:
        """Start the timer that asks the peer for a report if none arrives in time."""
        if self._question_timer is None and self.ended is None:
            self._expected_since = self._loop.time()
            self._question_timer = self._loop.call_later(REPORT_S, self._ask_for_late_report)

    def _ask_for_late_report(self) -> None:
        self._question_timer = None
        if self.ended is not None or not (self._outbound.unacknowledged or self._waits):
            return
        now = self._loop.time()
        if now - max(self._heard_at, self._expected_since) > SILENCE_S:
            self._end_channel(
                f"{self._peer_name()} did not answer for {SILENCE_S:g} seconds: check that its "
                "program runs, and repeat the transfer",
                Cause.LOST,
            )
            return
        if self._outbound.must_ask_for_report(now):
            self.ask_for_report()
            self._send_due_units()
        self._question_timer = self._loop.call_later(REPORT_S, self._ask_for_late_report)

    # ---- receiving

    def on_datagram(self, octets: memoryview, number: int, source: Address) -> None:
        """Process a datagram that carries this channel's token."""
        if source != self.destination or self.ended is not None:
            return
        now = self._heard_at = self._loop.time()
        if not self.answered.done():
            self.answered.set_result(None)
        try:
            if Report.is_report(octets):
                self._on_report(Report.unpack(octets), now)
                return
            self._unit_at = now
            length = parse_unit_header(octets, UD_UNIT_SIZE).length
            if length != len(octets):
                raise WireError(f"a unit of {len(octets)} octets says that it has {length}")
            for unit in self._inbound.store_unit(number, bytes(octets)):
                self._queue_received_unit(_ReceivedUnit(self, unit))
            self._schedule_report()
        except WireError as error:
            self._end_channel(
                f"{self._peer_name()} has violated the protocol: {error}", Cause.PROTOCOL
            )

    def _on_report(self, report: Report, now: float) -> None:
        for unit, _ in self._outbound.process_report(report, now):
            unit.release()
        if report.ask:
            self._send_report()
        self._send_due_units()
        self._wake_writers()

    def _on_unit_release(self) -> None:
        if self._inbound.count_released_unit(grant=not self._is_paused) and self.ended is None:
            self._schedule_report()

    def pause_granting_credits(self) -> None:
        """See ``Channel``."""
        self._is_paused = True

    def resume_granting_credits(self) -> None:
        """See ``Channel``."""
        self._is_paused = False
        if self._inbound.raise_unit_limit():
            self._schedule_report()

    # ---- the end

    def _end_channel(self, reason: str, cause: Cause) -> None:
        self._port.device.members.pop(self, None)
        super()._end_channel(reason, cause)

    def _release_transport(self) -> None:
        self._port.channels.pop(self._token, None)
        for timer in (self._send_timer, self._report_timer, self._question_timer):
            if timer is not None:
                timer.cancel()
        if self.on_released is not None:
            self.on_released()
        # While a request uses the address handle, its close fails: then its finalizer closes it.
        with contextlib.suppress(Error):
            self._handle.close()
        if self.owns_device:
            self._port.device.close_nowait()

    async def close(self, reason: str = "this end has closed the channel") -> None:
        """See ``Channel``."""
        try:
            if self.ended is None:
                for _ in range(_LAST_REPORTS):
                    self._send_report()
                with contextlib.suppress(asyncio.TimeoutError, TimeoutError, ChannelEnded):
                    await asyncio.wait_for(self.flush(), CLOSE_S)
        finally:
            self.abort(reason)
        if self.owns_device:
            await self._port.device.wait_closed()


async def open_ud_channel(
    port: UDPort, address: Address, token: bytes, window: int, timeout: float
) -> UDChannel:
    """Open a channel, which owns the port's device, to the UD queue pair at ``address``.

    Raises:
        ChannelEnded: the peer did not answer in time, or has refused the token.

    """
    channel = UDChannel(port, token, window, address)
    channel.owns_device = True
    try:
        waited, wait = 0.0, 0.2
        while not channel.answered.done() and waited < timeout:
            channel.ask_for_report()
            wait = min(wait, timeout - waited)
            await asyncio.wait([channel.answered], timeout=wait)
            waited += wait
            wait *= 2
    except BaseException:
        channel.abort("connecting was cancelled")
        raise
    if channel.answered.done():
        return channel
    await channel.close("the peer did not answer")
    raise ChannelEnded(
        f"the UD queue pair at {address[0]} port {address[1]} did not answer within {timeout:g} "
        "seconds: it has refused the token, or a firewall drops UDP datagrams",
        Cause.TIMEOUT,
    )
