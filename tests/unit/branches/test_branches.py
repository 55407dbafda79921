"""The branch counter (tests/branches): what it leaves out, and when it fails."""

from __future__ import annotations

import pytest
from branches.count import (
    Entry,
    Line,
    load_exceptions,
    low_coverage_messages,
    sum_counts,
    summarize_by_layer,
)


def make_line(
    *taken: int, text: str = "if (x)", function: str = "f", file: str = "mpa/mpa_rx.c"
) -> Line:
    return Line(f"siwarp/{file}", 1, function, text, taken)


def test_a_layer_has_the_branches_of_all_its_lines() -> None:
    rows, problems = summarize_by_layer(
        [make_line(1, 0), make_line(5, 5), make_line(0, 1, file="ddp/ddp_rx.c")], []
    )
    assert (dict(rows), problems) == ({"mpa": [3, 4, 0], "ddp": [1, 2, 0]}, [])


def test_the_copies_of_a_line_count_together() -> None:
    assert sum_counts([[1, 0], [2, 3]]) == (3, 3)
    assert sum_counts([[1, 0], [2, 0, 4, 5]]) == (7, 5)  # counts of two calls in one file are added
    with pytest.raises(ValueError, match=r"\[2, 3\] branches"):
        sum_counts([[1, 0], [1, 2, 3]])


def test_less_than_90_per_cent_of_a_layer_are_too_few() -> None:
    most = [make_line(1, 1)] * 4 + [make_line(1, 0)]
    assert low_coverage_messages(summarize_by_layer(most, [])[0]) == []
    assert low_coverage_messages(summarize_by_layer([*most, make_line(1, 0)], [])[0]) == [
        "mpa: 83.3% of its branches taken, less than 90%"
    ]


def test_what_is_excepted_is_not_counted_and_what_was_taken_there_is() -> None:
    entry = Entry("No test can.", line="if (x)", function="f", file="mpa_rx.c")
    rows, problems = summarize_by_layer([make_line(1, 0), make_line(1, 0, function="g")], [entry])
    assert (rows["mpa"], problems) == ([2, 3, 1], [])


def test_an_entry_that_a_test_takes_or_whose_line_is_gone_fails() -> None:
    entries = [Entry("No test can.", line="if (x)"), Entry("Nor this.", match="^while")]
    _, problems = summarize_by_layer([make_line(1, 2)], entries)
    assert problems == [
        "unreachable.toml: a test takes it, so it goes: if (x)",
        "unreachable.toml: there is no such line any more: ^while",
    ]


def test_every_entry_has_a_reason_and_says_which_line() -> None:
    for entry in load_exceptions():
        assert len(entry.reason) > 20 and bool(entry.line) != bool(entry.match), entry
