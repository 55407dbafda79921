# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""UD for asyncio: messages to and from any peer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import NamedTuple

from siwarp.aio.conn import AwaitableOpening
from siwarp.aio.shares import Admission
from siwarp.aio.source import CancelSafeQueue, OpenDevice, OpenDeviceUser
from siwarp.base.buffer import Buffer, octets
from siwarp.verbs import (
    AH,
    MR,
    PD,
    QP,
    WC,
    Address,
    Error,
    ErrorPolicy,
    LimitError,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    StateError,
    WCStatus,
)
from siwarp.verbs.wanted import address_host_and_port

__all__ = ["Datagram", "UDEndpoint", "open_ud"]

#: Size in octets of a posted receive, and number of posted receives.
RECV_SIZE = 2048
RECV_DEPTH = 128
#: Maximum number of messages in flight, shared by all peers, and maximum octets of a message.
SENDS = 128
SEND_SIZE = 65535
#: Maximum number of times that a message is posted: a message that is flushed because another
#: message failed is posted again.
TRIES = 16
#: Number of destinations whose address handles are cached.
DESTINATIONS = 1024


class _Message(NamedTuple):
    data: bytes
    source: Address


class Datagram(_Message):
    """A received message, and its source: (ip, port)."""

    #: QPN of the sender, needed for an answer if several queue pairs share the sender's socket.
    qpn: int = 0
    #: RD: the instance of the sender, as ``WC.source_instance``.
    instance: int = 0


class Endpoint(OpenDeviceUser):
    """A UD or RD queue pair with its memory."""

    _type: QPType
    _attr: QPAttr | None = None

    def __init__(
        self,
        source: OpenDevice,
        address: Address,
        qkey: int | None,
        recv_size: int,
        recv_depth: int,
        peer_timeout: float = 0.0,
    ) -> None:
        """Bind the queue pair to ``address`` on the device ``source``, and become a user of it."""
        self._source = source
        self._closed = False
        source.members[self] = None
        self._peer_timeout = peer_timeout
        self._recv_size, self._recv_room = recv_size, recv_depth
        self._inbox = CancelSafeQueue(source.loop)
        self._admission = Admission(SENDS, self._drop_rd_peer)
        self._slots = list(range(SENDS))
        self._sent: dict[int, tuple[asyncio.Future[WC], Address]] = {}
        self._handles: OrderedDict[Address, AH] = OrderedDict()
        self._queue = source.find_or_create_cq(SENDS + recv_depth)
        self._sq_key = self._queue.reserve(SENDS, self._on_send_completion)
        self._rq_key = self._queue.reserve(recv_depth, self._on_recv_completion)
        try:
            self._create_queue_pair(address, qkey)
        except BaseException:
            self.close_nowait()
            raise

    def _drop_rd_peer(self, peer: Address) -> None:
        """Drop an RD peer that holds a send slot for too long; UD sends never wait for a peer."""
        if not self._closed and self._type == QPType.RD:
            self.qp.end_peer(peer)

    def _create_queue_pair(self, address: Address, qkey: int | None) -> None:
        size, depth = self._recv_size, self._recv_room
        self.pd = PD(self._source.context)
        cap = QPCap(max_send_wr=SENDS, max_recv_wr=depth)
        init = QPInitAttr(
            self._type,
            scq=self._queue.cq,
            cap=cap,
            addr=address,
            error_policy=ErrorPolicy.MESSAGE,
            peer_timeout=self._peer_timeout,
            qkey=qkey,
        )
        self.qp = QP(self.pd, init)
        self._address = self.qp.addr
        self._memory = MR(self.pd, size * depth)
        self._staging = MR(self.pd, SENDS * SEND_SIZE)
        self._recvs = [
            RecvWR(self._rq_key | i, sg=[self._memory.sge(i * size, size)]) for i in range(depth)
        ]
        self.qp.to_rts(self._attr)
        self._qkey = self.qp.query()[0].qkey or 0
        self.qp.post_recv(self._recvs)

    @property
    def address(self) -> Address:
        """The bound address, with the port that was selected if port 0 was requested."""
        return self._address

    @property
    def qkey(self) -> int:
        """The Q_Key of the queue pair; its peers must use the same Q_Key."""
        return self._qkey

    async def _post_and_wait(self, message: memoryview, to: Address, qpn: int) -> WC:
        to = address_host_and_port(to)
        await self._admission.acquire(to)
        slot = self._slots.pop()
        done = self._source.loop.create_future()
        self._sent[slot] = done, to
        try:
            self._check_open()
            handle = self._get_or_create_address_handle(to)
            at = slot * SEND_SIZE
            self._staging.write(message, offset=at)
            sg = [self._staging.sge(at, len(message))]
            self.qp.post_send(SendWR(self._sq_key | slot, sg=sg, ah=handle, remote_qpn=qpn))
        except BaseException:
            self._remove_request(slot)
            raise
        self._queue.handle_pending_completions()  # most messages are sent during the post
        wc: WC = await done
        return wc

    def _get_or_create_address_handle(self, to: Address) -> AH:
        handle = self._handles.get(to)
        if handle is None:
            handle = self._handles[to] = AH(self.pd, to)
            # Posting copies the destination, so the oldest address handle can be closed while
            # requests to its destination are outstanding. The close fails only while such a
            # message waits for space in the send buffer of the socket.
            if len(self._handles) > DESTINATIONS:
                with contextlib.suppress(StateError):
                    self._handles.popitem(last=False)[1].close()
        else:
            self._handles.move_to_end(to)
        return handle

    def _remove_request(self, slot: int) -> asyncio.Future[WC]:
        self._slots.append(slot)
        done, to = self._sent.pop(slot)
        self._admission.release(to)
        return done

    def _on_send_completion(self, slot: int, wc: WC) -> None:
        if slot in self._sent:
            done = self._remove_request(slot)
            # A refused message stops the send queue (state SQE); restart it for the other
            # messages.
            if not wc.ok and not self._closed and self.qp.qp_state == QPState.SQE:
                self.qp.to_rts()
            if not done.done():
                done.set_result(wc)

    def _on_recv_completion(self, slot: int, wc: WC) -> None:
        if wc.ok:
            self._inbox.put((slot, wc))
        elif not self._closed:  # the message was too long for the receive
            with contextlib.suppress(StateError):
                self.qp.post_recv(self._recvs[slot])

    async def recv(self) -> Datagram:
        """Wait for the next message and return it. Cancellation loses no message.

        Raises:
            StateError: the endpoint is closed.

        """
        self._check_open()
        slot, wc = await self._inbox.get()
        data = self._memory.read(wc.byte_len, slot * self._recv_size)
        self.qp.post_recv(self._recvs[slot])
        datagram = Datagram(data, wc.source)
        datagram.qpn = wc.src_qp
        datagram.instance = wc.source_instance
        return datagram

    def __aiter__(self) -> AsyncIterator[Datagram]:
        return self._yield_received_messages()

    async def _yield_received_messages(self) -> AsyncIterator[Datagram]:
        while not self._closed:
            try:
                datagram = await self.recv()
            except StateError:
                return
            yield datagram

    def _check_open(self) -> None:
        if self._closed:
            raise self._make_closed_error()

    def _make_closed_error(self) -> Error:
        return self._make_lost_or_closed_error(
            errno.EBADF, "this endpoint is closed: open a new one"
        )

    def close_nowait(self) -> None:
        """Close the endpoint; do not wait for the device, which closes after its last user."""
        if self._closed:
            return
        self._closed = True
        self._admission.close()
        self._inbox.items.clear()
        self._inbox.set_end_of_items(self._make_closed_error)
        self._handles.clear()
        if hasattr(self, "pd"):
            self.pd.__exit__(None, None, None)
        for slot in list(self._sent):
            done = self._remove_request(slot)
            if not done.done():
                done.set_exception(self._make_closed_error())
        self._queue.release(self._sq_key, SENDS)
        self._queue.release(self._rq_key, self._recv_room)
        del self._source.members[self]
        self._source.release()

    def __repr__(self) -> str:
        if self._closed:
            return f"<aio.{type(self).__name__} closed>"
        return "<aio.{} at {} port {}>".format(type(self).__name__, *self._address)


class UDEndpoint(Endpoint):
    """A UD queue pair with its memory; made by ``open_ud``.

    As UD defines, a message that finds no receive is dropped: up to ``recv_depth`` messages wait
    for ``recv``. A message longer than ``recv_size`` is dropped, too.
    """

    _type = QPType.UD

    async def send(self, data: Buffer, to: Address, *, qpn: int = 0) -> None:
        """Send one message to (host, port); return when UDP has accepted the message.

        The host is a numeric address. If several queue pairs share the destination's socket, the
        message goes to the first queue pair, or to that with number ``qpn``: ``send(data, d.source,
        qpn=d.qpn)`` answers the sender of ``d``. After cancellation, the message may have been sent
        or not.

        Raises:
            LimitError: the message does not fit into a datagram.
            Error: the network refused the message (no route).

        """
        self._check_open()
        with octets(data) as view:
            if len(view) > SEND_SIZE:
                raise LimitError(
                    errno.EMSGSIZE,
                    f"{len(view)} octets do not fit into a datagram (at most {SEND_SIZE})",
                )
            for _ in range(TRIES):
                wc = await self._post_and_wait(view, to, qpn)
                # A message that was flushed because another message was refused has not been sent.
                if wc.status != WCStatus.WR_FLUSH_ERR:
                    break
        wc.check()


def open_ud(
    address: Address = ("127.0.0.1", 0),
    *,
    qkey: int | None = None,
    recv_size: int = RECV_SIZE,
    recv_depth: int = RECV_DEPTH,
) -> AwaitableOpening[UDEndpoint]:
    """Bind a UD queue pair at (host, port) of this machine; port 0: a free port.

    Both ends must use the same Q_Key: ``qkey``, or the setting ``qkey``, or else a random one of
    this process, which the program must send to the peer (``endpoint.qkey``). Use ``await`` or
    ``async with``.

    Raises:
        Error: the address is in use or not an address of this machine.

    """
    host, port = address_host_and_port(address)

    async def open_endpoint() -> UDEndpoint:
        source, numeric = await OpenDevice.get_for_host(host)
        return UDEndpoint(source, (numeric, port), qkey, recv_size, recv_depth)

    return AwaitableOpening(open_endpoint)
