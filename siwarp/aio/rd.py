# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""RD for asyncio: messages to and from any peer, delivered once and in order per peer."""

from __future__ import annotations

import errno

from siwarp.aio.conn import AwaitableOpening
from siwarp.aio.source import OpenDevice
from siwarp.aio.ud import SEND_SIZE, Endpoint
from siwarp.base.buffer import Buffer, octets
from siwarp.verbs import Address, LimitError, PeerGone, QPAttr, QPType, WCStatus
from siwarp.verbs.wanted import address_host_and_port

__all__ = ["RDEndpoint", "open_rd"]

#: Size in octets of a posted receive, and number of posted receives.
RECV_SIZE = 64 * 1024
RECV_DEPTH = 32
#: A sent message waits for a receive of the peer for RNR_RETRY times the peer's RNR timer.
#: RNR_TIMER is the RNR timer of this end: 655 ms (InfiniBand's code 0).
RNR_RETRY, RNR_TIMER = 6, 0

#: Completion statuses of messages whose peer is lost or has a new incarnation.
_LOST = (WCStatus.RETRY_EXC_ERR, WCStatus.RNR_RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR)


class RDEndpoint(Endpoint):
    """An RD queue pair with its memory; made by ``open_rd``.

    The endpoint exchanges messages with any number of RD peers, without connection set-up.
    ``recv_depth`` messages of all peers together wait for ``recv``; further messages wait at their
    senders, which treat this endpoint as lost if it accepts no message for 4 s. A message longer
    than ``recv_size`` is dropped. Messages of one task to one peer arrive in order.
    """

    _type = QPType.RD
    _attr = QPAttr(rnr_retry=RNR_RETRY, min_rnr_timer=RNR_TIMER)

    async def send(self, data: Buffer, to: Address) -> None:
        """Send one message to (host, port); return when the peer has received the message.

        The host is a numeric address. Cancellation does not undo the send. Up to 128 messages are
        in flight at a time, up to 32 of them to one peer; once a quarter of the 128 is in use, each
        peer and each host is limited to a share (see ``shares``). When all 128 are in use, the peer
        that has held one of them longest is dropped.

        Raises:
            LimitError: the message has more than 65535 octets.
            PeerGone: the peer was silent for ``peer_timeout``, closed or restarted, or it accepted
                no message for so long that it was dropped. It is unknown whether it has the
                message.
            Error: the message was refused.

        """
        self._check_open()
        with octets(data) as view:
            if len(view) > SEND_SIZE:
                raise LimitError(
                    errno.EMSGSIZE,
                    f"a message of {len(view)} octets exceeds the limit of {SEND_SIZE}: split it",
                )
            wc = await self._post_and_wait(view, to, 0)
        if wc.status in _LOST:
            raise PeerGone(
                errno.ECONNRESET,
                f"the peer at {to[0]} port {to[1]} is gone or has restarted: it may or "
                "may not have received the message",
            )
        wc.check()


def open_rd(
    address: Address = ("127.0.0.1", 0),
    *,
    qkey: int | None = None,
    recv_size: int = RECV_SIZE,
    recv_depth: int = RECV_DEPTH,
    peer_timeout: float = 0.0,
) -> AwaitableOpening[RDEndpoint]:
    """Bind an RD queue pair at (host, port) of this machine; port 0: a free port.

    ``peer_timeout``: seconds of silence after which a peer that owes a response is considered lost;
    0: the setting ``peer_timeout_ms``. ``qkey``: as for ``open_ud``. Use ``await`` or ``async
    with``.

    Raises:
        Error: the address is in use or not an address of this machine.

    """
    host, port = address_host_and_port(address)

    async def open_endpoint() -> RDEndpoint:
        source, numeric = await OpenDevice.get_for_host(host)
        where = numeric, port
        return RDEndpoint(source, where, qkey, recv_size, recv_depth, peer_timeout)

    return AwaitableOpening(open_endpoint)
