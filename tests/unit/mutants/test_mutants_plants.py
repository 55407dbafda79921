"""The planted faults: applying them to the current code, and counting the seeds until discovery."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import pytest
from mutants import plants
from mutants.anchor import load_work_tree
from mutants.plants import (
    VARIANTS,
    Discovery,
    PlantedFault,
    SimRun,
    Worker,
    load_planted_faults,
    median_seeds_until_fault_found,
    outcome_of_run,
    results_table,
    run_seeds_until_failure,
)
from mutants.tree import MutantRunError, TreeCopy
from table import run_test_for_each_row

PLANTS = load_planted_faults()


@run_test_for_each_row("plant", PLANTS, ids=[p.id for p in PLANTS])
def test_each_planted_fault_applies_to_one_place(plant: PlantedFault) -> None:
    try:
        path, text = plant.file_with_fault(load_work_tree())
    except LookupError as e:
        pytest.fail(f"tests/mutants/plants.toml: {plant.id} does not apply: {e.args[0]}")
    assert text != load_work_tree().texts[path]


def test_each_kind_of_planted_fault_has_three_variants_in_different_places() -> None:
    assert set(Counter(p.fault for p in PLANTS).values()) == {VARIANTS}
    assert len({p.id for p in PLANTS}) == len(PLANTS)
    assert len({(p.where, p.file, p.old) for p in PLANTS}) == len(PLANTS)
    for plant in PLANTS:
        assert plant.what.endswith(".") and plant.seen.endswith("."), plant.id


def test_an_incomplete_planted_fault_is_reported_by_its_id(tmp_path: Path) -> None:
    path = tmp_path / "plants.toml"
    path.write_text('[[plant]]\nid = "one"\nfault = "lost"\nwhy = "It is."\n', "utf-8")
    with pytest.raises(ValueError, match=r"one: new, old, seen, what, where, why"):
        load_planted_faults(path)


@pytest.mark.parametrize(
    ("status", "out", "ran"),
    [
        (0, "siwarp sim: 8 seeds from 1, 0 failed, 9 crashes\n", SimRun("passed")),
        (1, "siwarp sim: 1 seeds from 1, 0 failed, 0 crashes\n", SimRun("passed")),
        (
            1,
            "FAILED seed 17 of workload churn: twice\n  again: siwarp sim --seed 17\n"
            "FAILED seed 4 of workload liars: lost\nsiwarp sim: 20 seeds from 1, 2 failed\n",
            SimRun("failed", 17, "FAILED seed 17 of workload churn: twice"),
        ),
        (None, "seed 8 begins\n", SimRun("hung", None, "seed 8 begins")),
        (-11, "seed 8 begins\n", SimRun("crashed", None, "SIGSEGV: seed 8 begins")),
    ],
)
def test_the_outcome_of_a_sim_run_is_parsed_from_its_status_and_output(
    status: int | None, out: str, ran: SimRun
) -> None:
    assert outcome_of_run(status, out) == ran


@pytest.mark.parametrize(("status", "out"), [(1, "Traceback\n"), (2, "No such command 'sim'.\n")])
def test_a_sim_run_without_a_seed_raises_an_error(status: int, out: str) -> None:
    with pytest.raises(MutantRunError):
        outcome_of_run(status, out)


class FakeSimCommand:
    """A replacement of the command `siwarp sim` in which one seed fails."""

    def __init__(self, bad: int, how: str = "failed", named: bool = True) -> None:
        self.bad, self.how, self.named = bad, how, named
        self.runs: list[tuple[int, int]] = []

    def __call__(self, first: int, seeds: int) -> SimRun:
        self.runs.append((first, seeds))
        if not first <= self.bad < first + seeds:
            return SimRun("passed")
        return SimRun(self.how, self.bad if self.named else None, f"seed {self.bad}")


@pytest.mark.parametrize("bad", [1, 8, 9, 25, 50])
def test_seeds_are_counted_up_to_the_first_failing_seed(bad: int) -> None:
    assert run_seeds_until_failure(FakeSimCommand(100 + bad), 101, 50).seeds == bad


def test_a_planted_fault_may_remain_undetected() -> None:
    found = run_seeds_until_failure(FakeSimCommand(0), 1, 50)
    assert (found.seeds, found.how) == (0, "passed")


def test_a_run_that_hangs_without_naming_a_seed_counts_all_of_its_seeds() -> None:
    found = run_seeds_until_failure(FakeSimCommand(11, "hung", named=False), 1, 50)
    assert (found.seeds, found.how) == (50, "hung")


def test_a_run_that_names_a_seed_of_another_run_raises_an_error() -> None:
    with pytest.raises(MutantRunError, match="seed 99"):
        run_seeds_until_failure(lambda first, seeds: SimRun("failed", 99, "seed 99"), 1, 50)


def test_the_copy_of_the_tree_is_restored_after_a_planted_fault_and_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = PlantedFault("one", "lost", "siw_one", "a < b", "a <= b", "It is.", "It is.")
    path = tmp_path / "siwarp" / "mpa" / "mpa_one.c"
    path.parent.mkdir(parents=True)
    whole = "int siw_one(int a, int b)\n{\n\treturn a < b;\n}\n"
    path.write_text(whole, "utf-8")
    copy = TreeCopy(tmp_path)
    built: list[tuple[str, ...]] = []
    said: list[str | None] = [None, "error"]

    def fake_build(*targets: str) -> str | None:
        assert "a <= b" in path.read_text("utf-8")
        built.append(targets)
        return said.pop(0)

    monkeypatch.setattr(copy, "build_targets", fake_build)
    worker = Worker(copy, FakeSimCommand(3))
    assert worker.try_planted_fault(plant, 1, 50).seeds == 3
    assert path.read_text("utf-8") == whole
    with pytest.raises(MutantRunError, match="one does not compile"):
        worker.try_planted_fault(plant, 1, 50)
    assert path.read_text("utf-8") == whole
    assert built == [(plants.LIBRARY,)] * 2


def make_seed_search_result(seeds: int) -> Discovery:
    return (
        Discovery(seeds, "failed", f"seed {seeds}: a | b", 1.0)
        if seeds
        else Discovery(0, "passed", "", 1)
    )


@pytest.mark.parametrize(
    ("seeds", "middle"), [([3, 1, 9], 3), ([1, 0, 9], 9), ([0, 2, 0], math.inf), ([1, 4], 2.5)]
)
def test_the_median_counts_an_undetected_fault_as_more_than_all_others(
    seeds: list[int], middle: float
) -> None:
    assert median_seeds_until_fault_found(make_seed_search_result(n) for n in seeds) == middle


def test_the_results_table_has_a_line_for_each_planted_fault_and_the_median() -> None:
    results = {
        plant: make_seed_search_result(n) for plant, n in zip(PLANTS[:3], [7, 0, 12], strict=True)
    }
    text = results_table(results, 200)
    assert f"| `{PLANTS[0].id}` | 7 | seed 7: a \\| b |" in text
    assert f"| `{PLANTS[1].id}` | > 200 | not found |" in text
    assert text.endswith("\n2 of 3 found; median: 12 seeds.\n")


def test_a_command_that_exceeds_its_time_limit_is_stopped(tmp_path: Path) -> None:
    copy = TreeCopy(tmp_path)
    assert copy.run_and_return_output(["sh", "-c", "echo seed 4; exit 1"], 60) == (1, "seed 4\n")
    assert copy.run_and_return_output(["sleep", "60"], 0.1) == (None, "")


def test_a_command_is_stopped_when_its_output_matches_the_pattern(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo FAILED; sleep 60"]
    assert TreeCopy(tmp_path).run_and_return_output(command, 60, re.compile("FAILED\n")) == (
        1,
        "FAILED\n",
    )
