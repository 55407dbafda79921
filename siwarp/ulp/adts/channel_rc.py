# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The RC channel: a queue pair for each session; the token is in the private data of the request.

Sends that find no receive wait for one (``keep_unexpected``): they occur only if a peer has broken
the rules of credits, and must not end the connections of others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from siwarp.cm import CMID, RTR, CMEvent, CMEventType, ConnParam
from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded
from siwarp.ulp.adts.channel_rdma import SEND_DEPTH, RDMAChannel
from siwarp.ulp.adts.credit import Credits, Role
from siwarp.ulp.adts.device import CONTROL_SIZE, Device
from siwarp.ulp.adts.memory import Units
from siwarp.ulp.adts.receives import Receives
from siwarp.verbs import (
    QP,
    WC,
    Address,
    Error,
    EventType,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    WCStatus,
)

__all__ = ["RCListener", "RCReceives", "accept_rc", "connect_rc"]

#: The connection's parameter by which either end may send first (RFC 6581).
_EITHER_END_FIRST = RTR.FPDU | RTR.WRITE | RTR.READ
#: Seconds for which a disconnected queue pair waits for the peer, before it is ended by force.
LEAVE_S = 2.0


class RCReceives(Receives):
    """The shared receives of RC channels; the QPN of a completion tells its channel."""

    def __init__(
        self,
        device: Device,
        units: Units,
        limit: int,
        scarce: Callable[[bool], None] | None = None,
    ) -> None:
        super().__init__(device, units, limit, scarce)
        self.channels: dict[int, RCChannel] = {}
        self.find = lambda wc: self.channels.get(wc.qp_num)

    @property
    def in_use(self) -> bool:
        """Whether the receives are in use by a channel, an expected channel or a queue pair."""
        return super().in_use or bool(self.channels)


class RCChannel(RDMAChannel):
    """A channel over an RC queue pair of its own."""

    def __init__(
        self,
        device: Device,
        receives: RCReceives,
        units: Units,
        credits: Credits,
        role: Role,
        window_limit: int,
        cm_id: CMID,
        peer: Address,
    ) -> None:
        """Create the queue pair and bind it to ``cm_id``, which the channel owns."""
        self._id = cm_id
        self._rc_receives = receives
        init = QPInitAttr(
            QPType.RC,
            scq=device.cq,
            rcq=device.cq,
            srq=receives.srq,
            cap=QPCap(SEND_DEPTH + window_limit, 0, 2, 0, CONTROL_SIZE),
            keep_unexpected=True,
        )
        self._queue_pair = QP(device.pd, init)
        try:
            cm_id.bind_qp(self._queue_pair)
            super().__init__(
                device, receives, units, credits, role, "rc", window_limit, peer, ("", 0)
            )
        except BaseException:
            self._queue_pair.close()
            raise
        self._number = self._queue_pair.qp_num
        receives.channels[self._number] = self
        device.on_event[self._queue_pair] = self._on_qp_event
        cm_id.context = self._on_cm_event
        #: The first event of the connection: ESTABLISHED, or the event that reports the failure.
        self.started: asyncio.Future[CMEvent] = asyncio.get_running_loop().create_future()
        # Whether the queue pair has flushed all its receives, and whether the connection ended
        # before a unit was sent or received completely.
        self._flushed = self._unit_lost = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _qp(self) -> QP:
        return self._queue_pair

    def _describe_lost_connection(self) -> str:
        return (
            f"the connection to {self._peer_name()} broke: its program has ended, or the network "
            "failed; repeat the transfer"
        )

    def _end_by_failed_completion(self, wc: WC) -> None:
        if wc.status == WCStatus.WR_FLUSH_ERR and not wc.vendor_err:
            self._unit_lost = True  # the event DISCONNECTED follows
        else:
            super()._end_by_failed_completion(wc)

    def _on_cm_event(self, event: CMEvent) -> None:
        if event.type == CMEventType.ESTABLISHED:
            with contextlib.suppress(Error):  # the peer may have closed the connection already
                self.local, self.peer = self._queue_pair.addr, self._queue_pair.peer
        elif self.ended is None:
            # All completions before the end of the connection are in the queue by now.
            self.device.handle_completions()
            in_order = event.type == CMEventType.DISCONNECTED and not event.status
            if in_order and not (event.wire_error or self._unit_lost):
                self._end_channel(
                    f"{self._peer_name()} has closed the connection", Cause.PEER_CLOSED
                )
            elif event.wire_error:
                self._end_channel(
                    f"{self._peer_name()} or this end has violated the protocol: the connection "
                    f"ended with the Terminate {event.wire_error:#08x}",
                    Cause.PROTOCOL,
                )
            else:
                self._end_channel(self._describe_lost_connection(), Cause.LOST)
        if not self.started.done():
            self.started.set_result(event)

    def _on_qp_event(self, kind: EventType) -> None:
        if kind == EventType.QP_LAST_WQE_REACHED:
            self._flushed = True
            if self.ended is not None:
                self._close_queue_pair()

    def _release_transport(self) -> None:
        """Disconnect; the queue pair is closed when it has flushed its receives of the SRQ."""
        with contextlib.suppress(Error):
            self._id.disconnect()
        if self.owns_device:
            self.device.close_nowait()
        loop = asyncio.get_running_loop()
        if self._flushed or self.device.closed:
            loop.call_soon(self._close_queue_pair)
        else:
            self._timer = loop.call_later(LEAVE_S, self._move_queue_pair_to_error)

    def _move_queue_pair_to_error(self) -> None:
        """Move the queue pair to the error state, because the peer does not end the connection."""
        with contextlib.suppress(Error):
            self._queue_pair.modify(QPAttr(qp_state=QPState.ERR))
        self._timer = asyncio.get_running_loop().call_later(LEAVE_S, self._close_queue_pair)

    def _close_queue_pair(self) -> None:
        if self._number not in self._rc_receives.channels:
            return  # the queue pair has been closed already
        del self._rc_receives.channels[self._number]
        if self._timer is not None:
            self._timer.cancel()
        if not self.device.closed:  # closing a device closes its queue pairs and ids
            # Closing the queue pair removes its completions from the CQ, even that of a receive
            # which was assigned to a message that did not arrive completely.
            self.device.handle_completions()
            self._id.context = None
            self._id.close()
            self.device.on_event.pop(self._queue_pair, None)
            self._queue_pair.close()
            self.complete_unfinished_sends()
        if self.on_released is not None:
            self.on_released()


def accept_rc(
    event: CMEvent,
    device: Device,
    receives: RCReceives,
    units: Units,
    credits: Credits,
    window_limit: int,
    accepted: Callable[[Channel], None],
    released: Callable[[], None],
) -> None:
    """Accept a connection request; ``accepted`` gets the channel when it is established.

    ``released`` is called when the queue pair is closed, or was not created.

    Raises:
        Error: a resource is exhausted.

    """
    cm_id = event.id
    try:
        channel = RCChannel(
            device,
            receives,
            units,
            credits,
            Role.ACCEPTOR,
            window_limit,
            cm_id,
            cm_id.peer_addr,
        )
    except Error:
        cm_id.close()
        receives.reserved -= credits.reserved
        released()
        raise
    channel.on_released = released

    def on_started(started: asyncio.Future[CMEvent]) -> None:
        # The channel may have ended in the meantime; the next call of its user then reports the
        # end.
        if not started.cancelled() and started.result().type == CMEventType.ESTABLISHED:
            accepted(channel)

    channel.started.add_done_callback(on_started)
    try:
        cm_id.accept(ConnParam(crc=False))
    except Error as error:
        channel.abort(f"the peer has given up connecting: {error.strerror}", Cause.LOST)


class RCListener:
    """A listener for RC connections; ``on_request`` accepts or rejects each CONNECT_REQUEST."""

    def __init__(
        self, device: Device, address: Address, on_request: Callable[[CMEvent], None]
    ) -> None:
        self._id = CMID(device.cm, on_request)
        try:
            self._id.listen(address, 1024)
        except BaseException:
            self._id.close()
            raise
        #: The listening address, with the port that was selected if port 0 was requested.
        self.address = self._id.local_addr

    def close(self) -> None:
        """Stop listening; accepted channels stay open."""
        self._id.context = None
        self._id.close()


async def connect_rc(
    device: Device,
    receives: RCReceives,
    address: Address,
    token: bytes,
    window: int,
    peer_window: int,
    timeout: float,
) -> Channel:
    """Connect to an RC listener with a token as private data. The channel owns the device.

    Raises:
        ChannelEnded: there is no listener, or it has refused the token or did not answer in time.

    """
    name = f"{address[0]} port {address[1]}"
    credits = Credits(Role.INITIATOR, window, peer_window)
    receives.reserved += credits.reserved
    cm_id = CMID(device.cm)
    channel = RCChannel(
        device,
        receives,
        device.pool,
        credits,
        Role.INITIATOR,
        window,
        cm_id,
        address,
    )
    channel.owns_device = True
    try:
        cm_id.connect(
            address,
            ConnParam(
                private_data=token,
                peer_to_peer=_EITHER_END_FIRST,
                timeout=timeout,
                crc=False,  # MPA's CRC is not needed: unit headers have CRCs, and files digests
            ),
        )
        event = await asyncio.shield(channel.started)
    except Error as error:
        await channel.close("the connection was not opened")
        raise ChannelEnded(f"connecting to {name}: {error.strerror}", Cause.REFUSED) from None
    except BaseException:
        channel.abort("connecting was cancelled")
        device.close_nowait()
        raise
    if event.type == CMEventType.ESTABLISHED:
        return channel
    await channel.close("the connection was not opened")
    if event.type == CMEventType.REJECTED and event.rev:
        raise ChannelEnded(
            f"{name} has refused the token: it was used before, or has expired; connect again",
            Cause.REFUSED,
        )
    if event.type == CMEventType.UNREACHABLE:
        raise ChannelEnded(
            f"{name} did not answer within {timeout:g} seconds: check the network and its "
            "firewalls",
            Cause.TIMEOUT,
        )
    raise ChannelEnded(
        f"cannot connect to {name} ({event.type.name}): start the server or correct the port",
        Cause.REFUSED,
    )
