# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A session between two hosts: the protocol and the client of ``siwarp bench lat|bw|rate ADDR``.

The protocol, version 2
-----------------------

A session is a TCP connection. Both sides begin with a greeting, the client first: 8 octets
``siwbench``, the version (2 octets, network byte order), the host's byte order (1 octet, ``l`` or
``b``; the siwarp-bench processes use it between each other), 0 or, if the server refuses, 1 (1
octet), the length of a text (4 octets, network byte order, at most 512), and the text with the
reason. A server answers a greeting of another version in this format as well, so that an older or
newer client can report it.

JSON objects follow, each on a line of at most MOST_LINE octets. For a run:

1. The client sends the fields of ``MeasurementRequest``.
2. The server replies ``tokens``, one for each channel, or ``refused``, a text.
3. For each channel the client opens a further connection to the server and sends 8 octets
   ``siw-ctl:`` and the token; the server replies with the octet ``!``. Each side then starts a
   siwarp-bench process for the channel, which has this connection as its "ctl" socket (bench.h).
   So each process detects immediately that its peer has ended.
4. When its processes have ended, the server sends ``ends``: the fields of ``ProcessOutcome`` of
each.

A session ends when either side closes the connection. The kernel's keep-alives detect a host that
does not answer for 10 s.
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from siwarp.base.closing import Closing
from siwarp.base.numeric import resolve_to_numeric
from siwarp.bench.plan import Plan, UsageError, make_bench_plan
from siwarp.bench.runner import (
    GRACE_S,
    LIMIT_S,
    BenchError,
    bench_program_path,
    build_bench_process_arguments,
    process_exit_reason,
    raise_if_process_failed,
    warmup_message_count,
)

__all__ = [
    "ACCEPTED",
    "CTL_MAGIC",
    "GREETING",
    "MAGIC",
    "MOST_LINE",
    "VERSION",
    "Addresses",
    "ClientSession",
    "Greeting",
    "Load",
    "MeasurementRequest",
    "ProcessOutcome",
    "RunResult",
    "bench_command_line",
    "encode_host_byte_order",
    "make_bench_process_env",
    "make_greeting",
    "set_keep_alive",
]

# ---- the protocol

VERSION = 2
MAGIC = b"siwbench"
GREETING = struct.Struct("!8sHcBI")
MOST_TEXT = 512
MOST_LINE = 1 << 16
#: The first octets of a channel's connection, followed by a token; together as long as a greeting.
CTL_MAGIC = b"siw-ctl:"
ACCEPTED = b"!"

#: Limits of a run: octets of memory in total, samples and messages, processes, and seconds.
MOST_MEMORY = 1 << 30
MOST_SAMPLES, MOST_MESSAGES = 10_000_000, 100_000_000
MOST_CHANNELS = 64
MOST_LIMIT_S = 60


def set_keep_alive(connection: socket.socket) -> None:
    """Make the kernel end a session whose other host does not answer for 10 s."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("KEEPIDLE", 5), ("KEEPINTVL", 1), ("KEEPCNT", 5)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


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


def encode_host_byte_order() -> bytes:
    """Return this host's byte order in the format of a greeting."""
    return sys.byteorder[:1].encode()


def make_greeting(text: str = "") -> bytes:
    """Return a greeting; a greeting with a text is a refusal."""
    said = text.encode()[:MOST_TEXT]
    return GREETING.pack(MAGIC, VERSION, encode_host_byte_order(), bool(said), len(said)) + said


@dataclass(frozen=True)
class MeasurementRequest:
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
    def unpack(cls, data: bytes) -> MeasurementRequest:
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
        return make_bench_plan(
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
        connection.sendall(make_greeting())
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
    if theirs.order != encode_host_byte_order():
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


class _InvalidReplyError(OSError):
    """The server's reply does not follow the protocol."""

    def __init__(self) -> None:
        super().__init__(
            71, "it sent an invalid reply: use the same release of siwarp at both ends"
        )


class _ServerGoneError(OSError):
    """The server has closed the connection of a session."""

    def __init__(self) -> None:
        super().__init__(
            104, "it closed the connection, or was killed: check that host, then start again"
        )


@dataclass(frozen=True)
class Addresses:
    """Numeric addresses of the two hosts; ``local`` is this host's."""

    local: str
    remote: str


@dataclass(frozen=True)
class ProcessOutcome:
    """How a process of a run ended: exit status, reason, and result if the process measured."""

    status: int
    reason: str
    value: float = 0.0
    n: int = 0

    @classmethod
    def from_process(cls, code: int, output: str, complaint: str) -> ProcessOutcome:
        """Return the outcome that the exit status and the output of a local process show."""
        if code:
            return cls(code, process_exit_reason(code, complaint)[:1000])
        result = json.loads(output) if output else {"value": 0.0, "n": 0}
        return cls(0, "", float(result["value"]), int(result["n"]))

    @classmethod
    def from_report(cls, value: Any) -> ProcessOutcome:
        """Parse the other host's report about a process.

        Raises:
            OSError: the report is malformed.

        """
        try:
            status, why, figure, n = (value[name] for name in ("status", "reason", "value", "n"))
        except (TypeError, KeyError):
            raise _InvalidReplyError from None
        if not (isinstance(status, int) and isinstance(why, str) and isinstance(n, int)):
            raise _InvalidReplyError
        if not isinstance(figure, float) or not 0 <= figure < float("inf"):
            raise _InvalidReplyError
        return cls(status, remove_control_characters(why.encode("utf-8", "replace")), figure, n)


def bench_command_line(
    request: MeasurementRequest, channel: int, where: Addresses, *, client: bool
) -> list[str]:
    """Return the command of a channel's process, without ``--ctl``.

    ``client``: whether this host is the client's. In the second half of the channels, the senders
    run on the server's host.
    """
    side = "client" if client == (channel < request.pairs) else "server"
    own = {
        "limit": request.limit,
        "local": where.local,
        "remote": where.remote,
        "cpu": _choose_cpu(channel, side),
    }
    options = build_bench_process_arguments(
        request.to_plan(), side, run="ours", warmup=request.warmup, **own
    )
    return [str(bench_program_path()), *options]


def make_bench_process_env(request: MeasurementRequest) -> dict[str, str]:
    """Return the environment of the processes of a run."""
    return {**os.environ, "SIWARP_QKEY": str(request.qkey)}


def _choose_cpu(channel: int, side: str) -> int | None:
    """Return a CPU for a process; client and server on one host get different CPUs."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return None
    return allowed[(2 * channel + (side == "server")) % len(allowed)]


# ---- the client


@dataclass(frozen=True)
class Load:
    """Number of queue pairs that run at the same time per direction; ``both``: two directions."""

    pairs: int = 1
    both: bool = False


@dataclass
class RunResult:
    """The combined result of all processes of one run between two hosts.

    Attributes:
        value: us, GB/s or messages per second, of all queue pairs together.
        slowest: the value of the slowest queue pair.
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
        self._server = (resolve_to_numeric(host), port)
        self._socket = self._connect_with_retries()
        try:
            self._socket.settimeout(None)
            exchange_greetings(self._socket, self.where, self.CONNECT_S)
            set_keep_alive(self._socket)
            peer, own = self._socket.getpeername()[0], self._socket.getsockname()[0]
        except BaseException:
            self._socket.close()
            raise
        #: Whether the session is over, because a run failed after client or server had ended.
        self.is_over = False
        self._addresses = Addresses(own, peer)
        self._lines = self._socket.makefile("rb")

    def _connect_with_retries(self) -> socket.socket:
        """Connect to the server, with retries while the server is not listening yet."""
        end = time.monotonic() + self.START_S
        while True:
            try:
                return socket.create_connection(self._server, self.CONNECT_S)
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

    def measure_once(self, plan: Plan, load: Load, *, keep: bool = False) -> RunResult:
        """Do one run of a plan's ``iters`` messages; with ``keep`` the result has the samples.

        Raises:
            BenchError: the run failed; LostError: messages were lost.
            UsageError: the server rejects such a run.

        """
        request = MeasurementRequest(
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
        bench_program_path()  # raise the error of a missing program before the session is used
        with tempfile.TemporaryDirectory(prefix="siwarp-bench-") as folder:
            try:
                here = self._run_processes(request, folder if keep else "")
                there = [
                    ProcessOutcome.from_report(end) for end in self._receive_reply_list("ends")
                ]
            except OSError as e:
                self.is_over = True
                reason = str(e.strerror or e)
                advice = "" if ": " in reason else ": check that host, then start again"
                raise BenchError(f"the server {self.where}: {reason}{advice}") from None
            ends = [("here", end) for end in here] + [("there", end) for end in there]
            raise_if_process_failed(
                f"{request.qp} {request.op}, {request.size} octets",
                [(name, end.status, end.reason) for name, end in ends],
            )
            return _sum_process_results(
                request, [end for _, end in ends if end.n], folder if keep else ""
            )

    def _run_processes(self, request: MeasurementRequest, samples: str) -> list[ProcessOutcome]:
        self._socket.settimeout(self.CONNECT_S)
        self._socket.sendall(request.pack() + b"\n")
        tokens = self._receive_reply_list("tokens")
        if len(tokens) != request.channel_count:
            raise _InvalidReplyError
        with contextlib.ExitStack() as stack:
            processes = []
            for i, token in enumerate(tokens):
                command = bench_command_line(request, i, self._addresses, client=True)
                if samples and "client" in command:
                    command += ["--samples", str(Path(samples) / str(i))]
                with self._open_channel(_parse_channel_token(token)) as ctl:
                    processes.append(
                        stack.enter_context(
                            _start_process_and_kill_at_exit(
                                command, ctl, make_bench_process_env(request)
                            )
                        )
                    )
            until = time.monotonic() + request.limit + GRACE_S
            ends = [_wait_for_process_end(process, until) for process in processes]
        # The server's processes exit when the client's processes exit, or at their time limit.
        self._socket.settimeout(request.limit + 2 * GRACE_S)
        return ends

    def _open_channel(self, token: bytes) -> socket.socket:
        ctl = socket.create_connection(self._server, self.CONNECT_S)
        try:
            ctl.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ctl.sendall(CTL_MAGIC + token)
            if ctl.recv(1) != ACCEPTED:
                raise _ServerGoneError
            ctl.settimeout(None)
        except BaseException:
            ctl.close()
            raise
        return ctl

    def _receive_reply_list(self, name: str) -> list[Any]:
        """Receive the server's reply, and return the list with this name.

        Raises:
            OSError: the server has ended, or sent something else.
            UsageError: the server refuses.

        """
        line = self._lines.readline(MOST_LINE)
        if not line:
            raise _ServerGoneError
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if isinstance(reply, dict) and "refused" in reply:
            raise UsageError(remove_control_characters(str(reply["refused"]).encode()))
        found = reply.get(name) if isinstance(reply, dict) else None
        if not isinstance(found, list):
            raise _InvalidReplyError
        return found

    def close(self) -> None:
        """Close the connection to the server."""
        self._lines.close()
        self._socket.close()


def _parse_channel_token(value: object) -> bytes:
    try:
        return bytes.fromhex(str(value))
    except ValueError:
        raise _InvalidReplyError from None


@contextlib.contextmanager
def _start_process_and_kill_at_exit(
    command: list[str], ctl: socket.socket, env: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start a process with a control socket, and kill it if it has not ended."""
    process = subprocess.Popen(
        [*command, "--ctl", str(ctl.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[ctl.fileno()],
        env=env,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _wait_for_process_end(process: subprocess.Popen[str], until: float) -> ProcessOutcome:
    try:
        said, complaint = process.communicate(timeout=max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        said, complaint = process.communicate()
    return ProcessOutcome.from_process(process.returncode, said, complaint)


def _sum_process_results(
    request: MeasurementRequest, found: list[ProcessOutcome], folder: str
) -> RunResult:
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
