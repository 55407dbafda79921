"""`python -m lab.papers.adts`: file transfers over RD, RC and TCP, and their promised figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from laboratory.lab_harness import run_lab_study
from namespaces import wan_harness

from lab.papers.adts import __main__ as command_line
from lab.papers.adts import figures, page, paper, promises, report, summary, vsftpd
from lab.papers.adts.links import LinkShape
from siwarp.bench.runner import BenchError

#: The scale at which the smallest file of a figure has some KiB.
TINY = "0.01"


def test_put_and_get_are_measured_over_each_channel_beside_raw_udp(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = run_lab_study(
        "papers.adts", "-s", "1M", "--rounds", 2, "--json", "--results", results, timeout=120
    )
    # With files of a few KiB, promised ratios may be missed.
    assert done.returncode in (0, 1), done.stderr
    part = json.loads(done.stdout)["lan"]
    assert set(part["mbit_s"]) == {
        *(f"{way} {channel}" for way in ("put", "get") for channel in ("tcp", "rc", "rd")),
        "raw UDP, files",
        "raw UDP, memory",
    }
    for values in part["mbit_s"].values():
        assert values["rounds"] == 2 and min(values["values"]) > 0
    missed = [ratio["name"] for ratio in part["ratios"] if ratio["met"] is False]
    assert done.returncode == bool(missed)
    kept = json.loads(results.read_text())
    assert kept["lan"] == part and "kernel" in kept["machine"]


def test_a_link_of_siwarp_wan_carries_rd_and_tcp_with_cubic_and_bbr() -> None:
    wan_harness.skip_without_tun_device()
    words = ("--part", "wan-lossy-13ms", "--rounds", 1, "--scale", TINY, "--json")
    done = run_lab_study("papers.adts", *words, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    part = json.loads(done.stdout)["wan-lossy-13ms"]
    assert part["line"] == "50 Mbit/s, 13 ms each way, 0.5% loss (wan)"
    rates = {name: values["median"] for name, values in part["mbit_s"].items()}
    assert set(rates) == {"rd", "cubic", "bbr"}
    assert all(0 < rate < 50 for rate in rates.values())


def test_sends_and_writes_with_immediate_carry_the_same_units() -> None:
    wan_harness.skip_without_tun_device()
    words = ("--part", "immediate", "--rounds", 1, "--scale", TINY, "--json")
    done = run_lab_study("papers.adts", *words, timeout=120)
    assert done.returncode == 0, done.stderr
    curves = json.loads(done.stdout)["immediate"]["curves"]
    assert len(curves) == 4
    assert all(len(points) == 3 for points in curves.values())


def test_an_unknown_part_is_refused() -> None:
    done = run_lab_study("papers.adts", "--part", "lan,moon")
    assert done.returncode == 2
    assert "moon" in done.stderr


def test_rounds_alternate_and_a_later_failure_keeps_the_complete_rounds() -> None:
    order: list[str] = []

    def record_call_and_return_position(name: str) -> float:
        order.append(name)
        if len(order) == 6:
            raise BenchError("the line broke")
        return float(len(order))

    runs = {name: lambda name=name: record_call_and_return_position(name) for name in ("a", "b")}  # type: ignore[misc]
    log = summary.Log()
    found = summary.measure_rounds(runs, 4, log)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [1, 4], "b": [2, 3]}
    assert log.warnings == ["round 3 of 4 failed, and was the last: the line broke"]


def test_a_part_that_fails_is_recorded_with_the_reason_and_ends_no_other_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_bench_error(*_: Any) -> dict[str, Any]:
        raise BenchError("the line broke")

    def return_differing_rounds(*_: Any) -> dict[str, Any]:
        rates = {"put rd": summary.summarize_values([1.0, 2.0])}
        return {"line": "loopback", "mbit_s": rates, "ratios": []}

    monkeypatch.setattr(promises, "measure_file_transfers_over_loopback", raise_bench_error)
    monkeypatch.setattr(vsftpd, "measure_vsftpd_and_curl", return_differing_rounds)
    results, html = tmp_path / "results.json", tmp_path / "page.html"
    with pytest.raises(typer.Exit) as end:
        command_line.main("lan,outside", 1, "1M", 1.0, str(results), "", False)
    assert end.value.exit_code == 1
    assert "failed: the line broke" in capsys.readouterr().out
    kept = json.loads(results.read_text())
    assert kept["lan"]["failed"] == "the line broke"
    assert "put rd: the rounds differ by more than a factor of 1.5" in kept["outside"]["unreliable"]
    command_line.main("lan", 1, "1M", 1.0, str(results), str(html), False)
    shown = html.read_text()
    assert "failed: the line broke" in shown
    assert "The part small was not measured." in shown


def test_a_ratio_is_judged_by_the_median_of_the_rounds() -> None:
    ratio = summary.judge_ratio("a to b", [8.0, 9.0, 1.0], [10.0, 10.0, 10.0], 0.8)
    assert (ratio["median"], ratio["met"], ratio["rounds"]) == (pytest.approx(0.8), True, 3)
    assert summary.judge_ratio("a to b", [1.0], [2.0], None)["met"] is None


def test_the_sizes_of_the_trace_follow_zipfs_law() -> None:
    sizes = figures.zipf_file_sizes(1 << 20, files=4, alpha=2)
    assert sizes[0] == pytest.approx(4 * sizes[1], rel=1e-3)
    assert sizes[0] == pytest.approx(16 * sizes[3], rel=1e-3)
    assert sum(sizes) == pytest.approx(1 << 20, rel=1e-3)


def test_a_link_is_described_in_words_and_as_a_fault_plan() -> None:
    shape = LinkShape(50, 13, 0.5)
    assert shape.name == "50 Mbit/s, 13 ms each way, 0.5% loss"
    assert shape.fault_plan == "rate=50Mbit,delay=13ms,loss=0.5%"
    assert LinkShape().name == "no delay"


def test_each_ratio_is_printed_with_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    rate = summary.summarize_values([100.0, 120.0, 110.0])
    part = {
        "line": "loopback",
        "mbit_s": {"put rd": rate},
        "ratios": [summary.judge_ratio("RD to TCP", [3.0], [4.0], 0.8)],
        "failed": "",
        "unreliable": ["a doubt"],
    }
    report.print_results({"lan": part})
    shown = capsys.readouterr().out
    assert "110 (105 to 115, rounds: 3) Mbit/s" in shown
    assert "must: 0.8, MISSED" in shown
    assert "unreliable: a doubt" in shown


def test_the_page_has_each_figure_of_the_paper_and_the_promised_figures() -> None:
    points = [[x, summary.summarize_values([x, 2 * x])] for x in (1.0, 4.0)]
    curves = {"line": "put", "axis": "MiB", "unit": "s", "curves": {"rd": points, "tcp": points}}
    found = {
        "machine": {"CPU": "a <fast> one"},
        "put-size": {**curves, "ratios": [], "failed": "", "unreliable": []},
        "get-delay-256": {
            **curves,
            "ratios": [],
            "failed": "",
            "unreliable": [],
        },  # a measurement that two figures of the paper show
        "lan": {
            "line": "loopback",
            "mbit_s": {"put rd": summary.summarize_values([100.0])},
            "ratios": [summary.judge_ratio("RC to TCP", [3.0], [4.0], 0.8)],
            "failed": "",
            "unreliable": ["a doubt"],
        },
    }
    shown = page.make_page(found, ("put-size", "lan"))
    for figure in paper.FIGURES:
        assert f"<h2>{figure.name}: " in shown
        assert figure.verdict in {
            "same shape",
            "other shape",
            "cannot be shown in software",
        }, figure.number
        assert figure.stated and figure.why
    assert "a &lt;fast&gt; one" in shown and "unreliable: a doubt" in shown
    assert "The part get-size was not measured." in shown
    assert "<td>missed</td>" in shown
    assert shown.count("<svg ") == 3
    ids = re.findall(r' id="([^"]*)"', shown)
    assert len(ids) == len(set(ids))


def test_a_page_needs_results() -> None:
    done = run_lab_study("papers.adts", "--page", "page.html")
    assert done.returncode == 2
    assert "needs --results" in done.stderr


def test_each_part_of_the_papers_figures_exists() -> None:
    parts = command_line._define_parts_of_study(1, 1 << 20, 1.0, summary.Log())
    assert {name for figure in paper.FIGURES for name in figure.parts} <= set(parts)
