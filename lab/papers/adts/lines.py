# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Lines between the two ends: loopback, the link of `siwarp wan`, and a bottleneck of the kernel.

Place a is the client's, place b the server's. Both see the same file system.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from lab.wan import line as bottleneck
from siwarp.bench.runner import BenchError

__all__ = ["KINDS", "Line", "LineShape", "Loopback", "open_line"]

#: The kinds of lines of ``open_line``.
KINDS = ("wan", "kernel")
#: The link of ``siwarp wan``: the address of place b.
_WAN_ADDRESS = "10.77.0.2"
#: Prints the relay's PID, and runs until its input ends.
_WATCH = 'echo "$WAN_RELAY"; exec cat'


class Line(Protocol):
    """A line between place a and place b."""

    #: The address of place b.
    address: str

    def make_command_line(self, place: str, *command: str) -> list[str]:
        """Return the command line that runs a command in a place."""


@dataclass(frozen=True)
class LineShape:
    """The properties of a line, the same in both directions.

    Attributes:
        mbit_s: the rate; 0: no limit.
        delay_ms: the delay of each direction.
        loss: the probability of the loss of a packet, in percent.

    """

    mbit_s: float = 0
    delay_ms: float = 0
    loss: float = 0

    @property
    def name(self) -> str:
        """The line in words."""
        parts = [f"{self.mbit_s:g} Mbit/s"] if self.mbit_s else []
        parts += [f"{self.delay_ms:g} ms each way"] if self.delay_ms else ["no delay"]
        parts += [f"{self.loss:g}% loss"] if self.loss else []
        return ", ".join(parts)

    @property
    def plan(self) -> str:
        """The line as a fault plan of ``siwarp wan``."""
        parts = [f"rate={self.mbit_s:g}Mbit"] if self.mbit_s else []
        parts += [f"delay={self.delay_ms:g}ms"] if self.delay_ms else []
        parts += [f"loss={self.loss:g}%"] if self.loss else []
        return ",".join(parts)


class Loopback:
    """Both places are this machine."""

    address = "127.0.0.1"

    def make_command_line(self, place: str, *command: str) -> list[str]:
        """Return the command."""
        return list(command)


class _Wan:
    """The link of ``siwarp wan``: a relay in user space."""

    address = _WAN_ADDRESS

    def __init__(self, relay: str) -> None:
        self._relay = relay

    def make_command_line(self, place: str, *command: str) -> list[str]:
        """Return the command line that enters the namespace of the place."""
        enter = [sys.executable, "-m", "siwarp.cli", "wan", "--enter", place, "--pid", self._relay]
        return [*enter, "--", *command]


class _Kernel:
    """A token bucket and packet loss in the kernel of a router between the places."""

    address = bottleneck.ADDRESS

    def __init__(self, line: bottleneck.Line) -> None:
        self._line = line

    def make_command_line(self, place: str, *command: str) -> list[str]:
        """Return the command line that enters the namespace of the place."""
        return self._line.make_namespace_command_line(place, *command)


@contextmanager
def _open_wan(shape: LineShape) -> Iterator[Line]:
    command = [sys.executable, "-m", "siwarp.cli", "wan", "--json", "--faults", shape.plan]
    relay = subprocess.Popen(
        [*command, "--", "sh", "-c", _WATCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert relay.stdout is not None
        pid = relay.stdout.readline().strip()
        if not pid:
            raise BenchError("siwarp wan did not start: try `siwarp wan -- true`")
        yield _Wan(pid)
    finally:
        relay.communicate()


@contextmanager
def _open_kernel(shape: LineShape) -> Iterator[Line]:
    """Open a bottleneck toward place b, with a queue of one bandwidth-delay product.

    The way back has the delay of both directions, and the same loss, but no limit of the rate.
    """
    rtt_ms = 2 * shape.delay_ms
    octets = int(shape.mbit_s * 1e6 / 8 * rtt_ms / 1e3)
    with bottleneck.Line(rtt_ms, shape.loss) as line:
        line.configure_bottleneck(bottleneck.Bottleneck(shape.mbit_s, max(octets, 60_000), rtt_ms))
        yield _Kernel(line)


@contextmanager
def open_line(kind: str, shape: LineShape) -> Iterator[Line]:
    """Open a line of a kind of ``KINDS``; without delay, rate and loss, loopback.

    Raises:
        BenchError: the namespaces cannot be created.

    """
    if shape == LineShape():
        yield Loopback()
    elif kind == "wan":
        with _open_wan(shape) as line:
            yield line
    else:
        with _open_kernel(shape) as line:
            yield line
