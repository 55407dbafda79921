"""`siwarp bench threads`: the rates of threads on one device, and their ratios."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pace
import pytest
from harness.siwarp_process import COMMAND, SiwarpProcess

from siwarp.bench import threads, trust
from siwarp.bench.runner import BenchError, bench_program_path

pytestmark = pytest.mark.scales

SHORT = ("--threads", "2,1", "--rounds", "2", "--duration", "0.02")


def run_bench_threads(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return pace.run_command(
        [*COMMAND, "bench", "threads", *arguments],
        capture_output=True,
        text=True,
        check=False,
        seconds=120,
        start=SiwarpProcess,
        env={**os.environ, **environment},
    )


def run_bench_program(options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return pace.run_command(
        [str(bench_program_path()), "--kind", "threads", "--size", "64", *options.split()],
        capture_output=True,
        text=True,
        check=False,
        seconds=50,
        env={**os.environ, "SIWARP_LANES": "1", **environment},
    )


def measure_with_stubbed_runs(
    monkeypatch: pytest.MonkeyPatch,
    rows: list[threads.Row],
    rounds: int,
    *answers: float | BenchError,
) -> dict[str, Any]:
    """Measure rows with simulated runs, which return these rates or raise these errors in turn."""
    left = list(answers)

    def return_simulated_rate(_row: threads.Row, _duration: float) -> float:
        answer = left.pop(0)
        if isinstance(answer, BenchError):
            raise answer
        return answer

    monkeypatch.setattr(threads, "measure_rate", return_simulated_rate)
    return threads.measure_rows(rows, rounds)


def test_every_row_has_a_rate_and_every_ratio_an_interval() -> None:
    done = run_bench_threads(*SHORT, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["name"] for row in found["rows"]] == [
        f"{qp}, {run}, {count}"
        for qp in ("UD", "RC")
        for runs, counts in (
            (
                ("raw sockets", "one device", "own devices", "one device, one region"),
                ("1 thread", "2 threads"),
            ),
            (("one CQ",), ("1 thread", "2 threads")),
        )
        for count in counts
        for run in runs
    ]
    assert len(found["rounds"]) == 2
    for row in found["rows"]:
        rates = [rates[row["name"]] for rates in found["rounds"]]
        assert row["span"] == [min(rates), max(rates)]
        assert 0 < row["span"][0] <= row["rate"] <= row["span"][1]
    names = [ratio["name"] for ratio in found["ratios"]]
    for qp in ("UD", "RC"):
        assert [name for name in names if name.startswith(qp)] == [
            f"{qp}, 1 thread: one device / own devices",
            f"{qp}, 1 thread: one region / a region each",
            f"{qp}, 2 threads: one device / own devices",
            f"{qp}, 2 threads: one region / a region each",
            f"{qp}, one device, 2 threads / 1 thread",
            f"{qp}, raw sockets, 2 threads / 1 thread",
            f"{qp}, 2 threads: gain of one device / gain of raw sockets",
            f"{qp}, one CQ, 2 threads / 1 thread",
        ]
    assert all(0 < ratio["low"] <= ratio["ratio"] <= ratio["high"] for ratio in found["ratios"])


def test_the_text_has_a_line_for_each_number_of_threads_and_the_ratios() -> None:
    done = run_bench_threads(*SHORT, "--only", "ud,")
    assert done.returncode == 0, done.stderr
    assert "UD, threads" in done.stdout
    assert "RC" not in done.stdout
    assert "2 threads: gain of one device / gain of raw sockets" in done.stdout
    assert "a trial: with 2 rounds" in done.stdout


def test_more_threads_than_lanes_share_the_lanes_that_the_user_has_set() -> None:
    done = run_bench_threads(
        *("--threads", "3", "--rounds", "1", "--duration", "0.02", "--only", "UD", "--json"),
        SIWARP_LANES="2",
    )
    assert done.returncode == 0, done.stderr
    assert all(row["rate"] > 0 for row in json.loads(done.stdout)["rows"])


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (("--threads", "0"), {}, "numbers from 1 to 256"),
        (("--threads", "1,x"), {}, "numbers from 1 to 256"),
        (("--threads", "257"), {}, "numbers from 1 to 256"),
        (("--rounds", "0"), {}, "--rounds"),
        (("--duration", "0"), {}, "--duration"),
        (("--only", "no such row"), {}, "no row has"),
        (("--only", "one device"), {"SIWARP_LANES": "17"}, "from 0 to 16"),
    ],
)
def test_an_invalid_option_is_a_usage_error(
    arguments: tuple[str, ...], environment: dict[str, str], words: str
) -> None:
    done = run_bench_threads(*arguments, **environment)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--run nothing --threads 1 --lanes 1 --time 10", "no run of threads named nothing"),
        ("--run raw --threads 0 --lanes 1 --time 10", "need --threads"),
        # The device has one lane, so that there is no second completion vector.
        ("--run one-device --threads 2 --lanes 2 --time 10", "a completion queue: Invalid"),
    ],
)
def test_a_run_that_cannot_begin_ends_with_a_message(options: str, words: str) -> None:
    done = run_bench_program(options)
    assert done.returncode in (1, 2)
    assert words in done.stderr


def test_a_thread_whose_message_is_lost_ends_the_run_of_all_threads() -> None:
    options = "--run one-device --threads 4 --lanes 1 --time 60000 --patience 50"
    done = run_bench_program(options, SIWARP_FAULTS="loss=20%")
    assert done.returncode == 3
    assert "a message did not arrive after" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_rounds_before_a_failed_round_are_part_of_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [threads.Row("rc", "one-device", n) for n in (1, 2)]
    failure = BenchError("a cable was pulled")
    found = measure_with_stubbed_runs(monkeypatch, rows, 3, 10.0, 20.0, 22.0, 10.0, failure)
    # Every other round is measured in the reverse order.
    assert [list(rates.values()) for rates in found["rounds"]] == [[10.0, 20.0], [22.0, 10.0]]
    assert found["partial"] == "2 of 3 rounds: a cable was pulled"
    (ratio,) = found["ratios"]
    assert ratio["name"] == "RC, one device, 2 threads / 1 thread"
    assert 2.0 < ratio["ratio"] < 2.2
    with pytest.raises(BenchError, match="a cable"):
        measure_with_stubbed_runs(monkeypatch, rows, 3, 10.0, failure)


def test_the_gain_of_one_device_is_divided_by_that_of_raw_sockets_in_the_same_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [threads.Row("ud", run, n) for n in (1, 2) for run in ("raw", "one-device")]
    found = measure_with_stubbed_runs(monkeypatch, rows, 1, 1.0, 10.0, 1.5, 18.0)
    ratios = {ratio["name"]: ratio["ratio"] for ratio in found["ratios"]}
    assert ratios == {
        "UD, one device, 2 threads / 1 thread": pytest.approx(1.8),
        "UD, raw sockets, 2 threads / 1 thread": pytest.approx(1.5),
        "UD, 2 threads: gain of one device / gain of raw sockets": pytest.approx(1.2),
    }
    assert all(ratio["low"] is None for ratio in found["ratios"])
    threads.show_rates(found)  # a single round has no intervals


def test_a_floor_with_a_large_interquartile_range_is_unreliable() -> None:
    assert trust.floor_spread_warning([10.0, 11.0] * 10) == ""
    assert "range is 18%" in trust.floor_spread_warning([10.0, 12.0] * 10)
    # A single slow round does not extend the interquartile range.
    assert trust.floor_spread_warning([10.0] * 19 + [1.0]) == ""
    assert "20 rounds" in trust.floor_spread_warning([10.0] * 19)


def test_the_default_numbers_of_threads_are_8_and_powers_of_two_up_to_twice_the_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cpus, counts in ((1, [1, 2, 8]), (2, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 16])):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)))
        assert threads.default_thread_counts() == counts
