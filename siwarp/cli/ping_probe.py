# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Finds out whether any program has the UDP port that pings go to.

A queue pair's socket has many peers, so the kernel does not report an ICMP refusal on it. It does
on a socket that is connected to this peer alone.
"""

from __future__ import annotations

import errno
import socket
import time

from siwarp.verbs import WC, PeerGone

__all__ = ["PortProbe"]

#: Seconds without any answer after which the port is probed.
PATIENCE = 0.5


class PortProbe:
    """Probes a port with an empty datagram, which a program that has the port drops."""

    def __init__(self, dest: tuple[str, int], qp: str) -> None:
        self._dest, self._qp = dest, qp
        self._begins = time.monotonic() + PATIENCE
        self._asker: socket.socket | None = None

    def look(self) -> None:
        """Look for a refusal, without waiting. To be called repeatedly while no answer has come.

        Raises:
            PeerGone: the machine there reports that no program has the port.

        """
        try:
            if self._asker is not None:
                self._asker.recv(1)
            elif time.monotonic() > self._begins:
                self._begins = float("inf")  # once
                self._ask()
        except ConnectionRefusedError:
            host, port = self._dest
            raise PeerGone(
                errno.ECONNREFUSED,
                f"{host} refuses UDP port {port}: start `siwarp ping --server --qp {self._qp}` "
                "there, or mend the port",
            ) from None
        except OSError:
            return  # no answer yet, or no way to probe: that proves nothing, so pings go on

    def check(self, wc: WC) -> WC:
        """Check a completion as ``WC.check`` does; a lost peer means that nobody was there."""
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
        """End probing."""
        if self._asker is not None:
            self._asker.close()
