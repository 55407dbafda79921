"""`siwarp cp` and `siwarp serve` as processes: each channel, kills, keys, exit statuses."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import run_siwarp_command
from harness.siwarp_process import COMMAND, SiwarpProcess
from harness.verbs_harness import wait_until

from siwarp.ulp import adts

CHANNELS = ("rd", "rc", "tcp")


@dataclass
class ServeProcess:
    """A running `siwarp serve` process."""

    process: subprocess.Popen[str]
    url: str
    port: int
    key: str

    def run_siwarp_cp(self, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
        return run_siwarp_command("cp", *arguments, env={"ADTS_KEY": self.key}, **more)


@contextlib.contextmanager
def run_siwarp_serve(root: Path, *options: str, key: str | None = None) -> Iterator[ServeProcess]:
    root.mkdir(exist_ok=True)
    env = {**os.environ, **({"ADTS_KEY": key} if key else {})}
    command = [*COMMAND, "serve", str(root), "--port", "0", "--json", "--until-eof", *options]
    with SiwarpProcess(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=env,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdin is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr is not None else ""
        said = json.loads(line)
        yield ServeProcess(process, said["url"], said["port"], said["key"])
        process.stdin.close()


def write_test_files(root: Path, large: int) -> None:
    draw = random.Random(3)
    (root / "d").mkdir(parents=True)
    (root / "empty").touch()
    (root / "ä \n name").write_bytes(b"x")
    (root / "d" / "large").write_bytes(draw.randbytes(large))
    for i in range(50):
        (root / "d" / f"{i}").write_bytes(draw.randbytes(i * 100))


def read_files_of_tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_directories_are_copied_in_both_directions_over_each_channel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_test_files(source, 3_000_000)
    with run_siwarp_serve(tmp_path / "root", "--write") as server:
        for channel in CHANNELS:
            there, back = f"{server.url}{channel}", tmp_path / channel
            put = server.run_siwarp_cp("-r", source, there, "--channel", channel)
            assert put.returncode == 0, put.stderr
            got = server.run_siwarp_cp("-r", there, back, "--channel", channel, "--json")
            assert got.returncode == 0, got.stderr
            assert json.loads(got.stdout)["channel"] == channel
            assert json.loads(got.stdout)["files"] == 53
            assert read_files_of_tree(back) == read_files_of_tree(source)
        again = server.run_siwarp_cp("-r", "-u", f"{source}/", f"{server.url}rd", "--json")
        assert json.loads(again.stdout)["skipped"] == 53


def count_received_octets(root: Path) -> int:
    """Return how many octets of the file ``large`` the receiver has stored."""
    paths = [*root.glob(".large.adts-*"), *root.glob("large")]
    return max((path.stat().st_size for path in paths), default=0)


def kill_after_octets(process: subprocess.Popen[str], root: Path, octets: int) -> None:
    """Kill a process with SIGKILL when the receiver has stored ``octets`` more octets than now."""
    goal = count_received_octets(root) + octets
    wait_until(lambda: process.poll() is not None or count_received_octets(root) >= goal, 60)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 48 MiB named ``large``."""
    path = tmp_path_factory.mktemp("source") / "large"
    path.write_bytes(random.Random(4).randbytes(48 << 20))
    return path


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("killed", ["server", "client"])
def test_after_kill_9_of_either_end_the_same_command_completes_the_file(
    large_file: Path, tmp_path: Path, channel: str, killed: str
) -> None:
    source, root = large_file, tmp_path / "root"
    draw = random.Random(f"{channel} {killed}")
    key = "7" * 64
    for _ in range(2):
        with run_siwarp_serve(root, "--write", key=key) as server:
            command = [*COMMAND, "cp", str(source), server.url, "--channel", channel]
            with SiwarpProcess(
                command, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "ADTS_KEY": key},
            ) as client:  # fmt: skip
                victim = server.process if killed == "server" else client
                kill_after_octets(victim, root, draw.randrange(1, 20 << 20))
                _, said = client.communicate(timeout=60)
            if killed == "server" and client.returncode:
                assert client.returncode in {10, 30}, said
                assert "run the same command to continue" in said
    with run_siwarp_serve(root, "--write", key=key) as server:
        done = server.run_siwarp_cp(source, server.url, "--channel", channel)
        assert done.returncode == 0, done.stderr
    assert read_files_of_tree(root) == {"large": source.read_bytes()}


def test_a_server_without_write_refuses_changes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with run_siwarp_serve(tmp_path / "root") as server:
        done = server.run_siwarp_cp(tmp_path / "file", server.url, "--channel", "tcp")
        assert done.returncode == 23
        assert "read-only" in done.stderr and "--write" in done.stderr
    assert read_files_of_tree(tmp_path / "root") == {}


def test_a_wrong_key_is_refused_with_status_5(tmp_path: Path) -> None:
    with run_siwarp_serve(tmp_path / "root") as server:
        done = run_siwarp_command("cp", server.url, tmp_path, env={"ADTS_KEY": "0" * 64})
        assert done.returncode == 5
        assert "the key is not the server's" in done.stderr


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0" * 64)
    key.chmod(0o644)
    for command in (
        ["serve", tmp_path, "--key", key],
        ["cp", "siw://127.0.0.1:1/x", tmp_path, "--key", key],
    ):
        done = run_siwarp_command(*command)
        assert done.returncode != 0
        assert "chmod 0600" in done.stderr


def test_serve_creates_a_missing_key_file_that_cp_accepts(tmp_path: Path) -> None:
    key = tmp_path / "key"
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("x")
    with run_siwarp_serve(tmp_path / "root", "--key", str(key)) as server:
        assert key.stat().st_mode & 0o777 == 0o600
        done = run_siwarp_command(
            "cp", f"{server.url}file", tmp_path, "--key", key, "--channel", "tcp"
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "x"


def test_statuses_tell_a_missing_server_file_and_option_apart(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        env = {"ADTS_KEY": "0" * 64}
        done = run_siwarp_command("cp", f"siw://127.0.0.1:{port}/x", tmp_path, env=env)
        assert done.returncode == 10 and f"{port}" in done.stderr
    assert run_siwarp_command("cp", "siw://127.0.0.1/x", tmp_path).returncode == 2  # no key
    assert run_siwarp_command("cp", tmp_path, tmp_path, env=env).returncode == 2  # no server
    with run_siwarp_serve(tmp_path / "root") as server:
        done = server.run_siwarp_cp(f"{server.url}nothing", tmp_path, "--channel", "tcp")
        assert done.returncode == 11 and "nothing" in done.stderr
        done = server.run_siwarp_cp(server.url, tmp_path / "x", "--channel", "tcp")
        assert done.returncode == 11 and "-r" in done.stderr
        assert server.run_siwarp_cp(tmp_path / "nothing", server.url).returncode == 11


def test_ctrl_c_ends_cp_with_status_20_and_keeps_what_has_arrived(tmp_path: Path) -> None:
    source, root = tmp_path / "large", tmp_path / "root"
    source.write_bytes(random.Random(4).randbytes(64 << 20))
    with run_siwarp_serve(root, "--write") as server:
        with SiwarpProcess(
            [*COMMAND, "cp", str(source), server.url, "--channel", "tcp"],
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "ADTS_KEY": server.key},
        ) as client:  # fmt: skip
            wait_until(lambda: bool(list(root.glob(".large.adts-*"))), 60)
            client.send_signal(signal.SIGINT)
            _, said = client.communicate(timeout=60)
        assert client.returncode == 20, said
        assert "run the same command to continue" in said
        assert server.run_siwarp_cp(source, server.url, "--channel", "tcp").returncode == 0
    assert read_files_of_tree(root) == {"large": source.read_bytes()}


def test_peers_that_send_nothing_garbage_or_half_a_handshake_keep_nobody_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("x")
    with run_siwarp_serve(tmp_path / "root") as server, contextlib.ExitStack() as stack:
        for i in range(400):
            stranger = stack.enter_context(socket.socket())
            stranger.connect(("127.0.0.1", server.port))
            with contextlib.suppress(OSError):
                stranger.sendall((b"", b"GET / HTTP/1.0\r\n\r\n", b"ADTS\1\0\0\0")[i % 3])
        descriptors = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        # at most 256 connections without a proof of the key, and descriptors of an idle server
        assert descriptors < 330
        done = server.run_siwarp_cp(f"{server.url}file", tmp_path, "--channel", "tcp")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "x"


def test_a_sparse_file_of_5_gib_is_copied_as_holes(tmp_path: Path) -> None:
    source, copy = tmp_path / "sparse", tmp_path / "root" / "sparse"
    with source.open("wb") as file:
        file.truncate(5 << 30)
        os.pwrite(file.fileno(), b"x" * 100_000, 3 << 30)
    with run_siwarp_serve(tmp_path / "root", "--write") as server:
        done = server.run_siwarp_cp(source, server.url, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["octets"] == 5 << 30
    assert copy.stat().st_size == 5 << 30 and copy.stat().st_blocks * 512 < 1 << 20
    with copy.open("rb") as file:
        assert os.pread(file.fileno(), 100_002, (3 << 30) - 1) == b"\0" + b"x" * 100_000 + b"\0"


def test_a_program_without_an_event_loop_copies_and_uses_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with run_siwarp_serve(tmp_path / "root", "--write") as server:
        key = adts.Key.from_text(server.key)
        result = adts.copy([tmp_path / "file"], f"{server.url}one", key=key, channels=["tcp"])
        assert (result.files, result.octets, result.channel) == (1, 10, "tcp")
        with adts.Client(("127.0.0.1", server.port), key=key) as client:
            assert client.channel == "rd"
            client.put(b"abc", "two")
            assert [e.path for e in client.entries(recursive=True)] == ["", "one", "two"]
            memory = bytearray(10)
            client.get("one", memory)
            assert memory == b"0123456789"
            client.delete("one")
            with pytest.raises(adts.ADTSError, match="one: No such file"):
                client.stat("one")
    assert read_files_of_tree(tmp_path / "root") == {"two": b"abc"}


@pytest.mark.root
def test_a_disk_that_is_full_fails_the_file_with_status_23(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "large").write_bytes(b"x" * (3 << 20))
    (tmp_path / "small").write_bytes(b"x")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", root], check=True)
    try:
        with run_siwarp_serve(root, "--write") as server:
            files = tmp_path / "large", tmp_path / "small"
            done = server.run_siwarp_cp(*files, server.url, "--channel", "tcp")
            assert done.returncode == 23
            assert "large: No space left on device" in done.stderr
        assert read_files_of_tree(root) == {"small": b"x"}
    finally:
        subprocess.run(["umount", root], check=True)
