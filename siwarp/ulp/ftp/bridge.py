# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Channels of an FTP server's worker, which pyftpdlib uses as if they were TCP connections.

pyftpdlib's loop waits for sockets, and channels belong to an asyncio loop. So a worker that is
asked for a channel starts one thread with an asyncio loop, which has the worker's devices. A relay
in that thread moves the octets of a transfer between its channel and one end of a socket pair; the
other end is the socket of pyftpdlib's data connection. The copy through the kernel costs less than
the transport, and REST, MLSD, ABOR, STAT and time-outs are pyftpdlib's on every transport. Whether
a transfer is complete is said by attributes of the relay, not by the end of the socket pair.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from siwarp.ulp.adts.channel import (
    CLOSE_S,
    Acceptor,
    Channel,
    ChannelEnded,
    Invitation,
    Limits,
)
from siwarp.ulp.adts.endpoints import Acceptors, open_acceptors
from siwarp.ulp.adts.wire import TOKEN_SIZE
from siwarp.ulp.ftp import stream, tprt

__all__ = ["Bridge", "Relay"]

#: Seconds that opening a device may take.
_OPENING = 10.0
T = TypeVar("T")


class Relay:
    """Moves the octets of one transfer between a channel and a socket.

    The methods are called in the thread of the asyncio loop; the attributes may be read in every
    thread once the other end of the socket pair has seen the end of the stream.
    """

    def __init__(self, channel: Channel, sock: socket.socket) -> None:
        self._channel = channel
        self._socket = sock
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        #: Sending: the owner sets this before it closes its socket if it has sent all octets.
        self.complete = False
        #: Whether the transfer is complete, which its receiver has confirmed.
        self.done = False
        #: Why the transfer is not complete.
        self.failure = "the transfer was aborted"

    def start(self, receiving: bool) -> None:
        """Begin to move octets from the channel, or to it."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run(receiving))

    def stop(self) -> None:
        """End the transfer and the channel if no octets have been moved yet."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._end())
        elif not self._ending:
            self._task.cancel()
            self._task.add_done_callback(self._on_cancelled)

    def _on_cancelled(self, _: asyncio.Task[None]) -> None:
        if not self._ending:  # the task was cancelled before its first step
            self._task = asyncio.ensure_future(self._end())

    async def _run(self, receiving: bool) -> None:
        try:
            await (self._receive() if receiving else self._send())
        except ChannelEnded as e:
            self.failure = e.reason
        except OSError as e:
            self.failure = e.strerror or str(e)
        finally:
            await self._end()

    async def _end(self) -> None:
        self._ending = True
        if self.done:
            # BYE should arrive before the reply on the control connection.
            with contextlib.suppress(ChannelEnded, asyncio.TimeoutError):
                await asyncio.wait_for(self._channel.flush(), CLOSE_S)
        # Now pyftpdlib sees the end, reads the attributes and replies.
        self._socket.close()
        if self.done:
            await self._channel.close("the transfer is complete")
        else:
            await stream.cancel(self._channel, self.failure)

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        async with contextlib.aclosing(stream.receive(self._channel)) as chunks:
            async for chunk in chunks:
                await loop.sock_sendall(self._socket, chunk)
        self.done = True

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        sender = stream.Sender(self._channel)
        try:
            while True:
                into = await sender.fill()
                count = await loop.sock_recv_into(self._socket, into)
                if not count:
                    break
                with contextlib.suppress(BlockingIOError):
                    while count < len(into):
                        more = self._socket.recv_into(into[count:])
                        if not more:
                            break
                        count += more
                await sender.send(count)
            if self.complete:
                await sender.finish()
                self.done = True
        finally:
            await sender.close()


class Bridge:
    """The asyncio thread of a worker, with the acceptors of each local address."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._acceptors: dict[str, Acceptors] = {}
        self._calls: deque[Callable[[], None]] = deque()
        #: Readable when ``run_calls`` has something to do.
        self.wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="siwarp-ftp", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of the asyncio loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that ends soon.

        Raises:
            TimeoutError: the coroutine did not end within some seconds.

        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_OPENING)
        except concurrent.futures.TimeoutError:  # another class before Python 3.11
            raise TimeoutError("the thread with the channels does not answer: try again") from None

    def post(self, call: Callable[[], None]) -> None:
        """Let the thread of pyftpdlib make a call; usable in every thread."""
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # it will wake up for earlier octets
            self._waker.send(b"\0")

    def run_calls(self) -> None:
        """Make the calls of ``post``; the caller has read the socket ``wakeup``."""
        while self._calls:
            self._calls.popleft()()

    def in_background(
        self, work: Callable[[], T], done: Callable[[Exception | None], None]
    ) -> None:
        """Run ``work`` in a thread, then ``done`` with its exception in the thread of pyftpdlib."""

        def finished(future: asyncio.Future[T]) -> None:
            error = future.exception()
            self.post(lambda: done(cast("Exception | None", error)))

        def start() -> None:
            self._loop.run_in_executor(None, work).add_done_callback(finished)

        self.call(start)

    async def _expect(
        self, kind: str, host: str, accepted: Callable[[Channel], None]
    ) -> Invitation:
        if host not in self._acceptors:
            self._acceptors[host] = await open_acceptors(host, Limits(unit=tprt.UNIT))
        acceptor: Acceptor = getattr(self._acceptors[host], kind)
        token = secrets.token_bytes(TOKEN_SIZE)
        return acceptor.expect(token, tprt.UNIT, tprt.WINDOW, accepted, tprt.LIFETIME)

    def expect(
        self, kind: str, host: str, arrived: Callable[[Relay, socket.socket, str], None]
    ) -> Invitation:
        """Expect one channel at a local address.

        ``arrived`` is called in the thread of pyftpdlib with the relay of the channel, the socket
        for pyftpdlib, and the address of the peer.

        Raises:
            OSError: no device can be opened, or there is no memory for one more channel.

        """

        def accept(channel: Channel) -> None:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            relay = Relay(channel, ours)
            self.post(lambda: arrived(relay, theirs, channel.peer[0]))

        return self.wait_for(self._expect(kind, host, accept))

    def forget(self, kind: str, host: str, token: bytes) -> None:
        """Let a token that was not used expire."""
        self.call(lambda: getattr(self._acceptors[host], kind).forget(token))

    def close(self) -> None:
        """End all channels and the thread."""

        async def close() -> None:
            for acceptors in self._acceptors.values():
                await acceptors.close()

        with contextlib.suppress(TimeoutError):
            self.wait_for(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_OPENING)
