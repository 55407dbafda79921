"""Tests that no single failed system call makes the library crash or leak a descriptor."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pace
import pytest
from harness.siwarp_process import SiwarpProcess

TESTS = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("scenario", "how"),
    [
        *itertools.product(("ud", "rc", "rd", "uc"), ("plain", "faults", "capture")),
        *((scenario, "plain") for scenario in ("resolution", "refused", "pairing")),
    ],
)
@pytest.mark.timeout(300)
def test_any_single_failed_system_call_is_reported_and_leaks_no_descriptor(
    build_dir: Path, tmp_path: Path, scenario: str, how: str
) -> None:
    settings = {
        "plain": {},
        "faults": {"SIWARP_FAULTS": "delay=0.05ms"},
        "capture": {"SIWARP_CAPTURE": str(tmp_path / "all.pcapng")},
    }
    ran = pace.run_command(
        [sys.executable, str(TESTS / "harness/failing_calls.py"), scenario],
        env={
            **os.environ,
            **settings[how],
            # The library has no path here: to LD_PRELOAD, a blank in a path is a separator.
            "LD_PRELOAD": "libsiw-test-failing.so",
            "LD_LIBRARY_PATH": str(build_dir / "tests/c"),
            "PYTHONPATH": str(TESTS),
        },
        capture_output=True,
        text=True,
        seconds=280,
        start=SiwarpProcess,
        imports=["harness.failing_calls"],
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
