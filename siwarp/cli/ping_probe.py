# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Whether anybody has the UDP port that pings go to: what the socket of a queue pair is not told.

That socket has many peers and hears of no refusal. Another one, which has this peer alone, does.
"""

from __future__ import annotations

import errno
import socket
import time

from siwarp.verbs import WC, PeerGone

__all__ = ["PortProbe"]

#: Seconds without any answer until doubt begins.
PATIENCE = 0.5


class PortProbe:
    """Asks for the port by an empty datagram, which whoever has it drops, after a while."""

    def __init__(self, dest: tuple[str, int], qp: str) -> None:
        self._dest, self._qp = dest, qp
        self._begins = time.monotonic() + PATIENCE
        self._asker: socket.socket | None = None

    def look(self) -> None:
        """Look for a refusal; call this now and then while no answer has come. It never waits.

        Raises:
            PeerGone: the machine there says that nobody has the port.

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
            return  # no answer, or no way to ask: that says nothing, and pings go on

    def check(self, wc: WC) -> WC:
        """Return a completion if it succeeded, as ``WC.check``; a lost peer never was there."""
        try:
            return wc.check()
        except PeerGone as e:
            host, port = self._dest
            raise PeerGone(
                e.errno,
                f"{host} port {port}: no answer; is `siwarp ping --server --qp {self._qp}` running "
                "there, with the same --crc?",
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
        """Ask no more."""
        if self._asker is not None:
            self._asker.close()
