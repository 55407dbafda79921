"""Spoofed first datagrams at a reliable queue pair: `make stress` says a million."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: In the suite fewer; `make stress` sets a million.
COUNT = int(os.environ.get("SIWARP_STRESS_MESSAGES", "0"))
SLOW = "SANITIZER" in os.environ


@pytest.mark.timeout(900 if COUNT else 120)  # as long as it may take; else as any test
@pytest.mark.clause("DGRAM-RD-5", "DGRAM-RD-4", "DGRAM-RD-9")
def test_spoofed_first_datagrams_make_no_state_get_no_more_than_they_say_and_harm_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = COUNT or (2000 if SLOW else 20_000)
    ran = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("rd_flood.py")),
            f"--count={count}",
            "--limit=800" if COUNT else "--limit=60",
        ],
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    if COUNT:
        with capsys.disabled():
            print(", ".join(f"{name}: {value}" for name, value in found.items()))
    assert found["judged"] >= count, found
    # Answered, some of them, but none by more than it said; and all in all by far less.
    assert found["answers"] >= count // 20
    assert found["longer_than_asked"] == 0 and found["longest_answer"] <= 104
    assert found["octets_answered"] <= found["octets_spoofed"] // 2
    # One record for any of them, and the newcomer would have found none.
    assert found["newcomer_served"], found
    if not SLOW:  # whose own memory grows
        assert found["memory_grew"] <= 1 << 20, found
    assert found["honest_messages"] >= 100
    # On one of two cores each; in the suite others use these cores as well.
    times = 3 if COUNT else 20
    assert found["honest_us_during"] <= times * found["honest_us_before"] + 100, found
