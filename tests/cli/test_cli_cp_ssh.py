"""`siwarp cp HOST:PATH`: the far end is started by a program that acts as ssh does on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import run_siwarp
from harness.verbs_harness import wait_until

from siwarp.cli.far_end import HostPath, parse_host_path

#: As ssh: the arguments behind the host are joined and run by a shell, with SSH_CONNECTION set, and
#: the status is that of the shell. It notes the id of its process and the host.
FAKE_SSH = """#!/bin/sh
while [ "$1" = -p ]; do shift 2; done
echo "$$ $1" >>"$FAKE_SSH_LOG"
[ "$1" != unreachable ] || { echo "ssh: no route to host" >&2; exit 255; }
shift
cd "$FAKE_SSH_HOME"
echo "Welcome to this machine."
[ -z "$FAKE_SSH_CONNECTION" ] || export SSH_CONNECTION="$FAKE_SSH_CONNECTION"
exec /bin/sh -c "$*"
"""

KEY = "00" * 32


class Ssh:
    """A directory with `ssh` and `siwarp`, and the home directory at the far end."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.log = root / "log"
        self.programs = root / "bin"
        for folder in (self.home, self.programs):
            folder.mkdir()
        self.add("ssh", FAKE_SSH)
        self.add("siwarp", f'#!/bin/sh\nexec "{sys.executable}" -m siwarp.cli "$@"\n')

    def add(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, connection: str = "127.0.0.1 1 127.0.0.1 22") -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "FAKE_SSH_LOG": str(self.log),
            "FAKE_SSH_HOME": str(self.home),
            "FAKE_SSH_CONNECTION": connection,
        }

    def cp(
        self, *arguments: object, env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        return run_siwarp("cp", *arguments, env=self.environment() | (env or {}), **more)

    def check_that_far_ends_have_ended(self) -> None:
        for line in self.log.read_text().splitlines():
            process = Path("/proc", line.split()[0])
            wait_until(lambda process=process: not process.exists(), 30)


@pytest.fixture
def ssh(tmp_path: Path) -> Ssh:
    return Ssh(tmp_path)


def test_files_are_copied_to_and_from_a_host_and_the_far_end_ends(ssh: Ssh, tmp_path: Path) -> None:
    (ssh.home / "a b").mkdir()
    for name in ("one", "two'"):
        (ssh.home / "a b" / name).write_text(name)
    (ssh.home / "link").symlink_to("a b")
    back, linked = tmp_path / "back", tmp_path / "linked"
    back.mkdir()
    got = ssh.cp("-r", "me@far:a b", "me@far:a b/two'", back)
    assert got.returncode == 0, got.stderr
    assert (back / "a b" / "one").read_text() == "one"
    assert (back / "two'").read_text() == "two'"
    got = ssh.cp("-r", "far:link/", linked, "-e", "ssh -p 7", "--channel", "tcp")
    assert got.returncode == 0, got.stderr
    assert (linked / "one").read_text() == "one"
    put = ssh.cp("-r", back / "a b", f"far:{ssh.home}", "--channel", "rc")
    assert put.returncode == 0, put.stderr
    put = ssh.cp(back / "two'", "far:new")
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
    got = ssh.cp("-r", "far:d", tmp_path / "back")
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
    done = ssh.cp(*arguments)
    assert done.returncode == 10
    for word in words:
        assert word in done.stderr


def test_a_port_that_cannot_be_reached_and_a_shell_that_is_not_ssh_say_so(ssh: Ssh) -> None:
    # The far end listens on an address of its own, which this end is not told.
    env = ssh.environment()
    ssh.add("siwarp", '#!/bin/sh\necho \'siwarp-cp-far-end {"host": "127.0.0.1", "port": 1, '
            f'"key": "{KEY}", "paths": ["x"]}}\'\nread line\n')  # fmt: skip
    done = ssh.cp("127.0.0.1:x", ".", env=env)
    assert done.returncode == 10
    assert "TCP port 1 of 127.0.0.1 cannot be reached" in done.stderr
    assert "firewall" in done.stderr
    ssh.check_that_far_ends_have_ended()
    done = Ssh.cp(ssh, "far:x", ".", "--siwarp-path", f"'{sys.executable}' -m siwarp.cli",
                  env=ssh.environment(""))  # fmt: skip
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
    ssh.add("siwarp", f"#!/bin/sh\necho 'siwarp-cp-far-end {answer}'\nread line\n")
    done = ssh.cp("far:x", ".")
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
    done = ssh.cp(*paths)
    assert done.returncode == 2
    assert not ssh.log.exists()
