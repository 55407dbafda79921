"""`python -m lab.wan --matrix`: cells, the limits promised for each, and measurements of six."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from laboratory.lab_harness import run_lab_study
from namespaces import wan_harness
from pace import slowdown_factor

from lab.wan import matrix as wan_matrix
from siwarp.bench.runner import BenchError


def make_bottleneck_results_with_shares(**shares: tuple[float, ...]) -> dict[str, Any]:
    """Return results of a cell that meet all promised limits, except for the given link shares."""
    usual: dict[str, tuple[float, ...]] = {
        "rd": (0.95,),
        "cubic": (0.9,),
        "bbr": (0.9,),
        "cubic+cubic": (0.5, 0.4),
        "rd+cubic": (0.5, 0.4),
        "rd+rd": (0.5, 0.45),
    }
    dropped = shares.pop("dropped", (0.01, 0.01))
    return {
        run: {
            "flows": {str(i): {"share": share} for i, share in enumerate(got)},
            "dropped": dropped[0],
            "again": dropped[1],
        }
        for run, got in {**usual, **shares}.items()
    }


def missed_performance_promises(found: dict[str, Any]) -> set[str]:
    return {
        name
        for name, part in wan_matrix.judge_performance_promises(found).items()
        if not part["kept"]
    }


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, set()),
        ({"dropped": (0.11, 0.0)}, {"lost"}),
        ({"dropped": (0.0, 0.11)}, {"lost"}),
        ({"dropped": (0.1, 0.1)}, set()),
        ({"rd": (0.89,)}, {"alone"}),
        ({"rd": (0.6,), "cubic": (0.4,), "bbr": (0.5,)}, set()),
        ({"rd": (0.6,), "cubic": (0.4,), "bbr": (0.51,)}, {"alone"}),
        ({"rd+cubic": (0.8, 0.14)}, {"tcp_keeps"}),
        ({"rd+cubic": (0.8, 0.16)}, set()),
        ({"rd+rd": (0.6, 0.4)}, {"two"}),
        ({"rd+rd": (0.4, 0.6)}, {"two"}),
        ({"rd+rd": (0.5, 0.0)}, {"two"}),
        ({"rd+rd": (0.55, 0.4)}, set()),
    ],
)
def test_each_promise_is_missed_only_by_the_shares_that_it_limits(shares, expected):
    found = make_bottleneck_results_with_shares(**shares)
    assert missed_performance_promises(found) == expected
    assert wan_matrix.all_performance_promises_kept({"20M/15000/4ms": found}) == (not expected)
    lines = list(wan_matrix.format_result_table_lines({"20M/15000/4ms": found}))
    assert len(lines) == 2
    assert ("!" in lines[1]) == bool(expected)


def test_the_matrix_has_each_rate_with_each_queue_and_each_round_trip():
    shapes = wan_matrix.CELLS.values()
    assert {shape.mbit_s for shape in shapes} == {20, 100, 400}
    assert {shape.rtt_ms for shape in shapes} == {0.2, 4, 40}
    assert min(shape.queue for shape in shapes) == 3000
    for shape in shapes:
        bdp = shape.mbit_s * 1e6 / 8 * shape.rtt_ms / 1e3
        assert shape.queue in {15_000, 60_000, 3000, int(bdp), int(bdp / 5)}
    assert len(wan_matrix.parse_case_selection("short") or []) == 6
    assert wan_matrix.parse_case_selection("") == list(wan_matrix.CELLS)
    assert wan_matrix.parse_case_selection("20M/15000/4ms,7M/1/1ms") is None


def test_results_that_a_file_contains_are_not_measured_again(tmp_path: Path, monkeypatch) -> None:
    class Line:
        def __init__(self, rtt_ms: float) -> None:
            self.rtt_ms = rtt_ms

        def __enter__(self) -> Line:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    measured: list[float] = []

    def measure_flows_over_bottleneck(
        line: Line, shape: Any, flows: Any, congestion: str, seconds: float
    ) -> Any:
        assert line.rtt_ms == shape.rtt_ms
        if len(measured) == 3:
            raise BenchError("the line went away")
        measured.append(shape.rtt_ms)
        return {"flows": {}, "dropped": 0.0, "again": 0.0}

    monkeypatch.setattr(wan_matrix, "Line", Line)
    monkeypatch.setattr(wan_matrix, "measure_flows_over_bottleneck", measure_flows_over_bottleneck)
    names, path = ["20M/15000/4ms", "20M/15000/40ms"], tmp_path / "matrix.json"
    with pytest.raises(BenchError):
        wan_matrix.measure_bottleneck_cases(names, 1, path, ["rd", "cubic"])
    assert measured == [4, 4, 40]
    measured.clear()
    said: list[str] = []
    found = wan_matrix.measure_bottleneck_cases(
        names, 1, path, ["rd", "cubic"], progress=lambda *told: said.append(told[2])
    )
    assert measured == [40]
    assert said == ["20M/15000/40ms cubic"]
    assert {name: set(got) for name, got in found.items()} == {
        name: {"rd", "cubic"} for name in names
    }


def test_an_unknown_cell_is_a_usage_error() -> None:
    done = run_lab_study("wan", "--matrix", "--cells", "1M/2/3ms")
    assert done.returncode == 2
    assert "20M/15000/4ms" in done.stderr


@pytest.mark.root
@pytest.mark.scales
@pytest.mark.parametrize("name", wan_matrix.SHORT)
def test_a_bottleneck_is_shared_and_not_flooded(name: str, tmp_path: Path) -> None:
    wan_harness.skip_without_tun_device()
    results = tmp_path / "cell.json"
    before = slowdown_factor()
    done = run_lab_study(
        *("wan", "--matrix", "--json", "--seconds", "2", "--cells", name),
        *("--results", str(results)),
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)[name]
    slow = max(before, slowdown_factor())
    # The throughput depends on the speed of the machine; the losses do not.
    assert found["promises"]["lost"]["is"] <= wan_matrix.MOST_DROPPED
    assert found["promises"]["alone"]["is"] >= 0.75 / slow
    assert found["promises"]["tcp_keeps"]["is"] >= wan_matrix.LEAST_KEPT / slow
