# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The TCP channel: units follow each other in a TCP stream, whose flow control replaces credits.

Sends are written to the socket by the caller's task, and a unit is free when the socket has
accepted its octets. A callback of the event loop reads units as long as the reader task holds fewer
than ``UNITS`` of them. Memory is allocated per channel and becomes resident when it is first used,
so that a peer that stops in mid-unit holds no memory of other sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

from siwarp.ulp.adts.channel import CLOSE_S, Cause, Channel, ChannelEnded, Received
from siwarp.ulp.adts.memory import Pool, Unit
from siwarp.ulp.adts.registrations import Payload
from siwarp.ulp.adts.wire import (
    HANDSHAKE_UNIT_SIZE,
    UNIT_HEADER_SIZE,
    WireError,
    parse_unit_header,
    put_unit_header,
)
from siwarp.verbs import Address

__all__ = ["TCPChannel", "TCPListener", "connect_tcp_channel", "listen_tcp"]

#: Number of units that a channel receives before its user asks for them, and number of units that
#: its user may fill before they are sent.
UNITS = 4
#: Maximum number of calls of recv before other callbacks of the event loop run.
READS_A_TURN = 4
#: Seconds without traffic and without an answer of the peer's host after which the connection is
#: lost: more than a short failure of the network. While data is on its way, the session limits the
#: time (session.py). TCP_USER_TIMEOUT is not set, because Linux counts the time in which a peer
#: with a slow disk takes no data.
SILENCE_S = 30


class _ReceivedUnit(Received):
    __slots__ = ("_channel", "_unit")

    def __init__(self, channel: TCPChannel, unit: Unit, length: int) -> None:
        self._channel = channel
        self._unit = unit
        self.view = unit.view[:length]

    def release(self) -> None:
        self.view.release()
        self._unit.release()
        self._channel._continue_reading()


class TCPChannel(Channel):
    """A channel over a connected, non-blocking socket, which it owns."""

    def __init__(self, sock: socket.socket, peer: Address) -> None:
        host, port = sock.getsockname()[:2]
        super().__init__("tcp", HANDSHAKE_UNIT_SIZE, peer, (host, port))
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._set_options()
        # At first the channel reads one unit at a time, because each may be followed by a call of
        # ``set_unit_size``, which changes the size of units.
        self._allocate_units(HANDSHAKE_UNIT_SIZE, 1)
        # The header of the next unit, and the unit itself once its header is complete.
        self._header = memoryview(bytearray(UNIT_HEADER_SIZE))
        self._header_have = 0
        self._unit: Unit | None = None
        self._unit_have = self._unit_length = 0
        self._reading = False
        self._paused = False
        self._closing = False
        self._end_of_stream: asyncio.Future[None] = self._loop.create_future()
        self._continue_reading()

    def _set_options(self) -> None:
        options = (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 3),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 6),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        )
        for level, option, value in options:
            self._sock.setsockopt(level, option, value)

    def _allocate_units(self, unit: int, in_advance: int) -> None:
        self.unit_size = unit
        self._receives = Pool(None, in_advance * unit, unit)
        self._sends = Pool(None, UNITS * unit, unit)

    def set_unit_size(self, unit: int) -> None:
        """Use units of up to ``unit`` octets from now on.

        The peer may use the larger size after a certain unit. Call this function when that unit was
        received, before any ``await``. No unit is being filled.
        """
        self._allocate_units(unit, UNITS)
        self._continue_reading()

    # ---- sending

    async def take_empty_unit(self) -> Unit:
        """Return a unit for sending, of which the channel has ``UNITS``."""
        self._check_open()
        return await self._sends.take()

    def take_empty_unit_nowait(self) -> Unit | None:
        """See ``Channel``."""
        self._check_open()
        return self._sends.take_nowait()

    async def send(self, unit: Unit, length: int, payload: Payload | None = None) -> None:
        """Send a unit as ``Channel.send`` says; return when the socket has accepted it."""
        try:
            self._check_open()
            put_unit_header(unit.view, length)
            await self._write_all(unit.view[:length])
        finally:
            unit.release()

    async def flush(self) -> None:
        """Return at once, because the socket already has all sent units."""
        self._check_open()

    async def _write_all(self, octets: memoryview) -> None:
        """Write all octets; if the task is cancelled after some of them, the channel ends."""
        done = 0
        try:
            while done < len(octets):
                done += await self._write_some(octets[done:])
        except asyncio.CancelledError:
            if done:
                self.abort("a unit was being sent when its task was cancelled")
            raise
        self.sent_octets += done

    async def _write_some(self, octets: memoryview) -> int:
        """Write at least one octet, once the socket is writable; return how many."""
        while True:
            self._check_open()
            try:
                return self._sock.send(octets)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._end_by_error(error)
                raise self._ended_error() from None
            self._loop.add_writer(self._fd, self._wake_writers)
            try:
                await self._wait_until_writers_are_woken()
            finally:
                if self.ended is None:
                    self._loop.remove_writer(self._fd)

    # ---- receiving

    def pause_granting_credits(self) -> None:
        """Read no more from the socket, whose buffer fills up and stops the peer."""
        self._paused = True
        self._stop_reading()

    def resume_granting_credits(self) -> None:
        """See ``Channel``."""
        self._paused = False
        self._continue_reading()

    def _continue_reading(self) -> None:
        if self._reading or self._paused or self.ended is not None:
            return
        if self._unit is None and not self._receives.free_count:
            return
        self._reading = True
        self._loop.add_reader(self._fd, self._on_readable)
        if self._header_have == UNIT_HEADER_SIZE:
            # The next header was read already. If no octet follows it, the socket stays unreadable.
            self._loop.call_soon(self._on_readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        if not self._reading:
            return
        try:
            for _ in range(READS_A_TURN):
                if not self._read_once():
                    return
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end_by_error(error)
        except WireError as error:
            self._end_channel(
                f"{self._peer_name()} has violated the protocol: {error}", Cause.PROTOCOL
            )

    def _read_once(self) -> bool:
        """Read into the current unit and the next header; return whether more can be read."""
        if self._closing:
            return self._discard_input()
        if self._header_have == UNIT_HEADER_SIZE and self._unit is None:
            return self._begin_unit()  # the header has been read, but no unit was free
        header = self._header[self._header_have :]
        if self._unit is None:
            n = self._sock.recv_into(header)
        else:
            rest = self._unit.view[self._unit_have : self._unit_length]
            n = self._sock.recvmsg_into([rest, header])[0]
            in_unit = min(n, len(rest))
            self._unit_have += in_unit
            if n:
                n -= in_unit
                if self._unit_have == self._unit_length:
                    self._deliver_unit()
                elif n == 0:
                    return True
                if n == 0:
                    return self._begin_unit()
        if n == 0:
            self._on_end_of_stream()
            return False
        self._header_have += n
        return self._begin_unit()

    def _begin_unit(self) -> bool:
        """Get memory for the unit whose header has arrived; return whether the unit can be read
        now.
        """
        if self._header_have == UNIT_HEADER_SIZE:
            length = parse_unit_header(self._header, self.unit_size).length
            unit = self._receives.take_nowait()
            if unit is None:
                self._stop_reading()
                return False
            unit.view[:UNIT_HEADER_SIZE] = self._header
            self._header_have = 0
            self._unit, self._unit_have, self._unit_length = unit, UNIT_HEADER_SIZE, length
            if length == UNIT_HEADER_SIZE:
                self._deliver_unit()
        if self._unit is None and not self._receives.free_count:
            self._stop_reading()
            return False
        return True

    def _deliver_unit(self) -> None:
        if self._unit is None:
            raise AssertionError("no unit is being received")
        unit, self._unit = self._unit, None
        self._queue_received_unit(_ReceivedUnit(self, unit, self._unit_length))

    def _discard_input(self) -> bool:
        """Read and drop what arrives while the channel closes; unread input would reset the
        connection.
        """
        if not self._sock.recv(65536):
            self._on_end_of_stream()
            return False
        return True

    def _on_end_of_stream(self) -> None:
        self._stop_reading()
        if not self._end_of_stream.done():
            self._end_of_stream.set_result(None)
        if self._closing:
            return
        if self._unit is not None or self._header_have:
            self._end_channel(
                f"{self._peer_name()} closed the connection in the middle of a unit: its program "
                "has ended; start it again and repeat the transfer",
                Cause.LOST,
            )
        else:
            self._end_channel(f"{self._peer_name()} has closed the connection", Cause.PEER_CLOSED)

    # ---- the end

    def _end_by_error(self, error: OSError) -> None:
        if error.errno == errno.ETIMEDOUT or isinstance(error, TimeoutError):
            self._end_channel(
                f"{self._peer_name()} did not answer any more: check the network and repeat the "
                "transfer",
                Cause.TIMEOUT,
            )
        else:
            self._end_channel(
                f"the connection to {self._peer_name()} broke ({error.strerror}): repeat the "
                "transfer",
                Cause.LOST,
            )

    async def close(self, reason: str = "this end has closed the channel") -> None:
        """Close the channel; wait until the peer has closed the connection, too."""
        try:
            if self.ended is None:
                self._closing = True
                self._paused = False
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)
                if not self._reading:
                    self._reading = True
                    self._loop.add_reader(self._fd, self._on_readable)
                await asyncio.wait([self._end_of_stream], timeout=CLOSE_S)
        finally:
            self.abort(reason)

    def _release_transport(self) -> None:
        self._stop_reading()
        self._loop.remove_writer(self._fd)
        self._sock.close()
        if not self._end_of_stream.done():
            self._end_of_stream.set_result(None)
        if self._unit is not None:
            self._unit.release()
            self._unit = None


class TCPListener:
    """A listening socket, whose connections become channels."""

    def __init__(self, sock: socket.socket, accepted: Callable[[TCPChannel], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._accepted = accepted
        host, port = sock.getsockname()[:2]
        #: The listening address, with the port that was selected if port 0 was requested.
        self.address: Address = (host, port)
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        for _ in range(64):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # The process has no free descriptor: try again later, when some may have been
                # closed.
                self._loop.remove_reader(self._sock.fileno())
                self._retry = self._loop.call_later(0.1, self._resume_listening)
                return
            sock.setblocking(False)
            try:
                channel = TCPChannel(sock, peer[:2])
            except OSError:  # the peer has reset the connection
                sock.close()
                continue
            self._accepted(channel)

    def _resume_listening(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    async def close(self) -> None:
        """Stop listening; accepted channels stay open."""
        if self._sock.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()


async def listen_tcp(address: Address, accepted: Callable[[TCPChannel], None]) -> TCPListener:
    """Listen at (host, port); ``accepted`` is called with the channel of each connection.

    Raises:
        OSError: the address is in use or does not belong to this machine.

    """
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(
        address[0], address[1], type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, proto, _, where = infos[0]
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(1024)
        return TCPListener(sock, accepted)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno,
            f"cannot listen at {address[0]} port {address[1]}: {error.strerror}: choose an address "
            "of this machine and a free port",
        ) from None
    except BaseException:
        sock.close()
        raise


async def connect_tcp_channel(address: Address, timeout: float) -> TCPChannel:
    """Connect to a listener at (host, port): to the first of the host's addresses that answers.

    Raises:
        ChannelEnded: there is no listener at the address, or it did not answer in time.

    """
    name = f"{address[0]} port {address[1]}"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    try:
        infos = await loop.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM)
    except OSError as error:
        raise ChannelEnded(
            f"cannot resolve {address[0]!r}: {error.strerror}: correct the name", Cause.REFUSED
        ) from None
    trouble = ChannelEnded(f"{address[0]!r} has no address", Cause.REFUSED)
    for family, kind, proto, _, where in infos:
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, proto)
        try:
            await asyncio.wait_for(loop.sock_connect(sock, where), deadline - loop.time())
            return TCPChannel(sock, (str(where[0]), int(where[1])))
        except (asyncio.TimeoutError, TimeoutError):
            sock.close()
            trouble = ChannelEnded(
                f"{name} did not answer within {timeout:g} seconds: check the host, the network "
                "and its firewalls",
                Cause.TIMEOUT,
            )
        except OSError as error:
            sock.close()
            trouble = ChannelEnded(
                f"cannot connect to {name}: {error.strerror}: start the server or correct the port",
                Cause.REFUSED,
            )
        except BaseException:
            sock.close()
            raise
    raise trouble
