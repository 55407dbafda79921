"""`python -m lab.verbs`: kinds of measurements that `siwarp bench` does not have, and personas."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from typing import Any

import pytest
from cli.cli_harness import environment_without_sanitizer
from laboratory.lab_harness import run_lab_study
from pace import slowdown_factor

from lab.verbs import personas, runs
from lab.verbs.__main__ import PROMISED
from siwarp.bench import table
from siwarp.bench.runner import BenchError, bench_program_path

#: Promised upper limit in microseconds until a Write is visible to a program that only reads its
#: memory, with both CPUs busy.
BOUND_US = 500 * (
    4 if "SANITIZER" in os.environ else 1
)  # code with a sanitizer is about 4 times slower

needs_two_cpus = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="each of the two programs needs a separate CPU"
)


def test_registration_is_measured_in_microseconds() -> None:
    result = runs.measure_in_rounds("reg", iters=50, rounds=2)

    assert (result["unit"], result["size"]) == ("us", 1 << 30)
    assert 0 < result["ours"] < 100_000
    assert (result["floor"], result["ratio_median"]) == (None, None)


def test_the_one_sided_delay_is_the_delay_that_not_polling_adds() -> None:
    result = runs.measure_in_rounds("onesided", iters=10, rounds=2)

    for each in result["rounds"]:
        assert each["ours"] == pytest.approx(each["not polling"] - each["polling"])
        assert each["not polling"] > 0 and each["polling"] > 0 and each["idle"] > 0
    assert result["ours"] == statistics.median(each["ours"] for each in result["rounds"])


@pytest.mark.parametrize(
    ("kind", "qp", "size"),
    [
        ("fair", "ud", 4096),
        ("fair", "rc", 4096),
        ("crowd", "ud", 64),
        ("crowd", "rc", 64),
        ("crowd", "rd", 64),
        ("lanes", "rc", 64),
    ],
)
def test_latency_beside_busy_or_idle_queue_pairs_is_compared_with_none(
    kind: str, qp: str, size: int
) -> None:
    result = runs.measure_in_rounds(kind, qp, iters=200, rounds=2)
    assert (result["qp"], result["size"]) == (qp, size)
    for each in result["rounds"]:
        assert each["ratio"] == max(each["ours"] / each["floor"], each.get("p99 ratio", 0)) > 0
    assert result["ratio_median"] == statistics.median(each["ratio"] for each in result["rounds"])


@pytest.mark.parametrize("depth", [1, 32])
def test_the_time_of_connections_is_compared_with_tcp_sockets_that_poll(depth: int) -> None:
    result = runs.measure_in_rounds("connect", depth=depth, iters=100, rounds=2)
    assert (result["qp"], result["depth"], result["unit"]) == ("rc", depth, "us")
    for each in result["rounds"]:
        assert each["ratio"] == each["ours"] / each["floor"] > 0


def test_a_limit_of_descriptors_that_is_too_low_is_reported() -> None:
    tool = bench_program_path().parents[2] / "lab" / "siwarp-lab-verbs"
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 300; exec "$@"', "-", str(tool), "--kind", "crowd"],
        # No sanitizer library is preloaded into the shell; the program loads its own.
        env=environment_without_sanitizer(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "10100 descriptors are needed, but `ulimit -Hn` is 300: raise the limit\n"


@needs_two_cpus
@pytest.mark.parametrize("persona", personas.PERSONAS)
def test_a_write_becomes_visible_in_time_to_a_program_that_only_reads_memory(persona: str) -> None:
    env = {"SIWARP_PERSONA": persona}
    measured = runs.measure_in_rounds("watched", iters=1000, rounds=5, env=env)
    assert (measured["qp"], measured["op"], measured["size"]) == ("rc", "write", 64)
    assert measured["ours"] < BOUND_US * slowdown_factor()


@pytest.mark.parametrize("promised", PROMISED, ids=lambda r: r.name)
def test_every_promised_figure_has_a_plan_and_an_aim_stricter_than_its_limit(
    promised: table.Row,
) -> None:
    runs.create_measurement_plan(**promised.arguments)
    assert table.row_verdict(promised, promised.aim) == "aim"
    assert table.row_verdict(promised, promised.must) == "must"


def test_both_personas_are_measured_and_the_ratio_is_the_median_of_rounds() -> None:
    words = ("--part", "personas", "--only", "64 B", "-n", 50, "--rounds", 2)
    done = run_lab_study("verbs", *words, "--json", timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["personas"]
    for row in rows:
        assert row["error"] is None
        measured = row["measured"]
        ratios = [each["roce"]["value"] / each["iwarp"]["value"] for each in measured["rounds"]]
        assert measured["roce_ratio"] == statistics.median(ratios)
        assert measured["span"] == [min(ratios), max(ratios)]
    late = {row["name"]: row["measured"]["p99"] for row in rows}
    assert late["Write 64 B into memory that is read instead of polling"]["roce"] > 0
    asked = {(row.arguments["kind"], row.arguments.get("op")) for row in personas.ROWS}
    assert asked >= {(kind, op) for kind in ("lat", "bw") for op in ("send", "write", "read")}


def test_a_failed_row_has_the_reason_in_the_result_and_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_bench_error(*_: Any) -> dict[str, Any]:
        raise BenchError("lost 3 of 4 messages")

    monkeypatch.setattr(personas, "_measure_value_once", raise_bench_error)
    (result,) = personas.measure_personas(personas.ROWS[:1], 1)
    assert (result["error"], result["measured"]) == ("lost 3 of 4 messages", None)
    personas.print_personas([result])
    assert "lost 3 of 4 messages" in capsys.readouterr().out


def test_each_promise_has_a_verdict_in_the_table() -> None:
    done = run_lab_study("verbs", "--part", "promises", "--only", "quiet", "-n", 100, "--rounds", 1)
    assert "UD round trip of a quiet QP" in done.stdout
    assert "RC round trip of a quiet QP" in done.stdout
    assert done.returncode == (1 if " missed " in done.stdout else 0)
    none = run_lab_study("verbs", "--only", "nothing")
    assert none.returncode == 2
