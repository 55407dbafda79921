# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Debian's rping on siwarp's librdmacm, with rping on Linux siw in a VM as its peer.

Each cell of the matrix is one test. Both ends compare the received data with the expected data
(-V).
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from interop import vm
from interop.conftest import RPING_PORT

PERSONAS = ("roce", "iwarp")
SIZES = (64, 4096, 65535)
ROUNDS = 10
ROW_FROM_SIWARP, ROW_FROM_SIW = (
    "siwarp run rping -c ({}) -> rping -s",
    "rping -c -> siwarp run rping -s ({})",
)
#: The time limit of each end in seconds: the guest may be emulated.
LIMIT = 60
# The length of a start-up frame before its private data; the last two octets of the frame header
# hold the length of the private data.
MPA_HEAD = 20


def rping_command(persona: str, *words: str) -> list[str]:
    """Return the command line that runs rping on siwarp."""
    siwarp = [sys.executable, "-m", "siwarp.cli", "run", "--no-view", "--persona", persona]
    return [*siwarp, "--", "rping", "-V", "-v", "-C", str(ROUNDS), *words]


def read_mpa_frame(stream: socket.socket) -> bytes:
    """Return the next MPA start-up frame of a stream."""
    head = stream.recv(MPA_HEAD, socket.MSG_WAITALL)
    length = int.from_bytes(head[-2:], "big")
    return head + (stream.recv(length, socket.MSG_WAITALL) if length else b"")


def forward_octets(source: socket.socket, sink: socket.socket) -> None:
    """Forward octets from one socket to another until either is closed."""
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            sink.sendall(part)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class DelayingForwarder:
    """A port of 127.0.0.1 that forwards one connection to the guest's rping.

    The forwarder delays the octets that the client sends after its MPA Request until siw is ready
    for FPDUs, like a path with a long delay; README.md lists the defects of siw.
    """

    def __init__(self, guest: vm.Guest) -> None:
        self._guest = guest
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LIMIT)
        self.port: int = self._listener.getsockname()[1]
        self._pool = ThreadPoolExecutor(2)
        self._served = self._pool.submit(self._forward_connection)

    def _forward_connection(self) -> None:
        client, _ = self._listener.accept()
        port = self._guest.host_port(RPING_PORT)
        with client, socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as server:
            client.settimeout(LIMIT)
            server.sendall(read_mpa_frame(client))
            client.sendall(read_mpa_frame(server))
            self._guest.wait_until_siw_ready()
            back = self._pool.submit(forward_octets, server, client)
            forward_octets(client, server)
            back.result()

    def close(self) -> None:
        """Wait until the connection has ended; raise any error that occurred while forwarding."""
        self._listener.close()
        self._served.result(2 * LIMIT)
        self._pool.shutdown()


@contextlib.contextmanager
def run_delaying_forwarder(guest: vm.Guest) -> Iterator[DelayingForwarder]:
    """Forward one connection to the guest's rping during the block."""
    one = DelayingForwarder(guest)
    try:
        yield one
    finally:
        one.close()


def wait_until_listening(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until a program listens on a TCP port."""
    end = time.monotonic() + LIMIT
    while not re.search(rf":{port:04X} [0-9A-F:]+ 0A ", Path("/proc/net/tcp").read_text("ascii")):
        assert server.poll() is None, "rping has ended"
        assert time.monotonic() < end, "rping does not listen"
        time.sleep(0.05)


def check_rping_output(output: str, size: int) -> None:
    """Check that an end has printed the data of each round, which rping does after comparing the
    data.

    The exit status of rping is less reliable: occasionally one of its threads finds a channel that
    another thread has closed.
    """
    for turn in range(ROUNDS):
        start = f"ping data: rdma-ping-{turn}: "
        assert start in output, f"size {size}: {start!r} is not in\n{output[:4000]}"
    assert "data mismatch" not in output


def interop_matrix_test_params(row: str) -> list[object]:
    """Return the parameters (persona, size) of the tests of one direction."""
    return [
        pytest.param(
            persona,
            size,
            marks=pytest.mark.cell(row.format(persona), str(size)),
            id=f"{persona}-{size}",
        )
        for persona in PERSONAS
        for size in SIZES
    ]


@pytest.mark.parametrize(("persona", "size"), interop_matrix_test_params(ROW_FROM_SIWARP))
def test_rping_client_on_siwarp_receives_its_data_back_from_rping_on_siw(
    guest: vm.Guest, persona: str, size: int
) -> None:
    guest.set_siw_parameters()
    guest.start_server(RPING_PORT, f"rping -s -p {RPING_PORT} -V -v -C {ROUNDS} -S {size}")
    with run_delaying_forwarder(guest) as door:
        words = ("-c", "-a", "127.0.0.1", "-p", str(door.port), "-S", str(size))
        done = subprocess.run(
            rping_command(persona, *words), capture_output=True, text=True, timeout=LIMIT
        )
    check_rping_output(f"{done.stdout}{done.stderr}status {done.returncode}", size)
    check_rping_output(guest.wait_for_server_end(RPING_PORT, LIMIT), size)


@pytest.mark.parametrize(("persona", "size"), interop_matrix_test_params(ROW_FROM_SIW))
def test_rping_client_on_siw_receives_its_data_back_from_rping_on_siwarp(
    guest: vm.Guest, tmp_path: Path, persona: str, size: int
) -> None:
    guest.set_siw_parameters()
    port = vm.list_free_tcp_ports(1)[0]
    log = tmp_path / "log"  # the output of rping does not fit in a pipe
    with (
        log.open("wb") as out,
        subprocess.Popen(
            rping_command(persona, "-s", "-p", str(port), "-S", str(size)), stdout=out, stderr=out
        ) as server,
    ):
        try:
            wait_until_listening(port, server)
            client = f"rping -c -a {vm.HOST_ADDRESS} -p {port} -V -v -C {ROUNDS} -S {size}"
            _, output = guest.run_command(client, LIMIT)
            server.wait(LIMIT)
        finally:
            server.kill()
    check_rping_output(output, size)
    check_rping_output(log.read_text(), size)
