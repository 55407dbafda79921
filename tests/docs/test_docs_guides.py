"""The guides: their commands run, and have the documented results."""

from __future__ import annotations

import re
from pathlib import Path

from docs.docs_harness import read_doc_block, run_in_namespace


def test_reliable_datagrams_all_come_back_and_plain_ones_do_not(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/faults.md", "ping"), tmp_path)
    assert "50 sent, 50 back, 0 lost" in said
    lost = re.search(r"10 sent, \d+ back, (\d+) lost", said)
    assert lost is not None
    assert 0 < int(lost[1]) < 10


def test_the_test_of_a_reset_passes(tmp_path: Path) -> None:
    (tmp_path / "test_reset.py").write_text(read_doc_block("docs/guides/faults.md", "test"))
    assert "1 passed" in run_in_namespace(read_doc_block("docs/guides/faults.md", "run"), tmp_path)


def test_a_ping_is_captured_and_dissected(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/wireshark.md", "capture"), tmp_path)
    assert "6 SEND (384 octets)" in said
    assert said.count("rc SEND") == 6


def test_the_script_for_wireshark_is_where_the_command_says(tmp_path: Path) -> None:
    script = Path(
        run_in_namespace(read_doc_block("docs/guides/wireshark.md", "lua"), tmp_path).strip()
    )
    assert script.suffix == ".lua"
    assert script.is_file()


def test_round_trips_through_a_slow_line_take_what_the_page_says(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/two-hosts.md", "wan"), tmp_path)
    assert "20 sent, 20 back, 0 lost" in said
    least = re.search(r"min (\d+)\.\d", said)
    assert least is not None
    assert int(least[1]) >= 40_000


def test_the_bench_prints_a_ratio(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/performance.md", "bench"), tmp_path)
    assert "ratio" in said


def test_latency_between_two_namespaces_is_that_of_the_line_at_least(tmp_path: Path) -> None:
    said = run_in_namespace(read_doc_block("docs/guides/bench-hosts.md", "lat"), tmp_path)
    for qp in ("rc", "ud"):
        row = re.search(rf"^{qp} +send +64 +200 +([\d.]+)", said, re.MULTILINE)
        assert row is not None, said
        assert float(row[1]) >= 100
    assert said.count("p50") == 3


def test_a_curve_of_bandwidth_is_written_as_csv(tmp_path: Path) -> None:
    run_in_namespace(read_doc_block("docs/guides/bench-hosts.md", "curve"), tmp_path)
    lines = (tmp_path / "bandwidth.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 4
