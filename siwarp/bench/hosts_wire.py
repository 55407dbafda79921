# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The protocol between ``siwarp bench lat ADDR`` and ``siwarp bench --server``, version 1.

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
- ``X``, both: a channel's process has ended. JSON, the fields of ``hosts_run.Ended``.
- ``B``, both: keep-alive, without content. Each side sends one per second; a side that is silent
  for
  10 s is considered dead.

A run is over when both sides have sent ``X`` for every channel. A violation of these rules ends the
connection; received octets are not stored beyond one frame.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from siwarp.bench.plan import Plan, make_plan

__all__ = [
    "GREETING",
    "MAGIC",
    "PORT",
    "VERSION",
    "Frame",
    "GoneError",
    "Greeting",
    "Link",
    "Request",
    "greet",
    "greeting",
    "own_order",
    "printable",
]

#: The default port of the server; perftest and ping's server use the port before it.
PORT = 18516
VERSION = 1
MAGIC = b"siwbench"
GREETING = struct.Struct("!8sHcBI")
MOST_TEXT = 512
_HEAD = struct.Struct("!cBH")
MOST_FRAME = 4096
#: Seconds between two keep-alives, and without any frame until the other side counts as dead.
KEEP_ALIVE_S, SILENT_S = 1.0, 10.0

#: Limits of a run: octets of memory in total, samples and messages, processes, and seconds.
MOST_MEMORY = 1 << 30
MOST_SAMPLES, MOST_MESSAGES = 10_000_000, 100_000_000
MOST_CHANNELS = 64
MOST_LIMIT_S = 60


class GoneError(OSError):
    """The other side has ended, or violates the protocol; the text says which."""


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


def own_order() -> bytes:
    """Return this host's byte order in the format of a greeting."""
    return sys.byteorder[:1].encode()


def greeting(text: str = "") -> bytes:
    """Return a greeting; with a text it is a refusal."""
    said = text.encode()[:MOST_TEXT]
    return GREETING.pack(MAGIC, VERSION, own_order(), bool(said), len(said)) + said


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
    def channels(self) -> int:
        """Number of processes on each host."""
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
        for field in fields(cls):
            value = said[field.name]
            if type(value).__name__ != field.type:
                raise ValueError(f"{field.name} of a run is of type {field.type}")
        request.judge()
        return request

    def judge(self) -> None:
        """Raise a ValueError if the request is not a valid measurement, or exceeds a limit."""
        self.plan()
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
        if self.kind not in ("lat", "bw", "rate"):
            raise ValueError(f"between hosts only lat, bw and rate are possible, not {self.kind}")
        if (octets := self.memory()) > MOST_MEMORY:
            raise ValueError(
                f"this run needs {octets >> 20} MiB on each host, but {MOST_MEMORY >> 20} are "
                "allowed: use fewer queue pairs (-q), a smaller --depth, or smaller messages"
            )

    def plan(self) -> Plan:
        """Return the request as a plan.

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

    def memory(self) -> int:
        """Return the octets of the buffers on one side."""
        slots = 16 if self.kind == "lat" else 2 * self.depth + 2
        return (slots + 1) * (self.size + 63) * self.channels


class Frame(NamedTuple):
    """A frame: type, channel and content."""

    type: bytes
    channel: int
    content: bytes

    def value(self) -> dict[str, Any]:
        """Return the JSON object in the content; empty if it is invalid."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class Link:
    """A connection on which both sides have exchanged their first message; used by one thread.

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
        """Send a frame.

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

    def read(self) -> None:
        """Receive octets that have arrived; ``take`` then returns the frames.

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

    def take(self) -> Frame | None:
        """Return the next frame that has arrived, if any."""
        return self._frames.popleft() if self._frames else None

    def beat(self) -> None:
        """Send a keep-alive if it is time, and check the other side's. Call this once a second.

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
        """Close the connection."""
        self.socket.close()


def _get(connection: socket.socket, octets: int, end: float) -> bytes:
    """Receive ``octets`` octets until ``end``; fewer after a close or from another protocol."""
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


def greet(connection: socket.socket, where: str, seconds: float) -> None:
    """Exchange greetings with a server within ``seconds``.

    Raises:
        OSError: it is not a server of this version, or it refuses; the text says which.

    """
    end = time.monotonic() + seconds
    no_server = f"{where} is not a siwarp bench server: is `siwarp bench --server` running there?"
    try:
        connection.sendall(greeting())
        theirs = Greeting.unpack(_get(connection, GREETING.size, end))
        said = _get(connection, theirs.length, end)
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
    if theirs.order != own_order():
        raise OSError(
            71,
            f"{where} has another byte order, which siwarp bench does not support: use siwarp ping",
        )
    if theirs.refused:
        raise OSError(111, f"{where} refuses: {printable(said)}")


def printable(said: bytes) -> str:
    """Return another host's text without characters that could control a terminal."""
    return "".join(c for c in said.decode("utf-8", "replace") if c.isprintable())
