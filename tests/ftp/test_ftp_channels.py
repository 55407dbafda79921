"""FTP over RD, RC and UD: the command TPRT, and complete, interrupted and refused transfers."""

from __future__ import annotations

import ftplib
import io
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ftp.ftp_harness import (
    LIMIT,
    ServerProcess,
    fewer_octets_for_ud,
    make_certificate,
    random_octets,
    read_file,
    run_server,
    wait_until,
)

from siwarp.ulp.adts.channel import Invitation
from siwarp.ulp.ftp import client, tprt
from siwarp.ulp.ftp.client import FTP, FTPS

KINDS = ("rd", "rc", "ud")
NAMES = ("plain", "with space", "ünïcödé", "文件")


@pytest.fixture(name="root", scope="module")
def create_server_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(name="server", scope="module")
def start_server(root: Path) -> Iterator[ServerProcess]:
    with run_server(root, "--write", "--workers", "1") as server:
        yield server


def connect_client(server: ServerProcess, kind: str, ftp: Any = None) -> FTP:
    ftp = ftp or FTP(timeout=LIMIT)
    ftp.transports = (kind,)
    ftp.connect(server.host, server.port)
    ftp.login(server.user, server.password)
    return ftp


@pytest.fixture(name="ftp", params=KINDS)
def log_in_to_server(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[FTP]:
    with connect_client(server, request.param) as ftp:
        yield ftp


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 5_000_000])
def test_a_file_is_stored_and_retrieved(ftp: FTP, root: Path, size: int) -> None:
    large = size >= 1 << 20
    data = random_octets(fewer_octets_for_ud(ftp.transports[0], size) if large else size)
    for name in NAMES[:1] if large else NAMES:
        ftp.storbinary(f"STOR {name}", io.BytesIO(data), 1 << 16)
        assert (root / name).read_bytes() == data
        assert read_file(ftp, name) == data
        ftp.delete(name)
    assert ftp.transport == ftp.transports[0]


def test_directories_are_listed(ftp: FTP, root: Path) -> None:
    (root / "d").mkdir(exist_ok=True)
    for name in NAMES:
        (root / "d" / name).write_bytes(b"content")
    assert sorted(ftp.nlst("d")) == sorted(NAMES)
    facts = dict(ftp.mlsd("d"))
    assert {name: facts[name]["size"] for name in NAMES} == dict.fromkeys(NAMES, "7")
    lines: list[str] = []
    ftp.retrlines("LIST d", lines.append)
    assert len(lines) == len(NAMES)
    ftp.voidcmd("TYPE I")
    assert ftp.size("d/plain") == 7
    assert ftp.sendcmd("MDTM d/plain").startswith("213 ")


def test_a_download_begins_at_the_offset_of_rest(ftp: FTP, root: Path) -> None:
    (root / "file").write_bytes(b"0123456789")
    assert read_file(ftp, "file", rest=7) == b"789"
    assert read_file(ftp, "file", rest=10) == b""


def test_a_transfer_is_aborted_and_the_session_goes_on(ftp: FTP, root: Path) -> None:
    with (root / "large").open("wb") as file:
        file.truncate(256 << 20)  # more octets than the credits of the channel permit
    ftp.voidcmd("TYPE I")
    data = ftp.transfercmd("RETR large")
    data.recv(1)
    assert "Data connection open" in ftp.sendcmd("STAT")
    assert ftp.abort().startswith("426")
    assert ftp.getresp().startswith("226")
    with pytest.raises(ConnectionError):
        while data.recv(1 << 20):
            pass
    data.close()
    (root / "file").write_bytes(b"content")
    assert read_file(ftp, "file") == b"content"


def test_an_upload_that_is_cut_is_never_seen_under_its_name(
    ftp: FTP, server: ServerProcess, root: Path
) -> None:
    data = random_octets(fewer_octets_for_ud(ftp.transports[0], 6_000_000))
    cut = len(data) // 2
    (root / "name").write_bytes(b"the version before")
    ftp.voidcmd("TYPE I")
    connection: Any = ftp.transfercmd("STOR name")
    connection.sendall(data[:cut])
    assert (root / "name").read_bytes() == b"the version before"
    connection.abort()
    with pytest.raises(ftplib.error_temp, match="426"):
        ftp.voidresp()
    assert (root / "name").read_bytes() == b"the version before"
    ftp.close()
    with connect_client(server, ftp.transports[0]) as again:
        again.voidcmd("TYPE I")
        kept = again.size(again.partial_path("name"))
        assert kept is not None and 0 < kept <= cut
        again.storbinary("STOR name", io.BytesIO(data[kept:]), rest=kept)
    assert (root / "name").read_bytes() == data
    assert not (root / ".name.part").exists()


def test_appe_continues_a_cut_upload_and_appends_to_a_complete_file(ftp: FTP, root: Path) -> None:
    (root / ".log.part").write_bytes(b"one ")
    ftp.storbinary("APPE log", io.BytesIO(b"two "))
    assert (root / "log").read_bytes() == b"one two "
    ftp.storbinary("APPE log", io.BytesIO(b"three"))
    assert (root / "log").read_bytes() == b"one two three"
    ftp.storbinary("STOR log", io.BytesIO(b"2"), rest=4)
    assert (root / "log").read_bytes() == b"one 2"
    with pytest.raises(ftplib.error_perm, match="554 REST position"):
        ftp.storbinary("STOR log", io.BytesIO(b"2"), rest=100)
    (root / "log").unlink()


def test_a_file_that_shrinks_while_it_is_sent_is_reported(ftp: FTP, root: Path) -> None:
    with (root / "shrinks").open("wb") as file:
        file.truncate(256 << 20)
    ftp.voidcmd("TYPE I")
    with ftp.transfercmd("RETR shrinks") as data:
        data.recv(1)
        os.truncate(root / "shrinks", 1000)
        with pytest.raises(ConnectionError):
            while data.recv(1 << 20):
                pass
    with pytest.raises(ftplib.error_temp, match=r"426 The file lost \d+ octets"):
        ftp.voidresp()


def test_feat_lists_tprt_and_unknown_transports_are_refused(ftp: FTP) -> None:
    assert " TPRT RD;RC;UD;TCP;" in ftp.sendcmd("FEAT").splitlines()
    with pytest.raises(ftplib.error_perm, match="504 Unsupported transport UC"):
        ftp.sendcmd("TPRT UC")


def test_a_token_is_valid_for_one_channel(ftp: FTP) -> None:
    kind = ftp.transports[0].upper()
    ftp.sendcmd(f"TPRT {kind}")
    ftp.sendcmd("EPSV")
    used = f"425 The token was used or has expired: send TPRT {kind} again"
    with pytest.raises(ftplib.error_temp, match=used):
        ftp.sendcmd("EPSV")
    with pytest.raises(ftplib.error_temp, match=used):
        ftp.sendport("127.0.0.1", 5000)
    assert ftp.sendcmd("TPRT TCP") == "200 TPRT TCP"
    ftp.sendcmd("EPSV")


def test_a_token_that_has_expired_is_refused(tmp_path: Path) -> None:
    with (
        run_server(tmp_path, "--workers", "1", token_lifetime=0) as server,
        connect_client(server, "rc") as ftp,
    ):
        ftp.sendcmd("TPRT RC")
        with pytest.raises(ftplib.error_temp, match="425 The token was used or has expired"):
            ftp.sendcmd("EPSV")


def test_in_active_mode_the_server_opens_the_channels(ftp: FTP, root: Path) -> None:
    ftp.set_pasv(False)
    data = random_octets(fewer_octets_for_ud(ftp.transports[0], 3_000_000))
    ftp.storbinary("STOR active", io.BytesIO(data))
    assert (root / "active").read_bytes() == data
    assert read_file(ftp, "active") == data
    assert read_file(ftp, "active", rest=len(data) - 10) == data[-10:]
    assert "active" in ftp.nlst()
    ftp.voidcmd("TYPE I")
    connection: Any = ftp.transfercmd("RETR active")
    connection.recv(1)
    connection.abort()
    with pytest.raises(ftplib.error_temp, match="426"):
        ftp.voidresp()
    ftp.set_pasv(True)
    assert read_file(ftp, "active") == data
    assert ftp.transport == ftp.transports[0]


def test_port_and_eprt_name_only_the_address_of_the_client(ftp: FTP, root: Path) -> None:
    (root / "file").write_bytes(b"content")
    ftp.sendcmd(f"TPRT {ftp.transports[0].upper()}")
    foreign = "501 Rejected data connection to foreign address 127.0.0.2"
    with pytest.raises(ftplib.error_perm, match=foreign):
        ftp.sendport("127.0.0.2", 5000)
    with pytest.raises(ftplib.error_perm, match=foreign):
        ftp.sendcmd("EPRT |1|127.0.0.2|5000|")
    with pytest.raises(ftplib.error_perm, match="501 PORT against the privileged port"):
        ftp.sendport("127.0.0.1", 22)
    # No client has used the token.
    ftp.sendcmd("EPSV")


def test_a_port_without_a_listener_is_reported_with_the_reason(server: ServerProcess) -> None:
    with connect_client(server, "rc") as ftp, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ftp.sendcmd("TPRT RC")
        with pytest.raises(ftplib.error_temp, match=r"425 Can't open data channel: .*127\.0\.0\.1"):
            ftp.sendport("127.0.0.1", unused.getsockname()[1])
        assert ftp.sendcmd("NOOP").startswith("200")


@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_with_another_token_is_not_admitted(
    server: ServerProcess, root: Path, kind: str
) -> None:
    from siwarp.ulp.adts.channel import Limits
    from siwarp.ulp.adts.endpoints import open_channel
    from siwarp.ulp.ftp.client import _EventLoopThread

    (root / "file").write_bytes(b"content")
    loop = _EventLoopThread()
    with connect_client(server, kind) as ftp:
        reply = ftp.sendcmd(f"TPRT {kind.upper()}")
        host, port = ftp.makepasv()
        invitation = tprt.parse_reply(reply, kind.upper(), port)
        forged = Invitation(bytes(16), port, invitation.unit, invitation.window, invitation.qkey)
        limits = Limits(unit=tprt.UNIT, window=tprt.WINDOW, timeout=0.2)
        with pytest.raises(OSError):
            loop.run_coroutine(open_channel(kind, host, forged, limits))  # type: ignore[arg-type]
        loop.close()
        assert read_file(ftp, "file") == b"content"


def test_the_next_transport_is_used_if_the_server_has_not_the_first(
    server: ServerProcess, root: Path
) -> None:
    (root / "file").write_bytes(b"content")
    with connect_client(server, "tcp") as ftp:
        assert read_file(ftp, "file") == b"content"
        assert ftp.transport == "tcp"
        ftp.transports = ("rc", "tcp")
        assert read_file(ftp, "file") == b"content"
        assert ftp.transport == "rc"
        ftp.transports = ("tcp",)
        assert read_file(ftp, "file") == b"content"
        assert ftp.transport == "tcp"


def test_tls_for_data_excludes_channels(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_bytes(b"content")
    context = ssl.create_default_context(cafile=str(certificate))
    options = ("--certificate", str(certificate), "--private-key", str(key))
    with run_server(tmp_path / "root", *options) as server:
        with connect_client(server, "rc", FTPS(timeout=LIMIT, context=context)) as ftp:
            # TLS protects the control connection, and with it the token.
            assert isinstance(ftp.sock, ssl.SSLSocket)
            assert read_file(ftp, "file") == b"content"
            assert ftp.transport == "rc"
            ftp.sendcmd("PBSZ 0")
            with pytest.raises(ftplib.error_perm, match="536 TLS does not protect data on RC"):
                ftp.sendcmd("PROT P")
            ftp.sendcmd("TPRT TCP")
            ftp.sendcmd("PROT P")
            with pytest.raises(ftplib.error_perm, match="536 TLS does not protect data on RC"):
                ftp.sendcmd("TPRT RC")
        with connect_client(server, "tcp", FTPS(timeout=LIMIT, context=context)) as ftp:
            ftp.transports = ("rd", "rc", "tcp")
            ftp.prot_p()  # type: ignore[attr-defined]
            assert read_file(ftp, "file") == b"content"
            assert ftp.transport == "tcp"


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_dies_in_mid_file_ends_the_transfer(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "OVERTAKEN_S", 0.1)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    with run_server(tmp_path, "--workers", "1") as server:
        ftp = connect_client(server, kind)
        ftp.voidcmd("TYPE I")
        with ftp.transfercmd("RETR large") as data:
            data.recv(1)
            os.kill(server.worker_pids()[0], 9)
            # On RD, the client learns only from the control connection that the server has died.
            with pytest.raises(ConnectionError):
                while data.recv(1 << 20):
                    pass
        ftp.close()


def test_descriptors_are_as_before_after_many_transfers(server: ServerProcess, root: Path) -> None:
    (root / "file").write_bytes(random_octets(100_000))

    def read_and_store_files(kind: str) -> None:
        with connect_client(server, kind) as ftp:
            for _ in range(3):
                read_file(ftp, "file")
                ftp.storbinary("STOR other", io.BytesIO(b"x"))

    for kind in KINDS:
        read_and_store_files(kind)
    before = server.count_descriptors()
    for kind in KINDS:
        read_and_store_files(kind)
    wait_until(
        lambda: server.count_descriptors() <= before, lambda: (before, server.count_descriptors())
    )
