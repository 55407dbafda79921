# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Channels: one session's way for units to its peer, the same on every transport.

A channel is used by at most one reader and one writer task at a time, and only in the thread of the
event loop. ``siwarp.ulp.adts.endpoints`` opens channels. Units of credits (GRANT, RECLAIM, JOIN)
are exchanged by the channels themselves and never delivered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from siwarp.base.buffer import Buffer
from siwarp.ulp.adts.memory import POOL_SIZE, UNIT_SIZE, Unit
from siwarp.verbs import Address

__all__ = ["Acceptor", "Cause", "Channel", "ChannelEnded", "Invitation", "Limits", "Received"]


class Cause(Enum):
    """Why a channel ended."""

    #: This end has closed the channel.
    CLOSED = "closed"
    #: The peer has closed the channel in order.
    PEER_CLOSED = "peer closed"
    #: The peer crashed, or the network between the ends is broken.
    LOST = "lost"
    #: The peer did not admit this end: no listener, or a token that is not valid.
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
        unit: octets of a unit; both ends of a channel use the same value.
        window: number of units that the peer may send before this end has released one, at most.
        memory: octets of registered memory of all channels together.
        timeout: seconds within which a channel must open.

    """

    unit: int = UNIT_SIZE
    window: int = 8
    memory: int = POOL_SIZE
    timeout: float = 3.0


class Received(ABC):
    """A received unit."""

    #: The unit's octets. Valid until ``release``.
    view: memoryview

    @abstractmethod
    def release(self) -> None:
        """Give the memory back, so that the peer may send one more unit; call it once.

        Has no effect after the end of the channel, except that the memory is given back.
        """


class Channel(ABC):
    """One session's channel.

    ``receive``, ``buffer`` and ``send`` raise ``ChannelEnded`` after the end of the channel;
    ``receive`` first returns the units that have arrived before the end.
    """

    #: "rd", "rc" or "tcp".
    name: str
    #: The greatest number of octets of a unit, in both directions.
    unit_size: int
    #: The address of the other end, and of this end.
    peer: Address
    local: Address
    #: Octets of units received and sent so far.
    received_octets: int
    sent_octets: int
    #: The end of the channel; ``None`` while it is open.
    ended: ChannelEnded | None

    @abstractmethod
    async def buffer(self) -> Unit:
        """Wait for credit and for memory, and return a unit to fill; ``send`` or release it.

        The wait is the back-pressure: a peer that grants nothing holds no memory of this end. The
        unit's view has ``unit_size`` octets. Cancellation loses neither credit nor memory.
        """

    @abstractmethod
    def buffer_nowait(self) -> Unit | None:
        """Return a unit to fill; ``None`` if ``buffer`` would wait."""

    @abstractmethod
    async def send(self, unit: Unit, length: int, memory: Buffer | None = None) -> None:
        """Send the first ``length`` octets of ``unit``, then the octets of ``memory``, as a unit.

        Units arrive in the order of the calls. The channel writes the cumulative grant into the
        unit's header, and releases ``unit`` when the transport has finished with it; on an
        exception, too. ``memory`` is sent without a copy: do not change it before ``flush`` returns.
        """

    @abstractmethod
    async def send_file(self, header: bytes, fd: int, offset: int, length: int) -> None:
        """Send one unit: ``header``, then ``length`` octets of a file from ``offset``.

        ``header`` is a complete unit header with what precedes the octets of the file; the length
        in it includes them. On TCP the kernel sends the file; other channels read it into a unit.

        Raises:
            OSError: the file cannot be read, or has fewer octets (EIO); the channel stays usable
                unless part of the unit was sent (TCP), in which case it has ended.

        """

    @abstractmethod
    async def flush(self) -> None:
        """Wait until the transport has finished with all sent units, and with their memory."""

    @abstractmethod
    async def receive(self) -> Received:
        """Wait for the next unit. Cancellation loses no unit."""

    @abstractmethod
    def receive_nowait(self) -> Received | None:
        """Return the next unit; ``None`` if none has arrived.

        Raises:
            ChannelEnded: the channel has ended, and all its units were returned.

        """

    @abstractmethod
    def pause_granting(self) -> None:
        """Let the peer send no more units than it has credit for (TCP: read no more)."""

    @abstractmethod
    def resume_granting(self) -> None:
        """Undo ``pause_granting``."""

    @abstractmethod
    def abort(self, reason: str, cause: Cause = Cause.CLOSED) -> None:
        """End the channel at once; waiting calls raise ``ChannelEnded`` with this reason.

        Units that wait for ``receive`` are dropped. All memory returns to the pool, at once or when
        the transport has finished with it.
        """

    @abstractmethod
    async def close(self, reason: str = "this end has closed the channel") -> None:
        """Send what was queued, for at most 2 seconds, and end the channel as ``abort`` does."""


@dataclass(frozen=True)
class Invitation:
    """What a peer needs to know to open a channel: the port, and the octets of a unit."""

    port: int
    unit: int


class Acceptor(ABC):
    """A server's end of one transport: admits peers that present a token."""

    #: "rd" or "rc".
    name: str

    @abstractmethod
    def expect(
        self, token: bytes, accepted: Callable[[Channel], None], lifetime: float = 30.0
    ) -> Invitation:
        """Admit one peer that presents ``token`` (16 octets) within ``lifetime`` seconds.

        ``accepted`` is called once, with the peer's channel. A token admits one peer.

        Raises:
            LimitError: there is no memory for one more session.

        """

    @abstractmethod
    def forget(self, token: bytes) -> None:
        """Admit the token no longer; has no effect if it has been used or has expired."""
