"""siwarp capture and siwarp dissect, on a real exchange between two processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import (
    dissect_to_json,
    qkey_options,
    run_ping_server,
    run_siwarp_command,
    run_siwarp_in_process,
)
from harness.rc_traffic import generate_rc_capture, generate_terminate_capture
from harness.siwarp_process import COMMAND, folder_of_fork_server_clients
from harness.verbs_harness import wait_until
from scapy.utils import rdpcap

import siwarp as package
from siwarp.base import counters
from siwarp.inspect import FPDU, split_stream, tcp_streams
from siwarp.verbs import AH, CQ, MR, PD, QP, Context, QPInitAttr, QPType, RecvWR, SendWR, StateError


def capture_ping(file: Path, qp: str, *more: object) -> None:
    with run_ping_server("--qp", qp, "--addr", "127.0.0.1") as (port, _):
        done = run_siwarp_command(
            "capture", "-o", file, "--", folder_of_fork_server_clients() / "siwarp",
            "ping", "127.0.0.1", "-p", port, "--qp", qp, *qkey_options(qp), *more,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"siwarp capture: {file}, {file.stat().st_size:,} octets\n"


def endpoint_pairs(messages: list[dict[str, Any]]) -> set[frozenset[str]]:
    return {frozenset((m["source"], m["dest"])) for m in messages}


def test_a_ud_ping_is_captured_completely_and_dissected(tmp_path: Path) -> None:
    file = tmp_path / "ud.pcapng"
    capture_ping(file, "ud", "-n", 10, "-s", 100)
    messages = dissect_to_json(file)
    assert len(messages) == 20
    assert len(endpoint_pairs(messages)) == 1
    for asked, answer in zip(messages[::2], messages[1::2], strict=True):
        assert (asked["source"], asked["dest"]) == (answer["dest"], answer["source"])
    for number, message in enumerate(messages, 1):
        assert message["number"] == message["frame"] == number
        assert (message["transport"], message["kind"]) == ("ud", "SEND")
        assert message["length"] == 100
        assert message["error"] is message["dropped"] is None
    times = [m["time"] for m in messages]
    assert times == sorted(times)


def test_words_after_the_captured_program_are_arguments_of_the_program(tmp_path: Path) -> None:
    file = tmp_path / "x.pcapng"
    for between in ([], ["--"]):
        done = run_siwarp_command(
            *("capture", "-o", file, *between),
            *(folder_of_fork_server_clients() / "siwarp", "ping", "-n", 3, "--json"),
        )
        assert (done.returncode, json.loads(done.stdout)["received"]) == (0, 3)
        assert len(dissect_to_json(file)) == 6


@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_every_fpdu_of_an_rc_connection_is_captured_with_a_good_crc(
    tmp_path: Path, op: str
) -> None:
    file = tmp_path / "rc.pcapng"
    generate_rc_capture(file, op, count=20, size=100_000)
    streams = {d: split_stream(o) for d, o in tcp_streams(rdpcap(str(file))).items()}
    assert len(streams) == 2
    fpdus: list[FPDU] = []
    for frames in streams.values():
        assert frames.startup is not None
        assert frames.rest == b""
        fpdus += frames.fpdus
    assert all(fpdu.crc == fpdu.crc_expected() for fpdu in fpdus)
    messages = dissect_to_json(file)
    assert [m["kind"] for m in messages[:2]] == ["MPA_REQUEST", "MPA_REPLY"]
    assert messages[1]["answers"] == 1
    assert sum(m["segments"] for m in messages[2:]) == len(fpdus)
    assert all(m["whole"] and m["error"] is None for m in messages)
    # The initiator begins with an empty Write, which shows that it is ready to receive.
    assert (messages[2]["kind"], messages[2]["length"]) == ("RDMA_WRITE", 0)
    kinds = [m["kind"] for m in messages[3:]]
    expected = {
        "send": ("SEND", 40),
        "write": ("RDMA_WRITE", 20),
        "read": ("RDMA_READ_RESPONSE", 20),
    }
    kind, count = expected[op]
    assert kinds.count(kind) == count
    assert {m["length"] for m in messages[3:] if m["kind"] == kind} == {100_000}


def test_dissect_links_read_requests_and_their_responses(tmp_path: Path) -> None:
    file = tmp_path / "rc.pcapng"
    generate_rc_capture(file, "read", count=7, size=64)
    messages = {m["number"]: m for m in dissect_to_json(file)}
    requests = [m for m in messages.values() if m["kind"] == "RDMA_READ_REQUEST"]
    assert len(requests) == 7
    for asked in requests:
        answer = messages[asked["answered_by"]]
        assert answer["kind"] == "RDMA_READ_RESPONSE"
        assert answer["answers"] == asked["number"]
        assert answer["fields"]["stag"] == asked["fields"]["sink_stag"]
        assert answer["length"] == asked["fields"]["size"]
    table = run_siwarp_in_process("dissect", file).stdout
    assert "answers " in table
    assert "RDMA_READ_REQUEST" in table


@pytest.mark.parametrize("status", [0, 3, 77])
def test_siwarp_capture_returns_the_exit_status_of_its_command(tmp_path: Path, status: int) -> None:
    done = run_siwarp_command(
        "capture", "-o", tmp_path / "x", "--", sys.executable, "-c", f"exit({status})"
    )
    assert done.returncode == status


def test_siwarp_capture_ends_with_the_signal_that_ended_its_command(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    done = run_siwarp_command("capture", "-o", tmp_path / "x", "--", sys.executable, "-c", code)
    assert done.returncode == -signal.SIGTERM


OPENER = "from siwarp.verbs import Context; import os; Context().close()"


def test_after_the_run_siwarp_capture_prints_the_files_of_each_process(tmp_path: Path) -> None:
    (tmp_path / "x-1.pcapng").write_bytes(b"of an earlier run")
    code = (
        f"import os, subprocess, sys; {OPENER}; subprocess.run([sys.executable, '-c', {OPENER!r}])"
    )
    done = run_siwarp_command("capture", "-o", tmp_path / "x.pcapng", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (0, "")
    names = [line.removeprefix("siwarp capture: ") for line in done.stderr.splitlines()]
    written = {f for f in tmp_path.iterdir() if f.name != "x-1.pcapng"}
    assert len(written) == 2
    assert sorted(names) == sorted(f"{f}, {f.stat().st_size:,} octets" for f in written)


def test_siwarp_capture_prints_the_name_of_a_file_with_the_pid(tmp_path: Path) -> None:
    done = run_siwarp_command("capture", "-o", tmp_path / "%p.pcapng", sys.executable, "-c", OPENER)
    (file,) = tmp_path.iterdir()
    assert done.stderr == f"siwarp capture: {file}, {file.stat().st_size:,} octets\n"


def test_capturing_a_command_without_a_device_writes_no_file_and_prints_a_message(
    tmp_path: Path,
) -> None:
    done = run_siwarp_command("capture", "-o", tmp_path / "x", "true")
    assert list(tmp_path.iterdir()) == []
    assert (
        done.stderr
        == f"siwarp capture: no {tmp_path}/x: the command opened no siwarp device; for a program "
        "of libibverbs, use siwarp capture -o FILE siwarp run PROGRAM\n"
    )


PRINT_SIGNALS = """
import os, signal, sys, time
def heard(number, frame):
    # print() cannot be interrupted by print().
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        sys.exit(5)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, heard)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_siwarp_capture_forwards_signals_to_its_command(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "capture", "-o", tmp_path / "x", sys.executable, "-c", PRINT_SIGNALS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # The signal is sent to the process group, as Ctrl-C on a terminal does.
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "SIGINT\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "SIGHUP\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        assert process.wait(30) == 5


# A signal that arrives right before the main thread sleeps in a system call does not end that call.
# To test this, SIGTERM is blocked in the main thread, so that another thread receives the signal.
RUN_WITH_SIGNALS_IN_ANOTHER_THREAD = """
import os, signal, sys, threading
from siwarp.cli.execute import run_program_and_wait
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
sys.exit(run_program_and_wait([sys.executable, "-c", sys.argv[1]], os.environ))
"""


def test_a_signal_that_arrives_right_before_the_sleep_is_forwarded() -> None:
    unblock = "import signal; signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])\n"
    with subprocess.Popen(
        [sys.executable, "-c", RUN_WITH_SIGNALS_IN_ANOTHER_THREAD, unblock + PRINT_SIGNALS],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        assert process.wait(30) == 5


def test_signals_ignored_by_the_shell_are_ignored_by_the_captured_command(tmp_path: Path) -> None:
    ask = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    words = [*COMMAND, "capture", "-o", tmp_path / "x", sys.executable, "-c", ask]
    for ignored in (False, True):
        prefix = ["nohup"] if ignored else []
        done = subprocess.run([*prefix, *words], capture_output=True, text=True, check=True)
        assert done.stdout == f"{ignored}\n"


def test_capturing_a_command_that_does_not_exist_has_exit_status_127(tmp_path: Path) -> None:
    done = run_siwarp_command("capture", "-o", tmp_path / "x", "--", "no-such-command-of-siwarp")
    assert done.returncode == 127
    assert "no-such-command-of-siwarp" in done.stderr


def test_an_existing_capture_file_is_kept_if_the_command_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"an older one")
    done = run_siwarp_command("capture", "-o", tmp_path / "x", "--", "no-such-command-of-siwarp")
    assert done.returncode == 127
    assert (tmp_path / "x").read_bytes() == b"an older one"


EXCHANGE_AND_BE_KILLED = """
import os, signal
from siwarp.verbs import *
ctx = Context(); pd = PD(ctx); cq = CQ(ctx, 64); mr = MR(pd, 64)
qp = QP(pd, QPInitAttr(QPType.UD, scq=cq)); qp.to_rts()
ah = AH(pd, qp.addr)
for i in range(20):
    qp.post_recv(RecvWR(i, sg=[mr.sge(0, 8)]))
    qp.post_send(SendWR(i, sg=[mr.sge(8, 8)], ah=ah))
    found = []
    while len(found) < 2:
        found += cq.poll(2)
{fork}
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "beside a child"])
def test_a_killed_command_leaves_a_complete_capture_file(tmp_path: Path, fork: bool) -> None:
    file = tmp_path / "x.pcapng"
    # The child process opens no device, and kills itself with SIGKILL.
    child = "if os.fork() == 0: os.kill(os.getpid(), signal.SIGKILL)" if fork else ""
    code = EXCHANGE_AND_BE_KILLED.format(fork=child)
    done = run_siwarp_command("capture", "-o", file, "--", sys.executable, "-c", code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(dissect_to_json(file)) == 40  # each message is captured when sent and when received
    assert [p.name for p in tmp_path.iterdir()] == ["x.pcapng"]


def test_a_path_that_cannot_be_written_is_reported_before_the_command_runs(tmp_path: Path) -> None:
    touch = tmp_path / "touched"
    for place in (
        tmp_path / "no" / "where.pcapng",
        tmp_path,
        "/proc/x.pcapng",
        f"{tmp_path}/{'x' * 300}",
    ):
        done = run_siwarp_command("capture", "-o", place, "--", "touch", touch)
        assert done.returncode == 1
        assert done.stderr.startswith("siwarp: ")
    assert not touch.exists()


def test_the_size_of_a_capture_can_be_limited(tmp_path: Path) -> None:
    file = tmp_path / "x.pcapng"
    done = run_siwarp_command(
        "capture", "--max-mb", 1, "-o", file, "--", folder_of_fork_server_clients() / "siwarp",
        "ping", "-n", 200, "-s", 20_000, "--qp", "rc",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"the capture to {file} ends here" in done.stderr
    assert 900_000 < file.stat().st_size <= 1_000_000
    assert dissect_to_json(file)


def test_each_process_has_its_own_capture_file_and_an_old_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "x.pcapng"
    file.write_bytes(b"old")
    code = """
import subprocess, sys
for _ in range(2):
    opens = "from siwarp.verbs import Context; Context().close()"
    with subprocess.Popen([sys.executable, "-c", opens]) as process:
        assert process.wait(60) == 0
        print(process.pid)
"""
    done = run_siwarp_command("capture", "-o", file, "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    _first, second = done.stdout.split()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"x-{second}.pcapng", "x.pcapng"]
    assert all(p.read_bytes()[:4] == b"\n\r\r\n" for p in tmp_path.iterdir())


def test_the_environment_variable_captures_like_the_command_without_a_warning(
    tmp_path: Path,
) -> None:
    done = run_siwarp_command(
        "ping", "-n", 3, "--qp", "ud", env={"SIWARP_CAPTURE": f"{tmp_path}/x-%p.pcapng"}
    )
    assert done.returncode == 0
    assert done.stderr == ""
    files = list(tmp_path.iterdir())
    # There is one capture of the client and one of the peer process that the client started.
    assert len(files) == 2
    for file in files:
        assert {m["kind"] for m in dissect_to_json(file)} == {"SEND"}


def test_a_capture_variable_with_an_unusable_path_causes_one_message(tmp_path: Path) -> None:
    code = "from siwarp.verbs import Context; Context().close(); Context().close()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SIWARP_CAPTURE": f"{tmp_path}/no/x"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == f"siwarp: cannot capture to {tmp_path}/no/x: No such file or directory\n"


def test_dropped_datagrams_are_dissected_with_reason_and_clause(tmp_path: Path) -> None:
    file = tmp_path / "drops.pcapng"

    def poll_until_drop_counted(cq: CQ, counter: str) -> None:
        def has_counter_changed() -> bool:
            cq.poll(8)
            return counters.read_counters(os.getpid())[counter] != start[counter]

        wait_until(has_counter_changed)

    with (
        package.capture(file),
        Context() as ctx,
        PD(ctx) as pd,
        CQ(ctx) as cq,
        MR(pd, 200) as mr,
        QP(pd, QPInitAttr(QPType.UD, scq=cq)) as qp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s,
    ):
        start = counters.read_counters(os.getpid())
        qp.to_rts()
        for octets in (b"", b"x" * 21, b"y" * 50):
            s.sendto(octets, qp.addr)
        with AH(pd, qp.addr) as ah:
            # siwarp drops the message, because no receive is posted.
            qp.post_send(SendWR(1, sg=[mr.sge(0, 10)], ah=ah))
            poll_until_drop_counted(cq, "drop_no_buffer")
            qp.post_recv(RecvWR(2, sg=[mr.sge(0, 5)]))
            qp.post_send(SendWR(3, sg=[mr.sge(0, 10)], ah=ah))
            poll_until_drop_counted(cq, "drop_too_long")
    messages = dissect_to_json(file)
    dropped = [(m["dropped"].partition(":")[0], m["clause"]) for m in messages if m["dropped"]]
    assert dropped == [
        ("drop_short", "RFC5041-4.3-01"),
        ("drop_short", "RFC5041-4.3-01"),
        ("drop_crc", "RFC5041-3-07"),
        ("drop_no_buffer", "RFC5041-7.1-01"),
        ("drop_too_long", "RFC5041-7.1-01"),
    ]
    table = run_siwarp_in_process("dissect", file).stdout
    assert "drop_crc: wrong CRC (RFC5041-3-07)" in table


def test_a_terminate_is_dissected_with_error_text_and_clause(tmp_path: Path) -> None:
    file = tmp_path / "terminate.pcapng"
    generate_terminate_capture(file)
    ends = [m for m in dissect_to_json(file) if m["kind"] == "TERMINATE"]
    assert len(ends) == 1
    assert "Invalid STag" in ends[0]["error"]
    assert ends[0]["clause"] in ("RFC5040-4.8-03", "RFC5041-7.2-01")


def test_a_second_capture_in_python_is_refused_with_a_message(tmp_path: Path) -> None:
    with (
        package.capture(tmp_path / "a"),
        pytest.raises(StateError, match="a capture is already running"),
        package.capture(tmp_path / "b"),
    ):
        raise AssertionError("a second capture began")
    with package.capture(tmp_path / "b"):
        pass
    with pytest.raises(package.Error, match="capturing to"), package.capture(tmp_path / "c" / "d"):
        raise AssertionError("a capture to nowhere began")


@pytest.mark.parametrize("octets", [b"", b"no capture at all, this"])
def test_dissecting_a_file_that_is_no_capture_prints_one_message(
    tmp_path: Path, octets: bytes
) -> None:
    file = tmp_path / "x"
    file.write_bytes(octets)
    done = run_siwarp_in_process("dissect", file)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("siwarp: ")


def test_dissecting_a_missing_file_prints_one_message(tmp_path: Path) -> None:
    done = run_siwarp_in_process("dissect", tmp_path / "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"siwarp: {tmp_path}/x: No such file or directory\n"


def test_dissecting_a_folder_prints_one_message_with_its_name(tmp_path: Path) -> None:
    done = run_siwarp_in_process("dissect", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"siwarp: {tmp_path}: Is a directory\n"


def test_dissecting_a_capture_without_iwarp_messages_prints_a_message(tmp_path: Path) -> None:
    with package.capture(tmp_path / "x"):
        pass
    assert (
        run_siwarp_in_process("dissect", tmp_path / "x").stdout
        == "The capture has no iWARP message.\n"
    )
    assert json.loads(run_siwarp_in_process("dissect", tmp_path / "x", "--json").stdout) == []
