"""The lint check for tests that wait in real time, whose list may only shrink."""

from __future__ import annotations

from pathlib import Path

import pytest
import real_time
from history import FirstVersion
from table import run_test_for_each_row


@run_test_for_each_row(
    ("text", "found"),
    [
        ("import time\ntime.sleep(1)\n", [(2, "time.sleep")]),
        ("import time as t\nx = t.monotonic_ns\n", [(2, "time.monotonic_ns")]),
        ("from time import perf_counter as now\nnow()\n", [(2, "now")]),
        (
            "assert_no_completion(cq)\npeer.is_silent(0.1)\n",
            [(1, "assert_no_completion"), (2, "is_silent")],
        ),
        ("assert a.get(0.05) is None\nassert cq.wait(0.5) == []\n", [(1, "get"), (2, "wait")]),
        ("assert a.get_event(0) is None\nassert cq.poll(4) == []\n", []),
        ("import time\ntime.process_time()\ntime.strftime('')\n", []),
        ("import net\nnet.sleep(1)\nnet.now()\n", []),
        ("def assert_no_completion():\n    pass\n", []),
    ],
)  # fmt: skip
def test_uses_of_the_real_clock_sleeps_and_timed_waits_in_tests_are_found(
    text: str, found: list[tuple[int, str]]
) -> None:
    assert sorted(real_time.real_time_uses(text)) == found


def test_functions_that_may_race_the_clock_are_skipped() -> None:
    text = "import time\ndef test_a():\n    time.sleep(1)\ndef test_b():\n    time.sleep(1)\n"
    assert list(real_time.real_time_uses(text, frozenset({"test_a"}))) == [(5, "time.sleep")]


def test_any_difference_between_real_time_uses_and_the_list_is_reported() -> None:
    found = {"tests/a.py": [(1, "nothing"), (2, "nothing")], "tests/b.py": [(1, "time.time")]}
    listing = real_time.parse_allowed_uses("# a comment\ntests/a.py 1 why\ntests/c.py 1 why not\n")
    a, b, c = real_time.problems_with_allowed_uses(found, listing)
    assert a.startswith("tests/a.py: 2 uses of real time, and real_time.txt has 1")
    assert b.startswith("tests/b.py: 1 uses of real time, and real_time.txt has 0")
    assert c.startswith("tests/c.py: 0 uses of real time, and real_time.txt has 1")


@pytest.mark.parametrize("line", ["tests/a.py 1", "tests/a.py many reasons", "a 1 x\na 2 y"])
def test_a_line_of_the_real_time_list_without_a_number_or_a_reason_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="REASON"):
        real_time.parse_allowed_uses(line)


def test_updating_the_real_time_list_lowers_numbers_and_raises_none() -> None:
    found = {"tests/a.py": [(1, "nothing")] * 3, "tests/b.py": [(1, "nothing")]}
    text = "# head\ntests/a.py 2 why\ntests/b.py 5 why\ntests/c.py 1 why\n"
    assert (
        real_time.lower_allowed_counts(found, text)
        == "# head\ntests/a.py 2 why\ntests/b.py 1 why\n"
    )


def test_the_real_time_list_has_not_grown_since_its_first_version(root: Path) -> None:
    first = FirstVersion(root, real_time.LIST.relative_to(root).as_posix())
    before = real_time.parse_allowed_uses(first.text)
    for name, entry in real_time.parse_allowed_uses(real_time.LIST.read_text("utf-8")).items():
        then = first.original_file_name(name)
        assert then in before and entry.count <= before[then].count, (
            f"{name}: a test that waits belongs into the simulator; the list may only shrink"
        )
