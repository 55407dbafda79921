# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Opening the channels of transfers, at the server and at the client.

In passive mode (EPSV, PASV) the client opens the channel, in active mode (EPRT, PORT) the server.
The end that opens it presents the token of the reply to TPRT, and the other end admits only the
address of the control connection's peer. Nothing here uses the control connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Literal

from siwarp.ulp.adts.channel import Acceptor, Cause, Channel, ChannelEnded, Invitation, Limits
from siwarp.ulp.adts.endpoints import Acceptors, open_acceptors, open_channel
from siwarp.ulp.adts.wire import TOKEN_SIZE
from siwarp.ulp.ftp import tprt

__all__ = ["Listener", "ServerChannels", "listen_for_channel", "open_channel_to_peer"]

Kind = Literal["rd", "rc", "ud"]

#: Maximum number of channels of active mode that a server has open at a time. Each of them has its
#: own memory of 4 MiB, while all channels of passive mode share one pool.
MAX_ACTIVE = 16


class ServerChannels:
    """All channels of a server process. Only the thread of the event loop may use the object."""

    def __init__(self) -> None:
        self._acceptors: dict[str, Acceptors] = {}
        #: The open channels of active mode, and the number of such channels that are being opened.
        self._active: list[Channel] = []
        self._opening = 0

    def _get_or_open_acceptor(self, kind: Kind, host: str) -> Acceptor:
        return self._acceptors[host].for_transport(kind)

    async def expect_channel(
        self,
        kind: Kind,
        host: str,
        client: str,
        accepted: Callable[[Channel], None],
        rejected: Callable[[str], None],
    ) -> Invitation:
        """Prepare to accept one channel from the address ``client`` at the local address ``host``.

        ``accepted`` gets the channel. If the token arrives from another address, the channel is
        closed, and ``rejected`` gets that address. Neither is called if no token arrives within
        ``tprt.LIFETIME`` seconds, or after ``forget_token``.

        Raises:
            OSError: no device can be opened, or there is no memory for one more channel.

        """

        def accept_or_abort_channel(channel: Channel) -> None:
            if channel.peer[0] == client:
                accepted(channel)
            else:
                channel.abort(f"the token arrived from {channel.peer[0]}, and not from {client}")
                rejected(channel.peer[0])

        if host not in self._acceptors:
            self._acceptors[host] = await open_acceptors(host, Limits(unit=tprt.UNIT))
        token = secrets.token_bytes(TOKEN_SIZE)
        return self._get_or_open_acceptor(kind, host).expect_peer(
            token, tprt.UNIT, tprt.WINDOW, accept_or_abort_channel, tprt.LIFETIME
        )

    def forget_token(self, kind: Kind, host: str, token: bytes) -> None:
        """Refuse the token from now on; has no effect if it was used."""
        self._get_or_open_acceptor(kind, host).forget_token(token)

    async def connect(self, kind: Kind, host: str, client: str, invitation: Invitation) -> Channel:
        """Open a channel from the local address ``host`` to a client in active mode.

        Raises:
            ChannelEnded: the client does not answer, or ``MAX_ACTIVE`` channels are open.

        """
        self._active = [channel for channel in self._active if channel.ended is None]
        if len(self._active) + self._opening >= MAX_ACTIVE:
            raise ChannelEnded(
                f"{MAX_ACTIVE} channels in active mode are open: use EPSV, or try again later",
                Cause.REFUSED,
            )
        self._opening += 1
        try:
            channel = await open_channel_to_peer(kind, client, invitation, host)
        finally:
            self._opening -= 1
        self._active.append(channel)
        return channel

    async def close(self) -> None:
        """End all channels."""
        for channel in self._active:
            channel.abort("the server ends")
        for acceptors in self._acceptors.values():
            await acceptors.close()


async def open_channel_to_peer(
    kind: Kind, host: str, invitation: Invitation, source: str
) -> Channel:
    """Open a channel to the peer at ``host`` from the local address ``source``.

    Raises:
        ChannelEnded: the peer does not answer, or has refused the token.

    """
    limits = Limits(unit=tprt.UNIT, window=tprt.WINDOW, source=source)
    return await open_channel(kind, host, invitation, limits)


class Listener:
    """The part of a client that accepts one channel of the server in active mode."""

    def __init__(self, acceptors: Acceptors, port: int, channel: asyncio.Future[Channel]) -> None:
        self._acceptors = acceptors
        #: The port that EPRT or PORT names.
        self.port = port
        self._channel = channel

    async def accept(self) -> Channel:
        """Return the server's channel. Call this after the reply to EPRT or PORT.

        Raises:
            ChannelEnded: the server has not opened the channel.

        """
        limit = Limits().timeout
        try:
            return await asyncio.wait_for(asyncio.shield(self._channel), limit)
        except (asyncio.TimeoutError, TimeoutError):
            raise ChannelEnded(
                f"the server did not open the channel within {limit:g} seconds: use the passive "
                "mode",
                Cause.TIMEOUT,
            ) from None

    async def close(self) -> None:
        """End the channel, and close the device."""
        self._channel.cancel()
        await self._acceptors.close()


async def listen_for_channel(
    kind: Kind, host: str, invitation: Invitation, source: str
) -> Listener:
    """Prepare to accept the channel of the server ``host`` at the local address ``source``.

    ``invitation`` is the one of the reply to TPRT; its port is not used.

    Raises:
        OSError: no device can be opened.

    """
    # On UD the unit only determines the size of the memory, and with it the window.
    unit = (
        tprt.ACTIVE_UNIT
        if kind == "ud"
        else tprt.make_active_mode_invitation(kind, invitation, 0).unit
    )
    # An acceptor posts half of the units as receives, and keeps some of these for other channels,
    # so a window of tprt.WINDOW needs twice as many.
    limits = Limits(unit=unit, window=tprt.WINDOW, memory=4 * tprt.WINDOW * unit)
    qkey = None if kind == "rc" else invitation.qkey
    acceptors = await open_acceptors(source, limits, qkey=qkey)
    opened: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

    def accept_or_abort_channel(channel: Channel) -> None:
        if channel.peer[0] == host and not opened.done():
            opened.set_result(channel)
        else:
            channel.abort(f"the token arrived from {channel.peer[0]}, and not from {host}")

    try:
        expected = acceptors.for_transport(kind).expect_peer(
            invitation.token, unit, tprt.WINDOW, accept_or_abort_channel, tprt.LIFETIME
        )
    except BaseException:
        await acceptors.close()
        raise
    return Listener(acceptors, expected.port, opened)
