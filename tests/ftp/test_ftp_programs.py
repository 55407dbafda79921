"""curl, lftp and wget use the FTP server, and `siwarp ftp` uses vsftpd."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import net
import pace
import pytest
from ftp.ftp_harness import (
    ServerProcess,
    make_certificate,
    random_octets,
    run_server,
    wait_until,
)

pytestmark = pytest.mark.programs

NAMES = ("plain", "with space", "ünïcödé", "文件")


def run_program(*command: object, status: int = 0, **options: Any) -> str:
    """Run a program; return what it prints on standard output."""
    done = pace.run_command(
        [str(word) for word in command], seconds=60, capture_output=True, text=True, **options
    )
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return str(done.stdout)


def run_siwarp_ftp(*words: object, status: int = 0, **options: Any) -> str:
    return run_program(sys.executable, "-m", "siwarp.cli", "ftp", *words, status=status, **options)


@pytest.fixture(name="root")
def create_server_root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture(name="server")
def start_server(root: Path) -> Iterator[ServerProcess]:
    with run_server(root, "--write") as server:
        yield server


@pytest.fixture
def tls_server(root: Path, tmp_path: Path) -> Iterator[tuple[ServerProcess, Path]]:
    """Return a server with TLS, and its certificate."""
    certificate, key = make_certificate(tmp_path)
    options = ("--certificate", str(certificate), "--private-key", str(key), "--require-tls")
    with run_server(root, "--write", *options) as server:
        yield server, certificate


def write_files_in_tree(folder: Path) -> dict[str, bytes]:
    """Create files of several sizes in nested directories; return their octets by path."""
    files = {
        f"{directory}{name}": random_octets(size)
        for directory in ("", "a/", "a/b ü/")
        for name, size in zip(NAMES, (0, 1, 70_000, 1_000_000), strict=True)
    }
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return files


def read_files_of_tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# ---- curl


def test_curl_gets_puts_lists_and_deletes(
    server: ServerProcess, root: Path, tmp_path: Path
) -> None:
    files = write_files_in_tree(tmp_path / "from")
    for name in NAMES:
        # curl decodes %20 in the URL, but does not encode a blank.
        url = f"{server.url}/d/{name.replace(' ', '%20')}"
        run_program("curl", "-sS", "--ftp-create-dirs", "-T", tmp_path / "from" / name, url)
        run_program("curl", "-sS", "-o", tmp_path / "got", url)
        assert (tmp_path / "got").read_bytes() == (root / "d" / name).read_bytes() == files[name]
    listing = run_program("curl", "-sS", "--list-only", f"{server.url}/d/").split("\n")
    assert sorted(filter(None, listing)) == sorted(NAMES)
    run_program("curl", "-sS", f"{server.url}/", "-Q", "DELE d/plain")
    assert not (root / "d" / "plain").exists()


def test_curl_resumes_in_both_directions(server: ServerProcess, root: Path, tmp_path: Path) -> None:
    data = random_octets(2_000_000)
    (root / "file").write_bytes(data)
    got = tmp_path / "got"
    got.write_bytes(data[:700_000])
    run_program("curl", "-sS", "-C", "-", "-o", got, f"{server.url}/file")
    assert got.read_bytes() == data
    (root / "file").write_bytes(data[:900_000])
    run_program("curl", "-sS", "-C", "-", "-T", got, f"{server.url}/file")
    assert (root / "file").read_bytes() == data


def test_curl_uses_tls_for_both_connections(
    tls_server: tuple[ServerProcess, Path], root: Path, tmp_path: Path
) -> None:
    server, certificate = tls_server
    data = random_octets(500_000)
    (tmp_path / "file").write_bytes(data)
    options = ("-sS", "--ssl-reqd", "--cacert", certificate)
    run_program("curl", *options, "-T", tmp_path / "file", f"{server.url}/file")
    run_program("curl", *options, "-o", tmp_path / "got", f"{server.url}/file")
    assert (root / "file").read_bytes() == (tmp_path / "got").read_bytes() == data
    assert run_program("curl", "-s", f"{server.url}/file", status=67) == ""  # CURLE_LOGIN_DENIED


def test_curl_uses_an_active_connection(server: ServerProcess, root: Path) -> None:
    (root / "file").write_bytes(b"content")
    assert run_program("curl", "-sS", "--ftp-port", "-", f"{server.url}/file") == "content"


# ---- lftp


def run_lftp(server: ServerProcess, commands: str, *, status: int = 0, **options: Any) -> str:
    settings = "set net:max-retries 1; set net:timeout 20; set cmd:fail-exit true; "
    return run_program(
        "lftp", "-c", f"{settings}open {server.url}; {commands}", status=status, **options
    )


def test_lftp_mirrors_in_both_directions(server: ServerProcess, root: Path, tmp_path: Path) -> None:
    files = write_files_in_tree(tmp_path / "from")
    run_lftp(server, "mirror -R -P 4 from to", cwd=tmp_path)
    assert read_files_of_tree(root / "to") == files
    run_lftp(server, "mirror -P 4 to back", cwd=tmp_path)
    assert read_files_of_tree(tmp_path / "back") == files
    (tmp_path / "from" / "plain").unlink()
    run_lftp(server, "mirror -R --delete from to", cwd=tmp_path)
    del files["plain"]
    assert read_files_of_tree(root / "to") == files


def test_lftp_continues_in_both_directions(
    server: ServerProcess, root: Path, tmp_path: Path
) -> None:
    data = random_octets(2_000_000)
    (root / "file").write_bytes(data)
    (tmp_path / "file").write_bytes(data[:700_000])
    run_lftp(server, "get -c file", cwd=tmp_path)
    assert (tmp_path / "file").read_bytes() == data
    (root / "file").write_bytes(data[:900_000])
    run_lftp(server, "put -c file", cwd=tmp_path)
    assert (root / "file").read_bytes() == data


def test_lftp_uses_tls(tls_server: tuple[ServerProcess, Path], root: Path, tmp_path: Path) -> None:
    server, certificate = tls_server
    files = write_files_in_tree(root / "d")
    settings = (
        f"set ssl:ca-file {certificate}; set ftp:ssl-force true; set ftp:ssl-protect-data true"
    )
    settings += "; set net:max-retries 1; set cmd:fail-exit true"
    run_program("lftp", "-c", f"{settings}; open {server.url}; mirror -P 4 d", cwd=tmp_path)
    assert read_files_of_tree(tmp_path / "d") == files


# ---- wget


def test_wget_gets_resumes_and_mirrors(server: ServerProcess, root: Path, tmp_path: Path) -> None:
    files = write_files_in_tree(root / "d")
    data = files["文件"]
    run_program("wget", "-q", "-t", "1", "-O", tmp_path / "got", f"{server.url}/d/文件")
    assert (tmp_path / "got").read_bytes() == data
    (tmp_path / "文件").write_bytes(data[:400_000])
    run_program("wget", "-q", "-t", "1", "-c", f"{server.url}/d/文件", cwd=tmp_path)
    assert (tmp_path / "文件").read_bytes() == data
    options = ("-q", "-t", "1", "-r", "-nH", "--restrict-file-names=nocontrol")
    run_program("wget", *options, f"{server.url}/d/", cwd=tmp_path)
    assert read_files_of_tree(tmp_path / "d") == files


# ---- siwarp ftp and vsftpd


@contextlib.contextmanager
def run_vsftpd(folder: Path, root: Path, *settings: str) -> Iterator[str]:
    """Run vsftpd as this user; yield the URL of its root. Anybody may read and write."""
    port = net.find_unused_port()
    (folder / "empty").mkdir()
    (folder / "vsftpd.conf").write_text(
        "\n".join(
            (
                "listen=YES",
                "listen_address=127.0.0.1",
                f"listen_port={port}",
                "background=NO",
                "run_as_launching_user=YES",
                "seccomp_sandbox=NO",
                "anonymous_enable=YES",
                "no_anon_password=YES",
                "write_enable=YES",
                "anon_upload_enable=YES",
                "anon_mkdir_write_enable=YES",
                "anon_other_write_enable=YES",
                "anon_umask=022",
                "anon_world_readable_only=NO",
                f"anon_root={root}",
                f"secure_chroot_dir={folder / 'empty'}",
                *settings,
            )
        )
        + "\n"
    )
    program = shutil.which("vsftpd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "install the package vsftpd: make abi does"
    process = subprocess.Popen([program, str(folder / "vsftpd.conf")])

    def is_vsftpd_listening() -> bool:
        assert process.poll() is None, "vsftpd has ended; its message is above"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10):
            return True
        return False

    try:
        wait_until(is_vsftpd_listening, lambda: process.returncode)
        yield f"ftp://anonymous:x@127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(name="url", params=["siwarp", "vsftpd"])
def provide_server_url(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a server whose root is the fixture ``root``."""
    if request.param == "vsftpd":
        with run_vsftpd(tmp_path, root) as url:
            yield url
    else:
        with run_server(root, "--write") as server:
            yield server.url


def test_siwarp_ftp_gets_and_puts_files(url: str, root: Path, tmp_path: Path) -> None:
    for name in NAMES:
        data = random_octets(300_000)
        (tmp_path / name).write_bytes(data)
        run_siwarp_ftp("put", tmp_path / name, f"{url}/")
        assert (root / name).read_bytes() == data
        os.utime(root / name, (1_000_000_000, 1_000_000_000))
        told = json.loads(run_siwarp_ftp("get", "--json", f"{url}/{name}", tmp_path / "got"))
        assert told["octets"] == 300_000
        assert (tmp_path / "got").read_bytes() == data
        assert (tmp_path / "got").stat().st_mtime == 1_000_000_000
    run_siwarp_ftp("get", f"{url}/nothing", status=23, cwd=tmp_path)


def test_siwarp_ftp_mirrors_and_deletes(url: str, root: Path, tmp_path: Path) -> None:
    files = write_files_in_tree(tmp_path / "from")
    told = json.loads(run_siwarp_ftp("mirror", "--json", tmp_path / "from", f"{url}/to"))
    assert (told["copied"], told["failed"]) == (len(files), [])
    assert read_files_of_tree(root / "to") == files
    run_siwarp_ftp("mirror", f"{url}/to", tmp_path / "back")
    assert read_files_of_tree(tmp_path / "back") == files
    told = json.loads(run_siwarp_ftp("mirror", "--json", f"{url}/to", tmp_path / "back"))
    assert (told["copied"], told["skipped"]) == (0, len(files))
    (tmp_path / "back" / "more").mkdir()
    (tmp_path / "back" / "more" / "file").write_bytes(b"")
    told = json.loads(
        run_siwarp_ftp("mirror", "--json", "--delete", f"{url}/to", tmp_path / "back")
    )
    assert told["deleted"] == 2
    assert read_files_of_tree(tmp_path / "back") == files
    for path in (tmp_path / "back" / "a").rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))  # files with equal sizes and times are equal
    run_siwarp_ftp("mirror", "--delete", tmp_path / "back" / "a", f"{url}/to")
    assert read_files_of_tree(root / "to") == read_files_of_tree(tmp_path / "back" / "a")


def test_siwarp_ftp_continues_an_upload(url: str, root: Path, tmp_path: Path) -> None:
    data = random_octets(2_000_000)
    (tmp_path / "file").write_bytes(data)
    (root / "file").write_bytes(data[:900_000])
    run_siwarp_ftp("put", "--resume", tmp_path / "file", f"{url}/file")
    assert (root / "file").read_bytes() == data


def test_siwarp_ftp_checks_the_certificate_of_vsftpd(root: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    (root / "file").write_bytes(b"content")
    settings = (
        "ssl_enable=YES",
        "allow_anon_ssl=YES",
        "force_anon_logins_ssl=YES",
        "force_anon_data_ssl=YES",
        "require_ssl_reuse=NO",
        "ssl_ciphers=HIGH",
        f"rsa_cert_file={certificate}",
        f"rsa_private_key_file={key}",
    )
    with run_vsftpd(tmp_path, root, *settings) as url:
        run_siwarp_ftp("get", "--tls", "--ca", certificate, f"{url}/file", tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == b"content"
        run_siwarp_ftp("get", "--tls", f"{url}/file", tmp_path / "other", status=10)
        run_siwarp_ftp("get", f"{url}/file", tmp_path / "other", status=5)
        assert not (tmp_path / "other").exists()
