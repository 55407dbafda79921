# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""rping's protocol, and that of guest/echo.c, over any stack that offers the few calls below.

rping: the client Sends where its source lies (address, STag, length), the server Reads it and
Sends a go-ahead, the client Sends where its sink lies, the server Writes the data there and
Sends again.  Every message is 16 octets; a go-ahead's content means nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, Protocol

#: The zero-length message by which an initiator says that it is ready (RFC 6581); "" for none.
Rtr = Literal["", "write", "read"]


@dataclass(frozen=True)
class Terms:
    """What an MPA connection asks for, or has agreed on."""

    crc: bool = False
    revision: int = 2
    rtr: Rtr = ""

    def __str__(self) -> str:
        words = [f"rev {self.revision}", "CRC" if self.crc else "no CRC"]
        return ", ".join([*words, f"RTR {self.rtr}"] if self.rtr else words)


@dataclass(frozen=True)
class Terminate:
    """The three numbers that a Terminate carries (RFC 5040 section 4.8)."""

    layer: int
    kind: int
    code: int


class ConnectionEnded(Exception):
    """The connection is gone, because of the Terminate that either side sent if there was one."""

    def __init__(self, terminate: Terminate | None = None) -> None:
        super().__init__(f"connection ended: {terminate}")
        self.terminate = terminate


class Region(Protocol):
    """Memory that the peer may reach: ``memory`` lies at ``address`` under the STag ``key``."""

    memory: bytearray
    address: int
    key: int


class Connection(Protocol):
    """One RC connection.  Every call blocks within a bound of its own, some seconds.

    All but register() and close() raise ConnectionEnded when the connection is gone.
    """

    agreed: Terms

    def register(self, size: int, access: Literal["", "read", "write"] = "") -> Region:
        """Give ``size`` octets an STag by which the peer may read or write them, or neither."""

    def send(self, message: bytes) -> None:
        """Send, and wait for the completion."""

    def recv(self) -> bytes:
        """The next message; receives of at least 128 KiB are posted before the start-up ends."""

    def write(self, source: Region, length: int, address: int, key: int) -> None:
        """RDMA Write of a region's first octets to the peer's memory."""

    def read(self, sink: Region, length: int, address: int, key: int) -> None:
        """RDMA Read from the peer's memory into a region's first octets; waits for the data."""

    def close(self) -> None:
        """Disconnect."""


class Listener(Protocol):
    """A listening port of 127.0.0.1."""

    port: int

    def accept(self) -> Connection:
        """The next connection, within some seconds."""

    def close(self) -> None:
        """Stop listening."""


class Stack(Protocol):
    """The stack under test; the module binding.py has ours as ``STACK``."""

    def connect(self, port: int, terms: Terms) -> Connection:
        """Connect to a port of 127.0.0.1, asking for these terms."""

    def listen(self) -> Listener:
        """Listen on a free port of 127.0.0.1, accepting whatever terms the peer asks for."""

    def set_persona(self, name: str) -> None:
        """Set the persona of connections made from now on: iwarp, roce or auto."""

    def counter(self, name: str) -> int:
        """Return one of the stack's counters."""


ADVERTISEMENT = struct.Struct(">QII")  # address, STag, length
GO_AHEAD = bytes(ADVERTISEMENT.size)
WRONG = 0x5A5A5A00  # what a spoilt STag is combined with: no valid index or key is left of it


def pattern(size: int, seed: int = 0) -> bytes:
    """Octets that show displacement: position and seed decide each, the period is 251."""
    period = bytes((i * 7 + seed) % 251 for i in range(251))
    return (period * (size // 251 + 1))[:size]


def text(size: int, seed: int = 0) -> bytes:
    """Like pattern(), as rping needs it: its server writes back a C string and what ends it."""
    return bytes(octet + 1 for octet in pattern(size - 1, seed)) + b"\0"


class Client:
    """rping's client side.

    ``spoil`` names the advertised buffer whose STag is made wrong: the peer's use of it must then
    be refused.
    """

    def __init__(
        self, connection: Connection, size: int, spoil: Literal["", "source", "sink"] = ""
    ) -> None:
        self.connection, self.size, self.spoil = connection, size, spoil
        self.source = connection.register(size, "read")
        self.sink = connection.register(size, "write")

    def _advertise(self, region: Region, spoilt: bool) -> None:
        key = region.key ^ WRONG if spoilt else region.key
        self.connection.send(ADVERTISEMENT.pack(region.address, key, self.size))
        self.connection.recv()

    def exchange(self, data: bytes) -> bytes:
        """Let the peer read ``data``, a text(), and write it back; returns what came back."""
        self.source.memory[:] = data
        self._advertise(self.source, self.spoil == "source")
        self._advertise(self.sink, self.spoil == "sink")
        return bytes(self.sink.memory)


class Server:
    """rping's server side; ``spoil`` names the operation that uses a wrong STag of the peer's."""

    def __init__(
        self, connection: Connection, capacity: int, spoil: Literal["", "read", "write"] = ""
    ) -> None:
        self.connection, self.spoil = connection, spoil
        self.buffer = connection.register(capacity)

    def serve(self) -> bytes:
        """Read the client's data once and write it back; returns the data."""
        address, key, length = ADVERTISEMENT.unpack(self.connection.recv())
        key ^= WRONG if self.spoil == "read" else 0
        self.connection.read(self.buffer, length, address, key)
        data = bytes(self.buffer.memory[:length])
        self.connection.send(GO_AHEAD)
        address, key, length = ADVERTISEMENT.unpack(self.connection.recv())
        key ^= WRONG if self.spoil == "write" else 0
        self.connection.write(self.buffer, length, address, key)
        self.connection.send(GO_AHEAD)
        return data


class EchoClient:
    """The client of guest/echo.c: it reaches the guest's memory itself."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def _ask(self, message: bytes) -> bytes:
        self.connection.send(message)
        return self.connection.recv()

    def send(self, data: bytes) -> bytes:
        """Have ``data`` Sent back; its first octet must be that of the command, "E"."""
        return self._ask(data)

    def memory(self) -> tuple[int, int]:
        """Where the guest's memory lies, and its key."""
        address, key, _ = ADVERTISEMENT.unpack(self._ask(b"A"))
        return address, key

    def write(self, data: bytes, memory: tuple[int, int]) -> None:
        """Write ``data`` there."""
        source = self.connection.register(len(data))
        source.memory[:] = data
        self.connection.write(source, len(data), *memory)

    def read(self, length: int, memory: tuple[int, int]) -> bytes:
        """What an RDMA Read from there delivers."""
        sink = self.connection.register(length)
        self.connection.read(sink, length, *memory)
        return bytes(sink.memory)

    def has(self, length: int) -> bytes:
        """What the guest itself has there, by a Send."""
        return self._ask(b"M" + struct.pack(">I", length))
