# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A bottleneck made with the kernel's traffic control: namespaces a and b with a router between
them.

Toward b the router has a token bucket with a short or a long queue (``tc tbf``). Packets from b
return through the relay of `siwarp wan`, which adds the complete round trip delay. Needs root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from siwarp.bench.runner import BenchError

__all__ = ["ADDRESS", "Bottleneck", "Line"]

#: IPv4 address of the far end, b.
ADDRESS = "10.78.2.2"
_MTU = 1500
#: The bucket holds what the line sends in this many seconds, and at least two packets: a late
#: kernel timer must not waste capacity of the line.
_BUCKET_S = 0.00025
_LEAST_BUCKET = 2 * (_MTU + 14)
#: Prints the PIDs of the relay and of a process in namespace a, and runs until its input ends.
_WATCH = 'echo "$WAN_RELAY" "$$"; exec cat'


@dataclass(frozen=True)
class Bottleneck:
    """The router's parameters: ``queue`` in octets, ``rtt_ms`` of both directions together."""

    mbit_s: float
    queue: int
    rtt_ms: float

    @property
    def bucket(self) -> int:
        """Size of the token bucket in octets, which pass at once after a pause."""
        return max(_LEAST_BUCKET, int(self.mbit_s * 1e6 / 8 * _BUCKET_S))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Line:
    """Namespaces a, r and b, created on entry and removed on exit."""

    def __init__(self, rtt_ms: float) -> None:
        self._names = {end: f"siwarp-line-{os.getpid()}-{end}" for end in "arb"}
        self._rtt_ms = rtt_ms
        self._relay: subprocess.Popen[str] | None = None

    def __enter__(self) -> Line:
        try:
            self._start_relay()
            _run("ip", "netns", "add", self._names["r"])
            self._cable("a", "10.78.1.2", "10.78.1.1")
            self._cable("b", ADDRESS, "10.78.2.1")
            self._set(self._names["r"], "ip_forward", 1)
            _run(
                *("ip", "-n", self._names["a"], "route", "add", "10.78.2.0/24"), "via", "10.78.1.1"
            )
            _run("ip", "-n", self._names["b"], "route", "add", "10.78.1.0/24", "dev", "wan0")
        except (BenchError, OSError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        if self._relay:
            self._relay.communicate()

    def _start_relay(self) -> None:
        command = [sys.executable, "-m", "siwarp.cli", "wan", "--faults"]
        self._relay = subprocess.Popen(
            [*command, f"rx:delay={self._rtt_ms}ms", "--", "sh", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._relay.stdout is not None
        pids = self._relay.stdout.readline().split()
        if not pids:
            raise BenchError(
                "siwarp wan did not start: its message is above; try `siwarp wan -- true`"
            )
        for end, pid in zip("ba", pids, strict=True):
            _run("ip", "netns", "attach", self._names[end], pid)

    def _cable(self, end: str, own: str, router: str) -> None:
        """Connect the end to the router: eth0 at the end, to-a or to-b at the router."""
        there, here, port = self._names[end], self._names["r"], f"to-{end}"
        _run(
            *("ip", "-n", there, "link", "add", "eth0", "mtu", str(_MTU)),
            *("type", "veth", "peer", "name", port, "mtu", str(_MTU), "netns", here),
        )
        for space, device, address in ((there, "eth0", own), (here, port, router)):
            _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", device)
            _run("ip", "-n", space, "link", "set", device, "up")
            # Packets and their answers take different routes, so reverse path filtering is off.
            for name in ("all", device):
                self._set(space, f"conf/{name}/rp_filter", 0)
            # Each packet is queued separately, whatever batch it was sent in.
            _run("ip", "-n", space, "link", "set", device, "gso_max_segs", "1")

    def _set(self, space: str, name: str, value: int) -> None:
        """Set an IPv4 setting of the namespace."""
        write = f"echo {value} >/proc/sys/net/ipv4/{name}"
        _run("ip", "netns", "exec", space, "sh", "-c", write)

    def inside(self, end: str, *command: str) -> list[str]:
        """Return the command line that runs a command in that namespace."""
        return ["ip", "netns", "exec", self._names[end], *command]

    def run(self, end: str, *command: str) -> str:
        """Run a command in a namespace."""
        return _run(*self.inside(end, *command))

    def shape(self, line: Bottleneck) -> None:
        """Configure the router as the bottleneck, with counters at zero."""
        subprocess.run(
            self.inside("r", "tc", "qdisc", "del", "dev", "to-b", "root"),
            check=False,
            capture_output=True,
        )
        self.run(
            *("r", "tc", "qdisc", "add", "dev", "to-b", "root", "handle", "1:", "tbf"),
            *("rate", f"{line.mbit_s}mbit", "burst", str(line.bucket)),
            *("limit", str(line.queue)),
        )

    def counts(self) -> tuple[int, int]:
        """Return how many packets the bottleneck has passed and dropped since it was configured."""
        told: list[dict[str, Any]] = json.loads(
            self.run("r", "tc", "-s", "-j", "qdisc", "show", "dev", "to-b")
        )
        tbf = next(qdisc for qdisc in told if qdisc["kind"] == "tbf")
        return tbf["packets"], tbf["drops"]
