"""The guides: their commands run, and have the documented results."""

from __future__ import annotations

import re
from pathlib import Path

from docs.docs_harness import read_doc_block, run_in_namespace

from siwarp.inspect import crc32c


def test_with_losses_every_rd_ping_is_answered_but_not_every_ud_ping(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/faults.md", "ping"), tmp_path)
    assert "50 sent, 50 back, 0 lost" in said
    lost = re.search(r"10 sent, \d+ back, (\d+) lost", said)
    assert lost is not None
    assert 0 < int(lost[1]) < 10


def test_the_documented_test_of_a_connection_reset_passes(tmp_path: Path) -> None:
    (tmp_path / "test_reset.py").write_text(read_doc_block("docs/guides/faults.md", "test"))
    assert "1 passed" in run_in_namespace(read_doc_block("docs/guides/faults.md", "run"), tmp_path)


def test_a_ping_is_captured_and_dissected(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/wireshark.md", "capture"), tmp_path)
    assert "6 SEND (384 octets)" in said
    assert said.count("rc SEND") == 6


def test_the_documented_scapy_program_reads_and_builds_segments(tmp_path: Path) -> None:
    run_in_namespace(read_doc_block("docs/guides/wireshark.md", "scapy-capture"), tmp_path)
    (tmp_path / "read.py").write_text(read_doc_block("docs/guides/wireshark.md", "scapy"))
    said = run_in_namespace("python read.py", tmp_path)
    assert len(re.findall(r"^STag 0x\w+, TO 0x\w+, CRC 0x\w+$", said, re.MULTILINE)) >= 12
    assert len(re.findall(r"^datagram-iWARP RD 4 \d+$", said, re.MULTILINE)) >= 12
    built = bytes.fromhex(said.splitlines()[-1])
    assert built[8:12] == (8).to_bytes(4, "big")
    assert int.from_bytes(built[-4:], "little") == crc32c(built[:-4])


def test_the_documented_command_prints_the_path_of_the_wireshark_script(tmp_path: Path) -> None:
    script = Path(
        run_in_namespace(read_doc_block("docs/guides/wireshark.md", "lua"), tmp_path).strip()
    )
    assert script.suffix == ".lua"
    assert script.is_file()


def test_round_trips_through_siwarp_wan_take_the_documented_delay(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/two-hosts.md", "wan"), tmp_path)
    assert "20 sent, 20 back, 0 lost" in said
    least = re.search(r"min (\d+)\.\d", said)
    assert least is not None
    assert int(least[1]) >= 40_000


def test_the_documented_bench_command_prints_a_ratio(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/performance.md", "bench"), tmp_path)
    assert "ratio" in said


def test_latency_between_two_namespaces_is_at_least_the_delay_of_the_link(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/bench-hosts.md", "lat"), tmp_path)
    for qp in ("rc", "ud"):
        row = re.search(rf"^{qp} +send +64 +200 +([\d.]+)", said, re.MULTILINE)
        assert row is not None, said
        assert float(row[1]) >= 100
    assert said.count("p50") == 3


def test_the_documented_command_writes_a_bandwidth_curve_as_csv(tmp_path: Path) -> None:
    run_in_namespace(read_doc_block("docs/guides/bench-hosts.md", "curve"), tmp_path)
    lines = (tmp_path / "bandwidth.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 4
