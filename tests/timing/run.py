"""``make timing``: runs the tests marked ``timing``, and distinguishes load from real failures.

A failed test is printed. The timing lane then waits up to a minute for a quiet machine and repeats
the failed test once, alone; no other tests of the project are repeated. The verdicts:

FAILED    the test failed twice, or failed once and no other verdict is allowed for the test;
LOAD      the test passed on the quiet machine (the cost of both runs is printed);
UNJUDGED  the machine never became quiet.

LOAD and UNJUDGED do not fail the timing lane. Only tests listed in ``tests/timing/tests.txt`` may
get these verdicts. With ``--strict``, as in `make ci-full`, UNJUDGED fails the lane, too. Other
arguments name tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from timing import list_entry_covering_test, listed_timing_tests, measure

ROOT = Path(__file__).resolve().parents[2]
#: Seconds that `make timing` waits for a quiet machine before the verdict is UNJUDGED.
QUIET_WITHIN_S = 60.0


@dataclass(frozen=True)
class Result:
    """The outcome of one test in one run."""

    nodeid: str
    outcome: str
    cost: str
    report: str


class Costs:
    """A pytest plugin that writes outcome and cost of each test, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):  # type: ignore[no-untyped-def]
        """Measure the cost of a complete test, including its fixtures."""
        self._outcome, self._report = "passed", ""
        watch = measure.Stopwatch()
        yield
        line = {
            "nodeid": item.nodeid,
            "outcome": self._outcome,
            "cost": str(watch.stop()),
            "report": self._report,
        }
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the worst outcome of the phases of a test."""
        if report.failed:
            self._outcome, self._report = "failed", report.longreprtext
        elif report.skipped and self._outcome == "passed":
            self._outcome = "skipped"


def run_pytest(arguments: list[str]) -> tuple[int, list[Result]]:
    """Run pytest in one process; return its exit status and the result of each test."""
    with tempfile.TemporaryDirectory(prefix="siwarp-timing-") as folder:
        path = Path(folder) / "costs.jsonl"
        path.touch()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "timing.plugin", "-p", "no:xdist", *arguments],
            cwd=ROOT,
            env={**os.environ, "TIMING_COSTS": str(path), "PYTHONPATH": str(ROOT / "tests")},
            check=False,
        )
        lines = path.read_text("utf-8").splitlines()
    return done.returncode, [Result(**json.loads(line)) for line in lines]


def rerun_and_return_verdict(first: Result, may_be_unjudged: bool) -> tuple[str, str]:
    """Run a failed test a second time; return the verdict and an explanation."""
    if not may_be_unjudged:
        return "FAILED", f"{first.cost}; it is not in tests/timing/tests.txt"
    if not measure.wait_for_quiet_machine(QUIET_WITHIN_S):
        return "UNJUDGED", f"{first.cost}; no quiet second within {QUIET_WITHIN_S:.0f} s"
    _, again = run_pytest(["-q", first.nodeid])
    if len(again) != 1 or again[0].outcome != "passed":
        return "FAILED", f"twice: {first.cost}; again {again[0].cost if again else 'not run'}"
    return "LOAD", f"failed: {first.cost}; passed when quiet: {again[0].cost}"


def main() -> int:
    """Run the tests that depend on real time; return 0 unless a test has the verdict FAILED."""
    parser = argparse.ArgumentParser(prog="make timing", description=__doc__)
    parser.add_argument("--strict", action="store_true", help="UNJUDGED is a failure, too")
    parser.add_argument("tests", nargs="*", default=["tests"])
    options = parser.parse_args()

    status, results = run_pytest(["-q", "-m", "timing", *options.tests])
    failed = [result for result in results if result.outcome == "failed"]
    if status not in (0, 1) or not results or (status == 1 and not failed):
        print(f"timing: pytest ended with status {status} after {len(results)} tests")
        return 1
    names = frozenset(listed_timing_tests())
    verdicts: list[tuple[str, Result, str]] = []
    for result in failed:
        kind, why = rerun_and_return_verdict(
            result, list_entry_covering_test(result.nodeid, names) is not None
        )
        verdicts.append((kind, result, why))
    for kind, result, why in verdicts:
        print(f"{kind} {result.nodeid}: {why}")
    lost = ("FAILED", "UNJUDGED") if options.strict else ("FAILED",)
    counts = {
        kind: sum(k == kind for k, _, _ in verdicts) for kind in ("FAILED", "LOAD", "UNJUDGED")
    }
    passed = sum(result.outcome == "passed" for result in results)
    print("timing: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    print(f"{passed} passed, {len(failed)} failed at first")
    return 1 if any(counts[kind] for kind in lost) else 0


if __name__ == "__main__":
    sys.exit(main())
