# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""FTP and FTPS: ftplib's classes, whose data connections may be channels on RD, RC or UD.

Everything of ftplib works as with TCP: the channel of a transfer is an object with the methods of a
socket that ftplib uses. A thread with an asyncio loop, one for each connection to a server that has
used a channel, has the channels.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ftplib
import io
import select
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import IO, Any, Literal, TypeVar, cast

from siwarp.base.buffer import Buffer, octets
from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded
from siwarp.ulp.ftp import opening, stream, tprt

__all__ = ["FTP", "FTPS", "Connection", "Kind", "NoTransportError"]

Kind = Literal["rd", "rc", "ud", "tcp"]
T = TypeVar("T")

#: Interval in seconds at which the control connection is checked while a channel makes no progress;
#: also the time by which a reply may arrive before the octets that the server sent on the channel
#: earlier.
_WATCH_S, OVERTAKEN_S = 0.25, 3.0


class _EventLoopThread:
    """A thread that runs an asyncio event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="siwarp-ftp", daemon=True
        )
        self._thread.start()

    def run_coroutine(
        self,
        work: Coroutine[Any, Any, T],
        timeout: float | None = None,
        control: socket.socket | None = None,
    ) -> T:
        """Run a coroutine in the loop's thread and return its result.

        Raises:
            TimeoutError: it did not end within ``timeout`` seconds.
            ConnectionError: the channel has ended, or the server has said something on the
                ``control`` connection: that the transfer has failed. It says nothing in a transfer.

        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        end = None if timeout is None else time.monotonic() + timeout
        said = False
        try:
            while True:
                step = OVERTAKEN_S if said else _WATCH_S
                if end is not None:
                    step = min(step, max(0.0, end - time.monotonic()))
                done, _ = concurrent.futures.wait([future], step)
                if done:
                    return future.result()
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError("the server made no progress in time: try again")
                if said:
                    raise ConnectionError("the server has ended the transfer: read its reply")
                said = control is not None and _socket_has_input(control)
        except ChannelEnded as e:
            kind = TimeoutError if e.cause == Cause.TIMEOUT else ConnectionError
            raise kind(e.reason) from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _socket_has_input(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class Connection:
    """The channel of one transfer, with the methods of a socket that ftplib uses.

    The calls raise ConnectionError when the channel ends before the transfer, and TimeoutError.
    """

    def __init__(
        self,
        loop: _EventLoopThread,
        channel: Channel,
        control: socket.socket,
        sending: bool,
        timeout: float | None,
        listener: opening.Listener | None = None,
    ) -> None:
        """``listener``: in active mode, the end that has admitted the channel."""
        self._loop = loop
        self._listener = listener
        self._channel = channel
        self._control = control
        self._timeout = timeout
        self._sender = stream.Sender(channel) if sending else None
        self._chunks = stream.receive_transfer(channel)
        self._chunk = memoryview(b"")
        self._complete = False
        #: Whether a call has failed. Then the end of the generator is not the end of the file.
        self._broken = False
        self._into = memoryview(b"")
        self._filled = 0
        self._closed = False

    @property
    def transport(self) -> str:
        """The transport: ``rd``, ``rc`` or ``ud``."""
        return self._channel.name

    def _run_transfer_step(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_coroutine(work, self._timeout, self._control)

    def settimeout(self, timeout: float | None) -> None:
        """Set the time limit in seconds for one step of the transfer."""
        self._timeout = timeout

    def recv(self, count: int) -> bytes:
        """Return up to ``count`` octets, or no octets at the end of the file."""
        if self._broken:
            raise ConnectionError("the transfer has failed before: begin it again")
        if not self._chunk and not self._complete:
            self._broken = True  # cleared below, unless _run_transfer_step raises an exception
            self._chunk = self._run_transfer_step(self._next_octets())
            self._broken = False
        data = bytes(self._chunk[:count])
        self._chunk = self._chunk[count:]
        return data

    async def _next_octets(self) -> memoryview:
        """Return the next octets, or no octets at the end of the file."""
        while True:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                self._complete = True
                return memoryview(b"")
            if chunk:
                return chunk

    def sendall(self, data: Buffer) -> None:
        """Send octets; some may wait in a unit until ``close``."""
        assert self._sender is not None
        rest = octets(data)
        while rest:
            if not self._into:
                self._into, self._filled = (
                    self._run_transfer_step(self._sender.wait_for_unit_memory()),
                    0,
                )
            count = min(len(rest), len(self._into) - self._filled)
            self._into[self._filled : self._filled + count] = rest[:count]
            self._filled += count
            rest = rest[count:]
            if self._filled == len(self._into):
                self._send_filled_unit()

    def _send_filled_unit(self) -> None:
        assert self._sender is not None
        if self._filled:
            count, self._filled, self._into = self._filled, 0, memoryview(b"")
            self._run_transfer_step(self._sender.send(count))

    def makefile(self, mode: str = "r", encoding: str | None = None, **more: Any) -> IO[Any]:
        """Return a file object from which the received data can be read."""
        if mode not in {"r", "rb"}:
            raise ValueError(f"a file of mode {mode!r}: only 'r' and 'rb' are possible")
        reader: Any = io.BufferedReader(_ReceivedDataFile(self))
        return reader if mode == "rb" else io.TextIOWrapper(reader, encoding, **more)

    def close(self) -> None:
        """End the transfer. An upload is complete when the server has confirmed it.

        A download that is not complete is aborted.

        Raises:
            OSError: the server has not confirmed what was sent.

        """
        if self._closed:
            return
        if self._sender is None:
            self._end_transfer(orderly=self._complete)
            return
        try:
            self._send_filled_unit()
            self._run_transfer_step(self._sender.finish())
        except BaseException:
            self.abort()
            raise
        self._end_transfer(orderly=True)

    def abort(self) -> None:
        """End the transfer in such a way that the server knows that the file is incomplete."""
        if not self._closed:
            self._end_transfer(orderly=False)

    def _end_transfer(self, orderly: bool) -> None:
        self._closed = True
        self._chunk = self._into = memoryview(b"")
        self._loop.run_coroutine(self._end_channel(orderly))

    async def _end_channel(self, orderly: bool) -> None:
        await self._chunks.aclose()
        if self._sender is not None:
            await self._sender.close()
        if orderly:
            await stream.close_after_transfer(self._channel, sent=self._sender is not None)
        elif _socket_has_input(self._control):
            # The server has ended the transfer, or its process has ended.
            self._channel.abort("the transfer was aborted")
            await self._channel.close()
        else:
            await stream.cancel_transfer(self._channel, "the transfer was aborted")
        if self._listener is not None:
            await self._listener.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class _ReceivedDataFile(io.RawIOBase):
    """A file object from which the received octets of a connection are read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = self._connection.recv(len(into))
        into[: len(data)] = data
        return len(data)


class NoTransportError(OSError):
    """The server or the network has none of the transports that a transfer may use."""


class FTP(ftplib.FTP):
    """ftplib.FTP with transfers over RD, RC, UD or TCP, whichever of ``transports`` works first.

    The arguments are those of ftplib.FTP. A server without TPRT, and one whose channels cannot be
    reached, is used over TCP if ``transports`` has "tcp". In active mode (``set_pasv(False)``) the
    server opens the data connection, on every transport.

    Attributes:
        transports: the transports that a transfer tries, in this order.
        transport: that of the last transfer; None before the first one.

    """

    transports: Sequence[Kind] = ("rd", "rc", "tcp")
    transport: Kind | None = None
    #: Transports that the server or the network does not support.
    _unusable: frozenset[str] = frozenset()
    #: The reason why the last channel could not be opened.
    _refusal = "use a server of siwarp, and no TLS for data"
    #: Whether the server has TPRT; None: not yet known.
    _has_tprt: bool | None = None
    #: Whether TPRT has selected another transport than TCP at the server.
    _selected = False
    _loop: _EventLoopThread | None = None

    def connect(self, *arguments: Any, **options: Any) -> str:
        """Connect to a server; see ftplib."""
        self._unusable, self._has_tprt, self._selected = frozenset(), None, False
        self.transport = None
        return super().connect(*arguments, **options)

    def ntransfercmd(
        self, cmd: str, rest: int | str | None = None
    ) -> tuple[socket.socket, int | None]:
        """Begin a transfer; see ftplib. The first value is a socket, or a ``Connection``."""
        kinds = [kind for kind in self.transports if kind not in self._unusable]
        if set(kinds) != {"tcp"} and (self._protects_data() or not self.has_tprt()):
            kinds = [kind for kind in kinds if kind == "tcp"]
        for kind in kinds:
            if kind == "tcp":
                if self._selected:
                    self.voidcmd("TPRT TCP")
                    self._selected = False
                self.transport = "tcp"
                return super().ntransfercmd(cmd, rest)
            opened = self._open_channel(kind)
            if opened is not None:
                self.transport = kind
                connection = self._begin_transfer(*opened, cmd, rest)
                return cast("tuple[socket.socket, int | None]", connection)
        raise NoTransportError(
            f"none of the transports {', '.join(self.transports)} is possible: {self._refusal}"
        )

    @contextlib.contextmanager
    def without_tcp(self) -> Iterator[None]:
        """Let transfers use only channels; if none can be opened they raise NoTransportError."""
        before = self.transports
        self.transports = [kind for kind in before if kind != "tcp"]
        try:
            yield
        finally:
            self.transports = before

    def _protects_data(self) -> bool:
        """Return whether TLS protects data connections, which is possible only on TCP."""
        return False

    def _open_channel(self, kind: opening.Kind) -> tuple[Channel, opening.Listener | None] | None:
        """Open a channel; return None if the transport is not available."""
        try:
            reply = self.sendcmd(f"TPRT {kind.upper()}")
        except ftplib.error_perm as e:
            self._unusable |= {kind}
            self._refusal = str(e)
            return None
        except ftplib.error_temp as e:  # the server currently has no memory for another channel
            self._refusal = str(e)
            return None
        self._selected = True
        assert self.sock is not None
        host, port = self.makepasv() if self.passiveserver else (self.sock.getpeername()[0], 0)
        try:
            invitation = tprt.parse_reply(reply, kind.upper(), port)
        except ValueError as e:
            raise ftplib.error_proto(str(e)) from None
        if self._loop is None:
            self._loop = _EventLoopThread()
        # Use the local address of the control connection: the server accepts no other.
        source = self.sock.getsockname()[0]
        try:
            if self.passiveserver:
                return self._loop.run_coroutine(
                    opening.open_channel_to_peer(kind, host, invitation, source)
                ), None
            listener = self._loop.run_coroutine(
                opening.listen_for_channel(kind, host, invitation, source)
            )
        except OSError as e:
            self._unusable |= {kind}
            self._refusal = str(e)
            return None
        return self._await_channel_of_server(kind, listener, source)

    def _await_channel_of_server(
        self, kind: opening.Kind, listener: opening.Listener, source: str
    ) -> tuple[Channel, opening.Listener] | None:
        """Let the server open a channel to this end; return None if it cannot."""
        assert self._loop is not None
        channel = None
        try:
            if self.af == socket.AF_INET6:
                self.sendeprt(source, listener.port)
            else:
                self.sendport(source, listener.port)
            channel = self._loop.run_coroutine(listener.accept())
        except (ftplib.error_perm, ftplib.error_temp) as e:
            self._unusable |= {kind}
            self._refusal = str(e)
        finally:
            if channel is None:
                self._loop.run_coroutine(listener.close())
        return None if channel is None else (channel, listener)

    def _begin_transfer(
        self,
        channel: Channel,
        listener: opening.Listener | None,
        cmd: str,
        rest: int | str | None,
    ) -> tuple[Connection, int | None]:
        assert self._loop is not None and self.sock is not None
        sending = cmd.split(" ")[0].upper() in {"STOR", "APPE"}
        timeout = self.timeout if isinstance(self.timeout, (int, float)) else None
        connection = Connection(self._loop, channel, self.sock, sending, timeout, listener)
        try:
            if rest is not None:
                self.sendcmd(f"REST {rest}")
            reply = self.sendcmd(cmd)
            if reply[0] == "2":  # as in ftplib: some servers say 2xx before 1xx
                reply = self.getresp()
            if reply[0] != "1":
                raise ftplib.error_reply(reply)
        except BaseException:
            connection.abort()
            raise
        return connection, None

    def partial_path(self, path: str) -> str:
        """Return the path at which the server stores an upload until it is complete.

        It is ``path`` itself on TCP, and ``.NAME.part`` on the other transports.
        """
        uses_channels = set(self.transports) - self._unusable - {"tcp"}
        return tprt.partial_path(path) if uses_channels and self.has_tprt() else path

    def has_tprt(self) -> bool:
        """Return whether the server has the command TPRT."""
        if self._has_tprt is None:
            self._has_tprt = False
            with contextlib.suppress(ftplib.error_perm):
                lines = self.sendcmd("FEAT").splitlines()
                self._has_tprt = any(line.strip().upper().startswith("TPRT") for line in lines)
        return self._has_tprt

    def close(self) -> None:
        """Close the connection."""
        super().close()
        if self._loop is not None:
            self._loop.close()
            self._loop = None


class FTPS(FTP, ftplib.FTP_TLS):
    """ftplib.FTP_TLS with channels.

    After ``prot_p`` all transfers use TCP, since TLS does not protect channels.
    """

    _prot_p: bool

    def _protects_data(self) -> bool:
        return self._prot_p
