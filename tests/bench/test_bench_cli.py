"""`siwarp bench`: text output, JSON, exit status, and the progress bar."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pace
import pytest
from harness.siwarp_process import COMMAND, SiwarpProcess
from table import run_test_for_each_row
from typer.testing import CliRunner

from siwarp.bench import cli, table
from siwarp.bench.cli import app
from siwarp.bench.plan import make_bench_plan, remove_losses_from_fault_plan
from siwarp.bench.runner import BenchError, SlowError

SHORT = ["-n", "50", "--rounds", "1"]
TINY: dict[str, Any] = {"kind": "lat", "qp": "ud", "iters": 50}


def make_table_row(must: float, aim: float, less: bool = True, **arguments: Any) -> table.Row:
    return table.Row("a row", "a floor", must, aim, less, arguments or TINY)


def test_json_has_the_plan_the_medians_and_every_round() -> None:
    done = CliRunner().invoke(app, ["lat", "--qp", "rc", "-s", "100", *SHORT, "--json"])

    assert done.exit_code == 0
    result = json.loads(done.stdout)
    wanted = {"kind": "lat", "qp": "rc", "op": "send", "size": 100}
    wanted |= {"wait": "poll", "api": "c", "unit": "us"}
    assert {name: result[name] for name in wanted} == wanted
    assert len(result["rounds"]) == 1
    assert result["ratio"] == pytest.approx(result["ours"] / result["floor"])


def test_a_fault_plan_delays_siwarp_but_not_the_floor() -> None:
    asked = ["lat", "-n", "3", "--rounds", "1", "--json", "--faults"]
    # 30 ms is longer than a round trip without a fault plan on any busy machine.
    result = json.loads(CliRunner().invoke(app, [*asked, "delay=30ms"]).stdout)
    # The figure is half of the round trip time; the fault plan delays both directions.
    assert result["ours"] >= 30_000
    assert result["floor"] < 30_000
    done = CliRunner().invoke(app, [*asked, "delay=2"])
    assert done.exit_code == 2


def test_a_fault_plan_does_not_apply_to_the_ud_floor_of_rd() -> None:
    asked = ["lat", "--qp", "rd", "-n", "5", "--rounds", "1", "--json"]
    done = CliRunner().invoke(app, [*asked, "--faults", "delay=30ms,loss=5%"])
    result = json.loads(done.stdout)
    assert result["ours"] >= 30_000
    assert result["floor"] < 30_000
    assert result["floor_name"] == "ud"


def test_rd_bandwidth_with_losses_is_compared_with_the_rate_without_losses() -> None:
    asked = ["bw", "--qp", "rd", "-s", "100000", *SHORT, "--faults", "loss=2%"]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    (one,) = result["rounds"]
    assert result["ours"] > 0
    assert result["lossless"] == one["lossless"] > 0
    assert result["lossless_ratio"] == pytest.approx(one["ours"] / one["lossless"])
    said = CliRunner().invoke(app, asked).stdout
    assert "raw UDP, unconnected, polling, 60 KB" in said
    assert "siwarp with faults loss=2%" in said
    assert re.search(
        r"siwarp, the same without the losses .* \d+\.\d+ of the rate without losses", said
    )


def test_a_fault_plan_without_losses_keeps_only_delays_and_rate_limits() -> None:
    assert remove_losses_from_fault_plan("loss=1%,delay=0.1ms") == "delay=0.1ms"
    assert (
        remove_losses_from_fault_plan("tx: loss=1%, burst=3; rx:rate=1Mbit,corrupt=1%")
        == "rx:rate=1Mbit"
    )
    assert remove_losses_from_fault_plan("rx:loss=1%,peer=[::1]:20;delay=1ms") == "delay=1ms"
    assert remove_losses_from_fault_plan("loss=1%") == ""
    assert remove_losses_from_fault_plan("delay=1ms,reorder=1%") is None


def test_the_text_output_has_siwarp_the_floor_the_ratio_and_the_other_floors() -> None:
    done = CliRunner().invoke(app, ["rate", *SHORT, "--depth", "10"])

    assert done.exit_code == 0
    assert "siwarp  " in done.stdout
    assert "raw UDP, sendmmsg and recvmmsg  " in done.stdout
    assert "ratio " in done.stdout
    assert "raw UDP, batches by GSO and GRO" in done.stdout


@pytest.mark.parametrize("kind", ["lat", "bw"])
def test_a_run_with_markers_is_compared_with_a_run_without_markers(kind: str) -> None:
    asked = [kind, "--qp", "rc", "--op", "write", "-s", "5000", "--markers", *SHORT]
    result = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert result["markers"] is True
    assert "markers" not in result["floors"]
    one = result["rounds"][0]
    assert result["with_markers"] == one["markers"] > 0
    assert result["markers_ratio"] == pytest.approx(one["markers"] / one["ours"])

    words = CliRunner().invoke(app, asked).stdout
    assert "siwarp, Markers in both directions  " in words
    assert "of without" in words


@pytest.mark.parametrize(
    "asked",
    [
        ["lat", "--op", "read"],
        ["bw", "--wait", "nap"],
        ["lat", "--qp", "ud", "--markers"],
    ],
)
def test_an_unsupported_measurement_is_a_usage_error(asked: list[str]) -> None:
    assert CliRunner().invoke(app, asked).exit_code == 2


def test_several_sizes_are_measured_and_written_as_csv_and_drawn(tmp_path: Path) -> None:
    table, chart = tmp_path / "a table.csv", tmp_path / "a chart.svg"
    asked = ["rate", "--sizes", "64,1K", *SHORT, "--csv", str(table), "--plot", str(chart)]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["size"] for row in rows] == ["64", "1024"]
    assert [float(row["ratio"]) for row in rows] == [result["ratio"] for result in results]
    assert chart.read_text("utf-8").startswith("<?xml")


def test_a_measurement_that_a_busy_machine_does_not_complete_is_partial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raise_slow_error_for_rc(kind: str, qp: str, *_: Any, **__: Any) -> dict[str, Any]:
        if qp == "rc":
            raise SlowError("the run 'ours' did not finish within 20 s")
        return {"qp": qp, "partial": ""}

    monkeypatch.setattr(cli, "run", raise_slow_error_for_rc)
    done = CliRunner().invoke(app, ["lat", "--qp", "rc,ud", "--json"])
    assert done.exit_code == 0
    ud, rc = json.loads(done.stdout)
    assert (ud["qp"], ud["partial"], rc["qp"]) == ("ud", "", "rc")
    assert "did not finish within 20 s" in rc["partial"]
    assert "partial: rc, 64 octets: the run 'ours' did not finish" in done.stderr
    assert CliRunner().invoke(app, ["lat", "--qp", "rc"]).exit_code == 1


@pytest.mark.parametrize(
    ("name", "why"), [("x.svg", "pip install 'siwarp[plot]'"), ("x.pdf", "ends in .svg or .png")]
)
def test_a_chart_that_cannot_be_drawn_is_refused_before_the_measurement(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["lat", "--plot", str(tmp_path / name)])
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())


def test_a_missed_limit_makes_the_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ROWS", (make_table_row(must=1e-9, aim=1e-10),))
    done = CliRunner().invoke(app, ["table", "--rounds", "1"])

    assert done.exit_code == 1
    assert "missed" in done.stdout


def test_kept_limits_make_the_exit_status_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "ROWS", (make_table_row(must=1e9, aim=1e-9),))
    done = CliRunner().invoke(app, ["table", "--rounds", "1", "-o", str(tmp_path / "out.json")])

    assert done.exit_code == 0
    assert "missed" not in done.stdout
    (written,) = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert written["verdict"] == "must"
    assert written["measured"]["rounds"][0]["ours"] > 0


def test_a_failed_row_has_the_verdict_missed_and_the_reason() -> None:
    def raise_bench_error(**_: Any) -> dict[str, Any]:
        raise BenchError("lost 3 of 4 messages")

    (result,) = table.measure_rows([make_table_row(1, 1)], 1, run=raise_bench_error)
    assert (result["verdict"], result["error"]) == ("missed", "lost 3 of 4 messages")


@pytest.mark.parametrize(
    ("less", "value", "verdict"),
    [
        (True, 1.05, "aim"),
        (True, 1.06, "must"),
        (True, 1.15, "must"),
        (True, 1.16, "missed"),
        (False, 0.95, "missed"),
    ],
)
def test_a_figure_of_which_less_is_better_has_upper_limits(
    less: bool, value: float, verdict: str
) -> None:
    limits = (1.15, 1.05) if less else (1.0, 1.2)
    assert table.row_verdict(make_table_row(*limits, less=less), value) == verdict


@pytest.mark.parametrize(("value", "verdict"), [(0.69, "missed"), (0.7, "must"), (0.9, "aim")])
def test_a_figure_of_which_more_is_better_has_lower_limits(value: float, verdict: str) -> None:
    assert table.row_verdict(make_table_row(0.7, 0.9, less=False), value) == verdict


def test_the_median_ratio_is_judged_or_the_microseconds_without_a_floor() -> None:
    def return_simulated_result(**_: Any) -> dict[str, Any]:
        return {"ratio_median": ratio, "ours": 3.0}

    ratio: float | None = 1.1
    assert (
        table.measure_rows([make_table_row(1.15, 1.05)], 1, run=return_simulated_result)[0][
            "verdict"
        ]
        == "must"
    )
    ratio = None
    assert (
        table.measure_rows([make_table_row(10, 2)], 1, run=return_simulated_result)[0]["verdict"]
        == "must"
    )


@run_test_for_each_row("promised", table.ROWS, ids=lambda r: r.name)
def test_every_promised_figure_has_a_plan_and_an_aim_stricter_than_its_limit(
    promised: table.Row,
) -> None:
    plan = make_bench_plan(**{k: v for k, v in promised.arguments.items() if k != "env"})

    assert plan.less_is_better == promised.less_is_better
    assert table.row_verdict(promised, promised.aim) == "aim"
    assert table.row_verdict(promised, promised.must) == "must"


LATENCY = [*COMMAND, "bench", "lat", "-n", "200", "--rounds", "2"]


def test_no_progress_bar_is_written_to_a_pipe() -> None:
    done = pace.run_command(LATENCY, capture_output=True, seconds=100, start=SiwarpProcess)

    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout and b"\r" not in done.stdout


@pytest.mark.parametrize("words", [["lat", "-n", "50", "--rounds", "1"], ["lat", "--wait", "x"]])
def test_a_closed_output_pipe_causes_no_traceback(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "siwarp.cli", "bench", *words],
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=100,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    os.close(write)
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert done.returncode == (2 if "x" in words else 141)


def test_a_progress_bar_is_written_to_a_terminal() -> None:
    master, terminal = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as shown:
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        process = SiwarpProcess(LATENCY, stdout=terminal, stderr=terminal, env=env)
        os.close(terminal)
        seen = b""
        try:
            while chunk := shown.read(4096):
                seen += chunk
        except OSError:  # on a pty whose other end is closed, read() fails with EIO
            pass
        assert process.wait(timeout=100) == 0
    assert b"bench lat" in seen and b"\x1b[" in seen
    assert b"raw UDP, unconnected" in seen
