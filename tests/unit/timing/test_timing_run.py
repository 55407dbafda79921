"""The run of tests that race the clock (`make timing`): the verdict for each kind of failure."""

from __future__ import annotations

import pytest
from timing import measure, run
from timing.run import Result, rerun_and_return_verdict

FIRST = Result("tests/a/test_a.py::test_one", "failed", "2.00 s", "assert 3 < 2")


@pytest.fixture
def recorded_reruns(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace the rerun by a passing rerun; return the list of tests that were rerun."""
    seen: list[list[str]] = []

    def fake_passing_run(arguments: list[str]) -> tuple[int, list[Result]]:
        seen.append(arguments)
        return 0, [Result(arguments[-1], "passed", "1.00 s", "")]

    monkeypatch.setattr(run, "run_pytest", fake_passing_run)
    monkeypatch.setattr(measure, "wait_for_quiet_machine", lambda limit: True)
    return seen


def test_a_passing_rerun_is_reported_as_load(recorded_reruns: list[list[str]]) -> None:
    kind, why = rerun_and_return_verdict(FIRST, may_be_unjudged=True)
    assert kind == "LOAD"
    assert "2.00 s" in why and "1.00 s" in why
    assert recorded_reruns == [["-q", FIRST.nodeid]]


def test_a_test_that_fails_twice_is_reported_as_failed(
    recorded_reruns: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run_pytest", lambda arguments: (1, [FIRST]))
    assert rerun_and_return_verdict(FIRST, may_be_unjudged=True)[0] == "FAILED"


def test_without_a_quiet_machine_a_failed_test_is_unjudged_and_not_rerun(
    recorded_reruns: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "wait_for_quiet_machine", lambda limit: False)
    assert rerun_and_return_verdict(FIRST, may_be_unjudged=True)[0] == "UNJUDGED"
    assert recorded_reruns == []


def test_a_test_that_is_not_in_the_timing_list_fails_without_a_rerun(
    recorded_reruns: list[list[str]],
) -> None:
    assert rerun_and_return_verdict(FIRST, may_be_unjudged=False)[0] == "FAILED"
    assert recorded_reruns == []


def test_the_cost_of_a_computation_does_not_exceed_its_wall_time() -> None:
    watch = measure.Stopwatch()
    total = sum(range(100_000))
    cost = watch.stop()
    assert total and 0 <= cost.undisturbed_seconds <= cost.wall
    assert cost.run_delay >= 0 and cost.steal >= 0
