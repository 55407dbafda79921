# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The listener of ``siwarp bench --server``: greets clients and admits one at a time.

A new connection has a few seconds to send its greeting, and does not block others meanwhile. At
most ``WAITING`` connections may be in this state; a further one replaces the oldest. While a client
is served, other clients are told that the server is busy and are disconnected.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

from siwarp.base.closing import Closing
from siwarp.bench.hosts_wire import GREETING, VERSION, Greeting, greeting, own_order

__all__ = ["Door"]


class _PendingClient:
    """A connection that has not sent its greeting yet."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.data = b""
        self.until = time.monotonic() + seconds

    def refusal(self) -> str | None:
        """Continue to read; return why the client is refused, "" if not, None if octets are
        missing.
        """
        try:
            self.data += self.socket.recv(GREETING.size - len(self.data))
        except BlockingIOError:
            return None
        except OSError:
            return "gone"
        if len(self.data) < GREETING.size:
            # A client sends its greeting in one piece; another protocol is detected at once.
            return None if self.data and greeting()[: len(self.data)] == self.data else "a stranger"
        try:
            theirs = Greeting.unpack(self.data)
        except ValueError:
            return "this is a siwarp bench server"
        if theirs.version != VERSION:
            return f"this is version {VERSION}, not {theirs.version}"
        return "" if theirs.order == own_order() else "the server's byte order differs"


class Door(Closing):
    """Listens, greets, and admits clients.

    Attributes:
        inside: whether a client is being served; no other is admitted then.
        address: the address of the listener.
    """

    WAITING = 16
    GREET_S = 5.0

    def __init__(self, host: str, port: int) -> None:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(where)
            self._socket.listen(self.WAITING)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.inside = False
        self._strangers: dict[int, _PendingClient] = {}
        self._welcome: socket.socket | None = None

    def watch(self) -> dict[int, Callable[[], None]]:
        """Disconnect clients that took too long; return descriptors to poll and their callbacks."""
        now = time.monotonic()
        for fd in [fd for fd, one in self._strangers.items() if now > one.until]:
            self._turn_away(fd, "no greeting arrived")
        found: dict[int, Callable[[], None]] = {self._socket.fileno(): self._accept}
        return found | {fd: self._hearing(fd) for fd in self._strangers}

    def take(self) -> socket.socket | None:
        """Return the client that is admitted, if there is one."""
        client, self._welcome = self._welcome, None
        return client

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # the client has closed its connection already
        if len(self._strangers) >= self.WAITING:
            self._turn_away(next(iter(self._strangers)), "too many clients are waiting")
        self._strangers[connection.fileno()] = _PendingClient(connection, self.GREET_S)

    def _hearing(self, fd: int) -> Callable[[], None]:
        return lambda: self._read_greeting(fd)

    def _read_greeting(self, fd: int) -> None:
        if fd not in self._strangers:
            return
        refusal = self._strangers[fd].refusal()
        if refusal is None:
            return
        if not refusal and (self.inside or self._welcome is not None):
            refusal = "the server is busy with another client: try again later"
        if refusal:
            self._turn_away(fd, refusal)
            return
        connection = self._strangers.pop(fd).socket
        try:
            connection.send(greeting(), socket.MSG_NOSIGNAL)
        except OSError:
            connection.close()
            return
        self._welcome = connection

    def _turn_away(self, fd: int, why: str) -> None:
        connection = self._strangers.pop(fd).socket
        with contextlib.suppress(OSError):
            connection.send(greeting(why), socket.MSG_NOSIGNAL)
            connection.shutdown(socket.SHUT_WR)
        connection.close()

    def close(self) -> None:
        """Stop listening."""
        for fd in list(self._strangers):
            self._turn_away(fd, "the server is shutting down")
        if self._welcome is not None:
            self._welcome.close()
        self._socket.close()
