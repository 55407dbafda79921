"""Hostile clients cost an FTP server bounded memory and descriptors, and others are served."""

from __future__ import annotations

import contextlib
import ftplib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ftp.ftp_harness import LIMIT, ServerProcess, read_file, run_server, wait_until

from siwarp.ulp.adts.memory import POOL_SIZE
from siwarp.ulp.ftp.client import FTP
from siwarp.ulp.ftp.control import MAX_WAITING

#: Octets by which the memory of a worker may grow during an attack.
GROWTH = 32 << 20


@pytest.fixture(name="server")
def start_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Return a server with one worker, so that the honest client shares it with the attacker."""
    (tmp_path / "file").write_bytes(b"content")
    with run_server(tmp_path, "--workers", "1") as server:
        check_good_client_is_served(server)
        yield server


def check_good_client_is_served(server: ServerProcess) -> None:
    with server.log_in() as ftp:
        assert read_file(ftp, "file") == b"content"


def resident_octets_of_worker(server: ServerProcess) -> int:
    """Return the resident memory of the server's worker in octets."""
    (pid,) = server.worker_pids()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_a_thousand_silent_connections_leave_room_for_an_honest_client(
    server: ServerProcess,
) -> None:
    descriptors, octets = server.count_descriptors(), resident_octets_of_worker(server)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(1000)]
        check_good_client_is_served(server)
        assert server.count_descriptors() <= descriptors + MAX_WAITING + 8
        assert resident_octets_of_worker(server) - octets < GROWTH
        # The oldest connections were closed, with a reason.
        silent[0].settimeout(LIMIT)
        said = b"".join(iter(lambda: silent[0].recv(4096), b""))
        assert b"421 Connection closed: too many connections without a login" in said
    wait_until(lambda: server.count_descriptors() <= descriptors, server.count_descriptors)


def test_replies_that_are_not_read_are_bounded(server: ServerProcess) -> None:
    octets = resident_octets_of_worker(server)
    with server.connect() as flood:
        flood.settimeout(LIMIT)
        flood.recv(100)
        with pytest.raises((ConnectionError, BrokenPipeError)):
            for _ in range(10_000):
                flood.sendall(b"HELP\r\n" * 1000)
    check_good_client_is_served(server)
    assert resident_octets_of_worker(server) - octets < GROWTH


def test_a_command_without_end_is_dropped(server: ServerProcess) -> None:
    octets = resident_octets_of_worker(server)
    with server.connect() as endless:
        endless.settimeout(LIMIT)
        for _ in range(64):
            endless.sendall(b"A" * 65_536)
            endless.recv(65_536)
        check_good_client_is_served(server)
    assert resident_octets_of_worker(server) - octets < GROWTH


def test_many_clients_with_half_a_command_delay_nobody(server: ServerProcess) -> None:
    descriptors = server.count_descriptors()
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(server.connect()).sendall(b"USER si")
        check_good_client_is_served(server)
    wait_until(lambda: server.count_descriptors() <= descriptors, server.count_descriptors)


def test_clients_that_do_not_read_their_files_delay_nobody(
    server: ServerProcess, tmp_path: Path
) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    descriptors, octets = server.count_descriptors(), resident_octets_of_worker(server)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            ftp = stack.enter_context(contextlib.closing(server.log_in()))
            ftp.voidcmd("TYPE I")
            stack.enter_context(ftp.transfercmd("RETR large"))
        check_good_client_is_served(server)
        assert resident_octets_of_worker(server) - octets < GROWTH
    wait_until(lambda: server.count_descriptors() <= descriptors, server.count_descriptors)


@pytest.mark.parametrize("kind", ["rc", "rd"])
def test_clients_that_do_not_read_from_their_channels_delay_nobody(
    server: ServerProcess, tmp_path: Path, kind: str
) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)

    def start_download_without_reading(stack: contextlib.ExitStack) -> None:
        ftp = FTP(timeout=LIMIT)
        ftp.transports = (kind,)  # type: ignore[assignment]
        stack.callback(ftp.close)
        ftp.connect(server.host, server.port)
        ftp.login(server.user, server.password)
        ftp.voidcmd("TYPE I")
        connection: Any = ftp.transfercmd("RETR large")
        stack.callback(connection.abort)

    with contextlib.ExitStack() as stack:
        # The first download makes the server open its device, before descriptors are counted.
        start_download_without_reading(stack)
    descriptors, octets = server.count_descriptors(), resident_octets_of_worker(server)
    with contextlib.ExitStack() as stack:
        # If there were more sessions, some would get units of a smaller size, for which the server
        # opens another queue pair.
        for _ in range(7):
            start_download_without_reading(stack)
        check_good_client_is_served(server)
        # The server has one pool of units for all its channels.
        assert resident_octets_of_worker(server) - octets < POOL_SIZE + GROWTH
    wait_until(lambda: server.count_descriptors() <= descriptors, server.count_descriptors)
    check_good_client_is_served(server)


def test_a_client_that_is_logged_out_again_counts_as_a_stranger(server: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(server.log_in())) for _ in range(3)]
        for ftp in clients:
            assert ftp.sendcmd("REIN").startswith("230")
        for _ in range(MAX_WAITING):
            stack.enter_context(server.connect())
        check_good_client_is_served(server)
        with pytest.raises((ftplib.Error, EOFError, OSError)):
            clients[0].sendcmd("NOOP")


def test_what_is_no_ftp_at_all_ends_with_an_error_reply(server: ServerProcess) -> None:
    with server.connect() as web:
        web.settimeout(LIMIT)
        web.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\0\xff\xfe\r\n")
        web.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: web.recv(4096), b""))
    assert said.count(b"\r\n500 ") >= 2
    check_good_client_is_served(server)
