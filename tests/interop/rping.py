# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The protocols of rping and of guest/echo.c, over any stack that implements the class Stack.

The rping protocol: the client Sends the location of its source buffer (address, STag, length), the
server Reads the buffer and Sends a go-ahead, the client Sends the location of its sink buffer, the
server Writes the data to that buffer and Sends again. Every message has 16 octets; the content of a
go-ahead is ignored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, Protocol

#: The zero-length message by which an initiator reports "ready to receive" (RFC 6581); "" for none.
Rtr = Literal["", "write", "read"]


@dataclass(frozen=True)
class MpaParameters:
    """The parameters that an MPA connection requests or has negotiated."""

    crc: bool = False
    revision: int = 2
    rtr: Rtr = ""

    def __str__(self) -> str:
        words = [f"rev {self.revision}", "CRC" if self.crc else "no CRC"]
        return ", ".join([*words, f"RTR {self.rtr}"] if self.rtr else words)


@dataclass(frozen=True)
class Terminate:
    """The three numbers in a Terminate (RFC 5040 section 4.8)."""

    layer: int
    kind: int
    code: int


class ConnectionEnded(Exception):
    """The connection has ended; ``terminate`` is the Terminate that either side sent, if any."""

    def __init__(self, terminate: Terminate | None = None) -> None:
        super().__init__(f"connection ended: {terminate}")
        self.terminate = terminate


class Region(Protocol):
    """Memory that the peer may access.

    ``memory`` has the address ``address`` and the STag ``key``.
    """

    memory: bytearray
    address: int
    key: int


class Connection(Protocol):
    """An RC connection, each call of which blocks for at most a few seconds.

    All calls except register() and close() raise ConnectionEnded when the connection has ended.
    """

    agreed: MpaParameters

    def register(self, size: int, access: Literal["", "read", "write"] = "") -> Region:
        """Register ``size`` octets with an STag that allows the peer to read, to write, or
        neither.
        """

    def send(self, message: bytes) -> None:
        """Send a message, and wait for the completion of the Send."""

    def recv(self) -> bytes:
        """Return the next message; receives of at least 128 KiB are posted before the start-up
        ends.
        """

    def write(self, source: Region, length: int, address: int, key: int) -> None:
        """Write the first octets of a region to the peer's memory with an RDMA Write."""

    def read(self, sink: Region, length: int, address: int, key: int) -> None:
        """Read from the peer's memory into the first octets of a region, and wait for the data."""

    def close(self) -> None:
        """Disconnect the connection."""


class Listener(Protocol):
    """A listening port of 127.0.0.1."""

    port: int

    def accept(self) -> Connection:
        """Return the next connection; wait at most a few seconds."""

    def close(self) -> None:
        """Stop listening on the port."""


class Stack(Protocol):
    """The RDMA stack under test; binding.py implements siwarp's stack as ``STACK``."""

    def connect(self, port: int, terms: MpaParameters) -> Connection:
        """Connect to a port of 127.0.0.1 and request these terms."""

    def listen(self) -> Listener:
        """Listen on a free port of 127.0.0.1, and accept any terms that a peer requests."""

    def set_persona(self, name: str) -> None:
        """Set the persona of future connections: iwarp, roce or auto."""

    def read_counter(self, name: str) -> int:
        """Return the value of one of the stack's counters."""


ADVERTISEMENT = struct.Struct(">QII")  # fields: address, STag, length
GO_AHEAD = bytes(ADVERTISEMENT.size)
# A value that is combined with an STag so that neither its index nor its key stays valid.
STAG_SPOILER = 0x5A5A5A00


def data_pattern(size: int, seed: int = 0) -> bytes:
    """Return octets that reveal displacement: each octet depends on position and seed, with period
    251.
    """
    period = bytes((i * 7 + seed) % 251 for i in range(251))
    return (period * (size // 251 + 1))[:size]


def make_c_string_payload(size: int, seed: int = 0) -> bytes:
    """Like data_pattern(), but without a 0 octet before the end, because rping's server writes back
    a C string.
    """
    return bytes(octet + 1 for octet in data_pattern(size - 1, seed)) + b"\0"


class RpingClient:
    """The client side of rping's protocol.

    ``spoil`` names the advertised buffer whose STag is made invalid, so that the peer's access must
    be refused.
    """

    def __init__(
        self, connection: Connection, size: int, spoil: Literal["", "source", "sink"] = ""
    ) -> None:
        self.connection, self.size, self.spoil = connection, size, spoil
        self.source = connection.register(size, "read")
        self.sink = connection.register(size, "write")

    def _advertise_memory(self, region: Region, spoilt: bool) -> None:
        key = region.key ^ STAG_SPOILER if spoilt else region.key
        self.connection.send(ADVERTISEMENT.pack(region.address, key, self.size))
        self.connection.recv()

    def exchange_data(self, data: bytes) -> bytes:
        """Let the peer read ``data`` (make_c_string_payload()) and write it back.

        Returns the written octets.
        """
        self.source.memory[:] = data
        self._advertise_memory(self.source, self.spoil == "source")
        self._advertise_memory(self.sink, self.spoil == "sink")
        return bytes(self.sink.memory)


class RpingServer:
    """The server side of rping; ``spoil`` names the operation for which it uses an invalid STag."""

    def __init__(
        self, connection: Connection, capacity: int, spoil: Literal["", "read", "write"] = ""
    ) -> None:
        self.connection, self.spoil = connection, spoil
        self.buffer = connection.register(capacity)

    def serve_round(self) -> bytes:
        """Read the client's data once and write the data back; return the data."""
        address, key, length = ADVERTISEMENT.unpack(self.connection.recv())
        key ^= STAG_SPOILER if self.spoil == "read" else 0
        self.connection.read(self.buffer, length, address, key)
        data = bytes(self.buffer.memory[:length])
        self.connection.send(GO_AHEAD)
        address, key, length = ADVERTISEMENT.unpack(self.connection.recv())
        key ^= STAG_SPOILER if self.spoil == "write" else 0
        self.connection.write(self.buffer, length, address, key)
        self.connection.send(GO_AHEAD)
        return data


class EchoClient:
    """The client of guest/echo.c, which itself accesses the memory of the guest."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def _send_and_receive(self, message: bytes) -> bytes:
        self.connection.send(message)
        return self.connection.recv()

    def echo(self, data: bytes) -> bytes:
        """Return the reply to ``data``, an echo; the first octet of ``data`` must be the command
        "E".
        """
        return self._send_and_receive(data)

    def memory_address_and_key(self) -> tuple[int, int]:
        """Return the address and the STag of the guest's memory."""
        address, key, _ = ADVERTISEMENT.unpack(self._send_and_receive(b"A"))
        return address, key

    def write(self, data: bytes, memory: tuple[int, int]) -> None:
        """Write ``data`` to the guest's memory with an RDMA Write."""
        source = self.connection.register(len(data))
        source.memory[:] = data
        self.connection.write(source, len(data), *memory)

    def read(self, length: int, memory: tuple[int, int]) -> bytes:
        """Return octets of the guest's memory, read with an RDMA Read."""
        sink = self.connection.register(length)
        self.connection.read(sink, length, *memory)
        return bytes(sink.memory)

    def request_memory_content(self, length: int) -> bytes:
        """Return octets of the guest's memory, sent by the guest itself in a message."""
        return self._send_and_receive(b"M" + struct.pack(">I", length))
