"""`siwarp demo` on a machine that is too busy for measurements."""

from __future__ import annotations

from typing import Any

import pytest

from siwarp import bench
from siwarp.bench.runner import BenchError, SlowError
from siwarp.cli import demo


def test_a_measurement_that_a_busy_machine_does_not_finish_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_slow_error(*_: Any, **__: Any) -> dict[str, Any]:
        raise SlowError("the run 'ours' did not finish within 20 s")

    monkeypatch.setattr(bench, "run", raise_slow_error)
    measured: list[dict[str, Any]] = []
    demo._compare_with_raw_sockets(measured)
    said = " ".join(capsys.readouterr().out.split())
    assert measured == []
    assert said.count("was not measured, because this machine is busy") == len(demo._COMPARED)


def test_the_comparison_of_the_demo_has_a_total_time_limit_and_reports_omissions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, took = [0.0], iter([40.0, 0.25, 1.0, 0.0, 0.0])
    shares: list[float] = []

    def fake_comparison(*_: Any, within: float, **__: Any) -> dict[str, Any]:
        shares.append(within)
        now[0] += min(within, next(took))
        return {
            "unit": "us",
            "ours": 2.0,
            "floor": 1.0,
            "ratio": 2.0,
            "spans": {"ratio": [2.0, 2.0]},
            "unreliable": [],
            "partial": "1 of 3 rounds: why",
        }

    monkeypatch.setattr(bench, "run", fake_comparison)
    monkeypatch.setattr(demo.time, "monotonic", lambda: now[0])
    demo._compare_with_raw_sockets([])
    # The first measurement used its whole share, a fifth of the time limit. Time that a later
    # measurement does not need is divided among the measurements after it.
    assert shares == [8.0, 8.0, 10.5 + 1 / 12, pytest.approx(15.375), pytest.approx(30.75)]
    assert now[0] < demo._COMPARE_S
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("1 of 3 rounds: why") == len(demo._COMPARED)


def test_a_measurement_that_fails_for_another_reason_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raise_bench_error(*_: Any, **__: Any) -> dict[str, Any]:
        raise BenchError("the run 'ours' failed: no such device")

    monkeypatch.setattr(bench, "run", raise_bench_error)
    with pytest.raises(demo._Failed, match="no such device"):
        demo._compare_with_raw_sockets([])
