"""`siwarp demo` on a machine that is too busy to measure on."""

from __future__ import annotations

from typing import Any

import pytest

from siwarp import bench
from siwarp.bench.runner import BenchError, SlowError
from siwarp.cli import demo


def test_what_a_busy_machine_does_not_finish_is_a_remark_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(*_: Any, **__: Any) -> dict[str, Any]:
        raise SlowError("the run 'ours' was not done within 20 s")

    monkeypatch.setattr(bench, "run", slow)
    measured: list[dict[str, Any]] = []
    demo._compare(measured)
    said = " ".join(capsys.readouterr().out.split())
    assert measured == []
    assert said.count("was not measured, as this machine is busy") == len(demo._COMPARED)


def test_what_fails_for_another_reason_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> dict[str, Any]:
        raise BenchError("the run 'ours' failed: no such device")

    monkeypatch.setattr(bench, "run", fails)
    with pytest.raises(demo._Failed, match="no such device"):
        demo._compare([])
