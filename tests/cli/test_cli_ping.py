from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli.cli_harness import (
    QKEY,
    qkey_options,
    run_ping_server,
    run_siwarp_command,
    run_siwarp_in_process,
    run_siwarp_json,
)
from harness.siwarp_process import COMMAND, SiwarpProcess
from harness.verbs_harness import wait_until
from scapy.packet import Raw

import siwarp as library
from siwarp.base import counters
from siwarp.base.numeric import resolve_to_numeric
from siwarp.cli import ping, ping_client
from siwarp.cli.ping_client import PATIENCE, REQUEST, Pinger, pack_hello
from siwarp.cm import CMID, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import DDPDatagram, UDDatagram
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    Error,
    QPAttr,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    WROpcode,
)


@pytest.mark.parametrize("size", [1, 2, 64, 65485])
@pytest.mark.parametrize("qp", ["ud", "uc", "rd", "rc"])
def test_ping_without_an_address_starts_its_own_peer(qp: str, size: int) -> None:
    result = run_siwarp_json("ping", "--qp", qp, "-n", 20, "--size", size)
    assert (result["qp"], result["size"]) == (qp, size)
    assert (result["sent"], result["received"], result["wrong"]) == (20, 20, 0)
    assert 0 < result["rtt_us"]["min"] <= result["rtt_us"]["median"] <= result["rtt_us"]["max"]
    assert result["advice"] is None


def test_a_uc_ping_server_survives_random_datagrams_and_serves_later_clients() -> None:
    with run_ping_server("--qp", "uc", "--addr", "127.0.0.1") as (port, _):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            for i in range(50):
                s.sendto(os.urandom(3 * i), ("127.0.0.1", port))
        result = run_siwarp_json(
            "ping", "127.0.0.1", "-p", port, "-n", 5, "--qp", "uc", *qkey_options()
        )
        assert result["received"] == 5


@pytest.fixture
def shorten_ping_time_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pings in this process give up soon, because they poll while they wait for an answer."""
    monkeypatch.setattr(ping_client, "UC_TRIES", 2)
    monkeypatch.setitem(PATIENCE, "ud", 0.1)


@pytest.mark.usefixtures("shorten_ping_time_outs")
def test_a_uc_ping_without_a_server_prints_how_to_start_a_server() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        done = run_siwarp_in_process("ping", "127.0.0.1", "-p", s.getsockname()[1], "--qp", "uc")
    assert done.returncode == 1
    assert "--server --qp uc" in " ".join(done.stderr.split())


def test_rc_ping_with_persona_roce_returns_complete_data() -> None:
    result = run_siwarp_json("--persona", "roce", "ping", "--qp", "rc", "-n", 20)
    assert (result["sent"], result["received"], result["wrong"]) == (20, 20, 0)


def test_ping_prints_a_summary_in_plain_text() -> None:
    done = run_siwarp_command("ping", "-n", 5)
    assert done.returncode == 0, done.stderr
    assert re.match(
        r"UD ping of a peer process that it started, 127\.0\.0\.1:\d+: 64 octets", done.stdout
    )
    assert "5 sent, 5 back, 0 lost" in done.stdout
    assert "median" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_ud_ping_server_uses_the_requested_udp_port() -> None:
    # The port is outside the system's ephemeral port range.
    port = 12_000 + os.getpid() % 4_000
    with run_ping_server("--addr", "127.0.0.1", "--port", port) as (bound, _):
        assert bound == port
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s, pytest.raises(OSError):
            s.bind(("127.0.0.1", port))
        result = run_siwarp_json("ping", "127.0.0.1", "-p", port, "-n", 5, *qkey_options())
        assert result["received"] == 5
        assert result["peer"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize("qp", ["ud", "uc", "rc"])
def test_a_ping_server_without_an_address_serves_every_address(qp: str) -> None:
    with run_ping_server("--qp", qp) as (port, _):
        for host in ("127.0.0.1", "127.0.0.2", "localhost"):
            asked = run_siwarp_json(
                "ping", host, "-p", port, "-n", 3, "--qp", qp, *qkey_options(qp)
            )
            assert asked["received"] == 3


def test_ping_prefers_the_ipv4_address_of_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    four = (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 0))
    six = (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 0, 0, 0))
    for found, taken in (([six, four], "127.0.0.1"), ([six], "::1")):
        with monkeypatch.context() as names:
            names.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: found)
            assert resolve_to_numeric("localhost") == taken
            assert resolve_to_numeric("fe80::1%eth0") == "fe80::1%eth0"


@pytest.mark.parametrize(("qp", "more"), [("ud", ""), ("rd", " (if it has several, select one")])
def test_a_ping_server_prints_its_address_and_that_nothing_is_encrypted(qp: str, more: str) -> None:
    words = [*COMMAND, "ping", "--server", "--port", "0", "--qp", qp]
    with SiwarpProcess(words, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
        finally:
            process.terminate()
    assert re.match(rf"{qp.upper()} ping server on 0\.0\.0\.0 UDP port \d+, every address", said)
    assert f"of this machine{more}" in said
    assert "nothing is encrypted" in said


@pytest.mark.parametrize("qp", ["rd", "rc"])
def test_the_address_of_a_ping_server_may_be_a_host_name(qp: str) -> None:
    with run_ping_server("--qp", qp, "--addr", "localhost") as (port, _):
        asked = run_siwarp_json(
            "ping", "localhost", "-p", port, "-n", 3, "--qp", qp, *qkey_options(qp)
        )
        assert asked["received"] == 3


@pytest.mark.parametrize("qp", ["ud", "uc", "rd", "rc"])
def test_ping_works_over_ipv6(qp: str) -> None:
    with run_ping_server("--qp", qp, "--addr", "::1") as (port, _):
        asked = run_siwarp_json("ping", "::1", "-p", port, "-n", 3, "--qp", qp, *qkey_options(qp))
        assert asked["received"] == 3


@pytest.mark.parametrize("qp", ["ud", "uc", "rd", "rc"])
def test_a_ping_server_serves_several_clients_at_the_same_time(qp: str) -> None:
    with (
        run_ping_server("--qp", qp, "--addr", "127.0.0.1") as (port, _),
        ThreadPoolExecutor(4) as pool,
    ):
        words = ["ping", "127.0.0.1", "-p", port, "-n", 200, "--qp", qp, *qkey_options(qp)]
        runs = [pool.submit(run_siwarp_json, *words) for _ in range(4)]
        for run in runs:
            assert run.result()["received"] == 200


def send_uc_start_up_and_return_answer(sock: socket.socket, server_port: int, port: int) -> bytes:
    """Send a UC client's start-up message with the given port, and return the server's answer."""
    segment = DDPDatagram(q_key=QKEY) / Raw(pack_hello(port))
    sock.sendto(bytes(UDDatagram(segment=segment)), ("127.0.0.1", server_port))
    return sock.recv(100)


def test_a_uc_ping_server_admits_a_limited_number_of_clients_and_repeats_its_answer() -> None:
    with (
        run_ping_server("--qp", "uc", "--addr", "127.0.0.1") as (port, _),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s,
    ):
        s.settimeout(10)
        ports = {
            int.from_bytes(send_uc_start_up_and_return_answer(s, port, i)[-6:-4], "big")
            for i in range(1, 65)
        }
        assert len(ports) == 64 and 0 not in ports
        assert int.from_bytes(send_uc_start_up_and_return_answer(s, port, 1)[-6:-4], "big") in ports
        full = send_uc_start_up_and_return_answer(s, port, 100)
        assert pack_hello(0) in full
        # The answer of a full server is not longer than the client's start-up message.
        assert len(full) == len(bytes(UDDatagram(segment=DDPDatagram() / Raw(pack_hello(100)))))
        done = run_siwarp_command("ping", "127.0.0.1", "-p", port, "--qp", "uc", *qkey_options())
        assert done.returncode == 1
        assert "is full: try again later" in done.stderr


@pytest.mark.clause("DGRAM-ERR-15")
def test_a_ud_ping_server_survives_random_datagrams_and_answers_only_requests() -> None:
    with run_ping_server("--addr", "127.0.0.1") as (port, _):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(("127.0.0.1", port))
            for size in (0, 1, 3, 17, 18, 21, 22, 23, 100, 65507):
                s.send(os.urandom(size))
            # These messages are invalid and have the server's Q_Key.
            for fields in ({"opcode": 4}, {"l": 0}, {"opcode": 7, "qn": 2}):
                fields["q_key"] = QKEY
                s.send(bytes(UDDatagram(segment=DDPDatagram(**fields) / Raw(b"wrong"))))
        with (
            Context() as ctx,
            PD(ctx) as pd,
            CQ(ctx, channel=CompChannel(ctx)) as cq,
            QP(pd, QPInitAttr(QPType.UD, scq=cq, qkey=QKEY)) as qp,
            MR(pd, 100) as mr,
            AH(pd, ("127.0.0.1", port)) as ah,
        ):
            qp.to_rts()
            qp.post_recv(RecvWR(sg=[mr.sge(50, 50)]))
            # The messages are a reply, an empty message, and a message that begins with an unknown
            # letter.
            for message in (b"A reply", b"", b"Xyz"):
                mr.write(message)
                qp.post_send(SendWR(sg=[mr.sge(0, len(message))], ah=ah, send_flags=0))
            mr.write(b"Question")
            qp.post_send(SendWR(sg=[mr.sge(0, 8)], ah=ah, send_flags=0))
            assert [wc.byte_len for wc in cq.wait(10)] == [8]
            assert mr.read(8, 50) == b"Auestion"
        assert (
            run_siwarp_json("ping", "127.0.0.1", "-p", port, "-n", 5, *qkey_options())["received"]
            == 5
        )


@contextlib.contextmanager
def connect_rc_client(port: int, private_data: bytes, size: int = 100):
    """Yield an RC queue pair that requests a connection from a ping server."""
    with Context() as ctx, PD(ctx) as pd, CQ(ctx, channel=CompChannel(ctx)) as cq:
        qp = QP(pd, QPInitAttr(QPType.RC, scq=cq))
        channel = CMEventChannel(ctx)
        cm_id = CMID(channel)
        cm_id.bind_qp(qp)
        cm_id.connect(("127.0.0.1", port), ConnParam(private_data=private_data))
        event = channel.get_event(10)
        yield event, qp, cq, MR(pd, size)


def test_an_rc_ping_server_rejects_other_requests_with_an_explanation() -> None:
    with run_ping_server("--qp", "rc", "--addr", "127.0.0.1") as (port, _):
        for data, words in (
            (b"", b"ping server"),
            (os.urandom(100), b"ping server"),
            (pack_hello() + b"0", b"ping server"),
        ):
            with connect_rc_client(port, data) as (event, *_):
                assert event.type == CMEventType.REJECTED
                assert words in event.private_data
        assert (
            run_siwarp_json("ping", "127.0.0.1", "-p", port, "-n", 5, "--qp", "rc")["received"] == 5
        )


def test_an_rc_ping_server_survives_clients_that_violate_rules_or_reset_connections() -> None:
    with run_ping_server("--qp", "rc", "--addr", "127.0.0.1") as (port, _):
        # The client sends a message that is longer than the receives.
        with connect_rc_client(port, pack_hello(), 100_000) as (event, qp, cq, mr):
            event.check()
            qp.post_send(SendWR(sg=[mr.sge()]))
            deadline = time.monotonic() + 10
            while qp.qp_state.name != "ERR" and time.monotonic() < deadline:
                cq.wait(0.1)
            assert qp.qp_state.name == "ERR"
        # The client sends more messages in a row than receives are posted, and receives no answer.
        with connect_rc_client(port, pack_hello()) as (event, qp, cq, mr):
            event.check()
            mr.write(REQUEST)
            qp.post_send([SendWR(sg=[mr.sge(0, 10)])] * 50)
            cq.wait(1)
        # The client writes to memory that the server does not offer.
        with connect_rc_client(port, pack_hello()) as (event, qp, cq, mr):
            event.check()
            qp.post_recv(RecvWR(7))
            there = RemoteBuffer(0, mr.length, 1)
            qp.post_send(SendWR(opcode=WROpcode.RDMA_WRITE, sg=[mr.sge()], remote=there))
            wcs = cq.wait(10)
            while 7 not in [wc.wr_id for wc in wcs]:
                assert wcs
                wcs = cq.wait(10)
        # The clients use TCP without MPA: silence, random octets, and a reset within a frame.
        silent = socket.create_connection(("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(os.urandom(1000))
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(b"MPA ID Req Frame"[:9])
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        result = run_siwarp_json("ping", "127.0.0.1", "-p", port, "-n", 5, "--qp", "rc")
        assert result["received"] == 5
        silent.close()


def test_a_ping_server_serves_other_clients_after_a_client_is_killed() -> None:
    with run_ping_server("--qp", "rc", "--addr", "127.0.0.1") as (port, process):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.execv(*_endless_ping_command(port))
            os._exit(1)
        wait_until(lambda: counters.read_counters(process.pid)["rx_msgs"] > 10)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert (
            run_siwarp_json("ping", "127.0.0.1", "-p", port, "-n", 5, "--qp", "rc")["received"] == 5
        )


def _endless_ping_command(port: int) -> tuple[str, list[str]]:
    words = [*COMMAND, "ping", "127.0.0.1", "-p", str(port), "--qp", "rc", "-n", "100000000"]
    return words[0], words


@pytest.mark.parametrize(("qp", "sign"), [("ud", signal.SIGTERM), ("rc", signal.SIGINT)])
def test_a_ping_server_exits_with_status_0_after_a_signal(qp: str, sign: signal.Signals) -> None:
    with run_ping_server("--qp", qp) as (_, process):
        process.send_signal(sign)
        assert process.wait(10) == 0


def _count_voluntary_context_switches(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep."""
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches:")
    )


def assert_process_falls_asleep(pid: int) -> None:
    """Assert that within six seconds there is a second in which a process wakes at most once."""
    woken: list[int] = []
    while not woken or (woken[-1] > 1 and len(woken) < 6):
        before = _count_voluntary_context_switches(pid)
        time.sleep(1)
        woken.append(_count_voluntary_context_switches(pid) - before)
    assert woken[-1] <= 1, woken


@pytest.mark.skipif(
    os.environ.get("SANITIZER") == "tsan", reason="ThreadSanitizer's own thread wakes by itself"
)
@pytest.mark.parametrize("qp", ["ud", "uc", "rd", "rc"])
def test_an_idle_ping_server_sleeps_and_exits_after_a_signal(qp: str) -> None:
    with run_ping_server("--qp", qp) as (port, process):
        asked = run_siwarp_json(
            "ping", "127.0.0.1", "-p", port, "-n", 5, "--qp", qp, *qkey_options(qp)
        )
        assert asked["received"] == 5
        assert_process_falls_asleep(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.skipif(
    os.environ.get("SANITIZER") == "tsan", reason="ThreadSanitizer's own thread wakes by itself"
)
def test_the_echo_process_of_the_demo_sleeps_while_idle_and_ends_on_request() -> None:
    code = (
        "import asyncio\n"
        "from siwarp.cli.demo_peer import echo_datagrams\n"
        "from siwarp.verbs import QPType\n"
        "asyncio.run(echo_datagrams(QPType.UD))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert "port" in json.loads(process.stdout.readline())
        assert_process_falls_asleep(process.pid)
        process.stdin.write('"enough"\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == "closed"
        assert process.wait(10) == 0


@pytest.mark.usefixtures("shorten_ping_time_outs")
def test_pings_without_an_answer_are_counted_as_lost_and_the_exit_status_is_1() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        for asked, sent in ((2, 2), (1000, 5)):
            done = run_siwarp_in_process("ping", "127.0.0.1", "-p", s.getsockname()[1], "-n", asked)
            assert done.returncode == 1
            assert f"{sent} sent, 0 back, {sent} lost" in done.stdout
            assert "no server answers: is `siwarp ping --server --qp ud` running" in done.stdout


@pytest.mark.usefixtures("shorten_ping_time_outs")
@pytest.mark.parametrize("qp", ["ud", "uc", "rd"])
def test_a_ping_to_an_unused_port_reports_that_the_port_is_refused(qp: str) -> None:
    # Port 1 is used, because a port that was free a moment ago may be assigned to another process.
    words = ("ping", "127.0.0.1", "-p", 1, "--qp", qp)
    if qp == "rd":
        done = run_siwarp_command("--peer-timeout-ms", 300, *words)
    else:
        done = run_siwarp_in_process(*words)
    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).split())
    assert "127.0.0.1 refuses UDP port 1: start" in said
    assert f"`siwarp ping --server --qp {qp}` there" in said
    assert "Traceback" not in done.stderr


def test_an_rd_ping_without_an_answer_reports_that_no_server_answers() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        done = run_siwarp_command(
            "--peer-timeout-ms", 300, "ping", "127.0.0.1", "-p", port, "--qp", "rd"
        )
    assert done.returncode == 1
    assert f"127.0.0.1 port {port}: no answer: is `siwarp ping --server --qp rd`" in done.stderr


def test_a_ping_to_an_rd_server_that_is_never_ready_fails() -> None:
    """Check that the ping reports the error and ends after 6 times the RNR timer of the server."""
    with (
        Context() as device,
        PD(device) as pd,
        CQ(device, 4) as cq,
        QP(pd, QPInitAttr(QPType.RD, scq=cq, addr=("127.0.0.1", 0))) as qp,
    ):
        qp.to_rts(QPAttr(min_rnr_timer=14))  # code 14 of the RNR timer means 1.28 ms
        with (
            Pinger(qp.addr, "rd", 64) as pinger,
            pytest.raises(Error, match="receiver-not-ready"),
        ):
            pinger.ping(0)


def test_an_interrupted_ping_is_not_counted_as_lost() -> None:
    class InterruptedPinger:
        def ping(self, count: int) -> bool | None:
            if count == 2:
                raise KeyboardInterrupt
            return True

        def close(self) -> None: ...

    sent, times, wrong = ping._run_pings(InterruptedPinger(), 10, 5)
    assert (sent, len(times), wrong) == (2, 2, 0)


def test_an_rc_ping_to_a_port_without_a_listener_reports_the_error() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        done = run_siwarp_command("ping", "127.0.0.1", "-p", s.getsockname()[1], "--qp", "rc")
    assert done.returncode == 1
    assert "start the peer" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_rc_ping_to_another_kind_of_server_reports_the_error() -> None:
    with library.listen(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(listener.accept, 20)
        done = run_siwarp_command("ping", "127.0.0.1", "-p", listener.address[1], "--qp", "rc")
        accepted.result(20).close()
    assert done.returncode == 1
    assert "is not a siwarp ping server" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--op", "read"], "siwarp bench lat ADDR --qp rc --op write (read)"),
        (["--persona", "roce"], "siwarp --persona roce ping"),
        (["--percentiles", "50"], "siwarp bench lat ADDR --percentiles"),
        (["--histogram"], "siwarp bench lat ADDR --histogram"),
        (["--samples", "file"], "siwarp bench lat ADDR --samples"),
        (["--size", "0"], "1 to"),
        (["--size", "70000"], "65485"),
        (["--addr", "::1"], "server"),
        (["--server", "127.0.0.1"], "--addr"),
        (["--qp", "xx"], "--qp"),
        (["--server", "--device", "siw_lo"], "--addr"),
        (["--port", "70000"], "65535"),
    ],
)
def test_invalid_arguments_of_ping_are_refused_with_an_explanation(
    arguments: list[str], words: str
) -> None:
    done = run_siwarp_in_process("ping", *arguments, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.returncode == 2
    assert words in done.stderr


def test_ping_without_crc_works_only_if_both_ends_disable_crcs() -> None:
    done = run_siwarp_command("--crc", "0", "ping", "-n", "3")
    assert done.returncode == 0, done.stderr
    with run_ping_server("--addr", "127.0.0.1") as (port, _):
        done = run_siwarp_command(
            "--crc=0", "ping", "127.0.0.1", "-p", port, "-n", 1, *qkey_options()
        )
    assert done.returncode == 1  # the server requires a CRC and drops datagrams without a CRC
    assert "1 lost" in done.stdout


def test_the_delay_of_a_fault_plan_applies_to_both_directions_of_a_ping() -> None:
    result = run_siwarp_json("ping", "-n", "5", "--faults", "delay=5ms")
    assert result["received"] == 5
    assert result["rtt_us"]["min"] >= 10000
    result = run_siwarp_json(
        "ping", "-n", "5", "--qp", "rc", "--faults", "tx:delay=3ms; rx:delay=4ms"
    )
    assert result["received"] == 5
    assert result["rtt_us"]["min"] >= 7000


def test_an_invalid_fault_plan_of_ping_is_refused_with_the_position() -> None:
    done = run_siwarp_command("ping", "--faults", "loss=1%;delay=x")
    assert done.returncode == 2
    # The message is printed in a box, which may break its lines.
    words = " ".join(done.stderr.replace("│", " ").split())
    assert "clause 2, character 15" in words


def test_ping_reports_the_error_that_prevents_its_server_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SIWARP_FAULTS", "loss=lots")
    done = run_siwarp_command("ping", "-n", "1")
    assert done.returncode == 1
    assert 'clause 1, character 6: "lots" is not a percentage' in done.stderr
    assert "the peer process ended with status 1" in done.stderr
    assert "Fatal" not in done.stderr


@pytest.mark.clause("DGRAM-ERR-20")
@pytest.mark.usefixtures("shorten_ping_time_outs")
@pytest.mark.parametrize("qp", ["ud", "rd", "uc"])
def test_a_ping_server_prints_a_random_q_key_and_ignores_clients_without_the_key(qp: str) -> None:
    words = [*COMMAND, "ping", "--server", "--port", "0", "--addr", "127.0.0.1", "--qp", qp]
    with SiwarpProcess(words, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"UDP port (\d+); clients need --qkey (0x[0-9a-f]+);", said)
            assert found, said
            asks = ["ping", "127.0.0.1", "-p", found[1], "--qp", qp, "-n", "3"]
            assert run_siwarp_command(*asks, "--qkey", found[2]).returncode == 0
            if qp == "rd":
                assert run_siwarp_command("--peer-timeout-ms", 300, *asks).returncode == 1
            else:
                assert run_siwarp_in_process(*asks).returncode == 1
        finally:
            process.terminate()


@pytest.mark.parametrize("qkey", ["0", "0x80000000", "-1", "many"])
def test_an_invalid_q_key_of_ping_is_refused(qkey: str) -> None:
    done = run_siwarp_command("ping", "127.0.0.1", "--qkey", qkey)
    assert done.returncode == 2
    assert "a number from 1 to 0x7fffffff" in " ".join(done.stderr.split())
