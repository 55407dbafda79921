"""The two processes of a run: lost messages are an error, and no process or socket remains."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pace import limit_exceeded

from siwarp import bench
from siwarp.bench import runner

HELLO = struct.Struct("=HHIQQ")
NUMBER = struct.Struct("=Q")
#: Milliseconds of CPU time without progress after which a polling process fails; the default is
#: 3 s.
PATIENCE_MS = 500


@pytest.fixture
def control_socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, theirs:
        yield ours, theirs


@contextlib.contextmanager
def start_bench_process(
    side: str, run: str, theirs: socket.socket
) -> Iterator[subprocess.Popen[str]]:
    options = f"--kind rate --run {run} --side {side} --qp ud --size 64 --iters 4 --warmup 4"
    options += f" --depth 2 --limit 30 --patience {PATIENCE_MS} --ctl {theirs.fileno()}"
    process = subprocess.Popen(
        [str(runner.bench_program_path()), *options.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def exchange_ports(ours: socket.socket, udp: socket.socket) -> int:
    """Exchange UDP ports and the first number with a process; return the port of the process."""
    ours.sendall(HELLO.pack(udp.getsockname()[1], 0, 0, 0, 0))
    port: int = HELLO.unpack(ours.recv(HELLO.size, socket.MSG_WAITALL))[0]
    ours.sendall(NUMBER.pack(0))
    ours.recv(NUMBER.size, socket.MSG_WAITALL)
    return port


@pytest.mark.parametrize("run", ["single", "gso"])
def test_a_receiver_that_misses_a_datagram_exits_with_the_status_for_loss(
    control_socket_pair: tuple[socket.socket, socket.socket], run: str
) -> None:
    ours, theirs = control_socket_pair
    with start_bench_process("server", run, theirs) as process:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.bind(("127.0.0.1", 0))
            udp.settimeout(30)
            port = exchange_ports(ours, udp)
            for _ in range(3):  # three messages, all but one of the four warm-up messages
                udp.sendto(bytes(64), ("127.0.0.1", port))
                udp.recv(64)  # the receiver sends a credit after each half of the send window
            ours.sendall(NUMBER.pack(4))
            assert NUMBER.unpack(ours.recv(NUMBER.size, socket.MSG_WAITALL)) == (3,)
        _, said = process.communicate(timeout=30)
    assert process.returncode == runner.EXIT_LOST
    assert said == "lost 1 of 4 messages\n"


def test_a_sender_without_credits_exits_with_the_status_for_loss(
    control_socket_pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = control_socket_pair
    with start_bench_process("client", "ours", theirs) as process:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.bind(("127.0.0.1", 0))
            exchange_ports(ours, udp)
            ours.sendall(NUMBER.pack(2))
            assert NUMBER.unpack(ours.recv(NUMBER.size, socket.MSG_WAITALL)) == (2,)
        _, said = process.communicate(timeout=30)
    assert process.returncode == runner.EXIT_LOST
    assert said == "a credit was lost after 2 of 4 messages\n"


def test_a_process_exits_when_its_peer_process_has_ended(
    control_socket_pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = control_socket_pair
    with start_bench_process("server", "ours", theirs) as process:
        ours.close()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said == "the peer process has ended\n"


def create_fake_bench(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A sanitizer library is not preloaded into a shell, which is no siwarp program.
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    path = tmp_path / "fake-bench"
    path.write_text(f"#!/bin/sh\n{script}\n", "ascii")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_lost_messages_raise_lost_error_with_the_name_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'case "$*" in *server*) echo "lost 1 of 9 messages" >&2; exit 3;; esac\n'
    script += 'echo "the peer process has ended" >&2; exit 1'
    path = create_fake_bench(tmp_path, script, monkeypatch)
    monkeypatch.setattr(runner, "bench_program_path", lambda: path)

    with pytest.raises(runner.LostError, match="'floor' failed: lost 1 of 9 messages"):
        bench.run("lat", "ud", iters=10, rounds=1)


def test_the_error_has_the_reasons_of_client_and_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        'case "$*" in *server*) echo "an answer arrived before a completion" >&2; exit 1;; esac\n'
    )
    script += 'echo "a request failed: work request flushed" >&2; exit 1'
    path = create_fake_bench(tmp_path, script, monkeypatch)
    monkeypatch.setattr(runner, "bench_program_path", lambda: path)
    both = (
        "client: a request failed: work request flushed; "
        "server: an answer arrived before a completion"
    )
    with pytest.raises(runner.BenchError, match=f"'floor' failed: {both}$") as told:
        bench.run("lat", "ud", iters=10, rounds=1)
    assert not isinstance(told.value, runner.LostError)


def test_a_run_that_exceeds_its_limit_is_killed_and_its_processes_are_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create_fake_bench(tmp_path, f"echo $$ >> '{tmp_path}/pids'\nexec sleep 100", monkeypatch)
    monkeypatch.setattr(runner, "bench_program_path", lambda: path)
    monkeypatch.setattr(runner, "LIMIT_S", 1)
    monkeypatch.setattr(runner, "GRACE_S", 0)

    began = time.monotonic()
    with pytest.raises(bench.BenchError, match="did not finish within 1 s"):
        bench.run("lat", "ud", iters=10, rounds=1)
    assert time.monotonic() - began < 20
    pids = [int(line) for line in (tmp_path / "pids").read_text("ascii").split()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_measurement_ends_within_its_total_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create_fake_bench(tmp_path, "exec sleep 100", monkeypatch)
    monkeypatch.setattr(runner, "bench_program_path", lambda: path)

    began = time.monotonic()
    with pytest.raises(runner.SlowError):
        bench.run("lat", "ud", iters=10, rounds=3, within=1)
    # Without `within`, a run that hangs ends only after LIMIT_S (20 s).
    assert time.monotonic() - began < runner.LIMIT_S / 2


def test_the_bench_program_exists_and_names_siwarp_bench_in_its_error() -> None:
    done = subprocess.run([runner.bench_program_path()], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "siwarp bench" in done.stderr or "unknown kind" in done.stderr


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("run", "patient", "swaps"),
    [
        ("--kind lat --qp rc --op read", 0, 2),
        ("--kind bw --qp rd --op send", 1, 4),
        ("--kind bw --qp rc --op send", 1, 4),
    ],
    ids=["that is read from", "that sends by RD", "that sends by RC"],
)
def test_a_process_with_a_reliable_transport_waits_for_a_slow_peer(
    control_socket_pair: tuple[socket.socket, socket.socket], run: str, patient: int, swaps: int
) -> None:
    """The peer is silent for longer than the time limit of the process, as on a busy machine."""
    other = socket.socketpair()
    other[0].settimeout(60)
    ends, processes = (control_socket_pair[0], other[0]), []
    for side, theirs in (("server", control_socket_pair[1]), ("client", other[1])):
        options = f"{run} --run ours --side {side} --size 64 --iters 4"
        options += (
            f" --warmup 4 --depth 2 --limit 50 --patience {PATIENCE_MS} --ctl {theirs.fileno()}"
        )
        processes.append(
            subprocess.Popen(
                [str(runner.bench_program_path()), *options.split()],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=[theirs.fileno()],
            )
        )
        theirs.close()
    first, slow = ends[patient], ends[1 - patient]

    def relay_control_messages(size: int, between: Callable[[], None] = lambda: None) -> None:
        of_first, of_slow = (end.recv(size, socket.MSG_WAITALL) for end in (first, slow))
        first.sendall(of_slow)
        between()
        slow.sendall(of_first)

    def wait_until_first_end_has_spun_too_long() -> None:
        began = time.monotonic()
        end = processes[patient]
        start = cpu_seconds(end.pid)
        while cpu_seconds(end.pid) - start < PATIENCE_MS / 1000 + 0.3 and end.poll() is None:
            assert not limit_exceeded(began, 40)
            time.sleep(0.05)

    try:
        relay_control_messages(HELLO.size)
        relay_control_messages(NUMBER.size, wait_until_first_end_has_spun_too_long)
        for _ in range(swaps):
            relay_control_messages(NUMBER.size)
        said = [process.communicate(timeout=30)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        other[0].close()
    assert ([process.returncode for process in processes], said) == ([0, 0], ["", ""])
