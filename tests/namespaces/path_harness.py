"""Three network namespaces in a row (a - r - b), with a remote-controlled queue pair at either end.

For a user other than root, the namespaces belong to a new user namespace, as those of `siwarp wan`
do.
"""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import environment_without_sanitizer
from harness.siwarp_process import SiwarpProcess

# Addresses from the documentation ranges (RFC 5737, RFC 3849).
V4 = {"a": "198.51.100.1", "b": "203.0.113.1"}
V6 = {"a": "2001:db8:a::1", "b": "2001:db8:b::1"}

ROUTER = """
set -e
ip link set lo up
ip addr add 198.51.100.254/24 dev ra; ip addr add 203.0.113.254/24 dev rb
ip addr add 2001:db8:a::ff/64 dev ra nodad; ip addr add 2001:db8:b::ff/64 dev rb nodad
ip link set ra up; ip link set rb up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
"""

END = """
set -e
ip link set lo up
ip addr add {v4}/24 dev {me}0; ip addr add {v6}/64 dev {me}0 nodad
ip link set {me}0 up
ip route add default via {gateway4}; ip route add default via {gateway6}
"""


class RoutedPath:
    """Two network namespaces a and b, and a third namespace r that routes between a and b.

    ``run_shell`` runs commands in a namespace; ``start_remote_end`` starts a process with a queue
    pair.
    """

    def __init__(self) -> None:
        root = os.geteuid() == 0
        self._enter = [] if root else ["-U", "--preserve-credentials"]
        script = "for i in a r b; do unshare -n sh -c 'echo $$; exec sleep 3600' & done; wait"
        unshare = ["unshare", "-n"] if root else ["unshare", "-r", "-n"]
        self._holder = subprocess.Popen(
            [*unshare, "sh", "-c", script],
            stdout=subprocess.PIPE,
            text=True,
            env=environment_without_sanitizer(),
        )
        assert self._holder.stdout is not None
        lines = [self._holder.stdout.readline().strip() for _ in range(3)]
        if not all(lines):
            pytest.fail(
                "network namespaces need root, or a system that lets everybody make user "
                "namespaces (and unshare of util-linux)",
                pytrace=False,
            )
        self.pids = dict(zip("arb", lines, strict=True))
        # Disable duplicate address detection: a router sends no neighbour solicitations while its
        # link-local address is tentative, which takes about 2 s.
        for me in "arb":
            self.run_shell(
                me, "for i in all default; do echo 0 >/proc/sys/net/ipv6/conf/$i/accept_dad; done"
            )
        for me in "ab":
            peer = ["peer", "name", f"r{me}", "netns", self.pids["r"]]
            self.run_shell(me, f"ip link add {me}0 type veth {' '.join(peer)}")
            # Disable segmentation offload on the veth pair, so that the router's counters count
            # packets on the wire.
            self.run_shell(me, f"ip link set {me}0 gso_max_segs 1")
        self.run_shell("r", ROUTER)
        for me, other in (("a", "198.51.100"), ("b", "203.0.113")):
            gateways = {"gateway4": f"{other}.254", "gateway6": f"2001:db8:{me}::ff"}
            self.run_shell(me, END.format(me=me, v4=V4[me], v6=V6[me], **gateways))

    def _command_prefix(self, where: str) -> list[str]:
        return ["nsenter", "-t", self.pids[where], *self._enter, "-n"]

    def run_shell(self, where: str, script: str) -> str:
        """Run a shell script in namespace a, r or b, and return its output."""
        done = subprocess.run(
            [*self._command_prefix(where), "sh", "-c", script],
            capture_output=True,
            text=True,
            timeout=30,
            env=environment_without_sanitizer(),
        )
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout

    def set_middle_link_mtu(self, mtu: int, *, routers_report: bool = True) -> None:
        """Set the MTU of the link from r to b; without ``routers_report``, r drops long packets
        silently.
        """
        self.run_shell("r", f"ip link set rb mtu {mtu}")
        self.run_shell("b", f"ip link set b0 mtu {mtu}")
        # The rules use the protocol numbers of ICMP and ICMPv6, because a small system lacks
        # /etc/protocols, which holds the names.
        for family, protocol in (("-4", 1), ("-6", 58)):
            self.run_shell("r", f"ip {family} rule del prio 10 2>/dev/null || true")
            if not routers_report:
                rule = f"ip {family} rule add prio 10 iif lo ipproto {protocol} blackhole"
                self.run_shell("r", rule)

    def reset(self) -> None:
        """Restore the initial MTUs and links, and flush the path MTUs that the kernels have
        cached.
        """
        self.set_middle_link_mtu(1500)
        self.run_shell("a", "ip link set a0 mtu 1500")
        self.restore_link()
        for where in "arb":
            self.run_shell(where, "ip route flush cache; ip -6 route flush cache")

    def set_link_down(self) -> None:
        """Set the interface of namespace a down, which removes its routes and its IPv6 address."""
        self.run_shell("a", "ip link set a0 down")

    def restore_link(self) -> None:
        """Set the interface of namespace a up, and restore its IPv6 address and its default
        routes.
        """
        self.run_shell(
            "a",
            "ip link set a0 up; ip -6 addr replace 2001:db8:a::1/64 dev a0 nodad;"
            "ip route replace default via 198.51.100.254;"
            "ip -6 route replace default via 2001:db8:a::ff",
        )

    def count_forwarded_packets(self) -> tuple[int, int]:
        """Return the number of packets, and of octets of IP, that namespace r has forwarded to
        b.
        """
        (link,) = json.loads(self.run_shell("r", "ip -j -s link show rb"))
        tx = link["stats64"]["tx"]
        return tx["packets"], tx["bytes"] - 14 * tx["packets"]

    def send_forged_icmp(self, mtu: int, quoted: bytes) -> None:
        """Send a forged ICMP error from r to a: a packet with these first octets exceeded this
        MTU.
        """
        code = (
            "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1);"
            f"s.sendto(bytes.fromhex(sys.argv[1]), ('{V4['a']}', 0))"
        )
        body = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + quoted
        total = sum(struct.unpack(f"!{len(body) // 2}H", body))
        total = (total & 0xFFFF) + (total >> 16)
        total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        message = body[:2] + struct.pack("!H", total) + body[4:]
        self.run_shell("r", shlex.join([sys.executable, "-c", code, message.hex()]))

    def start_remote_end(self, where: str, **env: str) -> RemoteEnd:
        return RemoteEnd(self.pids[where], self._enter, env)

    def close(self) -> None:
        for pid in self.pids.values():
            os.kill(int(pid), 9)
        self._holder.wait(timeout=20)
        assert self._holder.stdout is not None
        self._holder.stdout.close()


class RemoteEnd:
    """A process in a namespace that executes functions of path_end.py by name."""

    def __init__(self, pid: str, user: list[str], env: dict[str, str]) -> None:
        preload = os.environ.get("LD_PRELOAD", "")
        program = [sys.executable, str(Path(__file__).with_name("path_end.py"))]
        options: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
        }
        if user or preload:
            # A sanitizer's run-time library is preloaded into the Python process only.
            script = 'LD_PRELOAD="$KEPT_PRELOAD" exec "$0" "$@"'
            options["env"] = {**environment_without_sanitizer(), "KEPT_PRELOAD": preload, **env}
            enter = ["nsenter", "-t", pid, *user, "-n"]
            self._process = subprocess.Popen([*enter, "sh", "-c", script, *program], **options)
        else:
            options["env"] = {**os.environ, **env}
            self._process = SiwarpProcess(program, network=pid, **options)

    def start_call(self, function: str, *args: Any) -> None:
        """Start a function in the process; ``wait_for_result`` returns its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, *args]) + "\n")
        self._process.stdin.flush()

    def wait_for_result(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended; its message is on standard error"
        return json.loads(line)

    def call(self, function: str, *args: Any) -> Any:
        self.start_call(function, *args)
        return self.wait_for_result()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=20)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(timeout=30) in (0, -9)
        finally:
            self._process.kill()
            self._process.stdout.close()
