"""The clients of the fork server behave like the `python` and `siwarp` that they stand for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_harness import is_running
from harness.siwarp_process import folder_of_fork_server_clients
from harness.verbs_harness import wait_until

INHERITED = """
import json, os, resource, signal, sys
os.write(7, b"seven")
limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["A"], limit, os.umask(0), ignored]))
sys.exit(5)
"""


def run_in_shell(script: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder_of_fork_server_clients()}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script, "bash", *words],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_forked_program_inherits_what_a_program_of_a_shell_inherits(tmp_path: Path) -> None:
    script = 'ulimit -n 100; umask 027; trap "" INT; A=b python -c "$1" x "y z" 7>seven'
    done = run_in_shell(script, tmp_path, INHERITED)
    assert (done.returncode, done.stderr) == (5, "")
    assert json.loads(done.stdout) == [["x", "y z"], str(tmp_path), "b", 100, 0o27, True]
    assert (tmp_path / "seven").read_text() == "seven"


def test_a_pipe_of_a_forked_program_ends_when_the_program_closes_it() -> None:
    program = [
        str(folder_of_fork_server_clients() / "python"),
        "-c",
        "import os; os.close(1); os.read(0, 1)",
    ]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.poll() is None
    assert process.returncode == 0


def test_a_command_with_an_option_of_the_interpreter_is_not_forked(tmp_path: Path) -> None:
    done = run_in_shell("python -B -c 'import sys; print(sys.executable)'", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n")


SIGNALLED = """
import os, signal, sys
def end(number, frame):
    sys.exit(number)
signal.signal(signal.SIGTERM, end)
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_signals_end_the_forked_program_with_the_program_that_stands_for_it() -> None:
    for number, status in ((signal.SIGTERM, int(signal.SIGTERM)), (signal.SIGKILL, -9)):
        command = [str(folder_of_fork_server_clients() / "python"), "-c", SIGNALLED]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            process.send_signal(number)
            assert process.wait(60) == status
        wait_until(lambda pid=pid: not is_running(pid))


def test_the_server_goes_on_if_a_program_and_its_client_end_at_the_same_time(
    tmp_path: Path,
) -> None:
    if folder_of_fork_server_clients() == Path(sys.executable).parent:
        pytest.skip("in runs with sanitizers or counts of branches, no program is forked")
    code = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(60)"
    command = [str(folder_of_fork_server_clients() / "python"), "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        program, server = map(int, client.stdout.readline().split())
        assert server != os.getpid()
        os.kill(server, signal.SIGSTOP)
        try:
            os.kill(program, signal.SIGKILL)
            client.kill()
            client.wait()
        finally:
            os.kill(server, signal.SIGCONT)
    assert run_in_shell("python -c 'print(1)'", tmp_path).stdout == "1\n"


def test_a_program_that_a_signal_has_killed_has_the_same_status_in_the_shell(
    tmp_path: Path,
) -> None:
    done = run_in_shell("python -c 'import os; os.kill(os.getpid(), 15)'; echo $?", tmp_path)
    assert done.stdout == "143\n"
