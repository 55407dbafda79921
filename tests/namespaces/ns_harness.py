"""Network namespaces as objects, and programs that run in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

#: Of the documentation's ranges (RFC 5737, 3849): whatever else the machine has, not these.
V4 = ("192.0.2.1", "192.0.2.2")
V6 = ("2001:db8::1", "2001:db8::2")


def ip(*args: str) -> str:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"ip {' '.join(args)}: {done.stderr.strip()}"
    return done.stdout


class Namespace:
    """One namespace: its end of the cable, its addresses."""

    def __init__(self, name: str, link: str, v4: str, v6: str) -> None:
        self.name, self.link, self.v4, self.v6 = name, link, v4, v6

    def ip(self, *args: str) -> str:
        return ip("-n", self.name, *args)

    def set_up(self) -> None:
        self.ip("link", "set", "lo", "up")
        self.ip("link", "set", self.link, "up")
        self.ip("addr", "add", f"{self.v4}/24", "dev", self.link)
        self.ip("addr", "add", f"{self.v6}/64", "dev", self.link, "nodad")

    def wait_for_link_local(self) -> None:
        """Wait for the address that every interface has, until nobody else is known to have it."""
        end = time.monotonic() + 10
        while not self.link_local():
            assert time.monotonic() < end, f"no link-local address on {self.link}"
            time.sleep(0.02)

    def link_local(self) -> str | None:
        for found in json.loads(self.ip("-6", "-j", "addr", "show", "dev", self.link)):
            for a in found.get("addr_info", ()):
                if a.get("scope") == "link" and not a.get("tentative"):
                    return f"{a['local']}%{self.link}"
        return None

    def python(self, code: str, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start a Python program in this namespace, with these environment variables too."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, "-c", code, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
        )


def finish(process: subprocess.Popen[str], seconds: float = 30) -> Any:
    """Wait for a program and return the last line it wrote, as JSON."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"not done in {seconds} s: {out}\n{err}") from None
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])
