from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import net
import pace
import pytest
from cli.cli_harness import environment_without_sanitizer, run_siwarp_command
from harness.siwarp_process import SiwarpProcess

from siwarp import verbs


@pytest.fixture(scope="module")
def build_example(root: Path, tmp_path_factory: pytest.TempPathFactory):
    """Provide a function that compiles an example in C once, with warnings as errors."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "this test needs a C compiler: apt install gcc"
    folder = tmp_path_factory.mktemp("examples")
    flags = run_siwarp_command("config", "--cflags", "--libs").stdout.strip()

    def build_c_example(name: str) -> list[str]:
        program = folder / name
        if not program.exists():
            source = root / "examples/c" / f"{name}.c"
            subprocess.run(
                f"{compiler} -O2 -Wall -Wextra -Werror '{source}' {flags} -o '{program}'",
                shell=True,
                check=True,
                timeout=60,
                env=environment_without_sanitizer(),
            )
        return [str(program)]

    return build_c_example


def run_server_and_client(
    command: Sequence[str], *arguments: str, host: str = "127.0.0.1"
) -> tuple[str, str]:
    """Run the program as server and as client; return the output of each, without the port."""
    options = {"text": True, "cwd": "/", "env": {**os.environ, "PYTHONUNBUFFERED": "1"}}
    with SiwarpProcess(command, stdout=subprocess.PIPE, **options) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip().rpartition(":")[2]
            client = pace.run_command(
                [*command, host, port, *arguments],
                capture_output=True,
                seconds=60,
                start=SiwarpProcess,
                **options,
            )
            assert client.returncode == 0, client.stderr
            printed, _ = server.communicate(timeout=30)
        finally:
            if server.poll() is None:
                server.kill()
    assert server.returncode == 0
    return printed, client.stdout


def test_the_example_in_the_readme_runs_unchanged(root: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "server: have a look\nin its memory: written by others\n"


def test_the_example_in_the_docstring_of_siwarp_verbs_runs() -> None:
    assert verbs.__doc__ is not None
    code = textwrap.dedent(verbs.__doc__.partition("::\n\n")[2].partition("\n\nEvery")[0])
    # A single poll may return no completion before the device's thread has sent the posted request.
    code += (
        "\n        import time\n        end = time.monotonic() + 20\n        wcs = []"
        "\n        while not wcs and time.monotonic() < end:\n            wcs = cq.poll(4)"
        "\n        print([wc.check() for wc in wcs])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "SUCCESS SEND 5 octets" in done.stdout


def test_ud_pingpong_in_c_completes_the_requested_round_trips(build_example) -> None:
    _, client = run_server_and_client(build_example("ud_pingpong"), "50")
    assert client.startswith("50 round trips, ")


def run_two_peers(command: Sequence[str]) -> None:
    """Run the program twice and pass to each process the first line that the other printed."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": "/"}
    ends = [SiwarpProcess(command, **options) for _ in range(2)]
    try:
        lines = [end.stdout.readline() for end in ends]
        out = []
        for end, line in zip(ends, reversed(lines), strict=True):
            end.stdin.write(line)
            end.stdin.flush()
        for end in ends:
            out.append(end.communicate(timeout=60)[0])
            assert end.returncode == 0
        said = [line.split()[1] for line in lines]
        assert out == [f"the peer says: hello from QPN {qpn}\n" for qpn in reversed(said)]
    finally:
        for end in ends:
            end.kill()
            end.wait()


def test_rc_by_qpn_in_c_connects_two_processes(build_example) -> None:
    run_two_peers([*build_example("rc_by_qpn"), "127.0.0.1"])


def test_rc_by_qpn_in_python_connects_two_processes(root: Path) -> None:
    run_two_peers([sys.executable, str(root / "examples/python/rc_by_qpn.py"), "127.0.0.1"])


def test_rc_write_in_c_writes_into_the_other_process(build_example) -> None:
    server, _ = run_server_and_client(build_example("rc_write"), "written by the other process")
    assert server == "written by the other process\n"


def test_rc_write_in_c_refuses_a_text_that_is_too_long(build_example) -> None:
    done = subprocess.run(
        [*build_example("rc_write"), "127.0.0.1", "1", "x" * 5000], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "4095" in done.stderr


def python_example_command(root: Path, name: str) -> list[str]:
    return [sys.executable, str(root / "examples/python" / name)]


def test_the_ud_hello_client_receives_an_answer(root: Path) -> None:
    server, client = run_server_and_client(python_example_command(root, "ud_hello.py"))
    assert server.startswith("'hello' from ('127.0.0.1', ")
    assert client.startswith("'hello yourself' from ('127.0.0.1', ")


def check_error_reports(printed: str, event: str, flushed: str, told: str, error: str) -> None:
    """Check that both ends report an event, in either order, and the resulting completions."""
    lines = printed.splitlines()
    target = [f"event: {event}", f"refused a peer's message: {error}", f"receive 1: {flushed}"]
    sender = [f"event: {told}", f"the peer refused request 17: {error}"]
    assert lines[:-1] in (target + sender, sender + target)
    assert lines[-1] == "received: after the error"


def test_ud_errors_in_c_reports_an_error_at_both_ends_and_continues(build_example) -> None:
    done = subprocess.run(build_example("ud_errors"), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    check_error_reports(
        done.stdout, "invalid request local work queue error", "work request flushed",
        "error queued", "layer 0, type 2, code 0x6",
    )  # fmt: skip


def test_ud_errors_in_python_reports_an_error_at_both_ends_and_continues(root: Path) -> None:
    done = pace.run_command(
        python_example_command(root, "ud_errors.py"),
        capture_output=True,
        text=True,
        seconds=60,
        start=SiwarpProcess,
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (0, "")
    check_error_reports(
        done.stdout, "QP_REQ_ERR", "WR_FLUSH_ERR", "QP_ERR_QUEUED",
        "RDMAP, Remote Operation Error: unexpected opcode",
    )  # fmt: skip


def test_rd_many_counts_a_hundred_peers_on_one_queue_pair(root: Path) -> None:
    server, client = run_server_and_client(python_example_command(root, "rd_many.py"))
    assert client == "100 queue pairs added one each\n"
    assert server == "counted 100 queue pairs\n"


def test_rc_write_read_reads_the_memory_before_and_after_its_write(root: Path) -> None:
    server, client = run_server_and_client(python_example_command(root, "rc_write_read.py"))
    assert client == "read: what was here before\nread: what is here now\n"
    assert server == "client says done\nmemory has what is here now\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ud_grh_prints_the_header_of_each_message(root: Path, host: str) -> None:
    server, client = run_server_and_client(python_example_command(root, "ud_grh.py"), host=host)
    for printed, text in ((server, "hello"), (client, "hello yourself")):
        grh, said = printed.splitlines()
        assert len(bytes.fromhex(grh)) == 40
        assert said == f"{text!r} from {host} to {host}"


def test_numpy_memory_changes_the_array_in_the_other_process(root: Path) -> None:
    server, client = run_server_and_client(python_example_command(root, "numpy_memory.py"))
    assert client == "normalized 4 rows\n"
    sums = server.partition(": ")[2]
    assert [round(x, 9) for x in eval(sums)] == [1.0] * 4


def test_message_arrays_adds_up_the_readings_of_all_messages(root: Path) -> None:
    server, client = run_server_and_client(python_example_command(root, "message_arrays.py"))
    assert client == "sent 16,000 messages\n"
    assert server == f"sum of 128,000 readings: {8 * sum(range(16_000)):,}\n"


def test_aio_echo_answers_a_hundred_connections_in_one_event_loop(root: Path) -> None:
    server, client = run_server_and_client(python_example_command(root, "aio_echo.py"))
    assert client == "100 answers, the last one 99 morf olleh\n"
    assert server == "answered 100 on 101 connections\n"


WRONG = {
    "aio_echo.py": ["127.0.0.1"],
    "message_arrays.py": ["127.0.0.1"],
    "numpy_memory.py": ["127.0.0.1"],
    "pyverbs_cm.py": [],
    "rc_by_qpn.py": [],
    "rc_write_read.py": ["127.0.0.1"],
    "rd_many.py": ["127.0.0.1"],
    "ud_grh.py": ["127.0.0.1"],
    "ud_hello.py": ["127.0.0.1"],
}


@pytest.mark.parametrize("name", WRONG)
def test_an_example_with_wrong_arguments_prints_its_usage(root: Path, name: str) -> None:
    done = pace.run_command(
        [*python_example_command(root, name), *WRONG[name]],
        capture_output=True,
        text=True,
        seconds=60,
        start=SiwarpProcess,
        cwd="/",
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"python {name} " in done.stderr


@pytest.mark.parametrize("line", ["", "127.0.0.1", "127.0.0.1 port"])
def test_rc_by_qpn_reports_an_invalid_line_of_the_peer(root: Path, line: str) -> None:
    done = pace.run_command(
        [*python_example_command(root, "rc_by_qpn.py"), "127.0.0.1"],
        input=line,
        capture_output=True,
        text=True,
        seconds=60,
        start=SiwarpProcess,
        cwd="/",
    )
    assert done.returncode == 1
    assert done.stderr == "enter the line that the other process printed: its address and QPN\n"


def test_an_example_in_c_with_wrong_arguments_prints_its_usage(build_example) -> None:
    done = subprocess.run(
        [*build_example("ud_pingpong"), "127.0.0.1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_an_example_prints_the_reason_of_a_refused_call(build_example) -> None:
    done = subprocess.run(
        build_example("ud_pingpong"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SIWARP_FAULTS": "nonsense"},
    )
    assert done.returncode == 1
    assert re.search(
        r"siw_open_device_by_addr: Invalid argument: SIWARP_FAULTS is not a valid fault plan: \w+",
        done.stderr,
    )


def test_the_pyverbs_write_example_runs_on_siwarp(root: Path) -> None:
    program = str(root / "examples/python/pyverbs_write.py")
    done = subprocess.run(
        [sys.executable, "-m", "siwarp.pyverbs", program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "written by the other end\n"), done.stderr


def test_the_pyverbs_cm_client_receives_an_answer(root: Path) -> None:
    port = str(net.find_unused_port())
    command = python_example_command(root, "pyverbs_cm.py")
    with SiwarpProcess(
        [*command, "server", "127.0.0.1", port], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "listens\n"
            client = pace.run_command(
                [*command, "client", "127.0.0.1", port],
                capture_output=True,
                text=True,
                seconds=60,
                start=SiwarpProcess,
            )
            assert (client.returncode, client.stdout) == (0, "hello yourself\n"), client.stderr
            printed, _ = server.communicate(timeout=30)
        finally:
            if server.poll() is None:
                server.kill()
    assert (server.returncode, printed) == (0, "got 'hello'\n")
