# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Listening: connections, or requests to be decided one by one, as async iterators."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

from siwarp.aio.conn import RECV_DEPTH, RECV_SIZE, START_UP_S, Connection, Opening
from siwarp.aio.source import Inbox, Source, User
from siwarp.cm import CMID, CMEvent, CMEventType, ConnParam
from siwarp.verbs import Address, Error, PeerGone, Persona, StateError
from siwarp.verbs.wanted import an_address

__all__ = ["Listener", "Request", "listen"]

#: Requests that nobody has taken yet; one more is rejected.
MOST_WAITING = 4096


class Request:
    """A peer asks for a connection: ``accept`` or ``reject`` it. If dropped, it is closed."""

    def __init__(self, listener: Listener, event: CMEvent) -> None:
        self._listener = listener
        self._id = event.id
        #: The private data of the peer's Request.
        self.private_data = event.private_data
        self._answered = False

    @property
    def peer(self) -> Address:
        """The peer that asks: (ip, port)."""
        return self._id.peer_addr

    def _answer(self) -> None:
        if self._answered:
            raise StateError(errno.EINVAL, "this request is answered already")
        self._answered = True

    def begin(self, private_data: bytes) -> Connection:
        """Accept, without waiting until the connection is established (for ``Listener``)."""
        self._answer()
        return self._listener._begin(self, private_data)

    async def accept(self, private_data: bytes = b"") -> Connection:
        """Accept, and wait until the connection is established. Cancelling closes it.

        Raises:
            PeerGone: the peer left meanwhile.

        """
        conn = self.begin(private_data)
        try:
            event = await conn.established()
            event.check()
            if event.type != CMEventType.ESTABLISHED:
                raise PeerGone(errno.ECONNRESET, "accepting: the peer left meanwhile")
        except BaseException:
            conn.abandon()
            raise
        return conn

    def reject(self, private_data: bytes = b"") -> None:
        """Reject, with private data that may say why."""
        self._answer()
        try:
            self._id.reject(private_data)
        except PeerGone:
            pass  # the peer has left; nobody needs the answer
        finally:
            self._id.close()

    def drop(self) -> None:
        """Close it without an answer."""
        self._answered = True
        self._id.close()


class Listener(User):
    """A listening address: iterate over it, or ``accept``, for connections.

    ``requests()`` yields the requests instead, for servers that decide by their private data.
    Cancelling loses nothing: the next call returns what was accepted meanwhile.
    """

    def __init__(
        self,
        source: Source,
        address: Address,
        recv_size: int,
        recv_depth: int,
        persona: int = Persona.AUTO,
    ) -> None:
        """Listen; takes over one use of the source."""
        self._source = source
        self._recv = recv_size, recv_depth, persona
        self._closed = False
        source.members[self] = None
        self._requests = Inbox()
        self._made = Inbox()
        self._making: dict[Connection, asyncio.TimerHandle] = {}
        self._private_data = b""
        self._answering = 0
        try:
            self._id = CMID(source.cm, self._on_event)
            self._id.listen(address, 1024)
        except BaseException:
            self.abandon()
            raise
        self._address = self._id.local_addr

    @property
    def address(self) -> Address:
        """Where it listens: the port that was taken if 0 was asked for."""
        return self._address

    def _on_event(self, event: CMEvent) -> None:
        request = Request(self, event)
        if self._closed:
            request.drop()
        elif self._answering:
            self._say_yes(request)
        elif len(self._requests.items) >= MOST_WAITING:
            request.reject()
        else:
            self._requests.put(request)

    # ---- connections

    async def accept(self, private_data: bytes = b"") -> Connection:
        """Accept requests, with ``private_data``, and return the next established connection.

        Requests are accepted as they arrive, so a peer that is slow in its start-up delays no
        other.

        Raises:
            StateError: the listener is closed.

        """
        self._alive()
        self._private_data = private_data
        self._answering += 1
        try:
            while self._requests.items:
                self._say_yes(self._requests.items.popleft())
            conn: Connection = await self._made.get()
            return conn
        finally:
            self._answering -= 1

    def _begin(self, request: Request, private_data: bytes) -> Connection:
        self._source.users += 1
        conn = Connection(self._source, request._id, *self._recv)
        try:
            conn.private_data = request.private_data
            conn.id.accept(ConnParam(private_data=private_data))
        except BaseException:
            conn.abandon()
            raise
        return conn

    def _say_yes(self, request: Request) -> None:
        try:
            conn = request.begin(self._private_data)
        except PeerGone:
            return  # the peer has left already
        except Error as e:
            error = e
            self._made.fail(
                lambda: error
            )  # no memory or no descriptors: the waiting call raises it
            return
        self._making[conn] = self._source.loop.call_later(START_UP_S, conn.abandon)
        conn.on_outcome(lambda _outcome: self._outcome(conn))

    def _outcome(self, conn: Connection) -> None:
        timer = self._making.pop(conn, None)
        if timer is not None:
            timer.cancel()
        if conn.closed:
            return
        if self._closed or not conn.is_established:
            conn.abandon()
        else:
            self._made.put(conn)

    def __aiter__(self) -> AsyncIterator[Connection]:
        return self._connections()

    async def _connections(self) -> AsyncIterator[Connection]:
        while not self._closed:
            try:
                conn = await self.accept()
            except StateError:
                return  # closed meanwhile
            yield conn

    # ---- requests

    async def requests(self) -> AsyncIterator[Request]:
        """Yield each request, to be accepted or rejected, until the listener closes."""
        while not self._closed:
            try:
                request: Request = await self._requests.get()
            except StateError:
                return
            yield request

    # ---- its end

    def _alive(self) -> None:
        if self._closed:
            raise self._is_closed()

    def _is_closed(self) -> Error:
        return self._closed_error(errno.EBADF, "this listener is closed: listen again")

    def abandon(self) -> None:
        """Close at once, without waiting for the device if this was its last user.

        Connections that ``accept`` returned live on, others are closed.
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
            conn.abandon()
        for inbox in (self._requests, self._made):
            inbox.items.clear()
            inbox.end(self._is_closed)
        del self._source.members[self]
        self._source.leave()

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
) -> Opening[Listener]:
    """Listen at (host, port): host ``""`` is every IPv4 address, port 0 takes a free one.

    ``await`` it, or enter it by ``async with``.

    Raises:
        Error: the address is in use or not this machine's, or needs a privilege.

    """
    host, port = an_address(address)

    async def begin() -> Listener:
        source, numeric = await Source.at(host or "0.0.0.0")
        return Listener(source, (numeric, port), recv_size, recv_depth, persona)

    return Opening(begin)
