"""`siwarp cp` through ssh of which one end is killed in mid-file: the other end ends, too."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.ssh_harness import Ssh
from harness.siwarp_process import COMMAND, SiwarpProcess
from harness.verbs_harness import wait_until

#: The command `siwarp`, which reads and writes only the first 2 MiB of each file until nobody has
#: the FIFO of FAKE_SSH_GATE open for writing. The far end writes its process id and its exit status
#: to a log.
GATED_SIWARP = """
import os, sys
from siwarp.cli.main import main
from siwarp.ulp.adts.tree import SystemCalls

GATE = os.open(os.environ["FAKE_SSH_GATE"], os.O_RDONLY)
LOG = os.environ["FAKE_SSH_LOG"] + "-siwarp"

def note(text):
    if sys.argv[1] == "cp":
        return
    with open(LOG, "a") as log:
        log.write(text + "\\n")

def behind_gate(call):
    def make_call(self, fd, octets, offset):
        if offset >= 2 << 20:
            os.read(GATE, 1)
        return call(self, fd, octets, offset)
    return make_call

SystemCalls.pread = behind_gate(SystemCalls.pread)
SystemCalls.pwrite = behind_gate(SystemCalls.pwrite)
note(str(os.getpid()))
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code or 0
note(str(status))
sys.exit(status)
"""


@pytest.fixture(name="ssh")
def create_fake_ssh_with_gated_siwarp(tmp_path: Path) -> Ssh:
    ssh = Ssh(tmp_path)
    program = tmp_path / "gated.py"
    program.write_text(GATED_SIWARP)
    # A path in a line with #! must not contain a blank.
    ssh.add_program("siwarp-gated", f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
    return ssh


@contextlib.contextmanager
def stop_commands_after_2_mib(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Stop gated commands after 2 MiB; yield the environment variables that make them stop."""
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)
    try:
        yield {"FAKE_SSH_GATE": str(fifo)}
    finally:
        os.close(writer)


def find_incomplete_file(target: Path) -> Path | None:
    """Return the file that is being received under a temporary name."""
    return next(target.parent.glob(f".{target.name}.adts-*"), None)


def has_received_1_mib(target: Path) -> bool:
    """Return whether the receiver has more than a MiB of a file."""
    file = find_incomplete_file(target)
    return file is not None and file.stat().st_size > 1 << 20


@pytest.mark.parametrize("killed", ["client", "far end"])
@pytest.mark.parametrize("way", ["put", "get"])
def test_after_kill_9_of_one_end_the_other_ends_and_the_same_command_continues(
    ssh: Ssh, tmp_path: Path, way: str, killed: str
) -> None:
    here, there = tmp_path / "large", ssh.home / "large"
    source, target = (here, there) if way == "put" else (there, here)
    words = [str(here), "far:large"] if way == "put" else ["far:large", str(here)]
    source.write_bytes(random.Random(5).randbytes(6 << 20))
    log = Path(f"{ssh.log}-siwarp")
    command = [sys.executable, str(tmp_path / "gated.py")] if way == "put" else COMMAND

    with stop_commands_after_2_mib(tmp_path) as more:
        client = SiwarpProcess(
            # The sender is stopped: otherwise all octets may be on their way when it is killed.
            [*command, "cp", *words, "--siwarp-path", "siwarp-gated"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **ssh.environment(), **more},
        )
        wait_until(lambda: has_received_1_mib(target) or client.poll() is not None, 60)
        far_end = int(log.read_text())
        os.kill(client.pid if killed == "client" else far_end, signal.SIGKILL)
    _, said = client.communicate(timeout=60)  # the far end writes to the same standard error
    if killed == "client":
        assert client.returncode == -signal.SIGKILL
        wait_until(lambda: log.read_text().splitlines() == [str(far_end), "0"], 30)
    else:
        assert client.returncode == 10, said
        assert "run the same command to continue" in said
        assert log.read_text().splitlines() == [str(far_end)]
    ssh.check_that_far_ends_have_ended()
    assert not target.exists()
    incomplete = find_incomplete_file(target)
    assert incomplete is not None
    kept = incomplete.stat()
    assert kept.st_size > 1 << 20

    again = ssh.run_siwarp_cp(*words)
    assert again.returncode == 0, again.stderr
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_ino == kept.st_ino  # the incomplete file was continued
    assert find_incomplete_file(target) is None
