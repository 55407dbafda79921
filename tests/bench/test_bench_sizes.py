"""Sizes with suffixes, percentiles and histograms."""

from __future__ import annotations

import pytest
from table import run_test_for_each_row

from siwarp.base import samples
from siwarp.bench.sizes import parse_octet_count, parse_sizes


@run_test_for_each_row(
    ("text", "wanted"),
    [
        ("64", [64]),
        ("4K", [4096]),
        ("1m,64", [64, 1 << 20]),
        ("1:64:*4", [1, 4, 16, 64]),
        ("1K:3K:+1K", [1024, 2048, 3072]),
        ("all", [1 << i for i in range(1, 24)]),
    ],
)
def test_lists_and_ranges_of_sizes_are_parsed(text: str, wanted: list[int]) -> None:
    assert parse_sizes(text) == wanted


@run_test_for_each_row(
    "text", ["", "0", "K", "-1", "x", "1:2", "1:8:2", "1:8:*1", "8:1:*2", "1:1M:+1", "٣"]
)
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_sizes(text)


def test_suffixes_are_powers_of_1024() -> None:
    assert [parse_octet_count(f"2{unit}") for unit in ("", "K", "k", "M", "G")] == [
        2, 2048, 2048, 2 << 20, 2 << 30,
    ]  # fmt: skip


def test_a_percentile_is_the_sample_that_the_given_share_does_not_exceed() -> None:
    ordered = [float(i) for i in range(1, 101)]
    found = samples.percentiles(ordered, (0.5, 50, 99, 99.9, 100))
    assert found == {"p0.5": 1, "p50": 50, "p99": 99, "p99.9": 100, "p100": 100}
    assert samples.parse_percentiles("50,99.9") == (50, 99.9)
    for wrong in ("", "0", "101", "x", "nan"):
        with pytest.raises(ValueError):
            samples.parse_percentiles(wrong)


def test_a_histogram_counts_each_sample_once() -> None:
    ordered = sorted([0.0, 1.0, 1.5, 3.0, 3.1, 700.0])
    bars = samples.histogram(ordered)
    assert sum(n for *_, n in bars) == len(ordered)
    assert all(low < high for low, high, _ in bars)
    assert bars[-1][0] <= 700 < bars[-1][1]
    assert samples.histogram([]) == []
    lines = samples.histogram_lines(ordered)
    assert sum(int(line.split()[4]) for line in lines if "us" in line) == len(ordered)
    assert [line for line in lines if "us" not in line] == [f"{'...':>10}"] * 3
