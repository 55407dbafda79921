"""`python -m lab.abi`: programs compared with a raw socket, siwarp's own bench, and one another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from laboratory.lab_harness import run_lab_study

from lab.abi import programs as abi
from siwarp.bench.programs import parse_client_result

PERFTEST = "ib_send_lat UD"
PART = ("--part", "programs")
needs_perftest = pytest.mark.skipif(
    not shutil.which("ib_send_lat"), reason="no perftest on this machine: make abi installs it"
)
needs_ucx = pytest.mark.skipif(
    not shutil.which("ucx_perftest"), reason="no UCX on this machine: make abi installs it"
)


def test_missing_programs_are_named_and_their_rows_are_left_out(tmp_path: Path) -> None:
    # An editable install that does not rebuild on import runs `true` instead of the build.
    (tmp_path / "true").symlink_to(shutil.which("true") or "/bin/true")
    done = run_lab_study("abi", *PART, "--json", env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "lab abi: ib_read_bw is missing: install the package perftest",
        "lab abi: ib_send_lat is missing: install the package perftest",
        "lab abi: ib_write_bw is missing: install the package perftest",
        "lab abi: ucx_perftest is missing: install the package ucx-utils",
    ]
    rows = json.loads(done.stdout)["programs"]
    assert [row["measured"] for row in rows] == [None] * len(abi.ROWS)
    assert rows[-1]["error"] == "left out: ucx_perftest is missing: install the package ucx-utils"
    shown = run_lab_study("abi", *PART, "--only", "ucx", env={"PATH": str(tmp_path)})
    assert shown.returncode == 1
    assert "NOT SHOWN" in shown.stdout and "left out: ucx_perftest is missing" in shown.stdout


@needs_perftest
def test_each_round_has_socket_siwarp_and_program_and_the_ratio_is_their_median() -> None:
    done = run_lab_study("abi", *PART, "--only", PERFTEST, "--rounds", 3, "--json", timeout=120)
    (row,) = json.loads(done.stdout)["programs"]
    assert row["error"] is None and done.returncode == (0 if row["measured"]["kept"] else 1)
    rounds = row["measured"]["rounds"]
    assert len(rounds) == 3
    assert all(values[name] > 0 for values in rounds for name in ("floor", "ours", "program"))
    ratios = sorted(values["program"] / values["floor"] for values in rounds)
    least, median, greatest = ratios
    assert row["measured"]["ratio"] == {"min": least, "median": median, "max": greatest}
    assert row["measured"]["kept"] == (median <= row["target"])


@needs_ucx
def test_ucx_over_ud_verbs_is_compared_with_the_tcp_transport_of_ucx() -> None:
    done = run_lab_study("abi", *PART, "--only", "ud_verbs", "--rounds", 1, "--json", timeout=180)
    (row,) = json.loads(done.stdout)["programs"]
    assert row["error"] is None and row["beside"] == "UCX's tcp"
    (values,) = row["measured"]["rounds"]
    assert row["measured"]["ratio"]["median"] == values["program"] / values["beside"]
    assert values["beside"] != values["floor"]
    assert row["measured"]["kept"] == (values["program"] <= values["beside"])


def test_each_row_has_the_promised_ratio_and_the_compared_figure() -> None:
    promised = {row.name: (row.target, row.beside_name) for row in abi.ROWS}
    assert promised == {
        "ib_send_lat UD 64 B": (1.25, "raw socket"),
        "ib_send_lat RC 64 B, iwarp": (1.20, "raw socket"),
        "ib_send_lat RC 64 B, roce": (1.20, "raw socket"),
        "ib_send_lat RC 64 B, roce to iwarp": (1.15, "persona iwarp"),
        "ib_write_bw RC 1 MiB": (0.70, "raw socket"),
        "ib_read_bw RC 1 MiB": (0.65, "raw socket"),
        "ucx_perftest tag_lat 64 B, ud_verbs": (1.0, "UCX's tcp"),
    }
    assert all(program in abi.PACKAGES for row in abi.ROWS for program in row.required_programs())


def test_a_promise_limits_a_latency_from_above_and_a_bandwidth_from_below() -> None:
    rows = {row.name: row for row in abi.ROWS}
    latency, bandwidth = rows["ib_send_lat UD 64 B"], rows["ib_read_bw RC 1 MiB"]
    assert latency.keeps_performance_promise(1.25) and not latency.keeps_performance_promise(1.26)
    assert bandwidth.keeps_performance_promise(0.65) and not bandwidth.keeps_performance_promise(
        0.64
    )


def test_the_figures_are_parsed_from_the_output_of_the_programs() -> None:
    lat = " 64      2000          1.62           9.06         1.80     \t       1.85        0.10\n"
    bw = " 1048576    1000             9501.93            9399.17\t\t   0.009399\n"
    csv = "iterations,50.0_percentile_lat,avg_lat\n20000,2.689,74.121,158.4\n"
    rows = {row.name: row for row in abi.ROWS}
    assert parse_client_result(rows["ib_send_lat UD 64 B"].pair, lat) == 1.80
    assert parse_client_result(rows["ib_write_bw RC 1 MiB"].pair, bw) == pytest.approx(
        9.8557, rel=1e-4
    )
    assert parse_client_result(rows["ucx_perftest tag_lat 64 B, ud_verbs"].pair, csv) == 2.689
    with pytest.raises(abi.BenchError, match="ib_send_lat printed no results"):
        parse_client_result(rows["ib_send_lat UD 64 B"].pair, bw)


@needs_perftest
def test_the_row_of_a_failed_program_has_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "ib_send_lat"
    broken.write_text("#!/bin/sh\necho no device >&2\nexit 4\n")
    broken.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    arguments = ("--only", PERFTEST, "--rounds", 1, "--json")
    done = run_lab_study("abi", *PART, *arguments, env={"PATH": path}, timeout=120)
    (row,) = json.loads(done.stdout)["programs"]
    assert done.returncode == 1
    assert row["measured"] is None
    assert row["error"] == "ib_send_lat failed: exit status 4: no device"
