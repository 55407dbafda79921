# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Simulated sockets, with which a test implements the protocol of a peer itself."""

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

_MAX_DATAGRAM = 65536


class _Socket:
    """Base class of simulated sockets, whose methods behave like those of ``socket.socket``."""

    def __init__(self, c: Any) -> None:
        self._c = c
        self._timeout: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        """Set the time-out of calls that wait, in seconds of the world's clock; 0: never wait."""
        if seconds is not None:
            nanoseconds(seconds)
        self._timeout = seconds

    def setblocking(self, blocking: bool) -> None:
        """Equivalent to ``settimeout(None)`` or ``settimeout(0)``."""
        self.settimeout(None if blocking else 0)

    def gettimeout(self) -> float | None:
        """Return the time-out in seconds that ``settimeout`` has set, or None."""
        return self._timeout

    def getsockname(self) -> Address:
        """Return the socket's own address and port."""
        out = ffi.new("struct siw_addr *")
        lib.siw_sim_socket_local_addr(self._require_open(), out)
        address = addr_from_c(out)
        assert address is not None
        return address

    def close(self) -> None:
        """Close the socket; a second call has no effect."""
        self._close_socket(reset=False)

    def _close_socket(self, reset: bool) -> None:
        c, self._c = self._c, None
        if c is not None:
            lib.siw_sim_socket_close(c, reset)

    def _require_open(self) -> Any:
        if self._c is None:
            raise OSError(errno.EBADF, "this socket is closed: open another one")
        return self._c

    def _timeout_end_ns(self) -> int:
        """Return the world's time in ns at which a call that starts now times out."""
        if self._timeout is None:
            return NEVER
        return int(lib.siw_sim_now()) + nanoseconds(self._timeout) if self._timeout else 0

    def _check_wait_result(self, rc: int) -> int:
        tasks.raise_if_world_is_closing()
        if rc == -errno.EAGAIN:
            if self._timeout:
                raise TimeoutError(
                    "timed out: find the cause, or increase the time-out with settimeout"
                )
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return check_result(rc)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_result(rc: int) -> int:
    """Return the result of a C call; raise OSError or StateError if the result is an error."""
    if rc == -errno.ESTALE:
        raise StateError(errno.ESTALE, "the socket's host has crashed: open another one")
    if rc < 0:
        raise OSError(-rc, os.strerror(-rc))
    return rc


class UDPSocket(_Socket):
    """A UDP socket at an address of a world, created by ``World.udp``."""

    #: ECN code point of the datagrams that the socket sends, 0 to 3.
    ecn = 0
    #: ECN code point of the last received datagram.
    received_ecn = 0

    def sendto(self, data: bytes | bytearray | memoryview, address: tuple[Any, ...]) -> int:
        """Send a datagram to an address and port."""
        octets = ffi.from_buffer(data)
        dest = addr_to_c((address[0], address[1]))
        check_result(
            lib.siw_sim_udp_send(self._require_open(), dest, octets, len(octets), self.ecn)
        )
        return len(octets)

    def recvfrom(self, size: int = _MAX_DATAGRAM) -> tuple[bytes, Address]:
        """Wait for a datagram; return up to ``size`` octets of it and its source address."""
        source, ecn = ffi.new("struct siw_addr *"), ffi.new("int *")
        to = ffi.new("uint8_t[]", max(size, 1))
        c, until = self._require_open(), self._timeout_end_ns()
        got = self._check_wait_result(lib.siw_sim_udp_recv(c, source, to, size, until, ecn))
        self.received_ecn = ecn[0]
        address = addr_from_c(source)
        assert address is not None
        return bytes(ffi.buffer(to, min(got, size))), address

    def recv(self, size: int = _MAX_DATAGRAM) -> bytes:
        """Wait for a datagram; return up to ``size`` octets of it without its source address."""
        return self.recvfrom(size)[0]


class TCPSocket(_Socket):
    """One end of a simulated TCP connection, created by ``World.tcp_connect`` or ``accept``."""

    _reset = False

    def getpeername(self) -> Address:
        """Return the address and port of the connection's other end."""
        out = ffi.new("struct siw_addr *")
        check_result(lib.siw_sim_socket_peer_addr(self._require_open(), out))
        address = addr_from_c(out)
        assert address is not None
        return address

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send at least one of the octets, and return the number of octets sent."""
        octets = ffi.from_buffer(data)
        c, until = self._require_open(), self._timeout_end_ns()
        return self._check_wait_result(lib.siw_sim_tcp_send(c, octets, len(octets), until))

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all octets of a buffer."""
        left = memoryview(data).cast("B")
        while left:
            left = left[self.send(left) :]

    def recv(self, size: int) -> bytes:
        """Wait for octets; return up to ``size`` octets, or b"" at the end of the stream."""
        to = ffi.new("uint8_t[]", max(size, 1))
        c, until = self._require_open(), self._timeout_end_ns()
        got = self._check_wait_result(lib.siw_sim_tcp_recv(c, to, size, until))
        return bytes(ffi.buffer(to, got))

    def shutdown(self, how: int) -> None:
        """End the sending direction of the connection; ``how`` must be ``socket.SHUT_WR``.

        Raises:
            OSError: ``how`` is not supported in a world (EOPNOTSUPP), or the socket is not
                connected (ENOTCONN).

        """
        if how != socket.SHUT_WR:
            raise OSError(
                errno.EOPNOTSUPP, "a simulated socket supports only SHUT_WR: use SHUT_WR, or close"
            )
        check_result(lib.siw_sim_tcp_shutdown(self._require_open()))

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """Set the socket option SO_LINGER or TCP_NODELAY.

        With SO_LINGER of zero seconds ``close`` resets the connection. TCP_NODELAY is accepted
        and is always on.

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
        """Close the socket; data already sent still arrives unless SO_LINGER requests a reset."""
        self._close_socket(reset=self._reset)


class TCPListener(_Socket):
    """A listening TCP socket in a world, created by ``World.tcp_listen``."""

    def __init__(self, c: Any, adopt: Callable[[TCPSocket], object]) -> None:
        super().__init__(c)
        self._adopt = adopt

    def accept(self) -> tuple[TCPSocket, Address]:
        """Wait for a connection; return its socket and the peer's address."""
        out = ffi.new("struct siw_sim_socket **")
        c, until = self._require_open(), self._timeout_end_ns()
        self._check_wait_result(lib.siw_sim_tcp_accept(c, until, out))
        accepted = TCPSocket(out[0])
        self._adopt(accepted)
        return accepted, accepted.getpeername()
