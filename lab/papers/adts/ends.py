# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Starts the two ends of the measured transfers, and repeats transfers between them."""

from __future__ import annotations

import contextlib
import json
import secrets
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from lab.papers.adts.lines import Line
from siwarp.bench.runner import BenchError

__all__ = ["Copied", "EndOptions", "Ends", "start_end"]

#: Seconds for one request, unless more are given.
LIMIT_S = 120.0


@dataclass(frozen=True)
class EndOptions:
    """What both ends have in common.

    Attributes:
        congestion: the congestion control of TCP channels; empty: the kernel's default.
        unit: octets of a unit, at most.
        window: units for which the client has memory.
        disk_thread: whether the file system is called in a thread of its own.

    """

    congestion: str = ""
    unit: int = 1 << 20
    window: int = 8
    disk_thread: bool = True

    def as_json(self, key: str) -> str:
        """Return the argument of ``lab.papers.adts.end``."""
        limits = {"unit": self.unit, "window": self.window, "memory": max(64 << 20, 32 * self.unit)}
        return json.dumps(
            {
                "key": key,
                "congestion": self.congestion,
                "disk_thread": self.disk_thread,
                "limits": limits,
            }
        )


@dataclass(frozen=True)
class Copied:
    """A transfer: seconds, octets, files, and the CPU seconds of both ends."""

    connecting: float
    transferring: float
    octets: int
    files: int
    client_cpu: float
    server_cpu: float

    @property
    def mbit_s(self) -> float:
        """The rate without the time for connecting."""
        return self.octets * 8e-6 / self.transferring

    @property
    def seconds(self) -> float:
        """The seconds with those for connecting."""
        return self.connecting + self.transferring


class End:
    """A process that runs ``lab.papers.adts.end``."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, limit: float = LIMIT_S, **request: Any) -> dict[str, Any]:
        """Make a request, and return its answer.

        Raises:
            BenchError: the request failed, or was not answered within ``limit`` seconds.

        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], limit)[0]:
            self.kill()
            raise BenchError(f"the {self._name} did not {do} within {limit:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the {self._name} has ended; its message is above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"the {self._name} cannot {do}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, and wait for its end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


def start_end(line: Line, place: str, options: EndOptions, key: str) -> End:
    """Start an end in the place ``a`` or ``b`` of a line."""
    command = [sys.executable, "-m", "lab.papers.adts.end", options.as_json(key)]
    name = {"a": "client", "b": "server"}[place]
    return End(name, line.make_command_line(place, *command))


@dataclass
class Ends:
    """A client in place a of a line and a server in place b; each has a directory.

    The directories ``here`` (client) and ``there`` (server) are created below ``folder``.
    """

    line: Line
    folder: Path
    options: EndOptions = field(default_factory=EndOptions)

    def __post_init__(self) -> None:
        self.here, self.there = self.folder / "here", self.folder / "there"
        for directory in (self.here, self.there):
            directory.mkdir(parents=True, exist_ok=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Ends:
        key = secrets.token_hex(32)
        try:
            self.server = start_end(self.line, "b", self.options, key)
            self._stack.callback(self.server.close)
            self.client = start_end(self.line, "a", self.options, key)
            self._stack.callback(self.client.close)
            port = self.server.ask("serve", root=str(self.there), host=self.line.address)["port"]
        except BaseException:
            self._stack.close()
            raise
        self.address = [self.line.address, port]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def copy(
        self,
        channel: str,
        way: str,
        names: Sequence[str],
        sessions: str = "one",
        recursive: bool = False,
        limit: float = LIMIT_S,
    ) -> Copied:
        """Copy files, which have the same names at both ends; the targets are deleted before.

        Raises:
            BenchError: a file was not copied.

        """
        target = self.there if way == "put" else self.here
        for name in names:
            _delete(target / name)
        before = self.server.ask("cpu")["cpu"]
        told = self.client.ask(
            "copy",
            limit,
            address=self.address,
            channel=channel,
            way=way,
            files=[(str(self.here / name), name) for name in names],
            sessions=sessions,
            recursive=recursive,
        )
        return Copied(
            told["connecting"],
            told["transferring"],
            told["octets"],
            told["files"],
            told["cpu"],
            self.server.ask("cpu")["cpu"] - before,
        )


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
