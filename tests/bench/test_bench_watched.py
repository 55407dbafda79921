"""siwarp bench watched: two programs that each keep a CPU busy polling memory for Writes.

tests/bench/test_bench_ends.py checks the times, which a busy machine exceeds.
"""

from __future__ import annotations

import json
import os

import pytest
from cli.cli_harness import siwarp

needs_two_cpus = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="each of the two programs needs a CPU of its own"
)


@needs_two_cpus
def test_both_personas_and_their_tails_are_shown() -> None:
    words = ("bench", "watched", "--persona", "both", "--iters", 200, "--rounds", 1)
    said = siwarp(*words).stdout.splitlines()
    assert "RC write 64 octets, one way, into memory that the target polls" in said[0]
    rows = [line for line in said[1:] if "unreliable: " not in line]
    assert [line.split("  ")[1] for line in rows] == [
        "siwarp",
        "siwarp, persona roce",
        "99th percentile of these",
        "99th percentile of persona roce",
    ]
    (values,) = json.loads(siwarp(*words, "--json").stdout)["rounds"]
    assert set(values["p99"]) == {"ours", "roce"}
    assert values["p99"]["ours"] >= values["ours"] > 0
