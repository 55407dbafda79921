"""fsspec's file system over RD, RC and TCP."""

from __future__ import annotations

import ftplib
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import fsspec
import pytest
from ftp.ftp_harness import ServerProcess, random_octets, run_server

from siwarp.ulp.ftp.filesystem import FileSystem

NAMES = ("plain", "with space", "ünïcödé", "文件", "hash#mark")


@pytest.fixture(name="root", scope="module")
def create_server_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(name="server", scope="module")
def start_server(root: Path) -> Iterator[ServerProcess]:
    with run_server(root, "--write", "--workers", "1") as server:
        yield server


@pytest.fixture(name="fs", params=["rd", "rc", "tcp"])
def open_file_system(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[FileSystem]:
    fs = fsspec.filesystem(
        "siftp",
        host=server.host,
        port=server.port,
        username=server.user,
        password=server.password,
        transports=[request.param],
        block_size=100_000,
    )
    assert isinstance(fs, FileSystem)
    yield fs
    assert fs.ftp.transport in {request.param, None}
    fs.close()


def test_directories_are_listed_put_and_got(fs: FileSystem, root: Path, tmp_path: Path) -> None:
    (tmp_path / "from" / "below").mkdir(parents=True)
    files = {name: random_octets(150_000) for name in NAMES}
    for name, data in files.items():
        (tmp_path / "from" / "below" / name).write_bytes(data)
    fs.put(str(tmp_path / "from"), "/copy", recursive=True)
    assert {path.name: path.read_bytes() for path in (root / "copy" / "below").iterdir()} == files
    assert fs.ls("/copy/below", detail=False) == sorted(f"/copy/below/{name}" for name in NAMES)
    assert fs.info("/copy/below/文件")["size"] == 150_000
    assert fs.isdir("/copy/below") and not fs.exists("/copy/other")
    fs.get("/copy", str(tmp_path / "back"), recursive=True)
    for name, data in files.items():
        assert (tmp_path / "back" / "below" / name).read_bytes() == data
    fs.mv("/copy/below/plain", "/copy/moved")
    assert fs.exists("/copy/moved") and not fs.exists("/copy/below/plain")
    fs.rm("/copy", recursive=True)
    assert not (root / "copy").exists()


def test_ranges_of_a_file_are_read(fs: FileSystem, root: Path) -> None:
    data = random_octets(1_000_000)
    (root / "large").write_bytes(data)
    with fs.open("/large") as file:
        assert file.read(5) == data[:5]
        file.seek(700_000)
        assert file.read(1000) == data[700_000:701_000]
        file.seek(-10, 2)
        assert file.read() == data[-10:]
        file.seek(0)
        assert file.read() == data
    assert fs.cat_file("/large", 500_000, 500_010) == data[500_000:500_010]
    assert fs.cat_file("/large", 999_000) == data[999_000:]
    assert fs.ftp.transport == fs.ftp.transports[0]


def test_a_file_is_written_in_one_transfer(fs: FileSystem, root: Path) -> None:
    data = random_octets(350_000)
    (root / "file").unlink(missing_ok=True)
    with fs.open("/file", "wb") as file:
        file.write(data[:250_000])
        # The file system can use its connection for other commands.
        fs.invalidate_cache()
        if fs.ftp.transports[0] != "tcp":
            assert not fs.exists("/file")
        file.write(data[250_000:])
    assert (root / "file").read_bytes() == data
    with fs.open("/file", "ab") as file:
        file.write(b"more")
    assert (root / "file").read_bytes() == data + b"more"
    with pytest.raises(FileExistsError):
        fs.open("/file", "xb")
    fs.touch("/file", truncate=True)
    assert (root / "file").read_bytes() == b""


def test_a_file_that_the_server_refuses_is_an_error(fs: FileSystem) -> None:
    file = fs.open("/nowhere/file", "wb")
    file.write(b"content")
    with pytest.raises(ftplib.error_perm, match="550"):
        file.close()
    with pytest.raises(FileNotFoundError):
        fs.open("/nothing")


def test_an_url_names_server_user_and_path(server: ServerProcess, root: Path) -> None:
    (root / "文 件").write_bytes(b"content")
    login = f"{server.user}:{quote(server.password, safe='')}"
    url = f"siftp://{login}@{server.host}:{server.port}/文 件"
    with fsspec.open(url) as file:
        assert file.read() == b"content"
    assert FileSystem._get_kwargs_from_urls("siftp://a%40b:c%3Ad@[::1]:2121/x") == {
        "host": "::1",
        "port": 2121,
        "username": "a@b",
        "password": "c:d",
    }


def test_without_fsspec_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import siwarp.ulp.ftp

    monkeypatch.delitem(sys.modules, "siwarp.ulp.ftp.filesystem")
    monkeypatch.setitem(sys.modules, "fsspec.implementations.ftp", None)
    with pytest.raises(ImportError, match=r"pip install 'siwarp\[fsspec\]'"):
        siwarp.ulp.ftp.FileSystem  # noqa: B018  # the access imports fsspec
