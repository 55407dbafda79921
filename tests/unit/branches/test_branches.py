"""The branch counter (tests/branches): its exceptions and its failures."""

from __future__ import annotations

import pytest
from branches.count import (
    Entry,
    SourceLine,
    load_excepted_branches,
    low_coverage_messages,
    sum_branch_counts,
    summarize_by_layer,
)


def build_branch_coverage_line(
    *taken: int, text: str = "if (x)", function: str = "f", file: str = "mpa/mpa_rx.c"
) -> SourceLine:
    return SourceLine(f"siwarp/{file}", 1, function, text, taken)


def test_the_branches_of_all_lines_of_a_layer_are_summed() -> None:
    rows, problems = summarize_by_layer(
        [
            build_branch_coverage_line(1, 0),
            build_branch_coverage_line(5, 5),
            build_branch_coverage_line(0, 1, file="ddp/ddp_rx.c"),
        ],
        [],
    )
    assert (dict(rows), problems) == ({"mpa": [3, 4, 0], "ddp": [1, 2, 0]}, [])


def test_the_branch_counts_of_all_copies_of_a_line_are_summed() -> None:
    assert sum_branch_counts([[1, 0], [2, 3]]) == (3, 3)
    assert sum_branch_counts([[1, 0], [2, 0, 4, 5]]) == (
        7,
        5,
    )  # counts of two calls in one file are added
    assert sum_branch_counts([[1, 0, 2, 3], [1, 0, 0, 0, 0, 5]]) == (4, 8)
    with pytest.raises(ValueError, match=r"\[2, 3\] branches"):
        sum_branch_counts([[1, 0], [1, 2, 3]])


def test_a_layer_with_less_than_90_percent_of_its_branches_taken_fails() -> None:
    most = [build_branch_coverage_line(1, 1)] * 4 + [build_branch_coverage_line(1, 0)]
    assert low_coverage_messages(summarize_by_layer(most, [])[0]) == []
    assert low_coverage_messages(
        summarize_by_layer([*most, build_branch_coverage_line(1, 0)], [])[0]
    ) == ["mpa: 83.3% of its branches taken, less than 90%"]


def test_untaken_branches_of_an_exception_are_not_counted() -> None:
    entry = Entry("No test can.", line="if (x)", function="f", file="mpa_rx.c")
    rows, problems = summarize_by_layer(
        [build_branch_coverage_line(1, 0), build_branch_coverage_line(1, 0, function="g")], [entry]
    )
    assert (rows["mpa"], problems) == ([2, 3, 1], [])


def test_an_exception_fails_if_a_test_takes_its_branch_or_its_line_is_gone() -> None:
    entries = [Entry("No test can.", line="if (x)"), Entry("Nor this.", match="^while")]
    _, problems = summarize_by_layer([build_branch_coverage_line(1, 2)], entries)
    assert problems == [
        "unreachable.toml: a test takes it, so it goes: if (x)",
        "unreachable.toml: there is no such line any more: ^while",
    ]
    entries = [Entry("Other processors do.", line="if (x)", on_some_processors=True)]
    assert summarize_by_layer([build_branch_coverage_line(1, 2)], entries)[1] == []


def test_every_branch_exception_has_a_reason_and_identifies_its_line() -> None:
    for entry in load_excepted_branches():
        assert len(entry.reason) > 20 and bool(entry.line) != bool(entry.match), entry
