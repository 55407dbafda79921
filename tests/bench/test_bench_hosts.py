"""`siwarp bench lat|bw|rate ADDR` with `siwarp bench --server`, on loopback."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import socket
import subprocess
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.hosts_harness import connect_to_server, receive_until_end_of_stream, run_bench_server
from cli.cli_harness import run_siwarp_command, run_siwarp_in_process
from harness.siwarp_process import COMMAND, SiwarpProcess
from pace import limit_exceeded, scale_limit

from siwarp.bench import hosts_points
from siwarp.bench.hosts import (
    CTL_MAGIC,
    GREETING,
    MAGIC,
    VERSION,
    Load,
    MeasurementRequest,
    make_greeting,
)
from siwarp.bench.hosts_points import MeasuredPoint
from siwarp.bench.plan import make_bench_plan

GOOD = MeasurementRequest("bw", "ud", "send", 64, 100, 10, 1, 1, "poll", 1, False, 20, 5)


@pytest.fixture(scope="module")
def server_port() -> Iterator[int]:
    """Provide the port of a running bench server."""
    with run_bench_server("--addr", "127.0.0.1") as (server_port, _):
        yield server_port


def run_bench_client(
    server_port: int, kind: str, *arguments: object
) -> subprocess.CompletedProcess[str]:
    return run_siwarp_command("bench", kind, "127.0.0.1", "-p", server_port, *arguments)


def run_bench_client_and_get_points(
    server_port: int, kind: str, *arguments: object
) -> list[dict[str, object]]:
    done = run_bench_client(server_port, kind, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)["points"]
    return found


@pytest.mark.parametrize("kind", ["lat", "bw", "rate"])
def test_each_queue_pair_type_with_each_size_is_one_point(server_port: int, kind: str) -> None:
    found = run_bench_client_and_get_points(
        server_port, kind, "--qp", "rc,ud", "--qp", "uc", "--sizes", "64,1K", "-n", 50
    )
    wanted = [(qp, size) for qp in ("rc", "ud", "uc") for size in (64, 1024)]
    assert [(p["qp"], p["size"]) for p in found] == wanted
    for point in found:
        assert isinstance(point["value"], float)
        assert point["value"] > 0
        assert not point["partial"]
        assert isinstance(point["n"], int)
        assert point["n"] >= 50


@pytest.mark.parametrize(
    ("kind", "qp", "op"),
    [("lat", "rc", "read"), ("lat", "rc", "write"), ("bw", "rc", "read"), ("bw", "rd", "write")],
)
def test_rdma_reads_and_writes_are_measured_too(
    server_port: int, kind: str, qp: str, op: str
) -> None:
    (point,) = run_bench_client_and_get_points(
        server_port, kind, "--qp", qp, "--op", op, "-s", "4K", "-n", 30
    )
    assert (point["qp"], point["op"], point["size"]) == (qp, op, 4096)
    assert point["value"]


def test_rd_messages_longer_than_a_udp_datagram_are_measured(server_port: int) -> None:
    (point,) = run_bench_client_and_get_points(
        server_port, "lat", "--qp", "rd", "-s", "128K", "-n", 20
    )
    assert point["n"] == 20


def test_messages_of_all_queue_pairs_in_both_directions_are_summed(server_port: int) -> None:
    (point,) = run_bench_client_and_get_points(
        server_port, "rate", "--qp", "rc", "-q", 2, "-b", "-n", 128
    )
    assert (point["pairs"], point["both"]) == (2, True)
    assert isinstance(point["n"], int)
    assert point["n"] >= 4 * 128


def test_a_duration_is_measured_in_rounds(server_port: int) -> None:
    began = time.monotonic()
    (point,) = run_bench_client_and_get_points(server_port, "lat", "--qp", "ud", "-D", 0.5)
    assert time.monotonic() - began >= 0.5
    assert isinstance(point["rounds"], list)
    assert point["rounds"]
    assert point["least"] == min(point["rounds"])
    assert point["largest"] == max(point["rounds"])


def test_text_csv_and_samples_have_the_measured_values(server_port: int, tmp_path: Path) -> None:
    table, samples = tmp_path / "a table.csv", tmp_path / "samples"
    done = run_bench_client(
        server_port, "lat", "--sizes", "64,128", "-n", 40, "--csv", table, "--samples", samples,
        "--percentiles", "50,99.5", "--histogram",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[4:] == ["min", "p50", "p99", "p99.9", "max", "us"]
    assert lines[1].split()[:4] == ["ud", "send", "64", "40"]
    assert lines[2].split()[0::2] == ["p50", "p99.5"]
    assert " us " in lines[3]
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["size"] for row in rows] == ["64", "128"]
    assert float(rows[0]["min"]) <= float(rows[0]["p99.5"]) <= float(rows[0]["max"])
    assert len(samples.read_text(encoding="ascii").split()) == 80


def test_each_sample_is_printed_as_perftest_does(server_port: int) -> None:
    done = run_bench_client(server_port, "lat", "-n", 20, "-H")
    lines = done.stdout.splitlines()
    assert lines[2] == "#, usec"
    numbers = [line.split(", ") for line in lines[3:]]
    assert [number for number, _ in numbers] == [str(i + 1) for i in range(20)]
    times = [float(us) for _, us in numbers]
    assert times == sorted(times)


def test_contradictory_options_are_refused(server_port: int) -> None:
    for arguments, hint in [
        (["lat", "127.0.0.1", "--rounds", "2"], "--rounds"),
        (["lat", "-D", "1"], "--duration"),
        (["bw", "127.0.0.1", "-n", "5", "-D", "1"], "-D"),
        (["lat", "127.0.0.1", "-s", "64", "-a"], "-a"),
        (["lat", "127.0.0.1", "--sizes", "9:1:*2"], "0 sizes"),
        (["lat", "127.0.0.1", "--qp", "xx"], "'xx'"),
        (["--server", "lat"], "--server"),
    ]:
        done = run_siwarp_in_process("bench", *arguments)
        assert done.returncode == 2, arguments
        assert hint in done.stderr.replace("\n", " "), done.stderr


def test_a_missing_server_and_a_foreign_server_have_different_errors() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = run_bench_client(free.getsockname()[1], "lat", "-n", 5)
    assert done.returncode == 1
    assert "start `siwarp bench --server` there" in done.stderr

    with socket.create_server(("127.0.0.1", 0)) as foreign:

        def answer_as_ssh() -> None:
            connection, _ = foreign.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
                receive_until_end_of_stream(connection)

        thread = threading.Thread(target=answer_as_ssh)
        thread.start()
        done = run_bench_client(foreign.getsockname()[1], "lat", "-n", 5)
        thread.join(scale_limit(30))
    assert done.returncode == 1
    assert "is not a siwarp bench server" in done.stderr


def test_a_peer_of_another_version_is_refused_and_receives_this_version(server_port: int) -> None:
    other = GREETING.pack(MAGIC, VERSION + 1, make_greeting()[10:11], 0, 0)
    with connect_to_server(server_port, other) as connection:
        said = receive_until_end_of_stream(connection)
    assert GREETING.unpack(said[: GREETING.size])[1] == VERSION
    assert f"version {VERSION}, not {VERSION + 1}".encode() in said

    with socket.create_server(("127.0.0.1", 0)) as newer:

        def answer_as_newer_version() -> None:
            connection, _ = newer.accept()
            with connection:
                connection.sendall(other)
                receive_until_end_of_stream(connection)

        thread = threading.Thread(target=answer_as_newer_version)
        thread.start()
        done = run_bench_client(newer.getsockname()[1], "lat", "-n", 5)
        thread.join(scale_limit(30))
    assert done.returncode == 1
    assert "run the same siwarp on both hosts" in done.stderr


def test_a_connection_without_a_greeting_is_answered_and_delays_no_client(server_port: int) -> None:
    with (
        connect_to_server(server_port) as silent,
        connect_to_server(server_port, b"GET / HTTP/1.0\r\n\r\n") as browser,
        connect_to_server(server_port, CTL_MAGIC + b"no token") as intruder,
    ):
        assert receive_until_end_of_stream(intruder) == b""
        assert MAGIC in receive_until_end_of_stream(browser)
        assert run_bench_client_and_get_points(server_port, "lat", "-n", 10)[0]["n"] == 10
        assert b"no greeting arrived" in receive_until_end_of_stream(silent)


def test_a_second_client_is_refused_because_the_server_is_busy(server_port: int) -> None:
    with connect_to_server(server_port, make_greeting()) as first:
        assert first.recv(GREETING.size, socket.MSG_WAITALL) == make_greeting()
        done = run_bench_client(server_port, "lat", "-n", 5)
        assert done.returncode == 1
        assert "busy with another client" in done.stderr
    assert run_bench_client_and_get_points(server_port, "lat", "-n", 10)[0]["n"] == 10


@pytest.mark.parametrize(
    "sent",
    [b"x" * (1 << 17), GOOD.pack() + b"\n?"],
    ids=["a line that is too long", "octets during a run"],
)
def test_a_client_that_violates_the_protocol_is_disconnected(server_port: int, sent: bytes) -> None:
    with connect_to_server(server_port, make_greeting()) as hostile:
        hostile.sendall(sent)
        receive_until_end_of_stream(hostile)
    assert run_bench_client_and_get_points(server_port, "lat", "-n", 10)[0]["n"] == 10


def test_an_idle_client_is_disconnected_after_the_visit_limit() -> None:
    # A client that is not idle would finish its measurement within the limit. The limit is less
    # than the 10 s after which the server disconnects a client that sends no keep-alives.
    with (
        run_bench_server("--visit", min(9, math.ceil(scale_limit(2)))) as (server_port, _),
        connect_to_server(server_port, make_greeting()) as idle,
    ):
        said = receive_until_end_of_stream(idle)
        assert b"your time is over" in said
        assert run_bench_client_and_get_points(server_port, "lat", "-n", 10)[0]["n"] == 10


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"size": 1 << 30, "qp": "rc", "depth": 64}, "are allowed"),
        ({"pairs": 1000}, "pairs of a run"),
        ({"iters": 0}, "iters of a run"),
        ({"kind": "reg"}, "kind is one of lat, bw, rate"),
        ({"size": "64"}, "of type int"),
        ({"both": 1}, "of type bool"),
        ({"limit": 3600}, "limit of a run"),
        ({"qp": "xx"}, "qp is one of"),
        ({"more": 1}, "this version"),
        ({"depth": 1 << 40}, "depth must be from"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_request_for_a_run_with_invalid_values_is_refused(
    change: dict[str, object], why: str
) -> None:
    assert MeasurementRequest.unpack(GOOD.pack()) == GOOD
    with pytest.raises(ValueError, match=why):
        MeasurementRequest.unpack(json.dumps({**json.loads(GOOD.pack()), **change}).encode())


def _output_at_exit(process: subprocess.Popen[str], seconds: float) -> str:
    out, err = process.communicate(timeout=scale_limit(seconds))
    return out + err


def _wait_until_server_measures(server: subprocess.Popen[str]) -> None:
    """Wait until a server measures, that is, until its process has a child process."""
    began = time.monotonic()
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    while not children.read_text(encoding="ascii").strip():
        assert not limit_exceeded(began, 20), "no run began"
        time.sleep(0.01)


def test_a_client_ends_when_its_server_is_killed() -> None:
    with run_bench_server() as (server_port, server):
        command = [*COMMAND, "bench", "lat", "127.0.0.1", "-p", str(server_port), "-D", "60"]
        with SiwarpProcess(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as client:
            _wait_until_server_measures(server)
            server.kill()
            said = _output_at_exit(client, 15)
    assert "closed the connection, or was killed" in said or "Connection reset" in said


def test_a_server_serves_further_clients_after_a_client_was_killed() -> None:
    with run_bench_server() as (server_port, server):
        command = [*COMMAND, "bench", "lat", "127.0.0.1", "-p", str(server_port), "-D", "60"]
        with SiwarpProcess(command, stdout=subprocess.DEVNULL) as client:
            _wait_until_server_measures(server)
            client.send_signal(signal.SIGKILL)
        began = time.monotonic()
        while (done := run_bench_client(server_port, "lat", "-n", 10)).returncode:
            assert "busy" in done.stderr
            assert not limit_exceeded(began, 15), done.stderr
        os.kill(server.pid, 0)


@pytest.mark.parametrize(("kind", "value"), [("lat", 9876.5), ("bw", 98.7), ("rate", 98_765_432)])
def test_the_longest_row_of_a_point_fits_into_80_columns(kind: str, value: float) -> None:
    plan = make_bench_plan(kind, "rc", "write", size=1 << 20, iters=1)
    samples = array("d", [value] * 9) if kind == "lat" else array("d")
    point = MeasuredPoint(plan, Load(), [value] * 3, 99_999_999, samples, "it was lost")
    row = hosts_points.format_point_line(point)
    assert row.endswith(" partial")
    assert len(row) <= 80 and len(hosts_points.format_table_heading(kind)) <= 80
    assert hosts_points.partial_result_notes([point]) == ["rc 1M: partial: it was lost"]
    point.partial = ""
    assert hosts_points.format_point_line(point).split()[:3] == ["rc", "write", "1M"]
    assert hosts_points.format_point_line(point)[-1].isdigit()
