"""Transfers of `siwarp ftp` with resume, and servers that send wrong replies."""

from __future__ import annotations

import ftplib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pace
import pytest
from ftp.ftp_harness import (
    LIMIT,
    ServerProcess,
    fewer_octets_for_ud,
    random_octets,
    run_server,
    wait_until,
)
from harness.siwarp_process import SiwarpProcess
from table import run_test_for_each_row

from siwarp.ulp.adts.tree import Tree
from siwarp.ulp.ftp import tprt, transfer
from siwarp.ulp.ftp.client import FTP
from siwarp.ulp.ftp.url import Location, parse_url

TRANSPORTS = ("tcp", "rc", "rd", "ud")


class CutError(Exception):
    """Raised in the middle of a file, to simulate that the process is killed."""


class CutAfterOctets:
    """A progress callback that raises CutError after a number of octets.

    It first waits until the file that the server writes, if one is given, has a third of them.
    """

    def __init__(self, octets: int, written: Path | None = None) -> None:
        self.left = octets
        self.some = octets // 3
        self.written = written

    def __call__(self, step: int) -> None:
        self.left -= step
        if self.left < 0:
            if self.written is not None:
                wait_until(self.server_has_third_of_file, lambda: self.written)
            raise CutError

    def server_has_third_of_file(self) -> bool:
        return self.written is None or (
            self.written.exists() and self.written.stat().st_size > self.some
        )


@pytest.fixture(name="root")
def create_server_root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture(name="server")
def start_server(root: Path) -> Iterator[ServerProcess]:
    with run_server(root, "--write", "--workers", "1") as server:
        yield server


def connect_client(server: ServerProcess, transport: str) -> FTP:
    ftp = FTP(timeout=LIMIT)
    ftp.transports = (transport,)  # type: ignore[assignment]
    ftp.connect(server.host, server.port)
    ftp.login(server.user, server.password)
    return ftp


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_download_that_was_cut_continues_where_it_was(
    server: ServerProcess, root: Path, tmp_path: Path, transport: str
) -> None:
    data = random_octets(fewer_octets_for_ud(transport, 5_000_000))
    cut = len(data) * 2 // 5
    (root / "file").write_bytes(data)
    with Tree(tmp_path, writable=True) as tree:
        with pytest.raises(CutError), closing(connect_client(server, transport)) as ftp:
            transfer.download_file(ftp, "file", tree, "got", progress=CutAfterOctets(cut))
        assert not (tmp_path / "got").exists()
        steps: list[int] = []
        with connect_client(server, transport) as ftp:
            assert transfer.download_file(ftp, "file", tree, "got", progress=steps.append) == len(
                data
            )
            assert ftp.transport == transport
    # The first progress report counts the octets of the download that was cut.
    assert steps[0] > cut // 2
    assert sum(steps) == len(data)
    assert (tmp_path / "got").read_bytes() == data


def test_another_version_of_a_file_is_not_continued(
    server: ServerProcess, root: Path, tmp_path: Path
) -> None:
    (root / "file").write_bytes(random_octets(3_000_000))
    with Tree(tmp_path, writable=True) as tree:
        with pytest.raises(CutError), closing(connect_client(server, "tcp")) as ftp:
            transfer.download_file(ftp, "file", tree, "got", progress=CutAfterOctets(2_000_000))
        data = random_octets(3_000_001)
        (root / "file").write_bytes(data)
        with connect_client(server, "tcp") as ftp:
            transfer.download_file(ftp, "file", tree, "got")
    assert (tmp_path / "got").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["got"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_upload_that_was_cut_continues(
    server: ServerProcess, root: Path, tmp_path: Path, transport: str
) -> None:
    data = random_octets(fewer_octets_for_ud(transport, 5_000_000))
    cut = len(data) * 3 // 5
    (tmp_path / "file").write_bytes(data)
    with Tree(tmp_path) as tree:
        source = tree.open_for_send("file")
        written = root / ("file" if transport == "tcp" else ".file.part")
        with pytest.raises(CutError), closing(connect_client(server, transport)) as ftp:
            transfer.upload_file(ftp, source, "file", progress=CutAfterOctets(cut, written))
        # An interrupted upload has its final name only on TCP.
        assert (root / "file").exists() == (transport == "tcp")
        steps: list[int] = []
        with connect_client(server, transport) as ftp:
            transfer.upload_file(ftp, source, "file", resume=True, progress=steps.append)
        source.close()
    assert steps[0] > cut // 3
    assert sum(steps) == len(data)
    assert (root / "file").read_bytes() == data


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_upload_that_the_file_system_refuses_says_why(
    root: Path, tmp_path: Path, transport: str
) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(40 << 20)
    limit = fewer_octets_for_ud(transport, 4 << 20)
    with run_server(root, "--write", "--workers", "1", file_size=limit) as server:
        with Tree(tmp_path) as tree, closing(connect_client(server, transport)) as ftp:
            source = tree.open_for_send("file")
            with pytest.raises(ftplib.error_perm, match="552 File too large"):
                transfer.upload_file(ftp, source, "file")
            source.close()
        with connect_client(server, transport) as ftp:
            assert "file" in ftp.nlst() or ".file.part" in ftp.nlst()


def test_an_upload_over_tcp_does_not_continue_what_belongs_to_a_channel(
    server: ServerProcess, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random_octets(100_000)
    (tmp_path / "file").write_bytes(data)
    (root / ".file.part").write_bytes(data[:50_000])
    (root / "file").write_bytes(b"another version" * 10_000)
    monkeypatch.setattr(
        FTP, "_open_channel", lambda _self, _kind: None
    )  # as if a firewall dropped the packets of RD and RC
    with Tree(tmp_path) as tree, connect_client(server, "tcp") as ftp:
        ftp.transports = ("rd", "rc", "tcp")
        source = tree.open_for_send("file")
        transfer.upload_file(ftp, source, "file", resume=True)
        source.close()
        assert ftp.transport == "tcp"
    assert (root / "file").read_bytes() == data


def test_a_file_that_changes_while_it_is_sent_is_an_error(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(1_000_000))
    with Tree(tmp_path) as tree, connect_client(server, "tcp") as ftp:
        source = tree.open_for_send("file")
        with (tmp_path / "file").open("ab") as file:
            file.write(b"more")
        with pytest.raises(OSError, match="the file changed while it was sent"):
            transfer.upload_file(ftp, source, "file")
        source.close()


class LyingServer:
    """A fake of the FTP connection to a server that lists the given entries in each directory."""

    def __init__(self, *entries: tuple[str, dict[str, str]]) -> None:
        self.entries = entries
        self.directories = 0

    def sendcmd(self, command: str) -> str:
        assert command == "FEAT"
        return "211-Features\n MLST type*;\n211 End"

    def mlsd(self, _path: str) -> Iterator[tuple[str, dict[str, str]]]:
        self.directories += 1
        return iter(self.entries)

    def voidcmd(self, _command: str) -> str:
        return "200 ok"

    def retrbinary(self, command: str, *_more: Any, **_options: Any) -> str:
        raise AssertionError(f"{command} would leave the directory")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", ".", "", "nul\0"])
def test_names_of_a_lying_server_do_not_leave_the_directory(tmp_path: Path, name: str) -> None:
    file = {"type": "file", "size": "1", "modify": "20010203040506"}
    (tmp_path / "into").mkdir()
    with Tree(tmp_path / "into", writable=True) as tree:
        server: Any = LyingServer((name, file))
        job = transfer.Mirror(server, tree)
        job.download("/")
        assert len(job.failures) == 1
    assert list((tmp_path / "into").iterdir()) == []


def test_a_mirror_of_endless_directories_ends(tmp_path: Path) -> None:
    with Tree(tmp_path, writable=True) as tree:
        server: Any = LyingServer(("d", {"type": "dir"}))
        job = transfer.Mirror(server, tree)
        job.download("/")
        assert "directories in each other" in job.failures[0][1]
    assert server.directories <= transfer.MAX_DEPTH + 1


def test_a_size_that_is_no_number_is_an_error_of_the_protocol(tmp_path: Path) -> None:
    with Tree(tmp_path, writable=True) as tree:
        server: Any = LyingServer(("f", {"type": "file", "size": "1e9"}))
        with pytest.raises(ftplib.error_proto, match="a size that is no number"):
            transfer.Mirror(server, tree).download("/")


@run_test_for_each_row(
    "wrong",
    [
        "200 TPRT RD token=00 unit=65536 window=8 qkey=1",
        f"200 TPRT RC token={bytes(16).hex()} unit=65536 window=8 qkey=1",
        f"200 TPRT RD token={bytes(16).hex()} unit=999999999 window=8 qkey=1",
        f"200 TPRT RD token={bytes(16).hex()} unit=1 window=8 qkey=1",
        f"200 TPRT RD token={bytes(16).hex()} unit=65536 window=0 qkey=1",
        f"200 TPRT RD token={bytes(16).hex()} unit=65536 window=8 qkey=4294967296",
        "200 TPRT",
    ],
)
def test_a_reply_to_tprt_that_asks_for_too_much_is_an_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="a reply to TPRT RD"):
        tprt.parse_reply(wrong, "RD", 4000)


def test_an_url_names_server_user_and_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_url("ftp://a%40b:c%3Ad@[::1]:2121/x%20y/%E6%96%87") == Location(
        "::1", 2121, "a@b", "c:d", "x y/文"
    )
    assert parse_url("ftp://host") == Location("host", 21, "anonymous", "", "")
    assert parse_url("ftp://host/%2Fabsolute").path == "/absolute"
    (tmp_path / ".netrc").write_text("machine host login ann password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert parse_url("ftp://host/f") == Location("host", 21, "ann", "secret", "f")
    assert parse_url("ftp://bob@host/f").password == ""
    for wrong in ("http://host/", "ftp:///path", "ftp://host/a%0d%0aDELE b"):
        with pytest.raises(ValueError):
            parse_url(wrong)


def run_siwarp_ftp(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "siwarp.cli", "ftp", *map(str, words)]
    done: Any = pace.run_command(
        command, seconds=60, capture_output=True, text=True, start=SiwarpProcess
    )
    return done  # type: ignore[no-any-return]


def test_exit_statuses_and_messages_say_what_failed(server: ServerProcess, tmp_path: Path) -> None:
    done = run_siwarp_ftp("get", f"{server.url}/nothing", tmp_path / "got")
    assert (done.returncode, done.stderr.count("550")) == (23, 1)
    wrong = f"ftp://siwarp:wrong@{server.host}:{server.port}/file"
    done = run_siwarp_ftp("get", wrong, tmp_path / "got")
    assert done.returncode == 5
    assert "the server refuses user siwarp" in done.stderr
    done = run_siwarp_ftp("get", "ftp://127.0.0.1:1/file", tmp_path / "got")
    assert done.returncode == 10
    assert "Connection refused" in done.stderr
    done = run_siwarp_ftp("put", tmp_path / "nothing", f"{server.url}/")
    assert done.returncode == 11
    assert "nothing" in done.stderr
    assert run_siwarp_ftp("mirror", tmp_path, tmp_path).returncode == 2
