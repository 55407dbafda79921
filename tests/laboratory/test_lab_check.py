"""`make bench-check`: measured ratios compared with recorded ratios."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from laboratory.lab_harness import run_lab_study
from rich.console import Console

from lab import check
from siwarp.bench.runner import BenchError

UD = "UD 64 B one by one"
LATENCY = "UD 64 B latency"
KEPT = {one.name: 2.0 for one in check.CHECKED}


def checked_ratios_with_name(name: str) -> list[check.CheckedRatio]:
    (found,) = (one for one in check.CHECKED if one.name == name)
    return [found]


def make_run_stub(*ratios: float, floors: tuple[float, ...] = (1.0,), partial: str = "") -> Any:
    """Return a function that simulates a run whose rounds have these ratios and floors, in turn."""

    def return_simulated_ratios(*, rounds: int, progress: Any, **_: Any) -> dict[str, Any]:
        progress(rounds, rounds)
        values = [
            {"ours": ratios[i % len(ratios)] * floors[i % len(floors)]}
            | {"floor": floors[i % len(floors)]}
            for i in range(rounds)
        ]
        return {"rounds": values, "partial": partial}

    return return_simulated_ratios


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
def test_a_ratio_is_a_loss_if_its_whole_interval_is_worse_by_a_fifth(
    name: str, ratios: tuple[float, ...], verdict: str
) -> None:
    (found,) = check.measure_and_check_ratios(
        KEPT, check.ROUNDS, None, checked_ratios_with_name(name), make_run_stub(*ratios)
    )
    assert found["verdict"] == verdict, found
    reasons = check.reasons_why_check_fails([found])
    assert [": loss: " in reason for reason in reasons] == ([True] if verdict == "loss" else [])
    assert found["low"] <= found["ratio"] <= found["high"]


def test_a_ratio_without_a_reference_is_new_and_no_loss() -> None:
    found = check.measure_and_check_ratios(
        {}, check.ROUNDS, None, checked_ratios_with_name(UD), make_run_stub(0.1)
    )
    assert (found[0]["kept"], found[0]["verdict"]) == (None, "new")
    assert not check.reasons_why_check_fails(found)


@pytest.mark.parametrize(
    ("rounds", "floors", "partial", "reasons"),
    [
        (20, (10.0, 11.0), "", []),
        # A single slow round does not make the figure of the raw socket (the floor) unreliable.
        (20, (*[10.0] * 19, 1.0), "", []),
        (20, (10.0, 12.0), "", ["unreliable: the floor's interquartile range is 18%"]),
        (19, (10.0,), "", ["unreliable: fewer than 20 rounds"]),
        (20, (10.0,), "20 of 21 rounds: a cable", ["partial: 20 of 21 rounds: a cable"]),
        (19, (10.0,), "19 of 20 rounds: a cable", ["partial: 19 of 20", "unreliable: fewer"]),
    ],
)
def test_a_partial_or_unreliable_result_is_not_a_pass(
    rounds: int, floors: tuple[float, ...], partial: str, reasons: list[str]
) -> None:
    return_simulated_ratios = make_run_stub(2.0, floors=floors, partial=partial)
    found = check.measure_and_check_ratios(
        KEPT, rounds, None, checked_ratios_with_name(UD), return_simulated_ratios
    )
    assert found[0]["verdict"] == "no loss"
    said = check.reasons_why_check_fails(found)
    assert len(said) == len(reasons)
    for line, reason in zip(said, reasons, strict=True):
        assert line.startswith(f"{UD}: {reason}")


def test_written_references_are_read_back_and_printed_ratios_have_verdicts(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    found = check.measure_and_check_ratios(
        {},
        6,
        lambda done, total: steps.append((done, total)),
        check.CHECKED,
        make_run_stub(3, 3.1),
    )
    assert steps[-1] == (100 * len(check.CHECKED), 100 * len(check.CHECKED))
    check.write_reference_ratios(found, tmp_path / "ratios.json")
    assert check.read_reference_ratios(tmp_path / "ratios.json") == pytest.approx(
        {one.name: 3.05 for one in check.CHECKED}, rel=0.02
    )
    with (tmp_path / "shown").open("w", encoding="utf-8") as file:
        check.print_ratios(
            check.measure_and_check_ratios(
                KEPT, 6, None, checked_ratios_with_name(UD), make_run_stub(1)
            ),
            Console(file=file, width=80),
        )
    shown = (tmp_path / "shown").read_text(encoding="utf-8")
    assert re.search(rf"{UD} .* 2\.00 .* 1\.00 .* loss", shown)
    assert "more than 20%" in shown
    assert f"{UD}: loss: the ratio is 1.00, its reference 2.00" in shown
    assert f"{UD}: unreliable: fewer than 20 rounds" in shown
    assert "\nnot a pass\n" in shown


@pytest.mark.parametrize("text", [None, "", "{}", '{"ratios": 7}', '{"ratios": {"a": null}}'])
def test_the_error_for_a_file_without_ratios_names_the_command_that_writes_it(
    tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "ratios.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BenchError, match=r"ratios\.json .*run make bench-check ARGS=--write"):
        check.read_reference_ratios(file)


def test_the_committed_file_has_a_reference_for_each_checked_ratio() -> None:
    committed = check.read_reference_ratios(Path(check.RATIOS))
    assert set(committed) == set(KEPT)


def test_the_command_prints_the_verdict_and_fails_after_a_loss(tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    file.write_text(json.dumps({"ratios": {LATENCY: 0.001}}))
    done = run_lab_study("check", file, "--only", LATENCY, "--rounds", 6, "--json")
    (found,) = json.loads(done.stdout)
    assert (found["name"], found["kept"], found["verdict"]) == (LATENCY, 0.001, "loss")
    assert found["unreliable"]
    assert done.returncode == 1
    # A latency far below its reference is no loss, but six rounds are too few for a pass.
    file.write_text(json.dumps({"ratios": {LATENCY: 1000}}))
    done = run_lab_study("check", file, "--only", LATENCY, "--rounds", 6)
    assert "no loss" in done.stdout and "not a pass" in done.stdout
    assert done.returncode == 1
    for wrong, why in (
        ([file, "--only", "no such"], "no ratio has"),
        ([file, "--write", "--only", "UD"], "leave out --only or --write"),
        ([tmp_path / "none"], "no ratios in"),
    ):
        done = run_lab_study("check", *wrong)
        assert done.returncode in (1, 2)
        assert why in done.stderr.replace("\n", " ")
