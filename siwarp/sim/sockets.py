# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Plain sockets of a world: for a peer whose protocol a test implements itself."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from siwarp.base.library import ffi, lib
from siwarp.sim import tasks
from siwarp.sim.units import NEVER, nanoseconds
from siwarp.verbs import StateError
from siwarp.verbs._ffi import Address, addr_from_c, addr_to_c

__all__ = ["TCPListener", "TCPSocket", "UDPSocket"]

_LARGEST = 65536


class _Socket:
    """Base class; its methods work, and raise exceptions, like those of ``socket.socket``."""

    def __init__(self, c: Any) -> None:
        self._c = c
        self._timeout: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        """Set the time-out, on the world's clock, of calls that wait (TimeoutError); 0: no wait."""
        if seconds is not None:
            nanoseconds(seconds)
        self._timeout = seconds

    def setblocking(self, blocking: bool) -> None:
        """Equivalent to ``settimeout(None)`` or ``settimeout(0)``."""
        self.settimeout(None if blocking else 0)

    def gettimeout(self) -> float | None:
        """Return the time-out that ``settimeout`` set."""
        return self._timeout

    def getsockname(self) -> Address:
        """Return the address and port of this end."""
        out = ffi.new("struct siw_addr *")
        lib.siw_sim_socket_local(self._open(), out)
        address = addr_from_c(out)
        assert address is not None
        return address

    def close(self) -> None:
        """Close the socket; a second call has no effect."""
        self._close(reset=False)

    def _close(self, reset: bool) -> None:
        c, self._c = self._c, None
        if c is not None:
            lib.siw_sim_socket_close(c, reset)

    def _open(self) -> Any:
        if self._c is None:
            raise OSError(errno.EBADF, "this socket is closed: open another one")
        return self._c

    def _until(self) -> int:
        """Return the time, in ns since the world began, at which a call made now times out."""
        if self._timeout is None:
            return NEVER
        return int(lib.siw_sim_now()) + nanoseconds(self._timeout) if self._timeout else 0

    def _check(self, rc: int) -> int:
        tasks.leave_if_over()
        if rc == -errno.EAGAIN:
            if self._timeout:
                raise TimeoutError(
                    "timed out: find the cause, or increase the time-out with settimeout"
                )
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return check(rc)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check(rc: int) -> int:
    """Return the result of a C call; raise an error as the socket module does."""
    if rc == -errno.ESTALE:
        raise StateError(errno.ESTALE, "the socket's host has crashed: open another one")
    if rc < 0:
        raise OSError(-rc, os.strerror(-rc))
    return rc


class UDPSocket(_Socket):
    """A UDP socket at an address of a world; made by ``World.udp``."""

    #: ECN code point of the datagrams it sends, 0 to 3.
    ecn = 0
    #: ECN code point of the datagram received last.
    received_ecn = 0

    def sendto(self, data: bytes | bytearray | memoryview, address: tuple[Any, ...]) -> int:
        """Send a datagram."""
        octets = ffi.from_buffer(data)
        dest = addr_to_c((address[0], address[1]))
        check(lib.siw_sim_udp_send(self._open(), dest, octets, len(octets), self.ecn))
        return len(octets)

    def recvfrom(self, size: int = _LARGEST) -> tuple[bytes, Address]:
        """Wait for a datagram; return at most ``size`` octets of it, and its source address."""
        source, ecn = ffi.new("struct siw_addr *"), ffi.new("int *")
        to = ffi.new("uint8_t[]", max(size, 1))
        c, until = self._open(), self._until()
        got = self._check(lib.siw_sim_udp_recv(c, source, to, size, until, ecn))
        self.received_ecn = ecn[0]
        address = addr_from_c(source)
        assert address is not None
        return bytes(ffi.buffer(to, min(got, size))), address

    def recv(self, size: int = _LARGEST) -> bytes:
        """Wait for a datagram as ``recvfrom`` does, and return it without the address."""
        return self.recvfrom(size)[0]


class TCPSocket(_Socket):
    """One end of a TCP connection in a world; made by ``World.tcp_connect`` and ``accept``."""

    _reset = False

    def getpeername(self) -> Address:
        """Return the address and port of the other end."""
        out = ffi.new("struct siw_addr *")
        check(lib.siw_sim_socket_peer(self._open(), out))
        address = addr_from_c(out)
        assert address is not None
        return address

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send some of the octets, and return how many were sent."""
        octets = ffi.from_buffer(data)
        c, until = self._open(), self._until()
        return self._check(lib.siw_sim_tcp_send(c, octets, len(octets), until))

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all octets."""
        left = memoryview(data).cast("B")
        while left:
            left = left[self.send(left) :]

    def recv(self, size: int) -> bytes:
        """Wait for octets; return at most ``size`` of them, or b"" at the end of the stream."""
        to = ffi.new("uint8_t[]", max(size, 1))
        c, until = self._open(), self._until()
        got = self._check(lib.siw_sim_tcp_recv(c, to, size, until))
        return bytes(ffi.buffer(to, got))

    def shutdown(self, how: int) -> None:
        """End the sending direction; ``how`` must be ``socket.SHUT_WR``.

        Raises:
            OSError: ``how`` is not supported in a world (EOPNOTSUPP), or the socket is not
                connected (ENOTCONN).

        """
        if how != socket.SHUT_WR:
            raise OSError(
                errno.EOPNOTSUPP, "a simulated socket supports only SHUT_WR: use SHUT_WR, or close"
            )
        check(lib.siw_sim_tcp_shutdown(self._open()))

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """Set an option: SO_LINGER or TCP_NODELAY.

        With SO_LINGER of zero seconds ``close`` resets the connection. TCP_NODELAY is always on.

        Raises:
            OSError: another option (ENOPROTOOPT).

        """
        if (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER) and isinstance(value, bytes):
            self._reset = any(value[:4]) and not any(value[4:])
        elif (level, option) != (socket.IPPROTO_TCP, socket.TCP_NODELAY):
            raise OSError(
                errno.ENOPROTOOPT,
                "a simulated socket supports only TCP_NODELAY and SO_LINGER: use one of these",
            )

    def close(self) -> None:
        """Close the socket: sent data still arrives, unless SO_LINGER requests a reset."""
        self._close(reset=self._reset)


class TCPListener(_Socket):
    """A listening TCP socket in a world; made by ``World.tcp_listen``."""

    def __init__(self, c: Any, adopt: Callable[[TCPSocket], object]) -> None:
        super().__init__(c)
        self._adopt = adopt

    def accept(self) -> tuple[TCPSocket, Address]:
        """Wait for a connection; return it and the peer's address."""
        out = ffi.new("struct siw_sim_socket **")
        c, until = self._open(), self._until()
        self._check(lib.siw_sim_tcp_accept(c, until, out))
        accepted = TCPSocket(out[0])
        self._adopt(accepted)
        return accepted, accepted.getpeername()
