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
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from siwarp.ulp.adts.channel import CLOSE_S, Channel, ChannelEnded, Invitation
from siwarp.ulp.ftp import stream
from siwarp.ulp.ftp.opening import Kind, ServerChannels

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
        self._receiving = False
        #: Sending: set before the end of the stream if all octets were sent.
        self.complete = False
        #: Whether the transfer is complete, which its receiver has confirmed.
        self.done = False
        #: Why the transfer is not complete.
        self.failure = "the transfer was aborted"

    def start(self, receiving: bool) -> None:
        """Begin to move octets from the channel, or to it."""
        if self._task is None:
            self._receiving = receiving
            self._task = asyncio.ensure_future(self._run())

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

    async def _run(self) -> None:
        try:
            await (self._receive() if self._receiving else self._send())
        except ChannelEnded as e:
            self.failure = e.reason
        except OSError as e:
            self.failure = e.strerror or str(e)
        finally:
            await self._end()

    async def _end(self) -> None:
        self._ending = True
        if self.done and self._receiving:
            # BYE should arrive before the reply.
            with contextlib.suppress(ChannelEnded, asyncio.TimeoutError):
                await asyncio.wait_for(self._channel.flush(), CLOSE_S)
        # Now pyftpdlib sees the end, reads the attributes and replies.
        self._socket.close()
        if self.done:
            await stream.end(self._channel, sent=not self._receiving)
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


#: Gets the relay of a new channel, and the socket for pyftpdlib.
Opened = Callable[[Relay, socket.socket], None]


class Bridge:
    """The asyncio thread of a worker, with its channels."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._channels = ServerChannels()
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

    def expect(
        self, kind: Kind, host: str, client: str, opened: Opened, rejected: Callable[[str], None]
    ) -> Invitation:
        """Expect one channel from a client's address at a local address.

        ``opened`` and ``rejected`` are called in the thread of pyftpdlib; ``rejected`` gets the
        address of a stranger.

        Raises:
            OSError: no device can be opened, or there is no memory for one more channel.

        """
        return self.wait_for(
            self._channels.expect(
                kind,
                host,
                client,
                lambda channel: self._relay(channel, opened),
                lambda stranger: self.post(lambda: rejected(stranger)),
            )
        )

    def _relay(self, channel: Channel, opened: Opened) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        relay = Relay(channel, ours)
        self.post(lambda: opened(relay, theirs))

    def forget(self, kind: Kind, host: str, token: bytes) -> None:
        """Let a token that was not used expire."""
        self.call(self._channels.forget, kind, host, token)

    def connect(
        self,
        kind: Kind,
        host: str,
        client: str,
        invitation: Invitation,
        opened: Opened,
        failed: Callable[[str], None],
    ) -> Callable[[], object]:
        """Open a channel from a local address to a client; return a function that gives up.

        ``opened`` and ``failed`` are called in the thread of pyftpdlib; ``failed`` gets the reason.
        """

        async def connect() -> None:
            try:
                channel = await self._channels.connect(kind, host, client, invitation)
            except (ChannelEnded, OSError) as e:
                reason = e.reason if isinstance(e, ChannelEnded) else e.strerror or str(e)
                self.post(lambda: failed(reason))
            else:
                self._relay(channel, opened)

        return asyncio.run_coroutine_threadsafe(connect(), self._loop).cancel

    def close(self) -> None:
        """End all channels and the thread."""
        with contextlib.suppress(TimeoutError):
            self.wait_for(self._channels.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_OPENING)
