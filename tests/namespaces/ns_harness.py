"""Network namespaces as objects, and programs that run in network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import environment_without_sanitizer
from harness.siwarp_process import SiwarpProcess
from pace import scale_limit

#: Addresses from the documentation ranges (RFC 5737, RFC 3849), so that they cannot collide with
#: addresses of the machine.
V4 = ("192.0.2.1", "192.0.2.2")
V6 = ("2001:db8::1", "2001:db8::2")


#: The directories of ip and tc are appended because the PATH of an ordinary user may lack them.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


class Namespace:
    """A network namespace with one end of a veth pair and its addresses.

    ``close`` removes the namespace. For a user other than root, the namespace belongs to a user
    namespace: that of ``beside`` if given, otherwise a new one.
    """

    def __init__(self, link: str, v4: str, v6: str, beside: Namespace | None = None) -> None:
        self.link, self.v4, self.v6 = link, v4, v6
        self._user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        if beside is not None and self._user:
            unshare = ["nsenter", "-t", beside.pid, *self._user, "unshare", "-n"]
        else:
            unshare = ["unshare", *(["-r"] if self._user else []), "-n"]
        self._holder = subprocess.Popen(
            # cat ends when its standard input is closed, also if this process is killed.
            [*unshare, "sh", "-c", "echo $$; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment_without_sanitizer(), "PATH": PATH},
        )
        assert self._holder.stdout is not None
        self.pid = self._holder.stdout.readline().strip()
        if not self.pid:
            self.close()
            pytest.fail(
                "network namespaces need root, or a system that lets everybody make user "
                "namespaces (and unshare of util-linux)",
                pytrace=False,
            )

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()

    def command_line_inside(self, *command: str) -> list[str]:
        """Return the command line that runs a program in this namespace."""
        return ["nsenter", "-t", self.pid, *self._user, "-n", *command]

    def run(self, *command: str) -> str:
        """Run a system program in this namespace and return its standard output."""
        done = subprocess.run(
            self.command_line_inside(*command),
            capture_output=True,
            text=True,
            timeout=20,
            env={**environment_without_sanitizer(), "PATH": PATH},
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
        return done.stdout

    def run_ip(self, *args: str) -> str:
        return self.run("ip", *args)

    def configure_interfaces(self) -> None:
        self.run_ip("link", "set", "lo", "up")
        self.run_ip("link", "set", self.link, "up")
        self.run_ip("addr", "add", f"{self.v4}/24", "dev", self.link)
        self.run_ip("addr", "add", f"{self.v6}/64", "dev", self.link, "nodad")

    def wait_for_link_local(self) -> None:
        """Wait until the link-local address of the interface has passed duplicate address
        detection.
        """
        end = time.monotonic() + 10
        while not self.link_local_address():
            assert time.monotonic() < end, f"no link-local address on {self.link}"
            time.sleep(0.02)

    def has_tcp_socket(self, port: int, state: str) -> bool:
        """Return whether a TCP socket of this namespace has this local or remote port and this
        Linux state number.
        """
        for table in ("tcp", "tcp6"):
            text = Path("/proc", self.pid, "net", table).read_text(encoding="ascii")
            if re.search(rf":{port:04X} [0-9A-F:]+ {state} ", text):
                return True
        return False

    def has_listening_socket(self, port: int) -> bool:
        """Return whether a socket of this namespace listens on this TCP port."""
        return self.has_tcp_socket(port, "0A")

    def has_connection(self, port: int) -> bool:
        """Return whether a TCP connection with this port exists in this namespace."""
        return self.has_tcp_socket(port, "01")

    def link_local_address(self) -> str | None:
        for found in json.loads(self.run_ip("-6", "-j", "addr", "show", "dev", self.link)):
            for a in found.get("addr_info", ()):
                if a.get("scope") == "link" and not a.get("tentative"):
                    return f"{a['local']}%{self.link}"
        return None

    def start_program(
        self, command: Sequence[Any], *, imports: Sequence[str] = (), **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a program in this namespace; a Python program is forked from a server process.

        The parameters are those of ``SiwarpProcess``.
        """
        if self._user:
            return subprocess.Popen(self.command_line_inside(*map(str, command)), **options)
        return SiwarpProcess(command, network=self.pid, imports=imports, **options)

    def start_python(self, code: str, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start a Python program in this namespace; ``env`` adds environment variables."""
        return self.start_program(
            [sys.executable, "-c", code, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PATH": PATH, "PYTHONUNBUFFERED": "1", **env},
        )


def wait_for_json_output(process: subprocess.Popen[str], seconds: float = 30) -> Any:
    """Wait for a program to end, and return the last line of its output, parsed as JSON.

    ``seconds`` is the time limit on an idle machine.
    """
    try:
        out, err = process.communicate(timeout=scale_limit(seconds))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"not done in {seconds} s: {out}\n{err}") from None
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def create_cabled_namespaces() -> Iterator[tuple[Namespace, Namespace]]:
    """Yield two network namespaces connected by a veth pair, each with its link-local address."""
    with contextlib.ExitStack() as made:
        ends: list[Namespace] = []
        for i in range(2):
            ends.append(Namespace(f"cable{i}", V4[i], V6[i], ends[0] if ends else None))
            made.callback(ends[i].close)
        # The veth pair is created inside the namespaces, so that a failure leaves no interface in
        # the machine's own namespace.
        peer = ["peer", "name", ends[1].link, "netns", ends[1].pid]
        ends[0].run_ip("link", "add", ends[0].link, "type", "veth", *peer)
        for end in ends:
            end.run_ip("link", "set", end.link, "addrgenmode", "eui64")
            end.configure_interfaces()
        for end in ends:
            end.wait_for_link_local()
        yield ends[0], ends[1]
