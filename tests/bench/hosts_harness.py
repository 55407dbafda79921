"""Servers of `siwarp bench` as processes, and plain-socket clients that break the protocol."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator

from harness.siwarp_process import COMMAND, SiwarpProcess
from pace import scale_limit


@contextlib.contextmanager
def run_bench_server(
    *arguments: object, inside: tuple[str, ...] = ()
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run a ``siwarp bench --server``; provide its port and process.

    ``inside`` is a command prefix, for example to enter a network namespace.
    """
    with SiwarpProcess(
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
                process.communicate(timeout=scale_limit(20))
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def connect_to_server(port: int, greeting: bytes = b"") -> socket.socket:
    """Connect to a bench server and send a greeting; return the socket."""
    connection = socket.create_connection(("127.0.0.1", port), scale_limit(10))
    connection.settimeout(scale_limit(30))
    connection.sendall(greeting)
    return connection


def receive_until_end_of_stream(connection: socket.socket) -> bytes:
    """Return the octets received until the end of the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(4096):
            data += more
    return data
