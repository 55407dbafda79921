from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from cli.cli_harness import (
    environment_without_sanitizer,
    qkey_options,
    run_ping_server,
    run_siwarp_command,
    run_siwarp_json,
)
from harness.siwarp_process import COMMAND
from harness.verbs_harness import wait_until

from siwarp import bench, verbs
from siwarp._siwarp import lib
from siwarp.base import counters, show
from siwarp.cli import demo, demo_peer, devices, doctor
from siwarp.cli.config import GROUPS
from siwarp.cli.main import main
from siwarp.verbs import Context, get_device_list


def test_help_names_every_command() -> None:
    done = run_siwarp_command("--help")
    assert done.returncode == 0
    for name in (
        "demo",
        "ping",
        "devices",
        "doctor",
        "config",
        "counters",
        "capture",
        "dissect",
        "bench",
    ):
        assert re.search(rf"\b{name}\b", done.stdout)


def test_commands_that_other_tests_fork_also_run_in_a_new_interpreter() -> None:
    """The other commands are started by a shell or a new interpreter in tests of their own."""
    started = [
        subprocess.Popen([*COMMAND, name, "--json"], stdout=subprocess.PIPE, text=True, cwd="/")
        for name in ("devices", "doctor", "counters")
    ]
    for process in started:
        out, _ = process.communicate(timeout=60)
        assert isinstance(json.loads(out), list)


def test_the_version_options_print_the_version_of_the_library() -> None:
    done = run_siwarp_command("--version")
    assert re.fullmatch(r"siwarp \d+\.\d+\.\d+\n", done.stdout)
    assert run_siwarp_command("-V").stdout == done.stdout


@pytest.mark.parametrize(
    ("words", "there"),
    [
        ("siwarp pi", {"ping"}),
        ("siwarp ping --qp ", {"ud", "uc", "rd", "rc"}),
        ("siwarp bench lat --qp r", {"rd", "rc"}),
        ("siwarp bench rate --qp ud,r", {"ud,rd", "ud,rc"}),
        ("siwarp bench lat --op ", {"send", "write", "read"}),
        ("siwarp bench bw --wait e", {"event"}),
        ("siwarp bench bw --api ", {"c", "python", "numpy"}),
    ],
)
def test_shell_completion_offers_commands_and_choices(
    words: str,
    there: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = str(len(words.split(" ")) - 1)
    for shell in ("bash", "zsh", "fish"):
        asked = {
            "_SIWARP_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": words,
            "COMP_CWORD": count,
            "_TYPER_COMPLETE_ARGS": words,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        with monkeypatch.context() as env, pytest.raises(SystemExit):
            for name, value in asked.items():
                env.setenv(name, value)
            main([])
        assert there <= set(re.findall(r"[a-z,]+", capsys.readouterr().out)), shell


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_printed_for_each_shell(shell: str) -> None:
    # Without the environment variable, typer ignores the argument, and prints the completion script
    # for the shell that started the tests.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert (
        run_siwarp_command("--show-completion", shell, env=named).stdout.count("_SIWARP_COMPLETE")
        >= 1
    )


def modules_imported_by_command(*words: str) -> set[str]:
    """Return the names of the modules that a command imports."""
    done = subprocess.run(
        [COMMAND[0], "-X", "importtime", *COMMAND[1:], *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        check=True,
    )
    return set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))


def test_bench_imports_no_event_loop_and_no_verbs_before_a_measurement() -> None:
    imported = modules_imported_by_command("bench", "--help")
    assert "siwarp.bench.runner" in imported
    assert not imported & {"asyncio", "siwarp.verbs", "siwarp._siwarp", "numpy", "scapy"}


def test_ping_with_output_to_a_pipe_imports_no_modules_for_terminals_or_captures() -> None:
    imported = modules_imported_by_command("ping", "-n", "1")
    assert "siwarp.verbs" in imported
    assert not imported & {"rich", "pydantic", "scapy", "numpy", "asyncio", "siwarp.inspect"}


def test_the_command_devices_lists_interfaces_with_addresses_and_limits() -> None:
    found = {device["name"]: device for device in run_siwarp_json("devices")}
    assert set(found) == {device.name for device in get_device_list()}
    lo = found["siw_lo"]
    assert lo["netdev"] == "lo"
    assert "127.0.0.1" in lo["addresses"]
    with Context() as ctx:
        assert lo["limits"]["max_ud_msg"] == ctx.query_device().max_ud_msg
    table = run_siwarp_command("devices").stdout
    assert "siw_lo" in table
    assert "127.0.0.1" in table


def test_devices_and_doctor_give_advice_if_no_interface_has_an_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_to_open_device(_name: str | None = None) -> None:
        raise verbs.Error(errno.ENODEV, "opening device '127.0.0.1': No such device")

    monkeypatch.setattr(verbs, "get_device_list", list)
    monkeypatch.setattr(verbs, "Context", fail_to_open_device)
    devices.devices(as_json=False)
    assert "`sudo ip link set lo up`" in capsys.readouterr().out
    finding = doctor._check_siwarp_devices()
    assert finding.state == "bad"
    assert finding.advice.endswith("is lo up? sudo ip link set lo up")


def test_the_peer_process_of_the_demo_fails_with_a_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_no_device_error(_path: Path) -> None:
        raise verbs.Error(errno.ENODEV, "no device (see `siwarp devices`)")

    monkeypatch.setattr(demo_peer, "serve_file", raise_no_device_error)
    monkeypatch.setattr(sys, "argv", ["demo_peer", "file"])
    assert demo_peer.main() == 1
    assert capsys.readouterr().err == "siwarp demo's peer: no device (see `siwarp devices`)\n"


def test_config_prints_every_setting_of_settings_h() -> None:
    header = (Path(__file__).parents[2] / "siwarp/base/settings.h").read_text()
    variables = re.findall(r'X\(\w+, "(SIWARP_\w+)"', header)
    assert len(variables) > 5
    rows = run_siwarp_json("config")
    assert [row["variable"] for row in rows] == variables
    table = run_siwarp_command("config").stdout
    for row in rows:
        assert row["minimum"] <= row["value"] <= row["maximum"]
        shown = re.findall(rf"^{row['variable']} +{row['value']} ", table, re.MULTILINE)
        assert len(shown) == 1 + (row["value"] != row["default"])


def test_each_setting_belongs_to_exactly_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names.split()]
    assert sorted(grouped) == sorted(row["name"] for row in run_siwarp_json("config"))


def test_config_prints_settings_that_differ_from_the_default_first() -> None:
    plain = {"SIWARP_CRC": "0", "SIWARP_QKEY": "0", "SIWARP_CRC_FIRST": "0"}
    lines = run_siwarp_command("--budget", 9, "config", env=plain).stdout.splitlines()
    assert lines[0].startswith("different from the default")
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["SIWARP_BUDGET", "9", "64"],
        ["SIWARP_CRC", "0", "1"],
    ]
    assert lines[3] == ""


def test_config_prints_one_setting_by_any_of_its_names() -> None:
    for name in ("mulpdu", "SIWARP_MULPDU", "--mulpdu"):
        first, what, bounds = run_siwarp_command("config", name).stdout.splitlines()
        assert first == "SIWARP_MULPDU, or --mulpdu before a command"
        assert "RFC 5044 section 4.5" in what
        assert bounds == "  value 64768; default 64768; from 128 to 64768"
    assert [row["name"] for row in run_siwarp_json("config", "crc", "log")] == ["crc", "log"]


@pytest.mark.parametrize(("name", "advice"), [("SIWARP_CR", "did you mean SIWARP_CRC?"), ("", "")])
def test_config_of_an_unknown_setting_is_an_error_with_advice(name: str, advice: str) -> None:
    done = run_siwarp_command("config", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"siwarp: config: no such option or setting: {name}")
    assert done.stderr.strip().endswith(advice)


@pytest.mark.parametrize("arguments", [["config", "company"], ["--company", "never", "config"]])
def test_a_removed_setting_is_refused_with_the_name_of_its_successor(arguments: list[str]) -> None:
    done = run_siwarp_command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().endswith("is no longer a setting: use SIWARP_BATCHING")


def value_of_counter_row(name: str, done: subprocess.CompletedProcess[str]) -> int:
    return next(row["value"] for row in json.loads(done.stdout) if row["name"] == name)


def test_an_option_overrides_the_environment_and_the_environment_the_default() -> None:
    default = run_siwarp_command("config", "--json")
    assert value_of_counter_row("budget", default) == 64
    env = {"SIWARP_BUDGET": "7"}
    assert value_of_counter_row("budget", run_siwarp_command("config", "--json", env=env)) == 7
    assert (
        value_of_counter_row(
            "budget", run_siwarp_command("--budget", "9", "config", "--json", env=env)
        )
        == 9
    )
    assert (
        value_of_counter_row(
            "budget", run_siwarp_command("--budget=9", "config", "--json", env=env)
        )
        == 9
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "0", "config"], "1 to 4096"),
        (["--budget", "many", "config"], "1 to 4096"),
        (["--budget"], "needs a value"),
    ],
)
def test_a_setting_out_of_bounds_is_refused_with_its_bounds(
    arguments: list[str], words: str
) -> None:
    done = run_siwarp_command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_flags_of_config_build_and_run_a_c_program(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "this test needs a C compiler: apt install gcc"
    program = tmp_path / "version.c"
    program.write_text(
        "#include <stdio.h>\n#include <siwarp/siw_ext.h>\n#include <siwarp/cm.h>\n"
        "int main(void)\n{\n\tputs(siw_version());\n\treturn 0;\n}\n"
    )
    flags = run_siwarp_command("config", "--cflags", "--libs").stdout.strip()
    subprocess.run(
        f"{compiler} -Wall -Wextra -Werror version.c -o version {flags}",
        shell=True,
        check=True,
        cwd=tmp_path,
        timeout=60,
        env=environment_without_sanitizer(),
    )
    printed = subprocess.run(
        ["./version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert f"siwarp {printed.stdout}" == run_siwarp_command("--version").stdout


def test_counters_prints_the_counters_of_another_process() -> None:
    with run_ping_server("--addr", "127.0.0.1") as (port, process):
        assert (
            run_siwarp_json("ping", "127.0.0.1", "-p", port, "-n", 25, *qkey_options())["received"]
            == 25
        )
        # The server sleeps, and counts its last answer only when a datagram has woken it.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(b"short", ("127.0.0.1", port))
        wait_until(lambda: run_siwarp_json("counters", process.pid)["counters"]["drop_short"])
        found = run_siwarp_json("counters", process.pid)
        assert found["pid"] == process.pid
        assert found["counters"]["rx_msgs"] == 25
        assert found["counters"]["tx_msgs"] == 25
        assert process.pid in {entry["pid"] for entry in run_siwarp_json("counters")}
        table = run_siwarp_command("counters", process.pid).stdout
        assert re.search(r"rx_msgs +25 +messages received", table)
        assert "drop_crc" not in table  # the command prints counters that are zero only with --all
        assert "drop_crc" in run_siwarp_command("counters", process.pid, "--all").stdout


def test_counters_explains_each_counter_and_doctor_reports_the_losses() -> None:
    with run_ping_server("--addr", "127.0.0.1", "--qp", "ud") as (port, process):
        asked = run_siwarp_json("ping", "127.0.0.1", "-p", port, "-n", 2, *qkey_options())
        assert asked["received"] == 2
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(b"x" * 50, ("127.0.0.1", port))
        wait_until(lambda: run_siwarp_json("counters", process.pid)["counters"]["drop_crc"])
        header, *rows = run_siwarp_command("counters", process.pid, "--all").stdout.splitlines()
        assert len(rows) == len(run_siwarp_json("counters", process.pid)["counters"])
        start = header.index("what")
        assert all(len(row[start:].split()) >= 2 for row in rows)
        drops = next(f for f in run_siwarp_json("doctor") if f["what"] == "drops")
        assert drops["state"] == "fair"
        assert "`siwarp counters " in drops["advice"]


def test_counters_of_a_process_without_a_device_prints_an_error() -> None:
    done = run_siwarp_command("counters", os.getppid())
    assert done.returncode == 1
    assert "has opened no siwarp device" in done.stderr


def test_counters_prints_why_a_process_has_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(counters.CountersError, match="no such process runs"):
        # The PID is larger than the largest possible PID.
        counters.read_counters(1 << 22 | 1)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: -1)
        with pytest.raises(counters.CountersError, match="a process of another user"):
            counters.read_counters(os.getppid())


def test_a_process_can_read_its_own_counters_if_no_folder_for_counters_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counters, "folders_of_counters_pages", list)
    with Context(), pytest.raises(counters.CountersError, match="found no directory"):
        counters.read_counters(os.getpid())
    before = counters.read_own_counters()
    lib.siw_counters_add_for_tests(list(before).index("rd_retransmits"), 3)
    assert counters.read_own_counters()["rd_retransmits"] == before["rd_retransmits"] + 3


def test_doctor_prints_one_line_of_advice_for_each_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each check runs only once, because the findings about other processes may change meanwhile.
    seen = [check() for check in doctor._CHECKS]
    monkeypatch.setattr(doctor, "_CHECKS", [lambda one=one: one for one in seen])
    doctor.doctor(as_json=True)
    findings = json.loads(capsys.readouterr().out)
    doctor.doctor(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(findings) == len(seen)
    for finding, line in zip(findings, lines, strict=True):
        assert finding["state"] in ("good", "fair", "bad")
        assert finding["what"] in line
        assert finding["advice"] in line
    assert findings == [dataclasses.asdict(one) for one in seen]


def test_the_command_doctor_makes_each_check() -> None:
    things = ["devices", "ports", "buffers", "drops", "GSO", "cores", "namespaces", "compiler"]
    assert [finding["what"] for finding in run_siwarp_json("doctor")] == things
    lines = run_siwarp_command("doctor").stdout.splitlines()
    assert [line.split()[1] for line in lines] == things


def test_doctor_reports_that_the_default_udp_port_is_in_use() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        # If another process uses the port, bind() fails, and the port is in use just the same.
        with contextlib.suppress(OSError):
            s.bind(("127.0.0.1", 18515))
        ports = next(f for f in run_siwarp_json("doctor") if f["what"] == "ports")
    assert ports["state"] == "fair"
    assert ports["advice"].startswith("UDP") and "port 18515 is in use" in ports["advice"]


def test_doctor_treats_a_tcp_port_with_only_time_wait_connections_as_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as listener:
        # The listeners of siwarp set the option SO_REUSEADDR, too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            # The end that closes first keeps the connection in TIME_WAIT for a minute.
            accepted.close()
            assert client.recv(1) == b""
        monkeypatch.setattr(doctor, "PORT", port)
        taken = doctor._check_default_port_is_free()
        assert taken.state == "fair" and f"TCP port {port} is in use" in taken.advice
    assert f"TCP port {port} is in use" not in doctor._check_default_port_is_free().advice


def test_doctor_tests_socket_buffers_if_proc_does_not_provide_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_read_sysctl", lambda _path: None)
    assert (
        doctor._measure_granted_socket_buffer(socket.SO_RCVBUF, doctor.SO_RCVBUFFORCE, 100_000)
        == 100_000
    )
    assert "None" not in doctor._check_socket_buffers().advice
    monkeypatch.setattr(doctor, "_measure_granted_socket_buffer", lambda *_: 1000)
    finding = doctor._check_socket_buffers()
    assert finding.state == "fair"
    assert (
        "net.core.rmem_max=" in finding.advice and "in a container: on its host" in finding.advice
    )


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["written at exit", "written at once"])
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["config"], 141),  # the status that a shell reports for a program killed by SIGPIPE
        (["config", "--json"], 141),
        (["--help"], 141),
        (["nonsense"], 2),  # no output on stdout, only an error message
    ],
)
def test_output_to_a_closed_pipe_causes_no_error_message(
    command: list[str], status: int, unbuffered: str
) -> None:
    """Python buffers output to a pipe until the buffer is full or the process exits."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, *command],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        cwd="/",
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.returncode == status


def test_stdout_and_stderr_to_one_closed_pipe_cause_no_crash() -> None:
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    for command in (["config"], ["nonsense"]):
        done = subprocess.run(
            [*COMMAND, *command], stdout=write, stderr=write, timeout=60, cwd="/", env=environment
        )
        assert done.returncode == 141
    os.close(write)


def test_the_demo_prints_ok_for_each_of_its_checks() -> None:
    done = run_siwarp_command("demo", "--size", "8", "--no-bench")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("FAILED")]
    good = [line for line in lines if line.startswith("ok: ")]
    assert any("RDMA Write:" in line and "SHA-256" in line for line in good)
    assert any("RDMA Read:" in line for line in good)
    assert any("1 to 65485 octets" in line for line in good)
    assert any("500 messages" in line and "came back in order" in line for line in good)
    assert any("Terminate, DDP, Tagged Buffer Error: invalid STag" in line for line in good)
    assert any("Terminate, RDMAP, Remote Protection Error: invalid" in line for line in good)
    assert "RFC5041-7.2-01" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_demo_with_faults_loses_ud_datagrams_but_no_rd_messages() -> None:
    done = run_siwarp_command(
        "demo", "--size", "1", "--no-bench", "--faults", "loss=20%,dup=2%,seed=3"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    came = re.search(r"ok: (\d+) of 17 came back", done.stdout)
    assert came is not None and 0 < int(came[1]) < 17
    again = re.search(r"500 messages of 4096 octets came back in order; (\d+)", done.stdout)
    assert again is not None and int(again[1]) > 0


def test_the_demo_prints_its_findings_and_measurements_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run_siwarp_command("demo", "--size", 1, "--no-bench").stdout
    # With the default number of messages, the comparison would use two CPUs for 10 s.
    monkeypatch.setattr("siwarp.bench.run", functools.partial(bench.run, iters=64))
    demo.demo(size=1, bench=True, faults=None, as_json=True)
    told = json.loads(capsys.readouterr().out)
    *shown, beside = told["sections"]
    assert [each["title"] for each in shown] == re.findall(r"^== (.+)", plain, re.MULTILINE)
    findings = [finding for each in shown for finding in each["findings"]]
    assert len(findings) == len(re.findall(r"^ok: ", plain, re.MULTILINE))
    assert all(finding["good"] for finding in findings)
    assert (beside["title"].split(",")[0], beside["findings"]) == ("Compared with raw sockets", [])
    assert [(each["kind"], each["qp"]) for each in told["bench"]] == [
        ("lat", "ud"), ("lat", "rc"), ("bw", "ud"), ("bw", "rc"), ("bw", "rc"),
    ]  # fmt: skip
    assert all(each["ratio"] > 0 for each in told["bench"])
    assert told["failed"] is None
    assert told["seconds"] > 0


def test_a_demo_that_fails_reports_the_failure_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_after_heading(octets: int, lossy: bool) -> None:
        show.print_heading("Something")
        demo._report_demo_check(False, f"{octets} octets came back")

    monkeypatch.setattr(demo, "_demonstrate_transfers", fail_after_heading)
    with pytest.raises(typer.Exit) as end:
        demo.demo(size=1, bench=True, faults=None, as_json=True)
    assert end.value.exit_code == 1
    said = capsys.readouterr()
    assert said.err == "siwarp demo: 1048576 octets came back\n"
    told = json.loads(said.out)
    finding = {"text": "1048576 octets came back", "good": False}
    assert told["sections"] == [{"title": "Something", "findings": [finding]}]
    assert (told["failed"], told["bench"]) == ("1048576 octets came back", [])


def test_the_demo_refuses_an_invalid_fault_plan() -> None:
    done = run_siwarp_command("demo", "--faults", "loss=lots")
    assert done.returncode == 2
    assert "--faults" in done.stderr


def test_the_demo_recommends_tmpdir_if_the_disk_is_too_small() -> None:
    done = run_siwarp_command("demo", "--size", str(1 << 30))
    assert done.returncode == 1
    assert "TMPDIR" in done.stderr


def test_importing_the_package_loads_no_c_library() -> None:
    code = "import sys, siwarp; print('siwarp._siwarp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.stdout == "False\n"


def test_an_error_while_ctrl_c_is_handled_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_while_interrupted(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError(errno.EBUSY, "1 MRs of the PD exist")

    monkeypatch.setattr("siwarp.cli.version.main", fail_while_interrupted)
    assert main(["--version"]) == 130
    assert capsys.readouterr().err == ""


def test_ctrl_c_at_the_terminal_ends_the_demo_and_its_peer_without_a_traceback() -> None:
    with subprocess.Popen(
        [*COMMAND, "demo", "--size", "64", "--no-bench"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # the command has a process group of its own, as at a terminal
    ) as process:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "the demo ended"
            found = re.search(r"connected to process (\d+)", line)
        peer = int(found[1])  # the peer process is serving at this point
        os.killpg(process.pid, signal.SIGINT)
        _, heard = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in heard) == (130, False), heard
    with pytest.raises(ProcessLookupError):
        os.kill(peer, 0)
