# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Listeners: async iterators over connections, or over connection requests to answer one by one."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

from siwarp.aio.conn import RECV_DEPTH, RECV_SIZE, START_UP_S, AwaitableOpening, Connection
from siwarp.aio.source import CancelSafeQueue, OpenDevice, OpenDeviceUser
from siwarp.cm import CMID, CMEvent, CMEventType, ConnParam
from siwarp.verbs import Address, Error, PeerGone, Persona, StateError
from siwarp.verbs.wanted import address_host_and_port

__all__ = ["Listener", "Request", "listen"]

#: Maximum number of connection requests that wait until ``requests`` yields them; further requests
#: are rejected.
MAX_PENDING_REQUESTS = 4096


class Request:
    """A connection request of a peer, to ``accept`` or ``reject``; a request that the program drops
    is closed.
    """

    def __init__(self, listener: Listener, event: CMEvent) -> None:
        self._listener = listener
        self._id = event.id
        #: Private data of the peer's Request.
        self.private_data = event.private_data
        self._answered = False

    @property
    def peer(self) -> Address:
        """Address of the requesting peer: (ip, port)."""
        return self._id.peer_addr

    def _mark_answered(self) -> None:
        if self._answered:
            raise StateError(errno.EINVAL, "this request has already been accepted or rejected")
        self._answered = True

    def accept_nowait(self, private_data: bytes) -> Connection:
        """Accept the request, and return the connection before it is established."""
        self._mark_answered()
        return self._listener._create_connection(self, private_data)

    async def accept(self, private_data: bytes = b"") -> Connection:
        """Accept the request and wait until its connection is established; cancellation closes it.

        Raises:
            PeerGone: the peer has closed the connection in the meantime.

        """
        conn = self.accept_nowait(private_data)
        try:
            event = await conn.wait_until_started()
            event.check()
            if event.type != CMEventType.ESTABLISHED:
                raise PeerGone(
                    errno.ECONNRESET, "accepting: the peer closed the connection during start-up"
                )
        except BaseException:
            conn.close_nowait()
            raise
        return conn

    def reject(self, private_data: bytes = b"") -> None:
        """Reject the request, with private data that may contain the reason."""
        self._mark_answered()
        try:
            self._id.reject(private_data)
        except PeerGone:
            pass  # the peer has closed the connection, so no answer is needed
        finally:
            self._id.close()

    def drop(self) -> None:
        """Close the request without an answer."""
        self._answered = True
        self._id.close()


class Listener(OpenDeviceUser):
    """A listening address; iterate over the listener, or call ``accept``, to get connections.

    ``requests()`` yields the connection requests instead, for servers that use the peers' private
    data to decide. Cancellation loses nothing: the next call returns a connection that was accepted
    in the meantime.
    """

    def __init__(
        self,
        source: OpenDevice,
        address: Address,
        recv_size: int,
        recv_depth: int,
        persona: int = Persona.AUTO,
    ) -> None:
        """Listen at ``address`` on the device ``source``, which counts the listener as a user."""
        self._source = source
        self._recv = recv_size, recv_depth, persona
        self._closed = False
        source.members[self] = None
        self._requests = CancelSafeQueue(source.loop)
        self._made = CancelSafeQueue(source.loop)
        self._making: dict[Connection, asyncio.TimerHandle] = {}
        self._private_data = b""
        self._answering = 0
        try:
            self._id = CMID(source.cm, self._on_cm_event)
            self._id.listen(address, 1024)
        except BaseException:
            self.close_nowait()
            raise
        self._address = self._id.local_addr

    @property
    def address(self) -> Address:
        """The listening address, with the port that was selected if port 0 was requested."""
        return self._address

    def _on_cm_event(self, event: CMEvent) -> None:
        request = Request(self, event)
        if self._closed:
            request.drop()
        elif self._answering:
            self._accept_request(request)
        elif len(self._requests.items) >= MAX_PENDING_REQUESTS:
            request.reject()
        else:
            self._requests.put(request)

    # ---- connections

    async def accept(self, private_data: bytes = b"") -> Connection:
        """Accept requests, with ``private_data``, and return the next established connection.

        Requests are accepted as they arrive, so a peer with a slow start-up does not delay others.

        Raises:
            StateError: the listener is closed.

        """
        self._check_open()
        self._private_data = private_data
        self._answering += 1
        try:
            while self._requests.items:
                self._accept_request(self._requests.items.popleft())
            conn: Connection = await self._made.get()
            return conn
        finally:
            self._answering -= 1

    def _create_connection(self, request: Request, private_data: bytes) -> Connection:
        self._source.users += 1
        conn = Connection(self._source, request._id, *self._recv)
        try:
            conn.private_data = request.private_data
            conn.id.accept(ConnParam(private_data=private_data))
        except BaseException:
            conn.close_nowait()
            raise
        return conn

    def _accept_request(self, request: Request) -> None:
        try:
            conn = request.accept_nowait(self._private_data)
        except PeerGone:
            return  # the peer has closed the connection already
        except Error as e:
            error = e
            self._made.put_error(
                lambda: error
            )  # out of memory or descriptors: the waiting call raises the error
            return
        self._making[conn] = self._source.loop.call_later(START_UP_S, conn.close_nowait)
        conn.add_start_up_callback(lambda _outcome: self._on_start_up_end(conn))

    def _on_start_up_end(self, conn: Connection) -> None:
        timer = self._making.pop(conn, None)
        if timer is not None:
            timer.cancel()
        if conn.closed:
            return
        if self._closed or not conn.is_established:
            conn.close_nowait()
        else:
            self._made.put(conn)

    def __aiter__(self) -> AsyncIterator[Connection]:
        return self._yield_accepted_connections()

    async def _yield_accepted_connections(self) -> AsyncIterator[Connection]:
        while not self._closed:
            try:
                conn = await self.accept()
            except StateError:
                return  # the listener was closed in the meantime
            yield conn

    # ---- requests

    async def requests(self) -> AsyncIterator[Request]:
        """Yield connection requests, to be accepted or rejected, until the listener closes."""
        while not self._closed:
            try:
                request: Request = await self._requests.get()
            except StateError:
                return
            yield request

    # ---- close

    def _check_open(self) -> None:
        if self._closed:
            raise self._make_closed_error()

    def _make_closed_error(self) -> Error:
        return self._make_lost_or_closed_error(errno.EBADF, "this listener is closed: listen again")

    def close_nowait(self) -> None:
        """Close the listener; do not wait for the device, which closes after its last user.

        Connections that ``accept`` has returned stay open; all others are closed.
        """
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_id"):
            self._id.context = None
            self._id.close()
        for request in self._requests.items:
            request.drop()
        for conn in [c for c in self._made.items if isinstance(c, Connection)] + [*self._making]:
            conn.close_nowait()
        for inbox in (self._requests, self._made):
            inbox.items.clear()
            inbox.set_end_of_items(self._make_closed_error)
        del self._source.members[self]
        self._source.release()

    def __repr__(self) -> str:
        if self._closed:
            return "<aio.Listener closed>"
        return "<aio.Listener at {} port {}>".format(*self._address)


def listen(
    address: Address,
    *,
    recv_size: int = RECV_SIZE,
    recv_depth: int = RECV_DEPTH,
    persona: int = Persona.AUTO,
) -> AwaitableOpening[Listener]:
    """Listen at (host, port); host ``""``: all IPv4 addresses, port 0: a free port.

    Use ``await`` or ``async with``.

    Raises:
        Error: the address is in use or not an address of this machine, or a privilege is missing.

    """
    host, port = address_host_and_port(address)

    async def open_listener() -> Listener:
        source, numeric = await OpenDevice.get_for_host(host or "0.0.0.0")
        return Listener(source, (numeric, port), recv_size, recv_depth, persona)

    return AwaitableOpening(open_listener)
