"""Figures that a busy machine may have distorted are marked; measured results are always shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from siwarp import bench
from siwarp.bench import runner
from siwarp.bench.plan import Plan, make_bench_plan
from siwarp.bench.runner import BenchError, SlowError
from siwarp.bench.show import print_measurement

PLAN = make_bench_plan("lat", "ud", iters=6400, rounds=3)


def measure_with_failing_runs(*answers: BenchError | None) -> tuple[list[int], Any]:
    """Run rounds of PLAN with the given results; also return the message count of each attempt."""
    left, asked = list(answers), list[int]()

    def fail_or_return_figure(plan: Plan, _turn: int) -> dict[str, Any]:
        asked.append(plan.iters)
        failure = left.pop(0) if left else None
        if failure is not None:
            raise failure
        return {"ours": 1.0}

    return asked, runner._measure_rounds(PLAN, fail_or_return_figure)


def test_a_run_that_exceeds_its_limit_is_repeated_with_fewer_messages() -> None:
    asked, (plan, found, why) = measure_with_failing_runs(SlowError("too long"))
    assert asked == [6400, 800, 800, 800]
    assert plan.iters == 800
    assert len(found) == 3
    assert "800 messages a run: too long" in why


def test_rounds_before_a_failed_round_are_part_of_the_result() -> None:
    asked, (_, found, why) = measure_with_failing_runs(None, BenchError("a cable was pulled"))
    assert (len(asked), len(found)) == (2, 1)
    assert why == "1 of 3 rounds: a cable was pulled"


def test_a_failure_in_the_first_round_fails_the_measurement() -> None:
    with pytest.raises(BenchError, match="nothing moves"):
        measure_with_failing_runs(BenchError("nothing moves"))
    with pytest.raises(SlowError):
        measure_with_failing_runs(*[SlowError("too long")] * 3)


def test_the_number_of_messages_is_reduced_to_fit_the_time_limit_of_a_run() -> None:
    result = bench.run(
        "lat", iters=50_000_000, rounds=1, others=False, env={"SIWARP_FAULTS": "delay=20ms"}
    )
    assert 0 < result["iters"] < 1000
    assert "of 50000000 messages" in result["partial"]


@pytest.fixture
def simulated_busy_machine_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Simulate runs on a machine where each message takes 10 ms; return the simulated clock.

    A run that has not enough time for its messages ends at its time limit, as a real run does.
    """
    now = [1000.0]

    def advance_clock_by_run(plan: Plan, run: Any, _env: Any, until: float) -> dict[str, float]:
        takes = plan.iters * 0.01
        if now[0] + takes > until:
            now[0] = until
            raise SlowError(f"the run {run.name!r} was not done")
        now[0] += takes
        return {"value": 5000.0, "p99": 0.0}

    monkeypatch.setattr(runner.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(runner, "run_variant", advance_clock_by_run)
    return now


@pytest.mark.parametrize("within", [3.0, 8.0, 40.0])
def test_on_a_busy_machine_a_measurement_has_a_figure_within_its_time_limit(
    simulated_busy_machine_clock: list[float], within: float
) -> None:
    result = bench.run("lat", rounds=3, others=False, within=within)
    assert simulated_busy_machine_clock[0] <= 1000.0 + within
    assert 1 <= len(result["rounds"]) <= 3
    # Without a time limit, such a run has at least 400 messages, which would take 4 s.
    assert result["iters"] < 400
    assert result["ours"] > 0


def test_no_round_begins_after_the_total_time_limit(
    simulated_busy_machine_clock: list[float],
) -> None:
    # 100 messages take one second with raw sockets and one second with siwarp.
    result = bench.run("lat", iters=100, rounds=5, others=False, within=5.0)
    assert len(result["rounds"]) == 2
    assert result["partial"].startswith("2 of 5 rounds: ")
    with pytest.raises(SlowError):
        bench.run("lat", iters=500, rounds=5, others=False, within=4.0)
    assert simulated_busy_machine_clock[0] <= 1000.0 + 9.0


def test_a_result_has_the_smallest_and_the_largest_ratio_of_its_rounds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = bench.run("lat", iters=50, rounds=3, others=False)
    ratios = [each["ratio"] for each in result["rounds"]]
    assert result["spans"] == {"ratio": [min(ratios), max(ratios)]}
    assert result["partial"] == ""
    assert result["unreliable"] == ["fewer than 20 rounds of the floor"]
    print_measurement({**result, "faults": None, "unreliable": ["a doubt"], "partial": "a reason"})
    said = capsys.readouterr().out
    assert f"({min(ratios):.3f} to {max(ratios):.3f}; less is better)" in said
    assert "unreliable: a doubt" in said
    assert "partial: a reason" in said


def test_a_short_plan_is_measured_without_a_trial_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_if_probed(*_: object) -> float:
        raise AssertionError("probed")

    monkeypatch.setattr(runner, "_probe_seconds_per_message", fail_if_probed)
    short = replace(PLAN, iters=500)
    runs = runner._variants_of_round(short, bench.runner.comparison_runs_of_plan(short))
    assert runner._choose_iterations(short, runs, {}) == (short, "")
