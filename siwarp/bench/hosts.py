# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A session between two hosts: ``siwarp bench lat|bw|rate ADDR`` and ``siwarp bench --server``.

The protocol, version 1
-----------------------

The protocol uses one TCP connection; the measurement has separate sockets. All numbers are in
network byte order.

Both sides begin with a greeting, the client first: 8 octets ``siwbench``, the version (2 octets),
the host's byte order (1 octet, ``l`` or ``b``; the siwarp-bench processes use it between each
other), 0 or, if the server refuses, 1 (1 octet), the length of a text (4 octets, at most 512), and
the text with the reason. A server answers a greeting of another version in this format as well, so
that an older or newer client can report it.

Frames follow: a type (1 octet), the channel (1 octet), a length (2 octets, at most 4,096), and the
content. The types, with their sender and content:

- ``R``, client: a run. JSON, the fields of ``Request``. Both sides then start the processes.
- ``E``, server: why a run is refused, or that the session is over. A text; nothing was started.
- ``C``, both: octets that a channel's process has written to its "ctl" socket (bench.h).
- ``X``, both: a channel's process has ended. JSON, the fields of ``ProcessEnd``.
- ``B``, both: keep-alive, without content. Each side sends one per second; a side that is silent
  for 10 s is considered dead.

A run is over when both sides have sent ``X`` for every channel. A violation of these rules ends the
connection; received octets are not stored beyond one frame.

The processes
-------------

Each channel has a process of siwarp-bench on both hosts. Octets that a process writes to its "ctl"
socket are sent to the other host in frames, and written to the ctl of the process there. The exit
of a process is reported to the other host, which then closes the ctl of its process, so that each
process detects immediately that its peer has ended.

The server
----------

A server serves one client at a time, and reports to other clients that it is busy. The resources of
a client are limited: memory and time of a run (``Request.validate``), the time between runs, and
the time of the complete session. A client that is silent, disconnects or violates the protocol
loses its session, and its processes are ended.

A new connection has a few seconds to send its greeting, and does not block others meanwhile. At
most ``ClientListener.WAITING`` connections may be in this state; a further one replaces the oldest.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from siwarp.base.closing import Closing
from siwarp.base.numeric import resolve_to_numeric
from siwarp.base.stop import StopRequest
from siwarp.bench.plan import Plan, UsageError, make_plan
from siwarp.bench.runner import (
    GRACE_S,
    LIMIT_S,
    BenchError,
    bench_process_arguments,
    bench_program_path,
    process_exit_reason,
    raise_if_process_failed,
    warmup_message_count,
)

__all__ = [
    "GREETING",
    "MAGIC",
    "PORT",
    "VERSION",
    "ClientSession",
    "Load",
    "Request",
    "RunResult",
    "Server",
    "greeting",
]

# ---- the protocol

#: The default port of the server; perftest and ping's server use the preceding port.
PORT = 18516
VERSION = 1
MAGIC = b"siwbench"
GREETING = struct.Struct("!8sHcBI")
MOST_TEXT = 512
_HEAD = struct.Struct("!cBH")
MOST_FRAME = 4096
#: Seconds between two keep-alives, and seconds without a frame after which the other side is
#: considered dead.
KEEP_ALIVE_S, SILENT_S = 1.0, 10.0

#: Limits of a run: octets of memory in total, samples and messages, processes, and seconds.
MOST_MEMORY = 1 << 30
MOST_SAMPLES, MOST_MESSAGES = 10_000_000, 100_000_000
MOST_CHANNELS = 64
MOST_LIMIT_S = 60


class GoneError(OSError):
    """The other side of a session has ended, or violates the protocol; the text says which."""


class Greeting(NamedTuple):
    """The fixed part of a greeting, without its text."""

    version: int
    order: bytes
    refused: bool
    length: int

    @classmethod
    def unpack(cls, data: bytes) -> Greeting:
        """Parse the fixed part of a greeting.

        Raises:
            ValueError: the octets are not a greeting.

        """
        magic, version, order, refused, length = GREETING.unpack(data)
        if magic != MAGIC or length > MOST_TEXT:
            raise ValueError
        return cls(version, order, bool(refused), length)


def own_byte_order() -> bytes:
    """Return this host's byte order in the format of a greeting."""
    return sys.byteorder[:1].encode()


def greeting(text: str = "") -> bytes:
    """Return a greeting; a greeting with a text is a refusal."""
    said = text.encode()[:MOST_TEXT]
    return GREETING.pack(MAGIC, VERSION, own_byte_order(), bool(said), len(said)) + said


@dataclass(frozen=True)
class Request:
    """A client's request for a run.

    Attributes:
        kind, qp, op, size, iters, warmup, depth, batch, wait: the options of siwarp-bench.
        pairs: number of queue pairs on each side that send, or receive, at the same time.
        both: the server sends too, on as many additional queue pairs.
        limit: seconds after which the processes end.
        qkey: Q_Key for datagrams, chosen for this run.
    """

    kind: str
    qp: str
    op: str
    size: int
    iters: int
    warmup: int
    depth: int
    batch: int
    wait: str
    pairs: int
    both: bool
    limit: int
    qkey: int

    @property
    def channel_count(self) -> int:
        """The number of processes of the run on each host, one for each channel."""
        return self.pairs * (2 if self.both else 1)

    def pack(self) -> bytes:
        """Return the content of the request's frame."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        """Parse and check a request from an untrusted client.

        Raises:
            ValueError: the request is invalid or exceeds a limit; the text is sent to the client.

        """
        try:
            said = json.loads(data)
            request = cls(**said)
        except (ValueError, TypeError, RecursionError):
            raise ValueError(
                "this version of siwarp bench does not support this run: use the same version on "
                "both hosts"
            ) from None
        for each in fields(cls):
            value = said[each.name]
            if type(value).__name__ != each.type:
                raise ValueError(f"{each.name} of a run is of type {each.type}")
        request.validate()
        return request

    def validate(self) -> None:
        """Raise a ValueError if the request is not a valid measurement, or exceeds a limit."""
        self.to_plan()
        samples = MOST_SAMPLES if self.kind == "lat" else MOST_MESSAGES
        bounds = {
            "iters": (1, samples),
            "warmup": (1, samples),
            "pairs": (1, MOST_CHANNELS // 2),
            "limit": (1, MOST_LIMIT_S),
            "qkey": (1, (1 << 31) - 1),
        }
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} of a run must be from {least} to {most}")
        if (octets := self.buffer_octets()) > MOST_MEMORY:
            raise ValueError(
                f"this run needs {octets >> 20} MiB on each host, but {MOST_MEMORY >> 20} are "
                "allowed: use fewer queue pairs (-q), a smaller --depth, or smaller messages"
            )

    def to_plan(self) -> Plan:
        """Return the plan of the measurement that the client requests.

        Raises:
            UsageError: there is no such measurement.

        """
        return make_plan(
            self.kind,
            self.qp,
            self.op,
            size=self.size,
            iters=self.iters,
            depth=self.depth,
            wait=self.wait,
            post_list=self.batch,
            rounds=1,
            beside=False,
        )

    def buffer_octets(self) -> int:
        """Return the octets of the buffers that the run needs on one side."""
        slots = 16 if self.kind == "lat" else 2 * self.depth + 2
        return (slots + 1) * (self.size + 63) * self.channel_count


class Frame(NamedTuple):
    """A frame of the session's protocol: type, channel and content."""

    type: bytes
    channel: int
    content: bytes

    def parse_json(self) -> dict[str, Any]:
        """Return the JSON object in the frame's content; an empty one if the content is invalid."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class Link:
    """A connection on which both sides have exchanged greetings; used by one thread.

    Attributes:
        socket: the connection; the caller waits until it is readable.
        other: a description of the other side, for messages.
    """

    def __init__(self, connection: socket.socket, other: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.other = connection, other
        self._data = bytearray()
        self._frames: deque[Frame] = deque()
        self._sent = self._heard = time.monotonic()

    def send(self, kind: bytes, channel: int = 0, content: bytes = b"") -> None:
        """Send a frame to the other side of the session.

        Raises:
            GoneError: sending failed, because the other side has ended or does not read.

        """
        data = _HEAD.pack(kind, channel, len(content)) + content
        try:
            sent = self.socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError as e:
            raise GoneError(e.errno, f"connection to {self.other} failed: {e.strerror}") from None
        if sent < len(data):
            raise GoneError(
                110, f"{self.other} no longer accepts data: check that host, then start again"
            )
        self._sent = time.monotonic()

    def receive(self) -> None:
        """Receive octets that have arrived; ``pop_received_frame`` then returns the frames.

        Raises:
            GoneError: the other side has ended, or sent an invalid frame.

        """
        try:
            data = self.socket.recv(MOST_FRAME)
        except BlockingIOError:
            return
        except OSError as e:
            raise GoneError(e.errno, f"connection to {self.other} failed: {e.strerror}") from None
        if not data:
            raise GoneError(
                104,
                f"{self.other} closed the connection, or was killed: check that "
                "host, then start again",
            )
        self._heard = time.monotonic()
        self._data += data
        while len(self._data) >= _HEAD.size:
            kind, channel, length = _HEAD.unpack_from(self._data)
            if kind not in (b"R", b"E", b"C", b"X", b"B") or length > MOST_FRAME:
                raise GoneError(
                    71,
                    f"{self.other} sent an invalid frame: use the same release of "
                    "siwarp at both ends",
                )
            end = _HEAD.size + length
            if len(self._data) < end:
                break
            if kind != b"B":
                self._frames.append(Frame(kind, channel, bytes(self._data[_HEAD.size : end])))
            del self._data[:end]

    def pop_received_frame(self) -> Frame | None:
        """Remove and return the next received frame; None if there is none."""
        return self._frames.popleft() if self._frames else None

    def keep_alive(self) -> None:
        """Send a keep-alive frame if one is due, and check that the other side is not silent; to be
        called once a second.

        Raises:
            GoneError: the other side has been silent for too long.

        """
        now = time.monotonic()
        if now - self._heard > SILENT_S:
            raise GoneError(
                110,
                f"{self.other} has been silent for {SILENT_S:.0f} s: check that "
                "host, then start again",
            )
        if now - self._sent >= KEEP_ALIVE_S:
            self.send(b"B")

    def close(self) -> None:
        """Close the connection to the other side of the session."""
        self.socket.close()


def _receive_exactly(connection: socket.socket, octets: int, end: float) -> bytes:
    """Receive ``octets`` octets before the time ``end``; fewer if the peer closes or uses another
    protocol.
    """
    data = b""
    while len(data) < octets:
        left = end - time.monotonic()
        if left <= 0 or not select.select([connection], [], [], left)[0]:
            raise TimeoutError
        more = connection.recv(octets - len(data))
        data += more
        if not more or (octets == GREETING.size and data[: len(MAGIC)] != MAGIC[: len(data)]):
            break
    return data


def exchange_greetings(connection: socket.socket, where: str, seconds: float) -> None:
    """Exchange greetings with a server within ``seconds``.

    Raises:
        OSError: the peer is not a server of this version, or refuses; the text says which.

    """
    end = time.monotonic() + seconds
    no_server = f"{where} is not a siwarp bench server: is `siwarp bench --server` running there?"
    try:
        connection.sendall(greeting())
        theirs = Greeting.unpack(_receive_exactly(connection, GREETING.size, end))
        said = _receive_exactly(connection, theirs.length, end)
    except TimeoutError:
        raise OSError(110, f"{where} did not reply to a greeting: {no_server}") from None
    except (ValueError, struct.error, ConnectionError):
        raise OSError(71, no_server) from None
    if theirs.version != VERSION:
        raise OSError(
            71,
            f"{where} uses version {theirs.version} of siwarp bench's protocol, this host "
            f"{VERSION}: run the same siwarp on both hosts",
        )
    if theirs.order != own_byte_order():
        raise OSError(
            71,
            f"{where} has another byte order, which siwarp bench does not support: use siwarp ping",
        )
    if theirs.refused:
        raise OSError(111, f"{where} refuses: {remove_control_characters(said)}")


def remove_control_characters(text: bytes) -> str:
    """Return another host's text without characters that could control a terminal."""
    return "".join(c for c in text.decode("utf-8", "replace") if c.isprintable())


# ---- the processes of a run on one host

#: A function that returns descriptors and callbacks; called at least once a second, and when a
#: descriptor is readable.
Watch = Callable[[], "dict[int, Callable[[], None]]"]


@dataclass(frozen=True)
class Addresses:
    """Numeric addresses of the two hosts; ``local`` is this host's."""

    local: str
    remote: str


@dataclass(frozen=True)
class ProcessEnd:
    """The end of a process: its exit status, the reason, and the result if the process measured."""

    status: int
    reason: str
    value: float = 0.0
    n: int = 0

    @classmethod
    def from_process(cls, code: int, output: str, complaint: str) -> ProcessEnd:
        """Return the meaning of a process's exit status and output."""
        if code:
            return cls(code, process_exit_reason(code, complaint)[:1000])
        result = json.loads(output) if output else {"value": 0.0, "n": 0}
        return cls(0, "", float(result["value"]), int(result["n"]))

    @classmethod
    def from_report(cls, value: dict[str, Any]) -> ProcessEnd:
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
        return cls(status, remove_control_characters(why.encode("utf-8", "replace")), figure, n)


class _Channel(Closing):
    """A process and this side of its control socket (ctl); ``there`` is how the peer process on the
    other host ended.
    """

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.ctl, theirs = socket.socketpair()
        self.ended: ProcessEnd | None = None
        self.there: ProcessEnd | None = None
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

    def write_ctl(self, content: bytes) -> None:
        """Write octets from the peer process to this process's control socket."""
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

    def read_ctl(self) -> bytes | None:
        """Return octets that the process has written to its control socket; None once the process
        has ended and is reaped.
        """
        with contextlib.suppress(ConnectionResetError):
            try:
                content = self.ctl.recv(MOST_FRAME)
            except BlockingIOError:
                return b""
            if content:
                return content
        self._reap_process(GRACE_S)
        return None

    def _reap_process(self, seconds: float) -> None:
        if self.ended is not None:
            return
        try:
            said, complaint = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, complaint = self.process.communicate()
        self.ended = ProcessEnd.from_process(self.process.returncode, said, complaint)

    def close(self) -> None:
        """End this channel's process and close its control socket."""
        if self.ended is None:
            self.process.kill()
            self._reap_process(GRACE_S)
        self.ctl.close()


def _build_bench_command_line(
    request: Request, side: str, where: Addresses, cpu: int | None
) -> list[str]:
    own = {"limit": request.limit, "local": where.local, "remote": where.remote, "cpu": cpu}
    options = bench_process_arguments(
        request.to_plan(), side, run="ours", warmup=request.warmup, **own
    )
    return [str(bench_program_path()), *options]


def _choose_cpu(channel: int, side: str) -> int | None:
    """Return a CPU for a process; client and server on one host get different CPUs."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return None
    return allowed[(2 * channel + (side == "server")) % len(allowed)]


class Run(Closing):
    """The processes of a run on this host. ``client``: whether this host is the client's."""

    def __init__(
        self, link: Link, request: Request, where: Addresses, *, client: bool, samples: str = ""
    ) -> None:
        self._link, self._request = link, request
        self._parts = contextlib.ExitStack()
        self._channels: list[_Channel] = []
        env = {**os.environ, "SIWARP_QKEY": str(request.qkey)}
        try:
            for i in range(request.channel_count):
                # In the second half of the channels, the senders run on the server's host.
                side = "client" if client == (i < request.pairs) else "server"
                command = _build_bench_command_line(request, side, where, _choose_cpu(i, side))
                if samples and side == "client":
                    command += ["--samples", str(Path(samples) / str(i))]
                self._channels.append(self._parts.enter_context(_Channel(command, env)))
        except BaseException:
            self._parts.close()
            raise

    def relay_until_end(self, watch: Watch) -> None:
        """Relay octets between the processes until all of them have ended on both hosts.

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
            self._poll_once(watch())
            self._link.keep_alive()

    def _is_over(self) -> bool:
        return all(c.ended is not None and c.there is not None for c in self._channels)

    def _poll_once(self, others: dict[int, Callable[[], None]]) -> None:
        by_fd = {c.ctl.fileno(): i for i, c in enumerate(self._channels) if c.ended is None}
        poll = select.poll()
        for fd in (self._link.socket.fileno(), *by_fd, *others):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(1000):
            if fd in by_fd:
                self._relay_from_process(by_fd[fd])
            elif fd in others:
                others[fd]()
            else:
                self._link.receive()
        # Frames of the next run may arrive before this run is over. They stay in the link.
        while not self._is_over() and (frame := self._link.pop_received_frame()) is not None:
            self._handle_frame(frame)

    def _relay_from_process(self, number: int) -> None:
        channel = self._channels[number]
        content = channel.read_ctl()
        if content:
            self._link.send(b"C", number, content)
        elif content is None:
            assert channel.ended is not None
            self._link.send(b"X", number, json.dumps(asdict(channel.ended)).encode())

    def _handle_frame(self, frame: Frame) -> None:
        if frame.type == b"E":
            raise ValueError(remove_control_characters(frame.content))
        if frame.type == b"R" or frame.channel >= len(self._channels):
            raise GoneError(
                71,
                f"{self._link.other} sent an invalid frame in a run: use the same "
                "release of siwarp at both ends",
            )
        channel = self._channels[frame.channel]
        if frame.type == b"C":
            channel.write_ctl(frame.content)
            return
        try:
            channel.there = ProcessEnd.from_report(frame.parse_json())
        except ValueError:
            raise GoneError(
                71,
                f"{self._link.other} sent an invalid frame at the end of a run: use the same "
                "release of siwarp at both ends",
            ) from None
        if channel.ended is None:
            channel.ctl.shutdown(socket.SHUT_WR)

    def exit_statuses_of_processes(self) -> list[tuple[str, int, str]]:
        """Return for each process of each channel: the host, the exit status, and the reason."""
        found = []
        for channel in self._channels:
            for name, ended in (("here", channel.ended), ("there", channel.there)):
                assert ended is not None
                found.append((name, ended.status, ended.reason))
        return found

    def results_of_processes(self) -> list[ProcessEnd]:
        """Return the results of the measuring processes on both hosts."""
        both = [end for channel in self._channels for end in (channel.ended, channel.there)]
        return [end for end in both if end is not None and end.n]

    def close(self) -> None:
        """End the processes of the run that still run on this host."""
        self._parts.close()


# ---- the client


@dataclass(frozen=True)
class Load:
    """Number of queue pairs that run at the same time, in one direction or in both."""

    pairs: int = 1
    both: bool = False


@dataclass
class RunResult:
    """The result of one run between two hosts.

    Attributes:
        value: us, GB/s or messages per second, of all queue pairs together.
        slowest: the same for the slowest queue pair.
        n: messages of all queue pairs.
        samples: if requested, the round-trip time of each message in ns, in order.
    """

    value: float
    slowest: float
    n: int
    samples: array[int] = field(default_factory=lambda: array("Q"))


class ClientSession(Closing):
    """A client's session with a server; the session ends when a run fails because one side has
    ended.
    """

    #: Time limit in seconds for connecting and for the greeting.
    CONNECT_S = 10.0
    #: Seconds for which connecting is retried, because the server may be starting.
    START_S = 3.0

    def __init__(self, host: str, port: int) -> None:
        self.where = f"{host} port {port}"
        connection = self._connect_with_retries((resolve_to_numeric(host), port))
        try:
            connection.settimeout(None)
            exchange_greetings(connection, self.where, self.CONNECT_S)
            peer, own = connection.getpeername()[0], connection.getsockname()[0]
        except BaseException:
            connection.close()
            raise
        #: Whether a run failed because one side has ended.
        self.is_over = False
        self._addresses = Addresses(own, peer)
        self._link = Link(connection, f"the server {self.where}")

    def _connect_with_retries(self, dest: tuple[str, int]) -> socket.socket:
        """Connect to the server, with retries while the server is not listening yet."""
        end = time.monotonic() + self.START_S
        while True:
            try:
                return socket.create_connection(dest, self.CONNECT_S)
            except TimeoutError:
                raise OSError(
                    110,
                    f"connecting to {self.where}: no reply: check the host, and "
                    "that its firewall permits the port",
                ) from None
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise OSError(
                        111, f"{self.where} refuses: start `siwarp bench --server` there"
                    ) from None
            time.sleep(0.1)

    def run(self, plan: Plan, load: Load, *, keep: bool = False) -> RunResult:
        """Do one run of a plan's ``iters`` messages; with ``keep`` the result has the samples.

        Raises:
            BenchError: the run failed; LostError: messages were lost.
            UsageError: the server rejects such a run.

        """
        request = Request(
            kind=plan.kind,
            qp=plan.qp,
            op=plan.op,
            size=plan.size,
            iters=plan.iters,
            warmup=warmup_message_count(plan),
            depth=plan.depth,
            batch=plan.post_list,
            wait=plan.wait,
            pairs=load.pairs,
            both=load.both,
            limit=LIMIT_S,
            qkey=int.from_bytes(os.urandom(4), "big") & 0x7FFFFFFF or 1,
        )
        request.validate()
        with tempfile.TemporaryDirectory(prefix="siwarp-bench-") as folder:
            return self._relay_run(request, folder if keep else "")

    def _relay_run(self, request: Request, folder: str) -> RunResult:
        # Send the request before the client's processes start, because the server's processes must
        # exist when the client's processes send to them.
        self._send_request(request)
        try:
            with Run(self._link, request, self._addresses, client=True, samples=folder) as run:
                run.relay_until_end(dict)
                ends, results = run.exit_statuses_of_processes(), run.results_of_processes()
        except GoneError as e:
            self.is_over = True
            raise BenchError(str(e.strerror)) from None
        except ValueError as e:
            raise UsageError(str(e)) from None
        raise_if_process_failed(f"{request.qp} {request.op}, {request.size} octets", ends)
        return _sum_results(request, results, folder)

    def _send_request(self, request: Request) -> None:
        try:
            self._link.send(b"R", content=request.pack())
        except GoneError as e:
            self.is_over = True
            raise BenchError(str(e.strerror)) from None

    def close(self) -> None:
        """Close the connection to the server."""
        self._link.close()


def _sum_results(request: Request, found: list[ProcessEnd], folder: str) -> RunResult:
    values = [each.value for each in found]
    latency = request.kind == "lat"
    samples = array("Q")
    for path in sorted(Path(folder).iterdir()) if folder else ():
        samples.frombytes(path.read_bytes())
    return RunResult(
        value=max(values) if latency else sum(values),
        slowest=max(values) if latency else min(values),
        n=sum(each.n for each in found),
        samples=samples,
    )


# ---- the listener of the server


class _PendingClient:
    """A connection whose client has not sent its complete greeting yet."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.data = b""
        self.until = time.monotonic() + seconds

    def read_greeting(self) -> str | None:
        """Continue to read the greeting; return None while octets are missing, then why the client
        is refused, or "" if the client is accepted.
        """
        try:
            self.data += self.socket.recv(GREETING.size - len(self.data))
        except BlockingIOError:
            return None
        except OSError:
            return "gone"
        if len(self.data) < GREETING.size:
            # A client sends its greeting in one piece; another protocol is detected immediately.
            return None if self.data and greeting()[: len(self.data)] == self.data else "a stranger"
        try:
            theirs = Greeting.unpack(self.data)
        except ValueError:
            return "this is a siwarp bench server"
        if theirs.version != VERSION:
            return f"this is version {VERSION}, not {theirs.version}"
        return "" if theirs.order == own_byte_order() else "the server's byte order differs"


class ClientListener(Closing):
    """The listening socket of the server: exchanges greetings, and admits one client at a time.

    Attributes:
        inside: whether a client is being served; no other is admitted then.
        address: the address of the listener.
    """

    WAITING = 16
    GREET_S = 5.0

    def __init__(self, host: str, port: int) -> None:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(where)
            self._socket.listen(self.WAITING)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.inside = False
        self._strangers: dict[int, _PendingClient] = {}
        self._welcome: socket.socket | None = None

    def callbacks_by_descriptor(self) -> dict[int, Callable[[], None]]:
        """Disconnect clients whose greeting is overdue; return descriptors to poll and their
        callbacks.
        """
        now = time.monotonic()
        for fd in [fd for fd, one in self._strangers.items() if now > one.until]:
            self._refuse_client(fd, "no greeting arrived")
        found: dict[int, Callable[[], None]] = {self._socket.fileno(): self._accept}
        return found | {fd: self._make_greeting_reader(fd) for fd in self._strangers}

    def pop_admitted_client(self) -> socket.socket | None:
        """Remove and return the connection of the admitted client; None if there is none."""
        client, self._welcome = self._welcome, None
        return client

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # the client has closed its connection already
        if len(self._strangers) >= self.WAITING:
            self._refuse_client(next(iter(self._strangers)), "too many clients are waiting")
        self._strangers[connection.fileno()] = _PendingClient(connection, self.GREET_S)

    def _make_greeting_reader(self, fd: int) -> Callable[[], None]:
        return lambda: self._read_greeting(fd)

    def _read_greeting(self, fd: int) -> None:
        if fd not in self._strangers:
            return
        refusal = self._strangers[fd].read_greeting()
        if refusal is None:
            return
        if not refusal and (self.inside or self._welcome is not None):
            refusal = "the server is busy with another client: try again later"
        if refusal:
            self._refuse_client(fd, refusal)
            return
        connection = self._strangers.pop(fd).socket
        try:
            connection.send(greeting(), socket.MSG_NOSIGNAL)
        except OSError:
            connection.close()
            return
        self._welcome = connection

    def _refuse_client(self, fd: int, why: str) -> None:
        connection = self._strangers.pop(fd).socket
        with contextlib.suppress(OSError):
            connection.send(greeting(why), socket.MSG_NOSIGNAL)
            connection.shutdown(socket.SHUT_WR)
        connection.close()

    def close(self) -> None:
        """Stop listening."""
        for fd in list(self._strangers):
            self._refuse_client(fd, "the server is shutting down")
        if self._welcome is not None:
            self._welcome.close()
        self._socket.close()


# ---- the server


class _Stopped(Exception):
    """The server was requested to stop."""


class Server(Closing):
    """The server of ``siwarp bench --server``, which serves one client after another.

    Args:
        host: a numeric address to listen on.
        port: 0 selects a free one.
        visit: time limit of a client's session in seconds.
        say: called with a line of text at the start and end of each session.

    """

    #: Time limit between two runs of a client in seconds.
    IDLE_S = 10.0

    def __init__(self, host: str, port: int, visit: float, say: Callable[[str], None]) -> None:
        self._door = ClientListener(host, port)
        self._visit_s, self._say = visit, say
        self.address = self._door.address

    def run(self, stop: StopRequest) -> None:
        """Serve clients until ``stop`` is set."""
        self._stop = stop
        with contextlib.suppress(_Stopped):
            while True:
                self._wait_for_events()
                if (client := self._door.pop_admitted_client()) is not None:
                    self._serve_client(client)

    def _callbacks_by_descriptor(self) -> dict[int, Callable[[], None]]:
        if self._stop.is_set():
            raise _Stopped
        return {**self._door.callbacks_by_descriptor(), self._stop.fileno(): lambda: None}

    def _wait_for_events(self, link: Link | None = None) -> None:
        """Wait for at most a second, and call the callbacks of readable descriptors."""
        watch = self._callbacks_by_descriptor()
        if link is not None:
            watch[link.socket.fileno()] = link.receive
        poll = select.poll()
        for fd in watch:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(1000):
            watch[fd]()

    def _serve_client(self, client: socket.socket) -> None:
        """Do the runs of one client; no behaviour of the client ends the server."""
        with client:
            try:
                peer, own = client.getpeername()[0], client.getsockname()[0]
                link = Link(client, f"the client {peer}")
            except OSError:
                return  # the client has already disconnected
            self._door.inside = True
            self._say(f"{peer}: a client")
            try:
                self._serve_runs(link, Addresses(own, peer))
                self._say(f"{peer}: its time limit is reached")
            except GoneError as e:
                self._say(f"{peer}: done ({e.strerror})")
            finally:
                self._door.inside = False

    def _serve_runs(self, link: Link, where: Addresses) -> None:
        over = time.monotonic() + self._visit_s
        idle = time.monotonic() + self.IDLE_S
        while time.monotonic() < min(idle, over):
            self._wait_for_events(link)
            link.keep_alive()
            while (frame := link.pop_received_frame()) is not None:
                # Remaining frames of a refused run are skipped.
                if frame.type == b"R":
                    self._serve_run(link, frame.content, where)
                    idle = time.monotonic() + self.IDLE_S
        link.send(b"E", content=b"your time is over: the server takes another client")

    def _serve_run(self, link: Link, asked: bytes, where: Addresses) -> None:
        """Do one run, or report to the client why the run is refused."""
        try:
            request = Request.unpack(asked)
            run = Run(link, request, where, client=False)
        except (ValueError, OSError) as e:
            link.send(b"E", content=str(e).encode()[:1000])
            return
        with run, contextlib.suppress(ValueError):  # the client sent an E frame, which ends the run
            run.relay_until_end(self._callbacks_by_descriptor)

    def close(self) -> None:
        """Stop listening."""
        self._door.close()
