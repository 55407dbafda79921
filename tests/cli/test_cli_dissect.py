"""siwarp dissect: its output, its options, and its messages about damaged files."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pace
import pytest
from cli.cli_harness import dissect_to_json, run_siwarp_command, run_siwarp_in_process
from harness.siwarp_process import COMMAND, SiwarpProcess
from unit.inspect.inspect_harness import (
    CAPTURES,
    TCPConversation,
    add_startup_frames,
    make_read_request_fpdu,
    make_send_fpdu,
    make_tagged_fpdu,
    make_udp_packet,
    write_capture,
)

from siwarp.inspect import DDPDatagram, Opcode, UDDatagram


@pytest.fixture(scope="module")
def sample_capture_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture of two connections, the second of which violates a rule, and a UD
    exchange.
    """
    link = add_startup_frames(TCPConversation().add_handshake(), private_data=b"hello")
    link.add_data(0, make_read_request_fpdu(1, 7, 4)).add_data(
        1, make_tagged_fpdu(Opcode.RDMA_READ_RESPONSE, 7, 0, b"1234")
    )
    link.add_fins()
    other = add_startup_frames(
        TCPConversation(("10.9.0.1", 1), packets=link.packets).add_handshake()
    )
    other.add_data(0, make_send_fpdu(1)[:-1] + b"\0").add_data(0, make_send_fpdu(2))
    link.packets.append(make_udp_packet(bytes(UDDatagram(segment=DDPDatagram(msn=1)))))
    return write_capture(link.packets, tmp_path_factory.mktemp("dissect") / "x.pcapng")


def test_dissect_prints_messages_as_a_table_with_set_up_answers_and_errors(
    sample_capture_file: Path,
) -> None:
    lines = run_siwarp_in_process("dissect", sample_capture_file).stdout.splitlines()
    assert len(lines) == 10
    assert "rev 1, CRC, no markers, private data 68 65 6c 6c 6f; answered by 2" in lines[1]
    assert "asks for 4; answered by 4" in lines[3]
    assert "answers 3 after 1000.0 µs" in lines[4]
    assert "wrong CRC (RFC5044-8-01)" in lines[7]
    assert "\x1b" not in "".join(lines)


def test_dissect_can_be_limited_to_streams_and_to_errors(sample_capture_file: Path) -> None:
    assert {m["stream"] for m in dissect_to_json(sample_capture_file, "--stream", 2)} == {2}
    both = dissect_to_json(sample_capture_file, "--stream", 1, "--stream", 3)
    assert {m["stream"] for m in both} == {1, 3}
    (wrong,) = dissect_to_json(sample_capture_file, "--errors")
    assert (wrong["error"], wrong["stream"]) == ("wrong CRC", 2)
    assert (
        run_siwarp_in_process("dissect", sample_capture_file, "--errors", "--stream", 1).stdout
        == "The capture has no such message.\n"
    )


def test_dissect_prints_each_of_several_captures_below_its_name(
    sample_capture_file: Path, tmp_path: Path
) -> None:
    other = write_capture(
        [make_udp_packet(bytes(UDDatagram(segment=DDPDatagram(msn=1))))], tmp_path / "other.pcapng"
    )
    absent = tmp_path / "absent.pcapng"
    done = run_siwarp_in_process("dissect", sample_capture_file, absent, other)
    alone = [run_siwarp_in_process("dissect", file).stdout for file in (sample_capture_file, other)]
    assert done.stdout == (f"{sample_capture_file}:\n{alone[0]}\n{absent}:\n\n{other}:\n{alone[1]}")
    assert done.returncode == 1 and str(absent) in done.stderr
    both = dissect_to_json(sample_capture_file, other)
    assert [m["file"] for m in both] == [str(sample_capture_file)] * 9 + [str(other)]
    assert "file" not in dissect_to_json(other)[0]


def test_dissect_reads_a_capture_from_standard_input(sample_capture_file: Path) -> None:
    done = pace.run_command(
        [*COMMAND, "dissect", "-"],
        input=sample_capture_file.read_bytes(),
        capture_output=True,
        check=True,
        seconds=60,
        start=SiwarpProcess,
    )
    assert done.stdout.decode() == run_siwarp_in_process("dissect", sample_capture_file).stdout


def test_the_exit_status_of_dissect_reports_errors_only_with_the_option(
    sample_capture_file: Path,
) -> None:
    assert run_siwarp_in_process("dissect", sample_capture_file).returncode == 0
    wrong = run_siwarp_in_process("dissect", sample_capture_file, "--fail-on-errors", "--stream", 1)
    # An error counts for the exit status even if --stream hides its stream.
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "answers 3" in wrong.stdout
    good = write_capture(
        add_startup_frames(TCPConversation().add_handshake()).add_fins().packets,
        sample_capture_file.parent / "good.pcapng",
    )
    assert run_siwarp_in_process("dissect", good, "--fail-on-errors").returncode == 0


def test_dissect_installs_the_lua_script_in_the_plugin_folder_of_wireshark(tmp_path: Path) -> None:
    for _ in range(2):  # the second installation replaces the first
        done = run_siwarp_command("dissect", "--install-lua", env={"HOME": str(tmp_path)})
        place = tmp_path / ".local/lib/wireshark/plugins/siwarp.lua"
        assert (done.returncode, done.stdout) == (0, f"{place}\n")
        script = Path(run_siwarp_in_process("dissect", "--lua-path").stdout.strip())
        assert place.read_bytes() == script.read_bytes()


def test_the_summary_of_dissect_has_a_line_for_each_stream(sample_capture_file: Path) -> None:
    streams = dissect_to_json(sample_capture_file, "--summary")
    assert [s["transport"] for s in streams] == ["rc", "rc", "ud"]
    assert [s["errors"] for s in streams] == [0, 1, 0]
    assert streams[0]["read_latency"]["median"] == pytest.approx(0.001, abs=1e-5)
    text = run_siwarp_in_process("dissect", sample_capture_file, "--summary").stdout
    assert len(text.splitlines()) == 4
    assert "a Read takes 1000.0 (1000.0 to 1000.0) µs" in text
    assert [s["number"] for s in dissect_to_json(sample_capture_file, "--summary", "--errors")] == [
        2
    ]


def test_a_truncated_capture_is_dissected_up_to_its_end_with_an_error_message(
    sample_capture_file: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.pcapng"
    cut.write_bytes(sample_capture_file.read_bytes()[:-10])
    done = run_siwarp_in_process("dissect", cut)
    assert done.returncode == 1
    assert "RDMA_READ_RESPONSE" in done.stdout
    assert done.stderr.startswith(f"siwarp: {cut} is damaged: the file ends within ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_dissect_reads_a_capture_from_a_pipe(sample_capture_file: Path, packed: bool) -> None:
    octets = sample_capture_file.read_bytes()
    done = pace.run_command(
        [*COMMAND, "dissect", "/dev/stdin", "--json"],
        input=gzip.compress(octets) if packed else octets,
        capture_output=True,
        seconds=60,
        start=SiwarpProcess,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == dissect_to_json(sample_capture_file)


def test_dissect_escapes_terminal_control_sequences_in_comments(tmp_path: Path) -> None:
    packet = make_udp_packet(b"x" * 30)
    packet.comments = [b"drop_crc: \x1b[2Jgone"]
    text = run_siwarp_in_process("dissect", write_capture([packet], tmp_path / "x.pcapng")).stdout
    assert "\x1b" not in text
    assert "\\x1b[2Jgone" in text


@pytest.mark.parametrize("name", ["siw-rping", "siw-rping-crc", "siw-rping-p2p"])
def test_dissect_reads_captures_of_linux_siw(name: str) -> None:
    messages = dissect_to_json(CAPTURES / f"{name}.pcap")
    assert sum(m["answers"] is not None for m in messages) == 4
    assert {m["error"] for m in messages} == {None}


def test_dissect_prints_the_path_of_the_lua_script() -> None:
    path = Path(run_siwarp_in_process("dissect", "--lua-path").stdout.strip())
    assert path.is_absolute()
    assert 'Proto("siwarp"' in path.read_text("utf-8")


def dissect_without_module(module: str, file: Path) -> subprocess.CompletedProcess[str]:
    """Run dissect in a Python in which this module cannot be imported."""
    return pace.run_command(
        [sys.executable, "-c", f"import sys; sys.modules[{module!r}] = None\n"
         "from siwarp.cli.main import main; sys.exit(main())", "dissect", file],
        capture_output=True, text=True, seconds=60,
    )  # fmt: skip


def test_dissect_without_crc32c_prints_how_to_install_the_package(
    sample_capture_file: Path,
) -> None:
    done = dissect_without_module("crc32c", sample_capture_file)
    assert done.returncode == 1
    python = shlex.quote(sys.executable)
    assert done.stderr == f"siwarp: dissecting needs crc32c: run {python} -m pip install crc32c\n"


def test_dissect_prints_the_same_without_scapy(sample_capture_file: Path) -> None:
    done = dissect_without_module("scapy", sample_capture_file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run_siwarp_in_process("dissect", sample_capture_file).stdout
