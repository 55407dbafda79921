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

from lab.papers.adts.links import Link
from siwarp.bench.runner import BenchError

__all__ = ["ClientAndServer", "CopyResult", "EndOptions", "start_client_or_server"]

#: Default time limit of a request, in seconds.
LIMIT_S = 120.0


@dataclass(frozen=True)
class EndOptions:
    """Options of client and server, which are the same for both.

    Attributes:
        congestion: the congestion control of TCP channels; "": the kernel's default.
        unit: maximum number of octets of a unit.
        window: number of units for which the client has memory.
        disk_thread: whether a separate thread calls the file system.

    """

    congestion: str = ""
    unit: int = 1 << 20
    window: int = 8
    disk_thread: bool = True

    def to_json_argument(self, key: str) -> str:
        """Return the options as the command line argument of ``lab.papers.adts.end``."""
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
class CopyResult:
    """The result of a transfer: seconds, octets, files, and the CPU seconds of both ends."""

    connecting: float
    transferring: float
    octets: int
    files: int
    client_cpu: float
    server_cpu: float

    @property
    def mbit_s(self) -> float:
        """The rate in Mbit/s, without the time for connecting."""
        return self.octets * 8e-6 / self.transferring

    @property
    def seconds(self) -> float:
        """The seconds of the transfer, including connecting."""
        return self.connecting + self.transferring


class EndProcess:
    """A process that runs ``lab.papers.adts.end``."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send_request(self, do: str, limit: float = LIMIT_S, **request: Any) -> dict[str, Any]:
        """Send a request to the process, and return the answer.

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
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the standard input of the process, and wait for its end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


def start_client_or_server(link: Link, role: str, options: EndOptions, key: str) -> EndProcess:
    """Start the process with the role ``client`` or ``server`` at its end of a link."""
    command = [sys.executable, "-m", "lab.papers.adts.end", options.to_json_argument(key)]
    return EndProcess(role, link.make_command_line(role, *command))


@dataclass
class ClientAndServer:
    """A client and a server at the two ends of a link, each with a directory below ``folder``."""

    link: Link
    folder: Path
    options: EndOptions = field(default_factory=EndOptions)

    def __post_init__(self) -> None:
        self.client_folder, self.server_folder = self.folder / "client", self.folder / "server"
        for directory in (self.client_folder, self.server_folder):
            directory.mkdir(parents=True, exist_ok=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ClientAndServer:
        key = secrets.token_hex(32)
        try:
            self.server = start_client_or_server(self.link, "server", self.options, key)
            self._stack.callback(self.server.close)
            self.client = start_client_or_server(self.link, "client", self.options, key)
            self._stack.callback(self.client.close)
            port = self.server.send_request(
                "serve", root=str(self.server_folder), host=self.link.address
            )["port"]
        except BaseException:
            self._stack.close()
            raise
        self.address = [self.link.address, port]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def copy_files(
        self,
        channel: str,
        way: str,
        names: Sequence[str],
        sessions: str = "one",
        recursive: bool = False,
        limit: float = LIMIT_S,
    ) -> CopyResult:
        """Copy files; source and target have the same name, and old targets are deleted first.

        Raises:
            BenchError: a file was not copied.

        """
        target = self.server_folder if way == "put" else self.client_folder
        for name in names:
            _delete_file_or_directory(target / name)
        before = self.server.send_request("cpu")["cpu"]
        answer = self.client.send_request(
            "copy",
            limit,
            address=self.address,
            channel=channel,
            way=way,
            files=[(str(self.client_folder / name), name) for name in names],
            sessions=sessions,
            recursive=recursive,
        )
        return CopyResult(
            answer["connecting"],
            answer["transferring"],
            answer["octets"],
            answer["files"],
            answer["cpu"],
            self.server.send_request("cpu")["cpu"] - before,
        )


def _delete_file_or_directory(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
