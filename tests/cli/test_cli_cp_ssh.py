"""`siwarp cp HOST:PATH`: the far end is started by a program that acts as ssh does on loopback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli.ssh_harness import Ssh

from siwarp.cli import far_end
from siwarp.cli.far_end import FarEndError, HostPath, parse_host_path, start_far_end_over_ssh

KEY = "00" * 32


@pytest.fixture(name="ssh")
def create_fake_ssh(tmp_path: Path) -> Ssh:
    return Ssh(tmp_path)


def test_files_are_copied_to_and_from_a_host_and_the_far_end_ends(ssh: Ssh, tmp_path: Path) -> None:
    (ssh.home / "a b").mkdir()
    for name in ("one", "two'"):
        (ssh.home / "a b" / name).write_text(name)
    (ssh.home / "link").symlink_to("a b")
    back, linked = tmp_path / "back", tmp_path / "linked"
    back.mkdir()
    got = ssh.run_siwarp_cp("-r", "me@far:a b", "me@far:a b/two'", back)
    assert got.returncode == 0, got.stderr
    assert (back / "a b" / "one").read_text() == "one"
    assert (back / "two'").read_text() == "two'"
    got = ssh.run_siwarp_cp("-r", "far:link/", linked, "-e", "ssh -p 7", "--channel", "tcp")
    assert got.returncode == 0, got.stderr
    assert (linked / "one").read_text() == "one"
    put = ssh.run_siwarp_cp("-r", back / "a b", f"far:{ssh.home}", "--channel", "rc")
    assert put.returncode == 0, put.stderr
    put = ssh.run_siwarp_cp(back / "two'", "far:new")
    assert put.returncode == 0, put.stderr
    assert (ssh.home / "new").read_text() == "two'"
    assert [line.split()[1] for line in ssh.log.read_text().splitlines()] == [
        "me@far", "far", "far", "far",
    ]  # fmt: skip
    ssh.check_that_far_ends_have_ended()


def test_a_far_end_that_reads_is_not_writable_and_serves_only_the_directory(
    ssh: Ssh, tmp_path: Path
) -> None:
    (ssh.home / "d").mkdir()
    (ssh.home / "d" / "file").write_text("x")
    (ssh.home / "d" / "out").symlink_to("../secret")
    (ssh.home / "secret").write_text("secret")
    got = ssh.run_siwarp_cp("-r", "far:d", tmp_path / "back")
    assert got.returncode == 23 and "symbolic link" in got.stderr
    assert [p.name for p in (tmp_path / "back").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["unreachable:x", "."], ["ssh got no connection to unreachable"]),
        (["far:x", ".", "-e", "no-such-shell -v"], ["cannot start 'no-such-shell -v'", "--rsh"]),
        (["far:x", ".", "--siwarp-path", "/no/siwarp"], ["far has no command", "--siwarp-path"]),
        (["far:x", ".", "--siwarp-path", "false"], ["ended with status 1", "the same release"]),
        (["far:no/x", "."], ["far: ", "no: No such file or directory"]),
    ],
)
def test_a_far_end_that_does_not_start_says_why(
    ssh: Ssh, arguments: list[str], words: list[str]
) -> None:
    done = ssh.run_siwarp_cp(*arguments)
    assert done.returncode == 10
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("silence", ["read line", "exec >&-; read line"])
def test_a_far_end_that_prints_nothing_is_given_up_with_a_remedy(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch, silence: str
) -> None:
    for name, value in ssh.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(far_end, "START_S", 0.3)
    ssh.add_program("siwarp", f"#!/bin/sh\n{silence}\n")
    with pytest.raises(
        FarEndError, match=r"not ready 0\.3 seconds after the start of ssh"
    ) as error:
        start_far_end_over_ssh(
            "far", ["x"], write=False, rsh="ssh", program="siwarp", channels=["tcp"]
        )
    assert "`ssh far siwarp --version` ends" in str(error.value)
    ssh.check_that_far_ends_have_ended()


def test_a_port_that_cannot_be_reached_and_a_shell_that_is_not_ssh_say_so(ssh: Ssh) -> None:
    # A fake far end reports a port that nobody listens on, at an address of this host.
    env = ssh.environment()
    answer = {"host": "127.0.0.1", "port": 1, "key": KEY, "paths": ["x"]}
    ssh.add_program(
        "siwarp", f"#!/bin/sh\necho 'siwarp-cp-far-end {json.dumps(answer)}'\nread line\n"
    )
    done = ssh.run_siwarp_cp("127.0.0.1:x", ".", env=env)
    assert done.returncode == 10
    assert "TCP port 1 of 127.0.0.1 cannot be reached" in done.stderr
    assert "firewall" in done.stderr
    ssh.check_that_far_ends_have_ended()
    path = f"'{sys.executable}' -m siwarp.cli"
    done = Ssh.run_siwarp_cp(ssh, "far:x", ".", "--siwarp-path", path, env=ssh.environment(""))
    assert done.returncode == 10
    assert "SSH_CONNECTION" in done.stderr and "siwarp serve" in done.stderr


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "{",
        '{"host": "127.0.0.1", "port": 1, "key": "", "paths": ["x"]}',
        f'{{"host": "127.0.0.1", "port": 1, "key": "{KEY}", "paths": []}}',
        f'{{"host": "127.0.0.1", "port": 65536, "key": "{KEY}", "paths": ["x"]}}',
        f'{{"host": "127.0.0.1", "port": null, "key": "{KEY}", "paths": ["x"]}}',
    ],
)
def test_an_answer_of_another_form_is_refused(ssh: Ssh, answer: str) -> None:
    ssh.add_program("siwarp", f"#!/bin/sh\necho 'siwarp-cp-far-end {answer}'\nread line\n")
    done = ssh.run_siwarp_cp("far:x", ".")
    assert done.returncode == 10
    assert "sent an answer of another form" in done.stderr
    assert "Traceback" not in done.stderr
    ssh.check_that_far_ends_have_ended()


def test_paths_of_hosts_are_told_from_local_ones_as_rsync_does() -> None:
    assert parse_host_path("host:") == HostPath("host", "")
    assert parse_host_path("me@host:a:b") == HostPath("me@host", "a:b")
    assert parse_host_path("me@[fe80::1%eth0]:/x") == HostPath("me@fe80::1%eth0", "/x")
    for local in ("a", "./a:b", "/a:b", "siw://host/x", "siw://[::1]:1/x"):
        assert parse_host_path(local) is None
    for wrong in ("host::module", "-oProxyCommand=x:y"):
        with pytest.raises(ValueError, match=r"give|begin"):
            parse_host_path(wrong)


@pytest.mark.parametrize(
    "paths", [["a:x", "b:y", "."], ["a:x", "b:y"], ["a:x", "./y", "."], ["./x", "a:y", "."]]
)
def test_one_side_is_local_and_the_other_one_host(ssh: Ssh, paths: list[str]) -> None:
    done = ssh.run_siwarp_cp(*paths)
    assert done.returncode == 2
    assert not ssh.log.exists()
