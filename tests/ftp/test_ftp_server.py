"""The FTP server with Python's ftplib: files, directories, resume, users, confinement, errors."""

from __future__ import annotations

import ftplib
import io
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.cli_harness import is_running
from ftp.ftp_harness import (
    LIMIT,
    ServerProcess,
    make_certificate,
    random_octets,
    read_file,
    run_server,
    send_part_and_reset,
    wait_until,
)

NAMES = ("plain", "with space", "ünïcödé", "文件", "quote\"'", "-dash", "trailing ")


@pytest.fixture(name="root", scope="module")
def create_server_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(name="server", scope="module")
def start_server(root: Path) -> Iterator[ServerProcess]:
    with run_server(root, "--write") as server:
        yield server


@pytest.fixture(name="ftp")
def log_in_to_server(server: ServerProcess) -> Iterator[ftplib.FTP]:
    with server.log_in() as ftp:
        yield ftp


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_stored_listed_retrieved_renamed_and_deleted(
    ftp: ftplib.FTP, root: Path, name: str
) -> None:
    data = random_octets(100_000)
    ftp.storbinary(f"STOR {name}", io.BytesIO(data))
    assert (root / name).read_bytes() == data
    ftp.voidcmd("TYPE I")
    assert ftp.size(name) == len(data)
    assert name in ftp.nlst()
    facts = dict(ftp.mlsd())[name]
    assert (facts["type"], facts["size"]) == ("file", "100000")
    assert read_file(ftp, name) == data
    ftp.rename(name, f"{name}2")
    assert not (root / name).exists()
    ftp.delete(f"{name}2")
    assert f"{name}2" not in ftp.nlst()


def test_a_name_that_is_not_utf8_keeps_its_octets(server: ServerProcess, root: Path) -> None:
    (root / os.fsdecode(b"latin-\xe9")).write_bytes(b"content")
    ftp = ftplib.FTP(timeout=LIMIT, encoding="latin-1")
    ftp.connect(server.host, server.port)
    ftp.login(server.user, server.password)
    assert "latin-é" in ftp.nlst()
    assert read_file(ftp, "latin-é") == b"content"
    ftp.delete("latin-é")
    ftp.quit()


def test_directories_are_created_entered_and_removed(ftp: ftplib.FTP, root: Path) -> None:
    ftp.mkd("d ü")
    ftp.cwd("d ü")
    assert ftp.pwd() == "/d ü"
    ftp.mkd("e")
    ftp.storbinary("STOR e/f", io.BytesIO(b"1"))
    assert (root / "d ü" / "e" / "f").read_bytes() == b"1"
    with pytest.raises(ftplib.error_perm, match="550 Directory not empty"):
        ftp.rmd("e")
    ftp.delete("e/f")
    ftp.rmd("/d ü/e")
    ftp.cwd("..")
    assert ftp.pwd() == "/"
    ftp.rmd("d ü")


def test_the_modification_time_is_reported_and_set(ftp: ftplib.FTP, root: Path) -> None:
    (root / "old").write_bytes(b"")
    ftp.voidcmd("MFMT 20010203040506 old")
    assert ftp.sendcmd("MDTM old") == "213 20010203040506"
    assert (root / "old").stat().st_mtime == 981_173_106
    (root / "old").unlink()


def test_a_download_begins_at_the_offset_of_rest(ftp: ftplib.FTP, root: Path) -> None:
    (root / "file").write_bytes(b"0123456789")
    assert read_file(ftp, "file", rest=7) == b"789"
    assert read_file(ftp, "file", rest=10) == b""
    with pytest.raises(ftplib.error_perm, match="554 REST position"):
        read_file(ftp, "file", rest=11)


@pytest.mark.parametrize("command", ["STOR", "APPE"])
def test_an_upload_that_was_cut_keeps_its_name_and_continues(
    server: ServerProcess, root: Path, command: str
) -> None:
    data = random_octets(3_000_000)
    name = f"cut-{command}"
    send_part_and_reset(server.log_in(), f"STOR {name}", data[:1_000_000])
    with server.log_in() as ftp:
        ftp.voidcmd("TYPE I")
        # The server reads the octets that arrived before the reset. Their number depends on the
        # kernel.
        size = ftp.size(name)
        assert size is not None and size <= 1_000_000
        rest = size if command == "STOR" and size else None
        ftp.storbinary(f"{command} {name}", io.BytesIO(data[size:]), rest=rest)
    assert (root / name).read_bytes() == data


def test_a_transfer_is_aborted_and_the_session_goes_on(ftp: ftplib.FTP, root: Path) -> None:
    with (root / "large").open("wb") as file:
        file.truncate(64 << 20)  # a file that is larger than the buffers of the data connection
    ftp.voidcmd("TYPE I")
    with ftp.transfercmd("RETR large") as data:
        data.recv(1)
        status = ftp.sendcmd("STAT")
        assert "Data connection open" in status
        assert ftp.abort().startswith("426")
        assert ftp.getresp().startswith("226")
    assert ftp.sendcmd("NOOP").startswith("200")
    (root / "large").unlink()


def test_port_and_eprt_name_only_the_address_of_the_client(ftp: ftplib.FTP) -> None:
    with pytest.raises(ftplib.error_perm, match="501 Rejected data connection to foreign"):
        ftp.sendport("127.0.0.2", 5000)
    with pytest.raises(ftplib.error_perm, match="501 Rejected data connection to foreign"):
        ftp.sendcmd("EPRT |1|127.0.0.2|5000|")


def test_a_file_is_retrieved_over_an_active_connection(ftp: ftplib.FTP, root: Path) -> None:
    (root / "active").write_bytes(b"content")
    ftp.set_pasv(False)
    assert read_file(ftp, "active") == b"content"


def test_a_passive_port_accepts_only_the_address_of_the_client(ftp: ftplib.FTP, root: Path) -> None:
    (root / "mine").write_bytes(b"content")
    host, port = ftp.makepasv()
    with socket.create_connection((host, port), LIMIT, source_address=("127.0.0.2", 0)) as thief:
        assert thief.recv(1) == b""
    assert ftp.getmultiline().startswith("425 Rejected data connection from foreign address")
    with socket.create_connection((host, port), LIMIT) as data:
        ftp.sendcmd("RETR mine")
        assert data.recv(100) == b"content"
    ftp.voidresp()


def test_no_path_leads_out_of_the_root(ftp: ftplib.FTP, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "dirlink").symlink_to(tmp_path)
    try:
        for path in ("link", "dirlink/secret", "/../../../../etc/passwd", "../secret"):
            with pytest.raises(ftplib.error_perm, match="550"):
                read_file(ftp, path)
            with pytest.raises(ftplib.error_perm, match="550"):
                ftp.storbinary(f"STOR {path}/x", io.BytesIO(b""))
        with pytest.raises(ftplib.error_perm, match="550 A symbolic link, which is not followed"):
            ftp.storbinary("STOR link", io.BytesIO(b"overwritten"))
        with pytest.raises(ftplib.error_perm, match="550 Not a directory"):
            ftp.cwd("dirlink")
        with pytest.raises(ftplib.error_perm, match="550"):
            ftp.sendcmd("SITE CHMOD 777 link")
        assert (tmp_path / "secret").read_bytes() == b"secret"
        facts = dict(ftp.mlsd())
        assert facts["link"]["type"] == facts["dirlink"]["type"] == "OS.unix=slink"
    finally:
        # DELE deletes the symbolic link, not the file to which it points.
        ftp.delete("link")
        ftp.delete("dirlink")
    assert (tmp_path / "secret").exists()


def test_a_fifo_is_refused_without_blocking_the_server(ftp: ftplib.FTP, root: Path) -> None:
    os.mkfifo(root / "fifo")
    with pytest.raises(ftplib.error_perm, match="550 Not a regular file"):
        read_file(ftp, "fifo")
    with pytest.raises(ftplib.error_perm, match="550 Not a regular file"):
        ftp.storbinary("STOR fifo", io.BytesIO(b"data"))
    (root / "fifo").unlink()


def test_names_that_would_break_a_listing_are_left_out(ftp: ftplib.FTP, root: Path) -> None:
    (root / "two\nlines").write_bytes(b"")
    assert not [name for name in ftp.nlst() if name in {"two", "lines"}]
    (root / "two\nlines").unlink()


def test_an_upload_may_not_set_the_user_id_bit(ftp: ftplib.FTP, root: Path) -> None:
    (root / "program").write_bytes(b"")
    ftp.sendcmd("SITE CHMOD 4755 program")
    assert (root / "program").stat().st_mode & 0o7777 == 0o755


def test_a_file_that_shrinks_while_it_is_sent_is_reported(ftp: ftplib.FTP, root: Path) -> None:
    with (root / "shrinks").open("wb") as file:
        file.truncate(64 << 20)
    ftp.voidcmd("TYPE I")
    with ftp.transfercmd("RETR shrinks") as data:
        data.recv(1)
        os.truncate(root / "shrinks", 1000)
        while data.recv(1 << 20):
            pass
    with pytest.raises(ftplib.error_temp, match=r"426 The file lost \d+ octets"):
        ftp.voidresp()
    (root / "shrinks").unlink()


def test_a_write_that_the_file_system_refuses_is_reported(tmp_path: Path) -> None:
    with run_server(tmp_path, "--write", file_size=100_000) as server, server.log_in() as ftp:
        # The server closes the data connection, which may reset it before all is sent.
        ftp.voidcmd("TYPE I")
        with ftp.transfercmd("STOR too-large") as data, pytest.raises(OSError):
            while True:
                data.sendall(bytes(1 << 16))
        with pytest.raises(ftplib.error_perm, match="552 File too large"):
            ftp.voidresp()
        assert ftp.sendcmd("NOOP").startswith("200")


CHANGES = (
    "STOR x",
    "STOR file",
    "APPE file",
    "STOU",
    "DELE file",
    "MKD d",
    "RMD /",
    "RNFR file",
    "MFMT 20010203040506 file",
    "SITE CHMOD 777 file",
)


def test_without_write_nothing_can_be_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with run_server(tmp_path) as server, server.log_in() as ftp:
        assert read_file(ftp, "file") == b"content"
        for command in CHANGES:
            with pytest.raises(ftplib.error_perm, match="550"):
                ftp.voidcmd(command)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"content"


def test_only_users_of_the_password_file_are_admitted(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    users = tmp_path / "users"
    users.write_text("# the users\nann:first\nbob:with:colon ü\n")
    users.chmod(0o600)
    with run_server(tmp_path / "root", "--users", str(users)) as server:
        for name, password in (("ann", "first"), ("bob", "with:colon ü")):
            server.user, server.password = name, password
            server.log_in().quit()
        for name, password in (("ann", "with:colon ü"), ("anonymous", "")):
            server.user, server.password = name, password
            with pytest.raises(ftplib.error_perm, match="530"):
                server.log_in()


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("ann:first\n", 0o644, "chmod 600"),
        ("ann\n", 0o600, "line 1: expected NAME:PASSWORD"),
        ("ann:1\nann:2\n", 0o600, "line 2: a second password of ann"),
        ("# nobody\n", 0o600, "no user"),
    ],
)
def test_an_invalid_password_file_is_refused(
    tmp_path: Path, text: str, mode: int, why: str
) -> None:
    from siwarp.ulp.ftp.users import read_users

    users = tmp_path / "users"
    users.write_text(text)
    users.chmod(mode)
    with pytest.raises(ValueError, match=why):
        read_users(users)


def test_tls_protects_both_connections(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    data = random_octets(1_000_000)
    options = ("--write", "--certificate", str(certificate), "--private-key", str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    with run_server(root, *options, "--require-tls") as server:
        with pytest.raises(ftplib.error_perm, match="550 SSL/TLS required"):
            server.log_in()
        with ftplib.FTP_TLS(timeout=LIMIT, context=context) as ftp:
            ftp.connect(server.host, server.port)
            ftp.login(server.user, server.password)
            assert isinstance(ftp.sock, ssl.SSLSocket)
            ftp.prot_p()
            ftp.storbinary("STOR file", io.BytesIO(data))
            assert (root / "file").read_bytes() == data
            with ftp.transfercmd("RETR file") as connection:
                assert isinstance(connection, ssl.SSLSocket)
                received = bytearray()
                while octets := connection.recv(1 << 16):
                    received += octets
            ftp.voidresp()
            assert received == data
            ftp.prot_c()
            assert read_file(ftp, "file") == data


def test_a_command_that_arrives_with_auth_is_not_taken_as_protected_by_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    options = ("--certificate", str(certificate), "--private-key", str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    with run_server(tmp_path, *options) as server, server.connect() as plain:
        assert plain.recv(1000).startswith(b"220 ")
        plain.sendall(b"AUTH TLS\r\nUSER injected\r\n")
        assert plain.recv(1000) == b"234 AUTH TLS successful.\r\n"
        with context.wrap_socket(plain, server_hostname=server.host) as protected:
            protected.sendall(b"STAT\r\n")
            said = b""
            while b"211 End of status." not in said:
                said += protected.recv(1000)
    assert b"Waiting for username." in said


def test_a_worker_that_dies_is_replaced(server: ServerProcess) -> None:
    before = server.worker_pids()
    os.kill(before[0], 9)
    wait_until(
        lambda: len(server.worker_pids()) == 2 and before[0] not in server.worker_pids(),
        server.worker_pids,
    )
    server.log_in().quit()


def test_the_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    wait_until(lambda: len(server.worker_pids()) == 2, server.worker_pids)
    workers = server.worker_pids()
    ftp = server.log_in()
    server.kill()
    wait_until(lambda: not any(map(is_running, workers)), lambda: workers)
    with pytest.raises((EOFError, OSError)):
        ftp.sendcmd("NOOP")
    ftp.close()
