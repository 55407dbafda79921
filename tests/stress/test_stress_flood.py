"""Spoofed first datagrams sent to a reliable queue pair: a million with `make stress`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The number of datagrams: a million for `make stress`; 0 selects the number of the regular suite.
COUNT = int(os.environ.get("SIWARP_STRESS_MESSAGES", "0"))
SLOW = "SANITIZER" in os.environ


# The limit is long for `make stress`, otherwise the usual limit of a test.
@pytest.mark.timeout(900 if COUNT else 120)
@pytest.mark.clause("DGRAM-RD-5", "DGRAM-RD-4", "DGRAM-RD-9")
def test_spoofed_first_datagrams_create_no_state_and_get_no_longer_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = COUNT or (2000 if SLOW else 5000)
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
    # Some datagrams are answered, none with more octets than it has, and all together with far
    # fewer octets.
    assert found["answers"] >= count // 20
    assert found["longer_than_asked"] == 0 and found["longest_answer"] <= 104
    assert found["octets_answered"] <= found["octets_spoofed"] // 2
    # If a spoofed datagram had used a peer record, no record would have been left for the new peer.
    assert found["newcomer_served"], found
    if not SLOW:  # under a sanitizer, the memory of the process grows
        assert found["memory_grew"] <= 1 << 20, found
    assert found["honest_messages"] >= 100
    # With `make stress`, each end has one of two cores; in the suite, other tests use these cores,
    # too.
    times = 3 if COUNT else 20
    assert found["honest_us_during"] <= times * found["honest_us_before"] + 100, found
