"""Figures that a busy machine may have distorted are marked, and measured results are
always shown.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from siwarp import bench
from siwarp.bench import runner, trust
from siwarp.bench.plan import Plan, make_plan
from siwarp.bench.runner import BenchError, SlowError
from siwarp.bench.show import show


def test_rounds_that_differ_much_are_a_doubt() -> None:
    assert trust.spread([1.0, 1.4, 1.2]) == ""
    assert "differ" in trust.spread([1.0, 1.6])
    assert trust.spread([3.0]) == ""


def test_a_load_above_the_cores_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    most = max(cores, trust.OWN_LOAD)
    monkeypatch.setattr(os, "getloadavg", lambda: (most + 0.5, 0.0, 0.0))
    assert f"exceeded the number of cores ({cores})" in trust.busy()
    monkeypatch.setattr(os, "getloadavg", lambda: (most - 0.5, 0.0, 0.0))
    assert trust.busy() == ""


def test_a_floor_that_another_one_beats_by_far_has_stumbled() -> None:
    assert "blocking" in trust.beaten(4.0, {"blocking": 2.0}, less_is_better=True)
    assert trust.beaten(2.2, {"blocking": 2.0}, less_is_better=True) == ""
    assert "single" in trust.beaten(1.0, {"single": 2.0}, less_is_better=False)
    # A batch sent with one system call is a different kind of work.
    assert trust.beaten(1.0, {"gso": 9.0, "coalesced": 9.0}, less_is_better=False) == ""


PLAN = make_plan("lat", "ud", iters=6400, rounds=3)


def rounds(*answers: BenchError | None) -> tuple[list[int], Any]:
    """Run the rounds of PLAN with these results in turn; also return the message count of each
    attempt.
    """
    left, asked = list(answers), list[int]()

    def one(plan: Plan, _turn: int) -> dict[str, Any]:
        asked.append(plan.iters)
        failure = left.pop(0) if left else None
        if failure is not None:
            raise failure
        return {"ours": 1.0}

    return asked, runner._rounds(PLAN, one)


def test_a_run_that_takes_too_long_is_tried_with_fewer_messages() -> None:
    asked, (plan, found, why) = rounds(SlowError("too long"))
    assert asked == [6400, 800, 800, 800]
    assert plan.iters == 800
    assert len(found) == 3
    assert "800 messages a run: too long" in why


def test_rounds_before_a_failure_are_shown() -> None:
    asked, (_, found, why) = rounds(None, BenchError("a cable was pulled"))
    assert (len(asked), len(found)) == (2, 1)
    assert why == "1 of 3 rounds: a cable was pulled"


def test_a_failure_in_the_first_round_is_one() -> None:
    with pytest.raises(BenchError, match="nothing moves"):
        rounds(BenchError("nothing moves"))
    with pytest.raises(SlowError):
        rounds(*[SlowError("too long")] * 3)


def test_more_messages_than_a_run_has_time_for_are_cut() -> None:
    result = bench.run(
        "lat", iters=50_000_000, rounds=1, others=False, env={"SIWARP_FAULTS": "delay=20ms"}
    )
    assert 0 < result["iters"] < 1000
    assert "of 50000000 messages" in result["partial"]


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Simulate runs on a machine where each message takes 10 ms; return the simulated clock.

    A run that lacks the time for its messages ends when its time is over, as the runs of processes
    do.
    """
    now = [1000.0]

    def measure(plan: Plan, run: Any, _env: Any, until: float) -> dict[str, float]:
        takes = plan.iters * 0.01
        if now[0] + takes > until:
            now[0] = until
            raise SlowError(f"the run {run.name!r} was not done")
        now[0] += takes
        return {"value": 5000.0, "p99": 0.0}

    monkeypatch.setattr(runner.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(runner, "_measure", measure)
    return now


@pytest.mark.parametrize("within", [3.0, 8.0, 40.0])
def test_a_busy_machine_gives_a_figure_and_a_remark_in_the_time_that_there_is(
    busy_machine: list[float], within: float
) -> None:
    result = bench.run("lat", rounds=3, others=False, within=within)
    assert busy_machine[0] <= 1000.0 + within
    assert 1 <= len(result["rounds"]) <= 3
    # Without a time limit, such a run has at least 400 messages, which take 4 s.
    assert result["iters"] < 400
    assert result["ours"] > 0


def test_no_round_begins_when_the_time_is_over(busy_machine: list[float]) -> None:
    # 100 messages: one second each for the floor and for siwarp.
    result = bench.run("lat", iters=100, rounds=5, others=False, within=5.0)
    assert len(result["rounds"]) == 2
    assert result["partial"].startswith("2 of 5 rounds: ")
    with pytest.raises(SlowError):
        bench.run("lat", iters=500, rounds=5, others=False, within=4.0)
    assert busy_machine[0] <= 1000.0 + 9.0


def test_a_result_has_the_least_and_the_largest_of_its_ratios(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = bench.run("lat", iters=50, rounds=3, others=False)
    ratios = [each["ratio"] for each in result["rounds"]]
    assert result["spans"] == {"ratio": [min(ratios), max(ratios)]}
    assert result["partial"] == ""
    show({**result, "faults": None, "unreliable": ["a doubt"], "partial": "a reason"})
    said = capsys.readouterr().out
    assert f"({min(ratios):.3f} to {max(ratios):.3f}; less is better)" in said
    assert "unreliable: a doubt" in said
    assert "partial: a reason" in said


def test_a_plan_that_is_short_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> float:
        raise AssertionError("probed")

    monkeypatch.setattr(runner, "_seconds_each", none)
    short = replace(PLAN, iters=500)
    runs = runner._runs(short, bench.runner.floors_of(short))
    assert runner._with_iters(short, runs, {}) == (short, "")
