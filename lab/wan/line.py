# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A bottleneck made with the kernel's traffic control: namespaces a and b, and a router between.

Toward namespace b the router has a token bucket with a short or a long queue (``tc tbf``). Packets
from b return through the relay of `siwarp wan`, which adds the complete round trip delay. Random
losses are those of ``iptables`` in the router, and of the relay. A bottleneck needs root.
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

#: IPv4 address of namespace b, the far end of the link.
ADDRESS = "10.78.2.2"
_MTU = 1500
#: The token bucket holds the octets that the link sends in this many seconds, and at least two
#: packets, because a late kernel timer must not waste capacity of the link.
_BUCKET_S = 0.00025
_LEAST_BUCKET = 2 * (_MTU + 14)
#: A shell command that prints the PID of the relay and its own PID, and runs until its input ends.
_WATCH = 'echo "$WAN_RELAY" "$$"; exec cat'


@dataclass(frozen=True)
class Bottleneck:
    """The router's rate, queue in octets, and round trip delay of both directions together."""

    mbit_s: float
    queue: int
    rtt_ms: float

    @property
    def bucket_octets(self) -> int:
        """Size of the token bucket: the octets that pass without delay after a pause."""
        return max(_LEAST_BUCKET, int(self.mbit_s * 1e6 / 8 * _BUCKET_S))


def _run_command(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Line:
    """A link between namespaces a and b through the router r, created on entry, removed on exit.

    ``loss``: the percentage of the packets that are lost in each direction.
    """

    def __init__(self, rtt_ms: float, loss: float = 0) -> None:
        self._names = {end: f"siwarp-line-{os.getpid()}-{end}" for end in "arb"}
        self._rtt_ms = rtt_ms
        self._loss = loss
        self._relay: subprocess.Popen[str] | None = None

    def __enter__(self) -> Line:
        try:
            self._start_link_emulator()
            _run_command("ip", "netns", "add", self._names["r"])
            self._connect_to_router("a", "10.78.1.2", "10.78.1.1")
            self._connect_to_router("b", ADDRESS, "10.78.2.1")
            self._set_ipv4_setting(self._names["r"], "ip_forward", 1)
            _run_command(
                *("ip", "-n", self._names["a"], "route", "add", "10.78.2.0/24"), "via", "10.78.1.1"
            )
            _run_command(
                "ip", "-n", self._names["b"], "route", "add", "10.78.1.0/24", "dev", "wan0"
            )
            if self._loss:
                self.run_in_namespace(
                    *("r", "iptables", "-A", "FORWARD", "-m", "statistic", "--mode", "random"),
                    *("--probability", f"{self._loss / 100:.6f}", "-j", "DROP"),
                )
        except (BenchError, OSError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        if self._relay:
            self._relay.communicate()

    def _start_link_emulator(self) -> None:
        command = [sys.executable, "-m", "siwarp.cli", "wan", "--faults"]
        plan = f"rx:delay={self._rtt_ms}ms" + (f",loss={self._loss:g}%" if self._loss else "")
        self._relay = subprocess.Popen(
            [*command, plan, "--", "sh", "-c", _WATCH],
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
            _run_command("ip", "netns", "attach", self._names[end], pid)

    def _connect_to_router(self, end: str, own: str, router: str) -> None:
        """Connect namespace a or b (its eth0) to the router (its to-a or to-b) with a veth pair."""
        there, here, port = self._names[end], self._names["r"], f"to-{end}"
        _run_command(
            *("ip", "-n", there, "link", "add", "eth0", "mtu", str(_MTU)),
            *("type", "veth", "peer", "name", port, "mtu", str(_MTU), "netns", here),
        )
        for space, device, address in ((there, "eth0", own), (here, port, router)):
            _run_command("ip", "-n", space, "addr", "add", f"{address}/24", "dev", device)
            _run_command("ip", "-n", space, "link", "set", device, "up")
            # Packets and their answers take different routes, so reverse path filtering is off.
            for name in ("all", device):
                self._set_ipv4_setting(space, f"conf/{name}/rp_filter", 0)
            # Without segmentation offload, each packet is queued separately.
            _run_command("ip", "-n", space, "link", "set", device, "gso_max_segs", "1")

    def _set_ipv4_setting(self, space: str, name: str, value: int) -> None:
        """Write an IPv4 setting of a namespace."""
        write = f"echo {value} >/proc/sys/net/ipv4/{name}"
        _run_command("ip", "netns", "exec", space, "sh", "-c", write)

    def wrap_command_for_namespace(self, end: str, *command: str) -> list[str]:
        """Return the command line that runs a command in a namespace."""
        return ["ip", "netns", "exec", self._names[end], *command]

    def run_in_namespace(self, end: str, *command: str) -> str:
        """Run a command in a namespace; return the output of the command."""
        return _run_command(*self.wrap_command_for_namespace(end, *command))

    def configure_bottleneck(self, line: Bottleneck) -> None:
        """Configure the router as the bottleneck, with counters at zero."""
        subprocess.run(
            self.wrap_command_for_namespace("r", "tc", "qdisc", "del", "dev", "to-b", "root"),
            check=False,
            capture_output=True,
        )
        self.run_in_namespace(
            *("r", "tc", "qdisc", "add", "dev", "to-b", "root", "handle", "1:", "tbf"),
            *("rate", f"{line.mbit_s}mbit", "burst", str(line.bucket_octets)),
            *("limit", str(line.queue)),
        )

    def passed_and_dropped_packet_counts(self) -> tuple[int, int]:
        """Return how many packets the bottleneck has passed and dropped since it was configured."""
        told: list[dict[str, Any]] = json.loads(
            self.run_in_namespace("r", "tc", "-s", "-j", "qdisc", "show", "dev", "to-b")
        )
        tbf = next(qdisc for qdisc in told if qdisc["kind"] == "tbf")
        return tbf["packets"], tbf["drops"]
