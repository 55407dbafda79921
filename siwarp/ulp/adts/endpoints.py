# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""End points: opening channels to a server, and accepting channels of clients.

The *rendezvous* is the channel on which a session begins: TCP, or RC in a simulated world. Its units
have at most ``HANDSHAKE_UNIT_SIZE`` octets (wire.py) until the session continues on it with larger
ones (TCP: ``use``), or on a channel that was opened with a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from siwarp.ulp.adts.channel import Acceptor, Channel, Invitation, Limits
from siwarp.verbs import Address

__all__ = ["Acceptors", "Listener", "connect", "listen", "open_acceptors", "open_channel", "use"]

Kind = Literal["rd", "rc"]


class Acceptors:
    """The acceptors of a server at one local address, which share one device and one pool."""

    rd: Acceptor
    rc: Acceptor

    async def close(self) -> None:
        """Close the acceptors and all their channels; wait until the device is closed."""
        raise NotImplementedError


async def open_acceptors(
    host: str, limits: Limits, scarce: Callable[[bool], None] | None = None
) -> Acceptors:
    """Open a server's device at the address ``host``, with free ports for RD and RC.

    ``scarce(True)`` is called when receives run out (the limit event of the shared receive queue):
    the server should pause its fastest senders. ``scarce(False)`` is called when half of the
    receives are posted again.

    Raises:
        Error: ``host`` is not an address of this machine, or a resource is exhausted.

    """
    raise NotImplementedError


async def open_channel(kind: Kind, host: str, invitation: Invitation, limits: Limits) -> Channel:
    """Open a channel to a server's acceptor at the address ``host``.

    ``limits.window`` is the number of credits that this end has announced in HELLO. The channel has
    a device and a pool of its own. Cancellation ends the attempt.

    Raises:
        ChannelEnded: the channel did not open within ``limits.timeout`` seconds, or the peer has
            refused the token.

    """
    raise NotImplementedError


class Listener:
    """A listening rendezvous."""

    #: The listening address, with the port that was selected if port 0 was requested.
    address: Address

    async def close(self) -> None:
        """Stop listening; accepted channels stay open."""
        raise NotImplementedError


async def listen(
    transport: Literal["tcp", "rc"], address: Address, accepted: Callable[[Channel], None]
) -> Listener:
    """Listen for rendezvous channels at (host, port); ``accepted`` is called with each of them.

    Raises:
        OSError: the address is in use or does not belong to this machine.

    """
    raise NotImplementedError


async def connect(
    transport: Literal["tcp", "rc"], address: Address, timeout: float = 10.0
) -> Channel:
    """Open a rendezvous channel to (host, port).

    Raises:
        ChannelEnded: there is no listener at the address, or it did not answer in time.

    """
    raise NotImplementedError


def use(channel: Channel, unit: int) -> None:
    """Continue a session on its rendezvous (TCP), with units of up to ``unit`` octets.

    Each end calls it when it has sent or received the CHANNEL that names TCP.
    """
    raise NotImplementedError
