"""`make bench-check`: measured ratios compared with recorded ratios."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from laboratory.lab_harness import lab
from rich.console import Console

from lab import check
from siwarp.bench.runner import BenchError

UD = "UD 64 B one by one"
LATENCY = "UD 64 B latency"
KEPT = {one.name: 2.0 for one in check.CHECKED}


def of(name: str) -> list[check.Checked]:
    (found,) = (one for one in check.CHECKED if one.name == name)
    return [found]


def measuring(*ratios: float) -> Any:
    """Return a function that simulates a run whose rounds have these ratios, repeated in turn."""

    def run(*, rounds: int, progress: Any, **_: Any) -> dict[str, Any]:
        progress(rounds, rounds)
        values = [{"ours": ratios[i % len(ratios)], "floor": 1.0} for i in range(rounds)]
        return {"rounds": values, "unreliable": []}

    return run


@pytest.mark.parametrize(
    ("name", "ratios", "verdict"),
    [
        (UD, (2.0, 2.01), "no loss"),
        (UD, (1.7, 1.71), "no loss"),
        (UD, (1.5, 1.51), "loss"),
        (UD, (9.0, 9.1), "no loss"),
        (UD, (1.2, 2.4, 1.5, 2.0, 1.3), "open"),
        (LATENCY, (2.5, 2.51), "loss"),
        (LATENCY, (2.3, 2.31), "no loss"),
        (LATENCY, (1.0, 1.01), "no loss"),
    ],
)
def test_a_ratio_is_a_loss_where_its_whole_interval_is_a_fifth_worse(
    name: str, ratios: tuple[float, ...], verdict: str
) -> None:
    (found,) = check.check(KEPT, check.ROUNDS, None, of(name), measuring(*ratios))
    assert found["verdict"] == verdict, found
    assert check.has_loss([found]) == (verdict == "loss")
    assert found["low"] <= found["ratio"] <= found["high"]


def test_what_was_not_kept_is_new_and_no_loss() -> None:
    found = check.check({}, 6, None, of(UD), measuring(0.1))
    assert (found[0]["kept"], found[0]["verdict"]) == (None, "new")
    assert not check.has_loss(found)


def test_what_is_written_is_read_and_shown(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    found = check.check(
        {}, 6, lambda done, total: steps.append((done, total)), check.CHECKED, measuring(3, 3.1)
    )
    assert steps[-1] == (100 * len(check.CHECKED), 100 * len(check.CHECKED))
    check.write(found, tmp_path / "ratios.json")
    assert check.kept(tmp_path / "ratios.json") == pytest.approx(
        {one.name: 3.05 for one in check.CHECKED}, rel=0.02
    )
    with (tmp_path / "shown").open("w", encoding="utf-8") as file:
        check.show(check.check(KEPT, 6, None, of(UD), measuring(1)), Console(file=file, width=80))
    shown = (tmp_path / "shown").read_text(encoding="utf-8")
    assert re.search(rf"{UD} .* 2\.00 .* 1\.00 .* loss", shown)
    assert "more than 20%" in shown


@pytest.mark.parametrize("text", [None, "", "{}", '{"ratios": 7}', '{"ratios": {"a": null}}'])
def test_a_file_without_ratios_is_told_with_what_to_type(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "ratios.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BenchError, match=r"ratios\.json .*run make bench-check ARGS=--write"):
        check.kept(file)


def test_the_committed_ratios_are_of_what_is_checked() -> None:
    committed = check.kept(Path(check.RATIOS))
    assert set(committed) == set(KEPT)


def test_the_command_measures_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    file.write_text(json.dumps({"ratios": {LATENCY: 0.001}}))
    done = lab("check", file, "--only", LATENCY, "--rounds", 6, "--json")
    (found,) = json.loads(done.stdout)
    assert (found["name"], found["kept"], found["verdict"]) == (LATENCY, 0.001, "loss")
    assert done.returncode == 1
    for wrong, why in (
        ([file, "--only", "no such"], "no ratio has"),
        ([file, "--write", "--only", "UD"], "leave out --only or --write"),
        ([tmp_path / "none"], "no ratios in"),
    ):
        done = lab("check", *wrong)
        assert done.returncode in (1, 2)
        assert why in done.stderr.replace("\n", " ")
