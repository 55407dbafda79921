"""Tests that depend on real time, and a run of these tests without parallel load.

``tests/timing/tests.txt`` lists the tests that race the clock. Such tests are unreliable on a busy
machine, so `make test` leaves them out, and `make timing` (``run.py``) runs them in one process.
Each entry has a reason why a test in virtual time cannot replace the test. The list may only
shrink, which ``tests/unit/timing`` checks.
"""

from __future__ import annotations

from pathlib import Path

LIST = Path(__file__).with_name("tests.txt")


def listed_timing_tests(path: Path = LIST) -> list[str]:
    """Return the entries of tests.txt: a file of tests, or ``FILE::FUNCTION``."""
    lines = (line.split("#", 1)[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line]


def reasons_for_real_time_by_test(path: Path = LIST) -> dict[str, str]:
    """Return, for each entry of tests.txt, why a test in virtual time cannot replace it."""
    lines = [line.partition("#") for line in path.read_text("utf-8").splitlines()]
    return {name.strip(): why.strip() for name, _, why in lines if name.strip()}


def list_entry_covering_test(nodeid: str, names: frozenset[str]) -> str | None:
    """Return the entry of tests.txt that covers a test, or None."""
    function = nodeid.split("[", 1)[0]
    file = function.split("::", 1)[0]
    return next((name for name in (function, file) if name in names), None)
