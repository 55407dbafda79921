"""`siwarp bench --program OTHER`: two builds in turn, the ratio's interval, and the verdict."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pace import scale_limit
from typer.testing import CliRunner

from siwarp.bench import compare
from siwarp.bench.cli import app
from siwarp.bench.compare import Interval, ratio_interval
from siwarp.bench.runner import BenchError

# ---- the confidence interval


@pytest.mark.parametrize(("pairs", "critical"), [(6, 0), (10, 8), (20, 52), (40, 264)])
def test_the_interval_agrees_with_wilcoxons_signed_rank_tables(pairs: int, critical: int) -> None:
    values = [2.0**i for i in range(pairs)]
    found = ratio_interval([(value, 1.0) for value in values])
    walsh = sorted((a * b) ** 0.5 for i, a in enumerate(values) for b in values[i:])
    assert found.low == pytest.approx(walsh[critical])
    assert found.high == pytest.approx(walsh[-1 - critical])
    assert found.confidence >= 0.95


def test_with_fewer_than_six_pairs_the_interval_is_widest_and_less_confident() -> None:
    found = ratio_interval([(2.0, 1.0), (1.0, 1.0), (1.0, 2.0)])
    assert (found.low, found.high) == pytest.approx((0.5, 2.0))
    assert found.ratio == pytest.approx(1)
    assert found.confidence == 0.75
    with pytest.raises(ValueError, match="at least two"):
        ratio_interval([(1.0, 1.0)])


def test_the_interval_contains_the_true_ratio_in_95_percent_of_trials() -> None:
    draw = random.Random(20)
    trials, held = 400, 0
    for _ in range(trials):
        pairs = []
        for _ in range(20):
            phase = draw.choice((1.0, 1.0, 1.5))
            pairs.append((1.1 * phase * draw.gauss(1, 0.03), phase * draw.gauss(1, 0.03)))
        found = ratio_interval(pairs)
        held += found.low <= 1.1 <= found.high
    assert 0.92 <= held / trials <= 0.98


def test_an_outlier_hardly_changes_the_interval() -> None:
    quiet = [(1 + i / 4000, 1.0) for i in range(40)]
    noisy = [*quiet[:-1], (9.0, 1.0)]
    a, b = ratio_interval(quiet), ratio_interval(noisy)
    assert (a.ratio, a.low, a.high) == pytest.approx((b.ratio, b.low, b.high), abs=0.001)


@pytest.mark.parametrize(
    ("figure", "low", "high", "verdict"),
    [
        (0, 1.021, 1.05, "loss"),
        (0, 1.019, 1.05, "open"),
        (0, 0.90, 1.019, "no loss"),
        (3, 0.90, 0.949, "loss"),
        (3, 0.90, 0.951, "open"),
        (3, 0.951, 1.30, "no loss"),
    ],
)
def test_a_loss_is_an_interval_worse_by_2_percent_latency_or_5_percent_bandwidth(
    figure: int, low: float, high: float, verdict: str
) -> None:
    what = compare.FIGURES[figure]
    assert what.unit == ("us" if figure == 0 else "GB/s")
    assert compare.verdict_of_measurement(what, Interval(1, low, high, 0.95)) == verdict
    assert compare.verdict_of_measurement(what, Interval(1, low, high, 0.94)) == "open"


# ---- both programs

ProgramFactory = Callable[..., Path]


@pytest.fixture
def create_fake_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramFactory:
    """Return a function that creates a program which prints JSON of the bench and logs its
    arguments.
    """
    # A shell crashes if a sanitizer's library is preloaded into it.
    monkeypatch.delenv("LD_PRELOAD", raising=False)

    def create_fake_siwarp(name: str, lat: float = 2.0, bw: float = 5.0, then: str = "") -> Path:
        path = tmp_path / name
        path.write_text(
            "#!/bin/sh\n"
            f'echo "{name} $*" >>{tmp_path}/asked\n{then}\n'
            "case $2 in\n"
            f'lat) echo \'{{"ours": {lat}, "unit": "us", "iters": 400, "floor": 1.5}}\' ;;\n'
            f'bw) echo \'{{"ours": {bw}, "unit": "GB/s", "iters": 64, "floor": 6}}\' ;;\n'
            "esac\n",
            "ascii",
        )
        path.chmod(0o755)
        return path

    return create_fake_siwarp


@pytest.fixture
def fake_bench_program_substituter(
    create_fake_program: ProgramFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    def substitute_fake_bench(**values: Any) -> None:
        monkeypatch.setattr(compare, "_THIS_COMMAND", (str(create_fake_program("this", **values)),))

    return substitute_fake_bench


def run_bench(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout + done.stderr


def test_a_certainly_slower_build_is_a_loss_and_makes_the_exit_status_1(
    create_fake_program: ProgramFactory, fake_bench_program_substituter: Callable[..., None]
) -> None:
    fake_bench_program_substituter(lat=2.05, bw=4.8)
    status, said = run_bench("--program", create_fake_program("other"), "--rounds", "6")
    assert status == 1
    latencies = [line for line in said.splitlines() if "64 B latency" in line]
    assert len(latencies) == 3
    assert all("1.025" in line and "  loss  " in line for line in latencies)
    assert all("no loss" not in line for line in latencies)
    bandwidths = [line for line in said.splitlines() if "bandwidth" in line and "GB/s" in line]
    assert len(bandwidths) == 3
    assert all("0.960" in line and "no loss" in line for line in bandwidths)
    assert "a trial: with 6 rounds the intervals are wide; use 40" in said


def test_an_equally_fast_build_is_no_loss_and_makes_the_exit_status_0(
    create_fake_program: ProgramFactory, fake_bench_program_substituter: Callable[..., None]
) -> None:
    fake_bench_program_substituter()
    status, said = run_bench("--program", create_fake_program("other"), "--rounds", "6")
    assert status == 0
    assert said.count("  no loss  ") == len(compare.FIGURES)


def test_three_rounds_are_a_trial_without_verdicts(
    create_fake_program: ProgramFactory, fake_bench_program_substituter: Callable[..., None]
) -> None:
    fake_bench_program_substituter(lat=4.0)
    status, said = run_bench("--program", create_fake_program("other"), "--rounds", "3")
    assert status == 0
    assert said.count("  open  ") == len(compare.FIGURES)
    assert "hold the ratio with 75% only; use 40" in said


def test_programs_alternate_in_changing_order_with_equal_numbers_of_messages(
    create_fake_program: ProgramFactory,
    fake_bench_program_substituter: Callable[..., None],
    tmp_path: Path,
) -> None:
    fake_bench_program_substituter()
    status, said = run_bench("--program", create_fake_program("other"), "--rounds", "4", "--json")
    assert status == 0
    result = json.loads(said)
    assert [each["name"] for each in result["figures"]] == [f.name for f in compare.FIGURES]
    firsts = [pair["first"] for pair in result["figures"][0]["pairs"]]
    assert firsts == ["this", "other", "this", "other"]
    ud = [
        line.split(" bench lat --qp ud ")
        for line in (tmp_path / "asked").read_text("ascii").splitlines()
        if "lat --qp ud" in line
    ]
    # The first two runs are not counted; they determine the number of messages of the other runs.
    assert [name for name, _ in ud[2:]] == ["this", "other", "other", "this"] * 2
    assert ud[0][1] == "--size 64 --rounds 1 --json"
    assert {words for _, words in ud[1:]} == {"--size 64 --rounds 1 --json --iters 100"}
    pair = result["figures"][3]["pairs"][0]
    assert pair == {
        "this": 5.0,
        "other": 5.0,
        "this_floor": 6,
        "other_floor": 6,
        "first": "this",
    }


def test_the_other_program_does_not_inherit_python_and_library_paths(
    create_fake_program: ProgramFactory,
    fake_bench_program_substituter: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    fake_bench_program_substituter()
    other = create_fake_program("other", then='[ -z "$PYTHONPATH$LD_LIBRARY_PATH" ] || exit 9')
    assert run_bench("--program", other, "--rounds", "3")[0] == 0


# ---- error messages that name the remedy


def test_a_missing_program_a_folder_and_a_text_file_are_refused(
    tmp_path: Path, fake_bench_program_substituter: Callable[..., None]
) -> None:
    fake_bench_program_substituter()
    status, said = run_bench("--program", tmp_path / "siwarp")
    assert status == 1 and "siwarp is not there: name an installed siwarp, or .venv" in said
    status, said = run_bench("--program", tmp_path)
    assert (
        status == 1 and "is a folder: name the program in it, for example .venv/bin/siwarp" in said
    )
    (tmp_path / "text").write_text("", "ascii")
    status, said = run_bench("--program", tmp_path / "text")
    assert status == 1 and "text cannot be executed" in said


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("echo siwarp: no such option >&2; exit 2", "cannot run `bench lat --qp ud"),
        ("echo siwarp: no such option >&2; exit 2", "siwarp: no such option"),
        ("exit 5", "exit status 5"),
        ("echo hello; exit 0", "is not siwarp, or its version is too different to compare"),
        ("echo '{}'; exit 0", "is not siwarp, or its version is too different to compare"),
        (
            """echo '{"ours": NaN, "unit": "us", "iters": 1}'; exit 0""",
            "is not siwarp, or its version is too different to compare",
        ),
        (
            """echo '{"ours": 1, "unit": "ms", "iters": 1}'; exit 0""",
            "printed no result in us",
        ),
        ("exec sleep 60", "lat did not finish within 2 s"),
    ],
)
def test_the_error_for_a_failing_program_has_its_name_and_its_message(
    create_fake_program: ProgramFactory,
    fake_bench_program_substituter: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    then: str,
    message: str,
) -> None:
    fake_bench_program_substituter()
    if "sleep" in then:
        monkeypatch.setattr(compare, "LIMIT_S", 2)
    other = create_fake_program("other", then=then)
    status, said = run_bench("--program", other, "--rounds", "3")
    assert status == 1
    assert message in said and f"siwarp bench: {other}" in said


def test_an_invalid_executable_is_reported_as_not_starting(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    with pytest.raises(BenchError, match="does not start"):
        compare._Program(str(path)).measure(compare.FIGURES[0], 1)


@pytest.mark.parametrize(
    "words",
    [["--program", "x", "lat"], ["--rounds", "5"], ["--json"], ["--program", "x", "--rounds", "2"]],
)
def test_contradictory_options_are_a_usage_error(words: list[str]) -> None:
    assert run_bench(*words)[0] == 2


@pytest.mark.parametrize("what", compare.FIGURES, ids=lambda what: what.name)
def test_the_bench_can_measure_every_compared_figure(what: compare.ComparedFigure) -> None:
    done = CliRunner().invoke(app, [*what.command, "-n", "50", "--rounds", "1", "--json"])
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["unit"], result["less_is_better"]) == (what.unit, what.less_is_better)


@pytest.mark.scales
def test_this_build_compared_with_itself_has_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "LIMIT_S", scale_limit(compare.LIMIT_S))
    # A path after #! must contain no blank, but the path of this tree may contain a blank.
    (tmp_path / "venv").symlink_to(sys.prefix)
    python = tmp_path / "venv/bin" / Path(sys.executable).name
    other = tmp_path / "siwarp"
    script = "import sys\nfrom siwarp.cli.main import main\nsys.exit(main())\n"
    other.write_text(f"#!{python}\n{script}", "utf-8")
    other.chmod(0o755)
    short = [
        replace(what, command=(*what.command, "-n", "64"), part=1.0)
        for what in compare.FIGURES
        if what.name in ("RC Send 64 B latency", "RD Send 1 MiB bandwidth")
    ]
    steps: list[tuple[int, int]] = []
    result = compare.compare_programs(
        str(other), 3, lambda done, total: steps.append((done, total)), figures=short
    )
    assert steps == [(done, 8) for done in range(9)]
    assert not compare.has_performance_loss(result)
    for each in result["figures"]:
        assert each["iters"] == 64
        assert len(each["pairs"]) == 3
        assert 0 < each["low"] <= each["ratio"] <= each["high"]
