# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Links between client and server: loopback, `siwarp wan`, and a bottleneck in the kernel.

On an emulated link, client and server run in different network namespaces. Both use the same file
system.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from lab.wan.line import ADDRESS as BOTTLENECK_ADDRESS
from lab.wan.line import Bottleneck, Line
from siwarp.bench.runner import BenchError

__all__ = ["KINDS", "Link", "LinkShape", "Loopback", "open_link"]

#: The kinds of emulated links that ``open_link`` creates.
KINDS = ("wan", "kernel")
#: The address of the server on a link of ``siwarp wan``.
_WAN_ADDRESS = "10.77.0.2"
#: The network namespaces of client and server, as ``siwarp wan`` names them.
_NAMESPACES = {"client": "a", "server": "b"}
#: A shell command that prints the PID of the relay, and runs until its input ends.
_PRINT_PID_AND_WAIT = 'echo "$WAN_RELAY"; exec cat'


class Link(Protocol):
    """A link between the client and the server."""

    #: The address of the server.
    address: str

    def make_command_line(self, role: str, *command: str) -> list[str]:
        """Return the command line that runs a command at the end of ``client`` or ``server``."""


@dataclass(frozen=True)
class LinkShape:
    """The properties of a link, which are the same in both directions.

    Attributes:
        mbit_s: the rate in Mbit/s; 0: no limit.
        delay_ms: the delay of each direction in milliseconds.
        loss: the percentage of packets that are lost.

    """

    mbit_s: float = 0
    delay_ms: float = 0
    loss: float = 0

    @property
    def name(self) -> str:
        """The properties of the link in words."""
        parts = [f"{self.mbit_s:g} Mbit/s"] if self.mbit_s else []
        parts += [f"{self.delay_ms:g} ms each way"] if self.delay_ms else ["no delay"]
        parts += [f"{self.loss:g}% loss"] if self.loss else []
        return ", ".join(parts)

    @property
    def fault_plan(self) -> str:
        """The properties of the link as a fault plan of ``siwarp wan``."""
        parts = [f"rate={self.mbit_s:g}Mbit"] if self.mbit_s else []
        parts += [f"delay={self.delay_ms:g}ms"] if self.delay_ms else []
        parts += [f"loss={self.loss:g}%"] if self.loss else []
        return ",".join(parts)


class Loopback:
    """No emulated link: client and server run on loopback."""

    address = "127.0.0.1"

    def make_command_line(self, role: str, *command: str) -> list[str]:
        """Return the command itself, because loopback needs no namespace."""
        return list(command)


class _WanLink:
    """A link of ``siwarp wan``: a relay in user space between two network namespaces."""

    address = _WAN_ADDRESS

    def __init__(self, relay: str) -> None:
        self._relay = relay

    def make_command_line(self, role: str, *command: str) -> list[str]:
        """Return the command line that enters the namespace of the client or of the server."""
        enter = [
            sys.executable,
            "-m",
            "siwarp.cli",
            "wan",
            "--enter",
            _NAMESPACES[role],
            "--pid",
            self._relay,
        ]
        return [*enter, "--", *command]


class _KernelLink:
    """A router between two network namespaces, with a token bucket and packet loss."""

    address = BOTTLENECK_ADDRESS

    def __init__(self, line: Line) -> None:
        self._line = line

    def make_command_line(self, role: str, *command: str) -> list[str]:
        """Return the command line that enters the namespace of the client or of the server."""
        return self._line.wrap_command_for_namespace(_NAMESPACES[role], *command)


@contextmanager
def _open_wan_link(shape: LinkShape) -> Iterator[Link]:
    command = [sys.executable, "-m", "siwarp.cli", "wan", "--json", "--faults", shape.fault_plan]
    relay = subprocess.Popen(
        [*command, "--", "sh", "-c", _PRINT_PID_AND_WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert relay.stdout is not None
        pid = relay.stdout.readline().strip()
        if not pid:
            raise BenchError("siwarp wan did not start: try `siwarp wan -- true`")
        yield _WanLink(pid)
    finally:
        relay.communicate()


@contextmanager
def _open_link_shaped_by_kernel(shape: LinkShape) -> Iterator[Link]:
    """Open a bottleneck toward the server, with a queue of one bandwidth-delay product.

    The direction to the client has the whole round-trip delay, and the same loss, but no limit of
    the rate.
    """
    rtt_ms = 2 * shape.delay_ms
    octets = int(shape.mbit_s * 1e6 / 8 * rtt_ms / 1e3)
    with Line(rtt_ms, shape.loss) as line:
        line.configure_bottleneck(Bottleneck(shape.mbit_s, max(octets, 60_000), rtt_ms))
        yield _KernelLink(line)


@contextmanager
def open_link(kind: str, shape: LinkShape) -> Iterator[Link]:
    """Open a link of a kind of ``KINDS``; without rate, delay and loss, loopback.

    Raises:
        BenchError: the namespaces cannot be created.

    """
    if shape == LinkShape():
        yield Loopback()
    elif kind == "wan":
        with _open_wan_link(shape) as link:
            yield link
    else:
        with _open_link_shaped_by_kernel(shape) as link:
            yield link
