# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Channels, over which a session exchanges units with its peer; all transports have one interface.

At most one task at a time reads from a channel and one writes to it, in the thread of the event
loop. ``siwarp.ulp.adts.endpoints`` opens channels. The units that only concern credits are
exchanged by the channels themselves and never returned by ``receive``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from siwarp.ulp.adts.memory import POOL_SIZE, UNIT_SIZE, Unit
from siwarp.ulp.adts.registrations import Payload
from siwarp.verbs import Address

__all__ = [
    "CLOSE_S",
    "Acceptor",
    "Cause",
    "Channel",
    "ChannelEnded",
    "Invitation",
    "Limits",
    "Received",
]

#: Seconds for which closing a channel waits until sent units have left this end.
CLOSE_S = 2.0


class Cause(Enum):
    """Why a channel ended."""

    #: This end has closed the channel.
    CLOSED = "closed"
    #: The peer has closed the connection between units, perhaps because its process was killed:
    #: only the record BYE says that the session is complete.
    PEER_CLOSED = "peer closed"
    #: The peer crashed, or the network between the ends is broken.
    LOST = "lost"
    #: The peer refused the channel: nothing listens at the port, or the token is not valid.
    REFUSED = "refused"
    #: The peer did not answer, or made no progress, in time.
    TIMEOUT = "time-out"
    #: The peer has violated the protocol.
    PROTOCOL = "protocol"


class ChannelEnded(Exception):
    """The channel has ended, or could not be opened; the text says why and what to do."""

    def __init__(self, reason: str, cause: Cause) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause = cause


@dataclass(frozen=True)
class Limits:
    """The limits of the channels that one end opens.

    Attributes:
        unit: octets of a unit, at most.
        window: number of units of one session for which this end has memory, at most.
        memory: octets of registered memory of all channels together.
        timeout: seconds within which a channel must open.
        source: the address of this end; ``None``: the one that the kernel uses toward the peer.

    """

    unit: int = UNIT_SIZE
    window: int = 8
    memory: int = POOL_SIZE
    timeout: float = 3.0
    source: str | None = None


class Received(ABC):
    """A received unit."""

    __slots__ = ("view",)

    #: The unit's octets, header included. Valid until ``release``.
    view: memoryview

    @abstractmethod
    def release(self) -> None:
        """Return the unit's memory, so that the peer may send one more unit; call this exactly
        once.

        After the end of the channel, only the memory is given back.
        """


class Channel(ABC):
    """One session's channel.

    ``receive``, ``take_empty_unit`` and ``send`` raise ``ChannelEnded`` after the end of the
    channel; ``receive`` first returns the units that had arrived before a peer ended the channel.
    """

    #: Kind of the channel: "rd", "rc", "ud" or "tcp".
    name: str
    #: Whether ``send`` sends the program's memory without a copy.
    gathers = False
    #: The greatest number of octets of a unit, in both directions.
    unit_size: int
    #: The address of the peer, and the address of this end.
    peer: Address
    local: Address
    #: Octets of all units that were received so far, and of all units that were sent.
    received_octets: int
    sent_octets: int
    #: Why the channel has ended; ``None`` while it is open.
    ended: ChannelEnded | None

    def __init__(self, name: str, unit_size: int, peer: Address, local: Address) -> None:
        self.name = name
        self.unit_size = unit_size
        self.peer = peer
        self.local = local
        self.received_octets = self.sent_octets = 0
        self.ended = None
        self._arrived: deque[Received] = deque()
        # The futures that the reader task and the sending tasks are waiting for, if any.
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    # ---- sending

    @abstractmethod
    async def take_empty_unit(self) -> Unit:
        """Wait for credit and memory; return an empty unit, which the caller sends or releases.

        The wait is the back-pressure: a peer that grants nothing holds no memory of this end. The
        unit's view has ``unit_size`` octets. Cancellation loses neither credit nor memory.
        """

    @abstractmethod
    def take_empty_unit_nowait(self) -> Unit | None:
        """Return an empty unit to send; ``None`` if ``take_empty_unit`` would wait for one."""

    @abstractmethod
    async def send(self, unit: Unit, length: int, payload: Payload | None = None) -> None:
        """Send the first ``length`` octets of ``unit``, and those of ``payload`` after them.

        Only a channel that ``gathers`` has a payload, for which the unit has room, too.
        The channel writes the unit's header, which the records follow. Units arrive in the order
        of the calls. The channel releases ``unit`` when the transport has finished with it; on an
        exception, too.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Wait until the transport has sent all units and no longer uses their memory."""

    # ---- receiving

    async def receive(self) -> Received:
        """Wait for the next unit. Cancellation loses no unit."""
        while not self._arrived:
            if self.ended is not None:
                raise self._ended_error()
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._arrived.popleft()

    def receive_nowait(self) -> Received | None:
        """Return the next unit; ``None`` if none has arrived.

        Raises:
            ChannelEnded: the channel has ended, and all its units were returned.

        """
        if self._arrived:
            return self._arrived.popleft()
        if self.ended is not None:
            raise self._ended_error()
        return None

    @abstractmethod
    def pause_granting_credits(self) -> None:
        """Grant the peer no more credits; on TCP, read no more from the socket."""

    @abstractmethod
    def resume_granting_credits(self) -> None:
        """Undo ``pause_granting_credits``."""

    # ---- the end

    def abort(self, reason: str, cause: Cause = Cause.CLOSED) -> None:
        """End the channel at once; waiting calls raise ``ChannelEnded`` with this reason.

        Units that wait for ``receive`` are dropped. All memory returns to the pool, at once or when
        the transport has finished with it. A second call does nothing.
        """
        self._end_channel(reason, cause)
        while self._arrived:
            self._arrived.popleft().release()

    @abstractmethod
    async def close(self, reason: str = "this end has closed the channel") -> None:
        """Send what was queued, for at most ``CLOSE_S`` seconds, and end the channel as ``abort``
        does. Cancellation ends the channel at once.
        """

    @abstractmethod
    def _release_transport(self) -> None:
        """Release the connection or the queue pair; called once, when the channel ends."""

    def _end_channel(self, reason: str, cause: Cause) -> None:
        """Record why the channel has ended, unless it ended before, and wake the waiting tasks."""
        if self.ended is not None:
            return
        self.ended = ChannelEnded(reason, cause)
        self._wake_reader()
        self._wake_writers()
        self._release_transport()

    def _peer_name(self) -> str:
        return f"the peer at {self.peer[0]} port {self.peer[1]}"

    def _ended_error(self) -> ChannelEnded:
        if self.ended is None:
            raise AssertionError("the channel is open")
        return ChannelEnded(self.ended.reason, self.ended.cause)

    def _check_open(self) -> None:
        if self.ended is not None:
            raise self._ended_error()

    def _queue_received_unit(self, received: Received) -> None:
        self.received_octets += len(received.view)
        self._arrived.append(received)
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _wait_until_writers_are_woken(self) -> None:
        """Wait until ``_wake_writers`` is called; used by the task that sends and by one that
        closes.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._writers.append(waiter)
        try:
            await waiter
        finally:
            self._writers.remove(waiter)

    def _wake_writers(self) -> None:
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)

    def __repr__(self) -> str:
        state = "" if self.ended is None else f" ended: {self.ended.reason}"
        return f"<{type(self).__name__} to {self.peer[0]} port {self.peer[1]}{state}>"


@dataclass(frozen=True)
class Invitation:
    """The data with which a peer can open a channel: the fields of the record CHANNEL.

    Attributes:
        token: the one-time token.
        port: TCP port of the RC listener, or UDP port of the RD or UD queue pair.
        unit: octets of a unit, at most, in both directions.
        window: the credits that the acceptor grants when the channel opens; UD: the units that each
            end stores in each direction.
        qkey: RD, UD: the Q_Key.

    """

    token: bytes
    port: int
    unit: int
    window: int
    qkey: int = 0


class Acceptor(ABC):
    """The part of a server that accepts channels of one transport from peers with a token."""

    #: Kind of the channels that are accepted: "rd", "rc" or "ud".
    name: str

    @abstractmethod
    def expect_peer(
        self,
        token: bytes,
        peer_unit: int,
        peer_window: int,
        accepted: Callable[[Channel], None],
        lifetime: float = 30.0,
    ) -> Invitation:
        """Admit one peer that presents ``token`` (16 octets) within ``lifetime`` seconds.

        ``peer_unit`` and ``peer_window`` are those of the peer's HELLO: its largest unit, and the
        credits that it grants when the channel opens. ``accepted`` is called once, with the
        channel.

        Raises:
            LimitError: there is no memory for one more session: let the peer try again later.

        """

    @abstractmethod
    def forget_token(self, token: bytes) -> None:
        """Refuse the token from now on; has no effect if it has been used or has expired."""

    @abstractmethod
    def close(self) -> None:
        """Stop accepting channels of peers."""
