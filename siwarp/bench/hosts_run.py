# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One host's part of a run between hosts: its processes, and the relay of their control messages.

Each channel has a process of siwarp-bench on both hosts. Octets that a process writes to its "ctl"
socket are sent to the other host in frames, and written to the ctl of the process there. The exit
of a process is reported to the other host, which then closes the ctl of its process, so that each
process detects at once that its peer has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from siwarp.base.closing import Closing
from siwarp.bench.hosts_wire import MOST_FRAME, Frame, GoneError, Link, Request, printable
from siwarp.bench.runner import GRACE_S, end_options, end_reason, program

__all__ = ["Addresses", "Ended", "Run", "Watch"]

#: Called at least once a second, and when a descriptor is readable; returns descriptors and
#: callbacks.
Watch = Callable[[], "dict[int, Callable[[], None]]"]


@dataclass(frozen=True)
class Addresses:
    """Numeric addresses of the two hosts; ``local`` is this host's."""

    local: str
    remote: str


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit status, reason, and the result if it measured."""

    status: int
    reason: str
    value: float = 0.0
    n: int = 0

    @classmethod
    def of(cls, code: int, said: str, complaint: str) -> Ended:
        """Return the meaning of a process's exit status and output."""
        if code:
            return cls(code, end_reason(code, complaint)[:1000])
        result = json.loads(said) if said else {"value": 0.0, "n": 0}
        return cls(0, "", float(result["value"]), int(result["n"]))

    @classmethod
    def told(cls, value: dict[str, Any]) -> Ended:
        """Parse the other host's report about a process.

        Raises:
            ValueError: the report is malformed.

        """
        status, why, n = (value.get(name) for name in ("status", "reason", "n"))
        figure = value.get("value")
        if not (isinstance(status, int) and isinstance(why, str) and isinstance(n, int)):
            raise ValueError
        if not isinstance(figure, float) or not 0 <= figure < float("inf"):
            raise ValueError
        return cls(status, printable(why.encode("utf-8", "replace")), figure, n)


class _Channel(Closing):
    """A process with this side of its ctl; ``there`` is the state of its peer on the other host."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.ctl, theirs = socket.socketpair()
        self.ended: Ended | None = None
        self.there: Ended | None = None
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [*command, "--ctl", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    pass_fds=[theirs.fileno()],
                    env=env,
                )
            except BaseException:
                self.ctl.close()
                raise
        self.ctl.setblocking(False)

    def give(self, content: bytes) -> None:
        """Write octets from the peer process to this process's ctl."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            try:
                sent = self.ctl.send(content, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                sent = 0
            if sent < len(content):
                raise GoneError(
                    71,
                    "the other end sent more data than a run permits: use the "
                    "same release of siwarp at both ends",
                )

    def hear(self) -> bytes | None:
        """Return octets that the process has written; None after its end, when it is reaped."""
        with contextlib.suppress(ConnectionResetError):
            try:
                content = self.ctl.recv(MOST_FRAME)
            except BlockingIOError:
                return b""
            if content:
                return content
        self._reap(GRACE_S)
        return None

    def _reap(self, seconds: float) -> None:
        if self.ended is not None:
            return
        try:
            said, complaint = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, complaint = self.process.communicate()
        self.ended = Ended.of(self.process.returncode, said, complaint)

    def close(self) -> None:
        """End this channel's process and close its ctl."""
        if self.ended is None:
            self.process.kill()
            self._reap(GRACE_S)
        self.ctl.close()


def _command(request: Request, side: str, where: Addresses, cpu: int | None) -> list[str]:
    own = {"limit": request.limit, "local": where.local, "remote": where.remote, "cpu": cpu}
    options = end_options(request.plan(), side, run="ours", warmup=request.warmup, **own)
    return [str(program()), *options]


def _cpu(channel: int, side: str) -> int | None:
    """Return a CPU for a process; client and server on one host get different CPUs."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return None
    return allowed[(2 * channel + (side == "server")) % len(allowed)]


class Run(Closing):
    """The processes of a run on this host. ``client``: whether this is the client's host."""

    def __init__(
        self, link: Link, request: Request, where: Addresses, *, client: bool, samples: str = ""
    ) -> None:
        self._link, self._request = link, request
        self._parts = contextlib.ExitStack()
        self._channels: list[_Channel] = []
        env = {**os.environ, "SIWARP_QKEY": str(request.qkey)}
        try:
            for i in range(request.channels):
                # In the second half of the channels, the senders run on the server's host.
                side = "client" if client == (i < request.pairs) else "server"
                command = _command(request, side, where, _cpu(i, side))
                if samples and side == "client":
                    command += ["--samples", str(Path(samples) / str(i))]
                self._channels.append(self._parts.enter_context(_Channel(command, env)))
        except BaseException:
            self._parts.close()
            raise

    def finish(self, watch: Watch) -> None:
        """Relay until every process has ended on both hosts.

        Args:
            watch: returns further descriptors to poll, and their callbacks. It may raise an
                exception to end the run.

        Raises:
            GoneError: the other host has ended; ``close`` ends the processes here.

        """
        deadline = time.monotonic() + self._request.limit + 2 * GRACE_S
        while not self._is_over():
            if time.monotonic() > deadline:
                raise GoneError(
                    110,
                    f"{self._link.other} did not finish a run: check that host, then start again",
                )
            self._step(watch())
            self._link.beat()

    def _is_over(self) -> bool:
        return all(c.ended is not None and c.there is not None for c in self._channels)

    def _step(self, others: dict[int, Callable[[], None]]) -> None:
        by_fd = {c.ctl.fileno(): i for i, c in enumerate(self._channels) if c.ended is None}
        poll = select.poll()
        for fd in (self._link.socket.fileno(), *by_fd, *others):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(1000):
            if fd in by_fd:
                self._from_process(by_fd[fd])
            elif fd in others:
                others[fd]()
            else:
                self._link.read()
        # Frames after the end of this run belong to the next run.
        while not self._is_over() and (frame := self._link.take()) is not None:
            self._from_link(frame)

    def _from_process(self, number: int) -> None:
        channel = self._channels[number]
        content = channel.hear()
        if content:
            self._link.send(b"C", number, content)
        elif content is None:
            assert channel.ended is not None
            self._link.send(b"X", number, json.dumps(asdict(channel.ended)).encode())

    def _from_link(self, frame: Frame) -> None:
        if frame.type == b"E":
            raise ValueError(printable(frame.content))
        if frame.type == b"R" or frame.channel >= len(self._channels):
            raise GoneError(
                71,
                f"{self._link.other} sent an invalid frame in a run: use the same "
                "release of siwarp at both ends",
            )
        channel = self._channels[frame.channel]
        if frame.type == b"C":
            channel.give(frame.content)
            return
        try:
            channel.there = Ended.told(frame.value())
        except ValueError:
            raise GoneError(
                71,
                f"{self._link.other} sent an invalid frame at the end of a run: use the same "
                "release of siwarp at both ends",
            ) from None
        if channel.ended is None:
            channel.ctl.shutdown(socket.SHUT_WR)

    def ends(self) -> list[tuple[str, int, str]]:
        """Return for each process of each channel: the host, the exit status, and the reason."""
        found = []
        for channel in self._channels:
            for name, ended in (("here", channel.ended), ("there", channel.there)):
                assert ended is not None
                found.append((name, ended.status, ended.reason))
        return found

    def results(self) -> list[Ended]:
        """Return the results of both hosts."""
        both = [end for channel in self._channels for end in (channel.ended, channel.there)]
        return [end for end in both if end is not None and end.n]

    def close(self) -> None:
        """End the processes that still run on this host."""
        self._parts.close()
