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
from siwarp.bench.cli import app, main
from siwarp.bench.compare import Interval, ratio_interval
from siwarp.bench.runner import BenchError

# ---- the confidence interval


@pytest.mark.parametrize(("pairs", "critical"), [(6, 0), (10, 8), (20, 52), (40, 264)])
def test_the_interval_is_that_of_the_tables_of_wilcoxon_s_signed_ranks(
    pairs: int, critical: int
) -> None:
    values = [2.0**i for i in range(pairs)]
    found = ratio_interval([(value, 1.0) for value in values])
    walsh = sorted((a * b) ** 0.5 for i, a in enumerate(values) for b in values[i:])
    assert found.low == pytest.approx(walsh[critical])
    assert found.high == pytest.approx(walsh[-1 - critical])
    assert found.confidence >= 0.95


def test_fewer_than_six_pairs_have_the_widest_interval_and_say_how_sure_it_is() -> None:
    found = ratio_interval([(2.0, 1.0), (1.0, 1.0), (1.0, 2.0)])
    assert (found.low, found.high) == pytest.approx((0.5, 2.0))
    assert found.ratio == pytest.approx(1)
    assert found.confidence == 0.75
    with pytest.raises(ValueError, match="at least two"):
        ratio_interval([(1.0, 1.0)])


def test_the_interval_holds_the_true_ratio_95_times_in_100() -> None:
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


def test_a_pair_that_is_far_off_hardly_moves_the_interval() -> None:
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
def test_a_loss_is_an_interval_wholly_beyond_2_percent_of_latency_or_5_of_bandwidth(
    figure: int, low: float, high: float, verdict: str
) -> None:
    what = compare.FIGURES[figure]
    assert what.unit == ("us" if figure == 0 else "GB/s")
    assert compare.verdict(what, Interval(1, low, high, 0.95)) == verdict
    assert compare.verdict(what, Interval(1, low, high, 0.94)) == "open"


# ---- both programs

Fake = Callable[..., Path]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return a function that creates a program which prints a bench's JSON and logs its
    arguments.
    """
    # A shell crashes if a sanitizer's library is preloaded into it.
    monkeypatch.delenv("LD_PRELOAD", raising=False)

    def make(name: str, lat: float = 2.0, bw: float = 5.0, then: str = "") -> Path:
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

    return make


@pytest.fixture
def this(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def make(**values: Any) -> None:
        monkeypatch.setattr(compare, "_THIS", (str(fake("this", **values)),))

    return make


def invoke(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout + done.stderr


def test_a_build_that_is_slower_for_certain_is_a_loss_and_exit_status_1(
    fake: Fake, this: Callable[..., None]
) -> None:
    this(lat=2.05, bw=4.8)
    status, said = invoke("--program", fake("other"), "--rounds", "6")
    assert status == 1
    latencies = [line for line in said.splitlines() if "64 B latency" in line]
    assert len(latencies) == 3
    assert all("1.025" in line and line.rstrip("│ ").endswith(" loss") for line in latencies)
    assert all("no loss" not in line for line in latencies)
    bandwidths = [line for line in said.splitlines() if "bandwidth" in line and "│" in line]
    assert len(bandwidths) == 3
    assert all("0.960" in line and "no loss" in line for line in bandwidths)
    assert "a trial: with 6 rounds the intervals are wide; use 40" in said


def test_a_build_that_is_as_fast_is_no_loss_and_exit_status_0(
    fake: Fake, this: Callable[..., None]
) -> None:
    this()
    status, said = invoke("--program", fake("other"), "--rounds", "6")
    assert status == 0
    assert said.count("│ no loss") == len(compare.FIGURES)


def test_three_rounds_are_a_trial_that_judges_nothing(
    fake: Fake, this: Callable[..., None]
) -> None:
    this(lat=4.0)
    status, said = invoke("--program", fake("other"), "--rounds", "3")
    assert status == 0
    assert said.count("│ open") == len(compare.FIGURES)
    assert "hold the ratio with 75% only; use 40" in said


def test_the_programs_take_turns_the_order_changes_and_both_move_as_many_messages(
    fake: Fake, this: Callable[..., None], tmp_path: Path
) -> None:
    this()
    status, said = invoke("--program", fake("other"), "--rounds", "4", "--json")
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
    # The first two runs are not counted: they determine the number of messages of the others.
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


def test_this_build_s_modules_and_library_are_not_the_other_program_s(
    fake: Fake, this: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    this()
    other = fake("other", then='[ -z "$PYTHONPATH$LD_LIBRARY_PATH" ] || exit 9')
    assert invoke("--program", other, "--rounds", "3")[0] == 0


# ---- error messages that name the remedy


def test_a_program_that_is_not_there_or_no_program_is_refused(
    tmp_path: Path, this: Callable[..., None]
) -> None:
    this()
    status, said = invoke("--program", tmp_path / "siwarp")
    assert status == 1 and "siwarp is not there: name an installed siwarp, or .venv" in said
    status, said = invoke("--program", tmp_path)
    assert (
        status == 1 and "is a folder: name the program in it, for example .venv/bin/siwarp" in said
    )
    (tmp_path / "text").write_text("", "ascii")
    status, said = invoke("--program", tmp_path / "text")
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
def test_a_program_that_does_not_measure_is_named_with_what_it_said(
    fake: Fake,
    this: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    then: str,
    message: str,
) -> None:
    this()
    if "sleep" in then:
        monkeypatch.setattr(compare, "LIMIT_S", 2)
    other = fake("other", then=then)
    status, said = invoke("--program", other, "--rounds", "3")
    assert status == 1
    assert message in said and f"siwarp bench: {other}" in said


def test_a_file_that_is_no_program_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    with pytest.raises(BenchError, match="does not start"):
        compare._Program(str(path)).measure(compare.FIGURES[0], 1)


@pytest.mark.parametrize(
    "words",
    [["--program", "x", "lat"], ["--rounds", "5"], ["--json"], ["--program", "x", "--rounds", "2"]],
)
def test_options_that_make_no_sense_together_are_a_usage_error(words: list[str]) -> None:
    assert invoke(*words)[0] == 2


def test_the_module_compares_too(
    fake: Fake,
    this: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    this(lat=3)
    words = ["--rounds", "6", f"--program={fake('other')}"]
    monkeypatch.setattr(sys, "argv", ["siwarp.bench", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "1.500" in capsys.readouterr().out


# ---- real measurements


@pytest.mark.parametrize("what", compare.FIGURES, ids=lambda what: what.name)
def test_every_figure_is_one_that_the_bench_measures(what: compare.Compared) -> None:
    done = CliRunner().invoke(app, [*what.command, "-n", "50", "--rounds", "1", "--json"])
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["unit"], result["less_is_better"]) == (what.unit, what.less_is_better)


@pytest.mark.scales
def test_this_build_compared_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "LIMIT_S", scale_limit(compare.LIMIT_S))
    # A path after #! must contain no blank, and the path of this tree may contain one.
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
    result = compare.compare(
        str(other), 3, lambda done, total: steps.append((done, total)), figures=short
    )
    assert steps == [(done, 8) for done in range(9)]
    assert not compare.has_loss(result)
    for each in result["figures"]:
        assert each["iters"] == 64
        assert len(each["pairs"]) == 3
        assert 0 < each["low"] <= each["ratio"] <= each["high"]
