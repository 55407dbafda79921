# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""RD for asyncio: messages to and from any peer, whole, once and in order for each peer."""

from __future__ import annotations

import errno

from siwarp.aio.conn import Opening
from siwarp.aio.source import Source
from siwarp.aio.ud import SEND_SIZE, Endpoint
from siwarp.base.buffer import Buffer, octets
from siwarp.verbs import Address, LimitError, PeerGone, QPAttr, QPType, WCStatus
from siwarp.verbs.wanted import an_address

__all__ = ["RDEndpoint", "open_rd"]

#: Octets of one posted receive, and how many are posted.
RECV_SIZE = 64 * 1024
RECV_DEPTH = 32
#: How long a message waits for ``recv`` of its peer: so many times the time that the peer tells,
#: which is 655 ms (InfiniBand's code 0) for this end.
RNR_RETRY, RNR_TIMER = 6, 0

#: How a message ends whose peer is lost, or has a new incarnation.
_LOST = (WCStatus.RETRY_EXC_ERR, WCStatus.RNR_RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR)


class RDEndpoint(Endpoint):
    """An RD queue pair with memory around it; made by ``open_rd``.

    It exchanges messages with any number of RD peers, without setting up connections.
    ``recv_depth`` messages of all peers together wait for ``recv``; further ones wait at their
    senders, which give up a peer that takes none for 4 s. A message longer than ``recv_size`` is
    dropped. Messages of one task to one peer arrive in their order.
    """

    _type = QPType.RD
    _attr = QPAttr(rnr_retry=RNR_RETRY, min_rnr_timer=RNR_TIMER)

    async def send(self, data: Buffer, to: Address) -> None:
        """Send one message to (host, port); returns when the peer has it.

        The host is numeric. Cancelling leaves the message sent. Up to 128 messages are under way at
        a time, 32 of them to any peer; from a quarter of them on, each peer and each host has a
        share (``shares``). When they are used up, the peer that has held one longest is given up.

        Raises:
            LimitError: it has more than 65535 octets.
            PeerGone: the peer was silent for ``peer_timeout``, closed or restarted, or it took
                nothing for so long that it was given up; it is unknown whether it has the message.
            Error: the message was refused.

        """
        self._alive()
        with octets(data) as view:
            if len(view) > SEND_SIZE:
                raise LimitError(
                    errno.EMSGSIZE,
                    f"{len(view)} octets are more than {SEND_SIZE}: send them in parts",
                )
            wc = await self._post(view, to, 0)
        if wc.status in _LOST:
            raise PeerGone(
                errno.ECONNRESET,
                f"the peer at {to[0]} port {to[1]} is gone or began anew: it may have the message "
                "or not",
            )
        wc.check()


def open_rd(
    address: Address = ("127.0.0.1", 0),
    *,
    qkey: int | None = None,
    recv_size: int = RECV_SIZE,
    recv_depth: int = RECV_DEPTH,
    peer_timeout: float = 0.0,
) -> Opening[RDEndpoint]:
    """Bind an RD queue pair at (host, port) of this machine; port 0 takes a free one.

    ``peer_timeout``: seconds of silence after which a peer with a response due counts as lost; 0:
    setting ``peer_timeout_ms``. ``qkey``: as of ``open_ud``. ``await`` it, or
    enter it by ``async with``.

    Raises:
        Error: the address is in use or not this machine's.

    """
    host, port = an_address(address)

    async def begin() -> RDEndpoint:
        source, numeric = await Source.at(host)
        where = numeric, port
        return RDEndpoint(source, where, qkey, recv_size, recv_depth, peer_timeout)

    return Opening(begin)
