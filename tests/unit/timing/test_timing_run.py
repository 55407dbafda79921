"""The run of tests that race the clock (`make timing`): the verdict for each kind of failure."""

from __future__ import annotations

import pytest
from timing import measure, run
from timing.run import Result, verdict

FIRST = Result("tests/a/test_a.py::test_one", "failed", "2.00 s", "assert 3 < 2")


@pytest.fixture
def reruns(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace the rerun by one that passes; return the tests that were rerun."""
    seen: list[list[str]] = []

    def passed(arguments: list[str]) -> tuple[int, list[Result]]:
        seen.append(arguments)
        return 0, [Result(arguments[-1], "passed", "1.00 s", "")]

    monkeypatch.setattr(run, "pytest_run", passed)
    monkeypatch.setattr(measure, "wait_until_quiet", lambda limit: True)
    return seen


def test_a_rerun_that_passes_is_reported_as_load(reruns: list[list[str]]) -> None:
    kind, why = verdict(FIRST, may_be_unjudged=True)
    assert kind == "LOAD"
    assert "2.00 s" in why and "1.00 s" in why
    assert reruns == [["-q", FIRST.nodeid]]


def test_what_fails_twice_has_failed(
    reruns: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "pytest_run", lambda arguments: (1, [FIRST]))
    assert verdict(FIRST, may_be_unjudged=True)[0] == "FAILED"


def test_without_a_quiet_machine_it_is_not_judged_and_not_rerun(
    reruns: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "wait_until_quiet", lambda limit: False)
    assert verdict(FIRST, may_be_unjudged=True)[0] == "UNJUDGED"
    assert reruns == []


def test_what_is_not_on_the_list_fails_at_once(reruns: list[list[str]]) -> None:
    assert verdict(FIRST, may_be_unjudged=False)[0] == "FAILED"
    assert reruns == []


def test_a_cost_is_not_more_than_the_time_that_passed() -> None:
    watch = measure.Stopwatch()
    total = sum(range(100_000))
    cost = watch.stop()
    assert total and 0 <= cost.own <= cost.wall
    assert cost.run_delay >= 0 and cost.steal >= 0
