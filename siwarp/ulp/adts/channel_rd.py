# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The RD channel: all sessions share one queue pair; a unit's source tells its session.

A peer is the address of its queue pair and its instance, which differs for each process at that
address. Its first unit has the record JOIN with the token, which the acceptor answers with a grant
unit. Units of a source without a session cost nothing but the time to look at them: their receives
are posted again, and the source is abandoned.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from siwarp.base import system
from siwarp.ulp.adts.channel import Cause, ChannelEnded
from siwarp.ulp.adts.channel_rdma import RDMAChannel
from siwarp.ulp.adts.credit import CreditError, Credits, Role
from siwarp.ulp.adts.device import CONTROL_SIZE, Device
from siwarp.ulp.adts.memory import Units
from siwarp.ulp.adts.receives import Receives
from siwarp.ulp.adts.wire import (
    UNIT_HEADER_SIZE,
    Join,
    WireError,
    parse_records,
    parse_unit_header,
    put_unit_header,
)
from siwarp.verbs import (
    AH,
    QP,
    WC,
    Address,
    Error,
    ErrorPolicy,
    QPCap,
    QPInitAttr,
    QPType,
    SendWR,
)

__all__ = ["RDChannel", "RDPort", "connect_rd_channel", "random_qkey"]

#: Capacity of the send queue that all sessions share, in requests.
QUEUE_DEPTH = 8192
#: Seconds of silence after which a peer that owes an answer is lost: more than a short failure of
#: the network. (If the peer's process ends, its rendezvous ends, which is detected at once.)
SILENCE_S = 30.0

#: The key by which a peer is found: its address in the completion's format, and its instance.
_Source = tuple[bytes, int]


class RDPort:
    """An RD queue pair, its shared receives, and its channels.

    ``admit`` gets the token of a JOIN, the port and the completion, and returns the new channel, or
    ``None`` if the token is not valid.
    """

    def __init__(
        self,
        device: Device,
        receives: Receives,
        address: Address,
        qkey: int | None = None,
        admit: Callable[[bytes, RDPort, WC], RDChannel | None] | None = None,
    ) -> None:
        self.device = device
        self.receives = receives
        #: The Q_Key: it is random for an acceptor, and known to the peers that were invited.
        self.qkey = random_qkey() if qkey is None else qkey
        self._admit = admit
        self.channels: dict[_Source, RDChannel] = {}
        #: Ended channels with sends in progress.
        self.ended: set[RDChannel] = set()
        init = QPInitAttr(
            QPType.RD,
            scq=device.cq,
            rcq=device.cq,
            srq=receives.srq,
            addr=address,
            cap=QPCap(QUEUE_DEPTH, 0, 2, 0, CONTROL_SIZE),
            error_policy=ErrorPolicy.MESSAGE,
            peer_timeout=SILENCE_S,
            qkey=self.qkey,
        )
        self.qp = QP(device.pd, init)
        self.qp.to_rts()
        #: The address of the queue pair.
        self.address = self.qp.addr
        receives.find = self._find_channel
        receives.unknown = self._admit_or_drop_stranger

    def close(self) -> None:
        """Close the queue pair and free its receives; no channel is open or expected."""
        self.qp.close()
        for channel in self.ended.copy():
            channel.complete_unfinished_sends()
        self.receives.close_srq_and_free_memory()

    def _find_channel(self, wc: WC) -> RDChannel | None:
        return self.channels.get((wc.source_octets, wc.source_instance))

    def _admit_or_drop_stranger(self, view: memoryview, wc: WC) -> None:
        """Handle a unit from an unknown source: open a channel if it has a JOIN, or drop it."""
        token = _parse_join_token(view)
        channel = None
        if token is not None and self._admit is not None:
            channel = self._admit(token, self, wc)
        if channel is None:
            if wc.source is not None:
                self.qp.end_peer(wc.source)
            return
        try:
            _, granted, returned = parse_unit_header(view, channel.unit_size)
            channel.process_join(granted, returned)
        except (WireError, CreditError) as error:
            channel.abort(f"the peer's JOIN is invalid: {error}", Cause.PROTOCOL)


class RDChannel(RDMAChannel):
    """A channel to one peer of an RD queue pair."""

    def __init__(
        self,
        port: RDPort,
        units: Units,
        credits: Credits,
        role: Role,
        window_limit: int,
        peer: Address,
    ) -> None:
        super().__init__(
            port.device,
            port.receives,
            units,
            credits,
            role,
            "rd",
            window_limit,
            peer,
            port.address,
        )
        self._port = port
        self._handle = AH(port.device.pd, peer)
        self._source: _Source | None = None
        #: Only at an acceptor: called when the first unit with a JOIN has arrived from the peer.
        self.on_joined: Callable[[], None] | None = None

    def register_for_source_units(self, source: _Source) -> None:
        """Register this channel as the one that receives the units of a source."""
        self._source = source
        self._port.channels[source] = self

    @property
    def _qp(self) -> QP:
        return self._port.qp

    @property
    def destination(self) -> Address:
        """The numeric address of the peer's queue pair."""
        return self._handle.dest

    def _address_send_request(self, wr: SendWR) -> None:
        wr.set_wr_rd(self._handle)

    def _describe_lost_connection(self) -> str:
        return (
            f"{self._peer_name()} has ended, or did not answer for {SILENCE_S:g} seconds: check "
            "that its program runs, and repeat the transfer"
        )

    def _on_send_completed(self, wc: WC) -> None:
        super()._on_send_completed(wc)
        if not self._posted:
            self._port.ended.discard(self)

    def process_join(self, granted: int, returned: int) -> None:
        """Count the unit with the JOIN as received, and send the first credits."""
        self.credits.count_received_unit(granted, returned, grant_unit=False)
        self.credits.count_released_receive()
        self._update_reserved_receives()
        self._send_credit_grant()
        if self.on_joined is not None:
            self.on_joined()

    def _release_transport(self) -> None:
        if self._source is not None:
            self._port.channels.pop(self._source, None)
        if self.on_released is not None:
            self.on_released()
        # Requests in progress complete soon, and their units return to the pool.
        if self._posted:
            self._port.ended.add(self)
        with contextlib.suppress(Error):
            self._qp.end_peer(self.peer)
        # a request still uses the address handle; its finalizer will close it
        with contextlib.suppress(Error):
            self._handle.close()
        if self.owns_device:
            self.device.close_nowait()


def _parse_join_token(view: memoryview) -> bytes | None:
    try:
        return Join.unpack(next(parse_records(view))).token
    except (WireError, StopIteration):
        return None


def random_qkey() -> int:
    """Return a new Q_Key."""
    # A request whose Q_Key has the top bit set is sent with the Q_Key of its own queue pair, and a
    # Q_Key of 0 protects nothing.
    return int.from_bytes(system.random_bytes(4), "big") & 0x7FFF_FFFF or 1


async def connect_rd_channel(
    port: RDPort,
    address: Address,
    token: bytes,
    window: int,
    peer_window: int,
    timeout: float,
) -> RDChannel:
    """Join the RD queue pair at ``address`` with a token. The channel owns the port's device.

    Raises:
        ChannelEnded: the peer did not answer in time, or has refused the token.

    """
    name = f"{address[0]} port {address[1]}"
    credits = Credits(Role.INITIATOR, window, peer_window)
    port.receives.reserved += credits.reserved
    channel = RDChannel(port, port.device.pool, credits, Role.INITIATOR, window, address)
    channel.owns_device = True
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def assign_first_unit_to_channel(wc: WC) -> RDChannel | None:
        """Assign the first unit from the peer's address, and its source, to the channel."""
        if wc.source != channel.destination:
            return None
        channel.register_for_source_units((wc.source_octets, wc.source_instance))
        port.receives.find = port._find_channel
        if not answered.done():
            answered.set_result(None)
        return channel

    def on_released() -> None:
        if not answered.done() and channel.ended is not None:
            answered.set_exception(ChannelEnded(channel.ended.reason, channel.ended.cause))

    port.receives.find = assign_first_unit_to_channel
    channel.on_released = on_released
    try:
        unit = memoryview(bytearray(CONTROL_SIZE))
        length = Join(token=token).put(unit, UNIT_HEADER_SIZE)
        put_unit_header(unit, length, *credits.count_sent_unit())
        channel._update_reserved_receives()
        channel._post_control_unit(bytes(unit[:length]))
        await asyncio.wait_for(asyncio.shield(answered), timeout)
    except (asyncio.TimeoutError, TimeoutError):
        answered.cancel()
        await channel.close("the peer did not answer")
        raise ChannelEnded(
            f"the RD queue pair at {name} did not answer within {timeout:g} seconds: it has "
            "refused the token, or a firewall drops UDP datagrams",
            Cause.TIMEOUT,
        ) from None
    except BaseException:
        answered.cancel()
        channel.abort("connecting was cancelled")
        raise
    return channel
