"""`siwarp bench all`: its figures, its rounds, and the page."""

from __future__ import annotations

import base64
import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pace
import pytest
from harness.siwarp_process import COMMAND, SiwarpProcess
from typer.testing import CliRunner

from siwarp.bench import charts, report, stacks
from siwarp.bench.page import make_page, reasons_to_doubt_report
from siwarp.bench.programs import parse_client_result
from siwarp.bench.runner import BenchError
from siwarp.cli.app import build_app

pytestmark = pytest.mark.scales

SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)


def read_recorded_report() -> dict[str, Any]:
    """Return a report of a few figures, recorded with --quick."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("recorded_report.json").read_text())
    return found


class TextOfPage(HTMLParser):
    """The words of a page by tag, its links, and its tags that are not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [v for name, v in attributes if name in ("href", "src") and v]
        if tag not in ("meta", "path", "circle", "rect"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("path", "circle", "rect"):
            return
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.words += text
        if self.open and ("td" in self.open or "th" in self.open):
            self.rows[-1][-1] += text


# ---- the page


def test_the_page_has_every_figure_with_its_ratio_interval_rounds_and_remark() -> None:
    recorded = read_recorded_report()
    page = TextOfPage(make_page(recorded))
    assert page.open == []
    for figure in recorded["figures"]:
        rows = [row for row in page.rows if row[1:2] == [figure["series"]]]
        assert rows, figure["key"]
        if figure["ratio"] is None:
            continue
        ratio, low, high = (f"{figure['ratio'][name]:.3g}" for name in ("ratio", "low", "high"))
        # A figure that is compared with other stacks is on the page twice.
        found = [row for row in rows if f"{ratio} ({low} to {high}, 50% only)" in row]
        assert found
        assert all("2" in row for row in found)
        assert {row[-1] for row in found} == {"unreliable: fewer than 20 rounds of the floor"}
    for words in ("a processor <tm>", "SIWARP_CRC=0", "HZ", "load average before and after"):
        assert words in page.words
    assert "UCX tcp: not installed: sudo apt install ucx-utils" in page.words
    assert "does not count cycles" in page.words


def test_the_page_needs_no_other_file_and_contains_all_data() -> None:
    recorded = read_recorded_report()
    text = make_page(recorded)
    page = TextOfPage(text)
    (data,) = (link for link in page.links if link.startswith("data:"))
    assert json.loads(base64.b64decode(data.partition("base64,")[2])) == recorded
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not re.search(r"url\(|@import|<script|https?:", text)


def test_every_chart_has_a_title_and_a_description_of_its_own() -> None:
    drawn = SVG.findall(make_page(read_recorded_report()))
    assert len(drawn) == 6
    identifiers = set()
    for svg in drawn:
        root = ET.fromstring(svg)
        title, description = root.findall("title") + root.findall("desc")
        assert title.text and description.text
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        identifiers |= {title.get("id"), description.get("id")}
    assert len(identifiers) == 2 * len(drawn)


def test_a_partial_report_is_marked_and_a_good_one_is_not() -> None:
    recorded = read_recorded_report()
    recorded["partial"] = "interrupted in round 3 of 20"
    assert "partial: interrupted in round 3 of 20" in make_page(recorded)
    recorded.update(partial="", unreliable=[])
    assert reasons_to_doubt_report(recorded) == []
    assert "Complete, and every floor was steady" in make_page(recorded)


def test_a_page_shows_a_figure_that_failed_and_figures_of_a_single_round() -> None:
    recorded = read_recorded_report()
    for figure in recorded["figures"]:
        figure.update(median=None, span=None, values=[None], ratio=None, best_ratio=None)
        figure["failures"] = ["lost 3 of 4 messages"]
    page = make_page(recorded)
    assert not SVG.search(page)
    assert "failed: lost 3 of 4 messages" in page
    recorded = read_recorded_report()
    for figure in recorded["figures"]:
        if figure["ratio"]:
            figure["ratio"].update(low=None, high=None, confidence=None)
    assert "(no interval)" in make_page(recorded)


def test_cycles_are_shown_for_a_message_and_for_an_octet_where_they_are_counted() -> None:
    recorded = read_recorded_report()
    (counted,) = (f for f in recorded["figures"] if f["key"] == "cpu/UDP/UD, lists of 32/64")
    counted["cycles"] = 1280.0
    page = TextOfPage(make_page(recorded))
    assert "does not count cycles" not in page.words
    (row,) = (row for row in page.rows if "1,280" in row)
    assert row[row.index("1,280") + 1] == "20"


def test_labels_of_curves_that_end_at_one_point_do_not_overlap() -> None:
    curves = [charts.Curve(f"curve {i}", [(1.0, 5.0), (2.0, 5.0)], i == 0) for i in range(6)]
    root = ET.fromstring(charts.draw_curves("c", "t", ("x", "y"), curves, (str, str)))
    labels = [t for t in root.findall("text") if (t.text or "").startswith("curve")]
    heights = sorted(float(label.get("y") or 0) for label in labels)
    assert len(heights) == 6
    assert all(after - before >= 15 for before, after in itertools.pairwise(heights))
    assert heights[-1] < 360
    groups = root.findall("g")
    assert {group[1].tag for group in groups} == {"circle", "rect", "path"}
    dashed = ["dashed" in (group[0].get("class") or "") for group in groups]
    assert dashed == [True, False, False, False, False, False]


# ---- rounds


def make_latency_figure(
    series: str, run: Callable[[], dict[str, float]], floor: str = ""
) -> report.Figure:
    return report.Figure("latency", "UDP", series, 64, "us", run, floor)


def make_report_scope(rounds: int) -> report.Scope:
    return report.Scope(rounds, 0.1, (64,), (64,), (1,))


FLOOR = "latency/UDP/raw/64"


def test_rounds_alternate_in_order_and_ratios_are_those_of_one_round() -> None:
    order: list[str] = []

    def make_run_that_records_order(name: str, *values: float) -> Callable[[], dict[str, float]]:
        left = list(values)

        def note_order_and_return_next_value() -> dict[str, float]:
            order.append(name)
            return {"value": left.pop(0)}

        return note_order_and_return_next_value

    figures = [
        make_latency_figure("raw", make_run_that_records_order("raw", 1.0, 10.0, 100.0)),
        make_latency_figure("UD", make_run_that_records_order("UD", 2.0, 20.0, 200.0), FLOOR),
    ]
    steps: list[tuple[int, int]] = []
    found = report.measure_figures(
        make_report_scope(3), figures, lambda done, total: steps.append((done, total))
    )
    assert order == ["raw", "UD", "UD", "raw", "raw", "UD"]
    assert steps[-1] == (6, 6)
    raw, ours = found["figures"]
    assert raw["median"] == 10.0 and raw["span"] == [1.0, 100.0]
    assert ours["ratio"]["ratio"] == pytest.approx(2.0)
    assert ours["ratio"]["low"] == pytest.approx(2.0) == ours["ratio"]["high"]
    assert ours["ratio"]["rounds"] == 3
    assert "fewer than 20 rounds" in ours["unreliable"]
    assert found["partial"] == ""
    assert any(FLOOR in doubt for doubt in found["unreliable"])


def test_the_spread_of_a_floor_makes_its_ratios_unreliable() -> None:
    for spread, unreliable in ((1.1, False), (1.3, True)):
        values = [1.0, spread] * 10
        figures = [
            make_latency_figure("raw", lambda values=values: {"value": values.pop()}),
            make_latency_figure("UD", lambda: {"value": 2.0}, FLOOR),
        ]
        raw, ours = report.measure_figures(make_report_scope(20), figures)["figures"]
        assert bool(raw["unreliable"]) == bool(ours["unreliable"]) == unreliable


def test_the_spread_of_the_kernels_best_makes_the_figure_unreliable_too() -> None:
    values = [1.0, 1.3] * 10
    figures = [
        make_latency_figure("raw", lambda: {"value": 1.0}),
        make_latency_figure("raw, GSO", lambda: {"value": values.pop()}),
        replace(
            make_latency_figure("UD", lambda: {"value": 2.0}, FLOOR), best="latency/UDP/raw, GSO/64"
        ),
    ]
    found = report.measure_figures(make_report_scope(20), figures)
    raw, best, ours = found["figures"]
    assert not raw["unreliable"] and best["unreliable"]
    assert "the kernel's best as the floor: the floor's interquartile" in ours["unreliable"]
    assert any(
        "1 of 2 runs of raw sockets: latency/UDP/raw, GSO/64" in d for d in found["unreliable"]
    )


def test_a_figure_that_fails_twice_is_left_out_and_the_report_is_partial() -> None:
    tries: list[int] = []

    def raise_bench_error() -> dict[str, float]:
        tries.append(1)
        raise BenchError("a cable was pulled")

    figures = [
        make_latency_figure("raw", lambda: {"value": 1.0}),
        make_latency_figure("UD", raise_bench_error, FLOOR),
    ]
    found = report.measure_figures(make_report_scope(5), figures)
    assert len(tries) == 2
    assert found["partial"] == "latency/UDP/UD/64: a cable was pulled"
    raw, ours = found["figures"]
    assert raw["values"] == [1.0] * 5
    assert ours["median"] is None and ours["ratio"] is None
    assert "failed: a cable was pulled" in make_page(found)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_run_reports_what_was_measured(
    interruption: type[BaseException],
) -> None:
    left = [2.0, 2.0]

    def return_value_or_interrupt() -> dict[str, float]:
        if not left:
            raise interruption
        return {"value": left.pop()}

    figures = [
        make_latency_figure("raw", lambda: {"value": 1.0}),
        make_latency_figure("UD", return_value_or_interrupt, FLOOR),
    ]
    found = report.measure_figures(make_report_scope(5), figures)
    assert found["partial"] == "interrupted in round 3 of 5"
    assert found["figures"][0]["values"] == [1.0, 1.0, 1.0]
    assert found["figures"][1]["values"] == [2.0, 2.0, None]
    assert found["figures"][1]["ratio"]["rounds"] == 2
    assert "partial: interrupted in round 3 of 5" in make_page(found)


def test_no_round_begins_that_would_end_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]

    def advance_clock_by_10_s() -> dict[str, float]:
        now[0] += 10.0
        return {"value": 1.0}

    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    figures = [make_latency_figure("raw", advance_clock_by_10_s)]
    found = report.measure_figures(make_report_scope(20), figures, limit=35.0)
    assert found["partial"] == "3 of 20 rounds: the time limit was reached"
    assert found["seconds"] == 30
    # The time limit also ends a round of which some figures are not measured yet.
    figures = [
        make_latency_figure(name, advance_clock_by_10_s) for name in ("raw", "other", "third")
    ]
    found = report.measure_figures(make_report_scope(20), figures, limit=15.0)
    assert found["partial"] == "the time limit was reached in round 1 of 20"
    assert [figure["median"] for figure in found["figures"]] == [1.0, 1.0, None]


# ---- the figures


@pytest.mark.parametrize("scope", [report.Scope.of_complete_report(), report.Scope.of_trial()])
def test_every_figure_has_a_key_of_its_own_and_a_measured_floor(
    scope: report.Scope, tmp_path: Path
) -> None:
    figures = report.define_measurements(scope, tmp_path)
    keys = [figure.key for figure in figures]
    assert len(set(keys)) == len(keys)
    for figure in figures:
        compared = [key for key in (figure.floor, figure.best) if key]
        assert set(compared) <= set(keys)
        assert bool(figure.floor) != figure.series.startswith("raw")
    sections = {figure.section for figure in figures} - {"stacks"}
    assert sections == {"latency", "bandwidth", "rate", "threads", "cpu"}
    ours = [figure for figure in figures if figure.section == "rate" and figure.floor]
    assert all(figure.best for figure in ours)


@pytest.mark.parametrize(
    ("pair", "said", "figure"),
    [
        (
            stacks.make_libfabric_program_pair("lat"),
            "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
            "64      10k     =10k     1.2m        0.10s     13.02       4.91       0.20\n",
            4.91,
        ),
        (
            stacks.make_libfabric_program_pair("bw"),
            "1m      500     =500     1000m       0.21s   4901.40     213.93       0.00\n",
            4.9014,
        ),
        (
            stacks.make_ucx_program_pair("lat"),
            "10000,4.390,4.458,4.458,13.69,13.69,224310,224310\n",
            4.39,
        ),
        (
            stacks.make_ucx_program_pair("bw"),
            " 500,6.896,204.166,204.166,4897.97,4898.97,4898,4898\n",
            4898.97 * 1.048576 / 1e3,
        ),
    ],
)
def test_the_figures_of_other_stacks_are_parsed_from_their_output(
    pair: Any, said: str, figure: float
) -> None:
    assert parse_client_result(pair, said) == pytest.approx(figure)
    with pytest.raises(BenchError, match="printed no results"):
        parse_client_result(pair, "an error\n")


# ---- the command


def run_bench_all(*arguments: str) -> Any:
    return pace.run_command(
        [*COMMAND, "bench", "all", *arguments],
        capture_output=True,
        text=True,
        check=False,
        seconds=120,
        start=SiwarpProcess,
    )


def test_a_trial_measures_every_section_and_is_never_reliable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    # Without PATH no other stack is found: what is installed here does not change the test.
    monkeypatch.setenv("PATH", "")
    # One round of each figure, with few and small messages.
    of_trial = report.Scope.of_trial()
    small = replace(
        of_trial, seconds=0.002, rounds=1, datagrams=(64,), streams=(64,), thread_counts=(2,)
    )
    monkeypatch.setattr(report.Scope, "of_trial", lambda: small)
    arguments = ["bench", "all", "--quick", "--out", str(page), "--json", str(data)]
    done = CliRunner().invoke(build_app("bench"), arguments)
    found = json.loads(data.read_text())
    # A busy machine may lose datagrams: then the report is partial, and says so.
    assert done.exit_code == (1 if found["partial"] else 0), done.output
    assert "unreliable: a trial" in done.stdout
    assert "100%" in done.stderr
    assert found["quick"] is True
    measured = [figure for figure in found["figures"] if figure["median"] is not None]
    assert {figure["section"] for figure in measured} >= {
        *("latency", "bandwidth", "rate", "threads", "cpu")
    }
    assert all(figure["median"] > 0 for figure in measured)
    text = page.read_text()
    assert TextOfPage(text).open == []
    assert "unreliable: a trial" in text


def test_a_page_that_cannot_be_written_is_refused_before_the_measurement(tmp_path: Path) -> None:
    done = run_bench_all("--out", str(tmp_path / "none" / "page.html"))
    assert done.returncode == 2
    assert "No such file or directory" in done.stderr
