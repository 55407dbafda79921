# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""RC connections with awaitable operations: the asyncio counterpart of ``siwarp.cm.Connection``."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from siwarp.aio.source import Admission, CancelSafeQueue, OpenDevice, OpenDeviceUser
from siwarp.base.buffer import Buffer, octets
from siwarp.cm import CMID, RTR, CMEvent, CMEventType, ConnParam
from siwarp.cm.conn import check_remote_range
from siwarp.verbs import (
    MR,
    PD,
    QP,
    WC,
    AccessFlag,
    Address,
    Error,
    PeerGone,
    Persona,
    ProtocolError,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    StateError,
    WCStatus,
    WROpcode,
)
from siwarp.verbs.wanted import address_host_and_port

__all__ = ["AwaitableOpening", "Connection", "connect"]

#: Size in octets of a posted receive, and number of posted receives.
RECV_SIZE = 64 * 1024
RECV_DEPTH = 16
#: Limits of a connection: number of outstanding requests, size in octets of a message that is sent
#: inline, and size of a message that is copied and sent from the copy.
SENDS = 16
INLINE = 256
STAGED = 64 * 1024
#: Seconds after which a connection start-up is aborted.
START_UP_S = 30.0

_ALL_ACCESS = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ

T = TypeVar("T")


class _PostedRequest:
    """A posted request: its future, and a function to call when the request has completed."""

    __slots__ = ("done", "waiter")

    def __init__(self, waiter: asyncio.Future[Any], done: Callable[[], Any] | None) -> None:
        self.waiter = waiter
        self.done = done


class Connection(OpenDeviceUser):
    """A connected RC queue pair with its memory; made by ``connect`` or a ``Listener``.

    Messages have up to ``recv_size`` octets; a longer message ends the connection in error.
    Messages arrive in ``recv_depth`` receives posted in advance. Further messages wait until
    ``recv`` is called: up to ``rnr_octets`` (a setting) at this end, the rest at the peer, whose
    ``send`` then takes longer. The peer's Writes and this end's Reads wait until these messages
    have been received. A peer that was not made by siwarp's ``connect`` or ``listen`` may end the
    connection when a message finds no receive, so the protocol should let the peer answer from time
    to time. With ``Persona.ROCE`` at this end, the peer has the data when ``send`` or ``write``
    returns.

    Any number of tasks may use a connection; messages of one task keep their order. Iteration
    yields messages until the peer closes the connection; if the connection is lost, iteration
    raises the same exception as ``recv``.
    """

    def __init__(
        self,
        source: OpenDevice,
        cm_id: CMID,
        recv_size: int,
        recv_depth: int,
        persona: int = Persona.AUTO,
    ) -> None:
        """Create the queue pair on the device ``source``, which counts the connection as a user."""
        self._source = source
        self._closed = False
        source.members[self] = None
        self._left_in_order = False
        self._ops: dict[int, _PostedRequest] = {}
        self._slots = list(range(SENDS))
        self._slot_admission = Admission(SENDS)
        self._staging_admission = Admission(1)
        self._inbox = CancelSafeQueue(source.loop)
        self._recv_size = recv_size
        self._recv_room = recv_depth
        self._queue = source.find_or_create_cq(SENDS + recv_depth)
        self._sq_key = self._queue.reserve(SENDS, self._on_send_completion)
        self._rq_key = self._queue.reserve(recv_depth, self._on_recv_completion)
        self._peer: Address | None = None
        self._local: Address | None = None
        self._established: asyncio.Future[CMEvent] = source.loop.create_future()
        #: Private data of the peer's Request or Reply.
        self.private_data = b""
        self.id = cm_id
        cm_id.context = self._on_cm_event
        try:
            self._create_queue_pair(recv_depth, persona)
        except BaseException:
            self.close_nowait()
            raise

    def _create_queue_pair(self, recv_depth: int, persona: int) -> None:
        self.pd = PD(self._source.context)
        cap = QPCap(max_send_wr=SENDS, max_recv_wr=recv_depth, max_inline_data=INLINE)
        init = QPInitAttr(
            QPType.RC,
            scq=self._queue.cq,
            cap=cap,
            persona=persona,
            keep_unexpected=True,
        )
        self.qp = QP(self.pd, init)
        self.id.bind_qp(self.qp)
        size = self._recv_size
        self._inline_at = size * recv_depth
        self._staging_at = self._inline_at + INLINE
        self._memory = MR(self.pd, self._staging_at + STAGED)
        self._inline_wrs: dict[WROpcode, SendWR] = {}
        self._recvs = [
            RecvWR(self._rq_key | i, sg=[self._memory.sge(i * size, size)])
            for i in range(recv_depth)
        ]
        self.qp.post_recv(self._recvs)

    # ---- messages

    async def send(self, data: Buffer | MR) -> None:
        """Send one message, a buffer or an MR; return when its memory may be reused.

        Raises:
            PeerGone: the connection has ended.
            ProtocolError: the peer refused an operation; the error describes it.

        """
        # A small message on an idle connection takes only one call of the library, and occupies no
        # slot of the send queue if the Send completes during the call.
        if type(data) is bytes and len(data) <= INLINE and not self._ops:
            if self._closed:
                raise self._make_closed_error()
            if self._slot_admission.has_room():
                if not self.qp.send_inline(data, self._sq_key | self._slots[-1]):
                    await self._wait_for_inline_send()
                return
        await self._send_or_write(WROpcode.SEND, data, None)

    async def recv(self) -> bytes:
        """Wait for the next message and return it. Cancellation loses no message.

        Raises:
            PeerGone: the peer closed the connection, or the connection was lost.
            ProtocolError: one end violated the protocol; the error describes it.

        """
        if self._closed:
            raise self._make_closed_error()
        items = self._inbox.items
        slot, length = items.popleft() if items else await self._inbox.get()
        data = self._memory.read(length, slot * self._recv_size)
        try:
            self.qp.post_recv(self._recvs[slot])
        except StateError:
            return data  # the connection has ended, which the next call of recv() reports
        return data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self.recv()
        except PeerGone:
            if not self._left_in_order:
                raise
        raise StopAsyncIteration

    # ---- the peer's memory

    def register(self, buffer: Buffer | int, access: int = _ALL_ACCESS) -> MR:
        """Register a buffer, or ``buffer`` octets of new memory, for the peer to read and write.

        Send ``mr.remote().pack()`` to the peer. The region is closed with the connection.
        """
        self._check_open()
        return MR(self.pd, buffer, access)

    async def write(self, remote: RemoteBuffer, data: Buffer | MR, offset: int = 0) -> None:
        """RDMA Write ``data`` (a buffer or an MR) into the peer's memory at ``offset``.

        Returns when TCP has accepted the data, as RFC 5040 defines completion. The peer sees all
        of the data before any message that is sent later.
        """
        size = data.length if isinstance(data, MR) else octets(data).nbytes
        check_remote_range(remote, offset, size, "writing")
        await self._send_or_write(
            WROpcode.RDMA_WRITE, data, _remote_buffer_after_offset(remote, offset)
        )

    async def read(self, remote: RemoteBuffer, length: int | None = None, offset: int = 0) -> bytes:
        """RDMA Read ``length`` octets (default: all) of the peer's memory from ``offset``."""
        size = remote.length - offset if length is None else length
        check_remote_range(remote, offset, size, "reading")
        if size > STAGED:
            into = bytearray(size)
            await self.read_into(remote, into, offset)
            return bytes(into)
        self._check_open()
        await self._staging_admission.acquire()
        sg = [self._memory.sge(self._staging_at, size)]
        wr = SendWR(
            opcode=WROpcode.RDMA_READ, sg=sg, remote=_remote_buffer_after_offset(remote, offset)
        )

        def read_staged_octets() -> bytes:
            try:
                return b"" if self._closed else self._memory.read(size, self._staging_at)
            finally:
                self._staging_admission.release()

        data: bytes = await self._post_and_wait(wr, read_staged_octets)
        return data

    async def read_into(self, remote: RemoteBuffer, into: Buffer | MR, offset: int = 0) -> None:
        """RDMA Read from the peer's memory at ``offset``, until ``into`` is full.

        ``into`` is a writable buffer, or an MR with local write access. Cancellation closes the
        connection.
        """
        self._check_open()
        wanted = into.length if isinstance(into, MR) else octets(into).nbytes
        check_remote_range(remote, offset, wanted, "reading")
        with self._temporary_mr(into, AccessFlag.LOCAL_WRITE) as mr:
            await self._post_in_pieces(
                WROpcode.RDMA_READ, mr, _remote_buffer_after_offset(remote, offset)
            )

    # ---- implementation

    async def _send_or_write(
        self, opcode: WROpcode, data: Buffer | MR, remote: RemoteBuffer | None
    ) -> None:
        self._check_open()
        if isinstance(data, MR) or octets(data).nbytes > STAGED:
            with self._temporary_mr(data, AccessFlag(0)) as mr:
                await self._post_in_pieces(opcode, mr, remote)
            return
        # Release the view before returning: a traceback that holds the view would prevent the
        # caller from resizing the buffer.
        with octets(data) as view:
            if len(view) <= INLINE:
                await self._post_and_wait(self._make_inline_request_factory(opcode, view, remote))
            else:
                await self._post_from_staging_memory(opcode, view, remote)

    async def _post_from_staging_memory(
        self, opcode: WROpcode, view: memoryview, remote: RemoteBuffer | None
    ) -> None:
        await self._staging_admission.acquire()
        try:
            self._check_open()
            self._memory.write(view, offset=self._staging_at)
            sg = [self._memory.sge(self._staging_at, len(view))]
            wr = SendWR(opcode=opcode, sg=sg, remote=remote)
        except BaseException:
            self._staging_admission.release()
            raise
        await self._post_and_wait(wr, self._staging_admission.release)

    def _make_inline_request_factory(
        self, opcode: WROpcode, view: memoryview, remote: RemoteBuffer | None
    ) -> Callable[[], SendWR]:
        """Return a function that creates a request with inline data, to be called right before
        the request is posted.
        """

        def create_inline_send_wr() -> SendWR:
            self._memory.write(view, offset=self._inline_at)
            # Posting copies the request, so one SendWR per opcode is used for all requests.
            wr = self._inline_wrs.get(opcode)
            if wr is None:
                flags = SendFlag.SIGNALED | SendFlag.INLINE
                sg = [self._memory.sge(self._inline_at, INLINE)]
                wr = self._inline_wrs[opcode] = SendWR(opcode=opcode, sg=sg, send_flags=flags)
            wr.sg[0].length = len(view)
            if remote is not None:
                wr.set_wr_rdma(remote.rkey, remote.addr)
            return wr

        return create_inline_send_wr

    @contextlib.contextmanager
    def _temporary_mr(self, data: Buffer | MR, access: AccessFlag) -> Generator[MR, None, None]:
        """Yield an MR for the caller's memory; cancellation closes the connection to release the
        memory.
        """
        mr = data if isinstance(data, MR) else MR(self.pd, data, access)
        try:
            yield mr
        except asyncio.CancelledError:
            self.close_nowait()
            raise
        finally:
            if mr is not data:
                mr.close()

    async def _post_in_pieces(self, opcode: WROpcode, mr: MR, remote: RemoteBuffer | None) -> None:
        most = self._source.context.query_device().max_rc_msg
        if remote is None:
            await self._post_and_wait(SendWR(opcode=opcode, sg=[mr.sge()]))
            return
        for at in range(0, max(mr.length, 1), most):
            size = min(most, mr.length - at)
            there = RemoteBuffer(remote.addr + at, size, remote.rkey)
            await self._post_and_wait(SendWR(opcode=opcode, sg=[mr.sge(at, size)], remote=there))

    async def _wait_for_inline_send(self) -> None:
        """Occupy the slot that ``send`` has used for a Send, and wait for the Send."""
        self._slot_admission.try_acquire()
        op = self._ops[self._slots.pop()] = _PostedRequest(self._source.loop.create_future(), None)
        await self._wait_for_completion(op, WROpcode.SEND)

    async def _wait_for_completion(self, op: _PostedRequest, opcode: WROpcode) -> Any:
        self._queue.handle_pending_completions()  # most requests complete during the post
        wc, result = await op.waiter
        if wc.status:
            self._check_completion(wc, opcode.name)
        return result

    async def _post_and_wait(
        self, wr: SendWR | Callable[[], SendWR], done: Callable[[], Any] | None = None
    ) -> Any:
        """Post a request, wait for its completion, and return the result of ``done``.

        ``done`` is called exactly once: when the request has completed, even if its caller was
        cancelled, or when the request could not be posted.
        """
        try:
            await self._slot_admission.acquire()
        except BaseException:
            if done is not None:
                done()
            raise
        op = _PostedRequest(self._source.loop.create_future(), done)
        slot = self._slots.pop()
        self._ops[slot] = op
        try:
            self._check_open()
            request = wr if isinstance(wr, SendWR) else wr()
            request.wr_id = self._sq_key | slot
            self.qp.post_send(request)
        except BaseException:
            self._remove_request(slot)
            raise
        return await self._wait_for_completion(op, request.opcode)

    def _remove_request(self, slot: int) -> Any:
        """Remove a request from the outstanding ones; call its ``done`` and return the result."""
        op = self._ops.pop(slot)
        self._slots.append(slot)
        self._slot_admission.release()
        return None if op.done is None else op.done()

    def _on_send_completion(self, slot: int, wc: WC) -> None:
        op = self._ops.get(slot)
        if op is None:
            return
        result = self._remove_request(slot)
        if not op.waiter.done():
            op.waiter.set_result((wc, result))

    def _on_recv_completion(self, slot: int, wc: WC) -> None:
        if wc.status == 0:
            self._inbox.put((slot, wc.byte_len))
        elif wc.status != WCStatus.WR_FLUSH_ERR or wc.vendor_err:
            self._inbox.set_end_of_items(lambda: self._make_completion_error(wc, "receiving"))
        # For a receive that was flushed without a vendor error, the connection's DISCONNECTED event
        # contains the reason.

    def _make_completion_error(self, wc: WC, what: str) -> BaseException:
        try:
            self._check_completion(wc, what)
        except Error as e:
            return e
        raise AssertionError("judged a success")

    def _check_completion(self, wc: WC, what: str) -> None:
        if wc.status == WCStatus.WR_FLUSH_ERR and not wc.vendor_err:
            raise self._make_peer_gone_error(f"{what} to {self._peer_name()}")
        wc.check()

    def _make_connection_end_error(self, event: CMEvent) -> BaseException:
        """Return the exception that ``recv`` raises after the end of the connection."""
        what = f"receiving from {self._peer_name()}"
        if event.wire_error:
            return ProtocolError.from_vendor_err(event.wire_error, what)
        if self._left_in_order:
            return self._make_peer_gone_error(what)
        return PeerGone(
            errno.ECONNRESET,
            f"{what}: the connection broke, and the peer's last messages may be lost; connect "
            "again",
        )

    def _make_peer_gone_error(self, what: str) -> PeerGone:
        return PeerGone(errno.ECONNRESET, f"{what}: the connection has ended; connect again")

    def _check_open(self) -> None:
        if self._closed:
            raise self._make_closed_error()

    def _make_closed_error(self) -> Error:
        return self._make_lost_or_closed_error(
            errno.ENOTCONN, "this connection is closed: connect again"
        )

    # ---- start-up and close

    def _on_cm_event(self, event: CMEvent) -> None:
        if event.type == CMEventType.ESTABLISHED:
            with contextlib.suppress(Error):  # the peer may have closed the connection already
                self._peer, self._local = self.qp.peer, self.qp.addr
        elif self._established.done():
            # All completions before the end of the connection are in the queue by now.
            self._queue.handle_pending_completions()
            self._left_in_order = event.status == 0 and not event.wire_error
            self._inbox.set_end_of_items(lambda: self._make_connection_end_error(event))
        if not self._established.done():
            self._established.set_result(event)

    async def wait_until_started(self) -> CMEvent:
        """Wait until the start-up of the connection has succeeded or failed, and return the CM
        event.
        """
        return await asyncio.shield(self._established)

    @property
    def is_established(self) -> bool | None:
        """Whether the start-up of the connection succeeded; ``None`` while the start-up is in
        progress.
        """
        if not self._established.done():
            return None
        return self._established.result().type == CMEventType.ESTABLISHED

    @property
    def closed(self) -> bool:
        """Whether this end has closed the connection."""
        return self._closed

    def add_start_up_callback(self, call: Callable[[Any], object]) -> None:
        """Call ``call`` when the start-up of the connection has succeeded or failed."""
        self._established.add_done_callback(call)

    def _peer_name(self) -> str:
        return "the peer" if self._peer is None else "{} port {}".format(*self._peer)

    @property
    def peer(self) -> Address:
        """The address of the connection's other end as (ip, port)."""
        return self.qp.peer if self._peer is None else self._peer

    @property
    def local(self) -> Address:
        """The address of this end of the connection as (ip, port)."""
        return self.qp.addr if self._local is None else self._local

    def close_nowait(self) -> None:
        """Close the connection; do not wait for the device, which closes after its last user.

        Sent data still arrives. Calls that wait in other tasks raise StateError.
        """
        if self._closed:
            return
        self._closed = True
        self._inbox.items.clear()
        self._inbox.set_end_of_items(self._make_closed_error)
        self.id.context = None
        with contextlib.suppress(Error):
            self.id.disconnect()
        self.id.close()
        if hasattr(self, "pd"):
            self.pd.__exit__(None, None, None)
        for slot, op in list(self._ops.items()):
            self._remove_request(slot)
            if not op.waiter.done():
                op.waiter.set_exception(self._make_closed_error())
        self._queue.release(self._sq_key, SENDS)
        self._queue.release(self._rq_key, self._recv_room)
        if not self._established.done():
            if self._source.lost is None:
                self._established.cancel()
            else:
                self._established.set_exception(self._source.lost)
                # Retrieve the exception, because asyncio would log it if no task waits for it.
                self._established.exception()
        del self._source.members[self]
        self._source.release()

    def __repr__(self) -> str:
        return f"<aio.Connection {'closed' if self._closed else 'to ' + self._peer_name()}>"


def _remote_buffer_after_offset(remote: RemoteBuffer, offset: int) -> RemoteBuffer:
    return RemoteBuffer(remote.addr + offset, max(0, remote.length - offset), remote.rkey)


class AwaitableOpening(Generic[T]):
    """Result of ``connect``, ``listen`` and ``open_ud``: use ``await`` or ``async with``."""

    def __init__(self, begin: Callable[[], Awaitable[T]]) -> None:
        self._open = begin

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened: Any = await self._open()
        opened: T = self._opened
        return opened

    async def __aexit__(self, *_: object) -> None:
        await self._opened.close()


def connect(
    address: Address,
    *,
    private_data: bytes = b"",
    recv_size: int = RECV_SIZE,
    recv_depth: int = RECV_DEPTH,
    persona: int = Persona.AUTO,
) -> AwaitableOpening[Connection]:
    """Connect to a listener at (host, port): use ``await`` or ``async with``.

    Cancellation ends the attempt. If the peer does not answer, the attempt fails after 30 seconds.

    Raises:
        PeerGone: there is no listener at the address, or the peer rejected the request or did not
        answer.

    """

    name, port = address_host_and_port(address)

    async def start_connection() -> Connection:
        source, host = await OpenDevice.get_for_peer(name, port)
        try:
            cm_id = CMID(source.cm)
        except BaseException:
            source.release()
            raise
        conn = Connection(source, cm_id, recv_size, recv_depth, persona)
        try:
            # Peer-to-peer mode lets either end send first (RFC 6581). Without peer-to-peer mode the
            # responder must wait for the initiator's first FPDU (RFC 5044 section 7.1.3).
            rtr = RTR.FPDU | RTR.WRITE | RTR.READ
            param = ConnParam(private_data=private_data, peer_to_peer=rtr, timeout=START_UP_S)
            cm_id.connect((host, port), param)
            conn.private_data = (await conn.wait_until_started()).check().private_data
        except BaseException:
            conn.close_nowait()
            raise
        return conn

    return AwaitableOpening(start_connection)
