"""Servers of `siwarp bench` as processes, and clients that are none."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator

from cli.cli_harness import COMMAND
from pace import scaled


@contextlib.contextmanager
def bench_server(
    *arguments: object, inside: tuple[str, ...] = ()
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A ``siwarp bench --server``: its port and its process. ``inside``: what starts it there."""
    with subprocess.Popen(
        [*inside, *COMMAND, "bench", "--server", "--port", "0", "--json", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ},
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["port"], process
        finally:
            process.terminate()
            try:
                process.communicate(timeout=scaled(20))
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def call(port: int, greeting: bytes = b"") -> socket.socket:
    """Connect to a server, and say that."""
    connection = socket.create_connection(("127.0.0.1", port), scaled(10))
    connection.settimeout(scaled(30))
    connection.sendall(greeting)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the end of the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(4096):
            data += more
    return data
