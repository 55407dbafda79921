# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Finds out whether a program has the UDP port to which pings are sent.

The socket of a queue pair has many peers, so the kernel does not report ICMP errors on it. The
kernel does report them on a socket that is connected to one peer.
"""

from __future__ import annotations

import errno
import socket
import time

from siwarp.verbs import WC, PeerGone

__all__ = ["PortProbe"]

#: Seconds without an answer after which the port is probed.
PATIENCE = 0.5


class PortProbe:
    """Probes a port with an empty datagram, which a program that has the port drops."""

    def __init__(self, dest: tuple[str, int], qp: str) -> None:
        self._dest, self._qp = dest, qp
        self._begins = time.monotonic() + PATIENCE
        self._asker: socket.socket | None = None

    def look(self) -> None:
        """Check for a refusal, without waiting. Call repeatedly while no answer has arrived.

        Raises:
            PeerGone: the machine there reports that no program has the port.

        """
        try:
            if self._asker is not None:
                self._asker.recv(1)
            elif time.monotonic() > self._begins:
                self._begins = float("inf")  # # probe only once
                self._ask()
        except ConnectionRefusedError:
            host, port = self._dest
            raise PeerGone(
                errno.ECONNREFUSED,
                f"{host} refuses UDP port {port}: start `siwarp ping --server --qp {self._qp}` "
                "there, or correct the port",
            ) from None
        except OSError:
            return  # # no answer yet, or no route for the probe: no proof, so pinging continues

    def check(self, wc: WC) -> WC:
        """Check a completion like ``WC.check``; for a lost peer, report that no server answered."""
        try:
            return wc.check()
        except PeerGone as e:
            host, port = self._dest
            raise PeerGone(
                e.errno,
                f"{host} port {port}: no answer; is `siwarp ping --server --qp {self._qp}` running "
                "there, with the same --crc, and was its --qkey given?",
            ) from None

    def _ask(self) -> None:
        family, kind, protocol, _, where = socket.getaddrinfo(*self._dest, type=socket.SOCK_DGRAM)[
            0
        ]
        self._asker = socket.socket(family, kind, protocol)
        self._asker.setblocking(False)
        self._asker.connect(where)
        self._asker.send(b"")

    def close(self) -> None:
        """Stop probing and close the socket."""
        if self._asker is not None:
            self._asker.close()
