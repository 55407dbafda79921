# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Connects the channels of an FTP server's worker to sockets, which pyftpdlib uses like TCP.

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

__all__ = ["ChannelThread", "Relay"]

#: Time limit in seconds for opening a device.
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
        #: For a transfer to the client: set before the socket is shut down if all octets were sent.
        self.complete = False
        #: Whether the receiver has confirmed that the transfer is complete.
        self.done = False
        #: The reason why the transfer failed; None while it has not failed.
        self.failure = "the transfer was aborted"

    def start_transfer(self, receiving: bool) -> None:
        """Start moving octets: from the channel if ``receiving``, otherwise to the channel."""
        if self._task is None:
            self._receiving = receiving
            self._task = asyncio.ensure_future(self._move_octets())

    def stop_transfer(self) -> None:
        """End the transfer and the channel, unless they are ending already."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._end_transfer())
        elif not self._ending:
            self._task.cancel()
            self._task.add_done_callback(self._end_if_cancelled_before_start)

    def _end_if_cancelled_before_start(self, _: asyncio.Task[None]) -> None:
        if not self._ending:  # the task was cancelled before its first step
            self._task = asyncio.ensure_future(self._end_transfer())

    async def _move_octets(self) -> None:
        try:
            await (self._receive_from_channel() if self._receiving else self._send_to_channel())
        except ChannelEnded as e:
            self.failure = e.reason
        except OSError as e:
            self.failure = e.strerror or str(e)
        finally:
            await self._end_transfer()

    async def _end_transfer(self) -> None:
        self._ending = True
        if self.done and self._receiving:
            # The client should receive BYE before the reply on the control connection.
            with contextlib.suppress(ChannelEnded, asyncio.TimeoutError):
                await asyncio.wait_for(self._channel.flush(), CLOSE_S)
        # After this close pyftpdlib reads the end of the stream, checks the attributes, and replies
        # to the client.
        self._socket.close()
        if self.done:
            await stream.close_after_transfer(self._channel, sent=not self._receiving)
        else:
            await stream.cancel_transfer(self._channel, self.failure)

    async def _receive_from_channel(self) -> None:
        loop = asyncio.get_running_loop()
        async with contextlib.aclosing(stream.receive_transfer(self._channel)) as chunks:
            async for chunk in chunks:
                await loop.sock_sendall(self._socket, chunk)
        self.done = True

    async def _send_to_channel(self) -> None:
        loop = asyncio.get_running_loop()
        sender = stream.Sender(self._channel)
        try:
            while True:
                into = await sender.wait_for_unit_memory()
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


#: A function that is called with the relay of a new channel, and with the socket that pyftpdlib
#: uses for the channel.
Opened = Callable[[Relay, socket.socket], None]


class ChannelThread:
    """The thread that runs an asyncio loop with all channels of a worker process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._channels = ServerChannels()
        self._calls: deque[Callable[[], None]] = deque()
        #: Readable when ``run_posted_calls`` has something to do.
        self.wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run_event_loop, name="siwarp-ftp", daemon=True)
        self._thread.start()

    def _run_event_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call_in_loop_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of the asyncio loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def run_coroutine_in_loop_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that ends soon in the asyncio loop, and return its result.

        Raises:
            TimeoutError: the coroutine did not end within some seconds.

        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_OPENING)
        except concurrent.futures.TimeoutError:  # not the built-in TimeoutError before Python 3.11
            raise TimeoutError("the thread with the channels does not answer: try again") from None

    def post_to_pyftpdlib(self, call: Callable[[], None]) -> None:
        """Queue a call for the thread of pyftpdlib; any thread may use this method."""
        self._calls.append(call)
        # If the socket is full, the thread wakes up anyway, because of the octets in it.
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"\0")

    def run_posted_calls(self) -> None:
        """Make the queued calls; the caller has read the socket ``wakeup``."""
        while self._calls:
            self._calls.popleft()()

    def run_work_in_thread(
        self, work: Callable[[], T], done: Callable[[Exception | None], None]
    ) -> None:
        """Run ``work`` in a thread, then ``done`` with its exception in the thread of pyftpdlib."""

        def report_outcome_to_pyftpdlib(future: asyncio.Future[T]) -> None:
            error = future.exception()
            self.post_to_pyftpdlib(lambda: done(cast("Exception | None", error)))

        def start_in_executor() -> None:
            self._loop.run_in_executor(None, work).add_done_callback(report_outcome_to_pyftpdlib)

        self.call_in_loop_thread(start_in_executor)

    def expect_channel(
        self, kind: Kind, host: str, client: str, opened: Opened, rejected: Callable[[str], None]
    ) -> Invitation:
        """Prepare to accept one channel from a client's address at a local address.

        ``opened`` and ``rejected`` are called in the thread of pyftpdlib; ``rejected`` gets the
        address of a stranger.

        Raises:
            OSError: no device can be opened, or there is no memory for one more channel.

        """
        return self.run_coroutine_in_loop_thread(
            self._channels.expect_channel(
                kind,
                host,
                client,
                lambda channel: self._hand_relay_to_pyftpdlib(channel, opened),
                lambda stranger: self.post_to_pyftpdlib(lambda: rejected(stranger)),
            )
        )

    def _hand_relay_to_pyftpdlib(self, channel: Channel, opened: Opened) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        relay = Relay(channel, ours)
        self.post_to_pyftpdlib(lambda: opened(relay, theirs))

    def forget_token(self, kind: Kind, host: str, token: bytes) -> None:
        """Refuse a token from now on that was not used."""
        self.call_in_loop_thread(self._channels.forget_token, kind, host, token)

    def open_channel_to_client(
        self,
        kind: Kind,
        host: str,
        client: str,
        invitation: Invitation,
        opened: Opened,
        failed: Callable[[str], None],
    ) -> Callable[[], object]:
        """Begin to open a channel to a client; return a function that cancels the attempt.

        ``opened`` and ``failed`` are called in the thread of pyftpdlib; ``failed`` gets the reason.
        """

        async def open_and_relay_channel() -> None:
            try:
                channel = await self._channels.connect(kind, host, client, invitation)
            except (ChannelEnded, OSError) as e:
                reason = e.reason if isinstance(e, ChannelEnded) else e.strerror or str(e)
                self.post_to_pyftpdlib(lambda: failed(reason))
            else:
                self._hand_relay_to_pyftpdlib(channel, opened)

        return asyncio.run_coroutine_threadsafe(open_and_relay_channel(), self._loop).cancel

    def close(self) -> None:
        """End all channels, and the thread of the asyncio loop."""
        with contextlib.suppress(TimeoutError):
            self.run_coroutine_in_loop_thread(self._channels.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_OPENING)
