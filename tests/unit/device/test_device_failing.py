"""Each system call that the library makes fails once: no crash, no open descriptor left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("scenario", ["ud", "rc", "rd", "uc"])
@pytest.mark.parametrize("how", ["plain", "faults", "capture"])
@pytest.mark.timeout(300)
def test_any_failing_call_of_the_system_is_told_and_survived(
    build_dir: Path, tmp_path: Path, scenario: str, how: str
) -> None:
    settings = {
        "plain": {},
        "faults": {"SIWARP_FAULTS": "delay=0.05ms"},
        "capture": {"SIWARP_CAPTURE": str(tmp_path / "all.pcapng")},
    }
    ran = subprocess.run(
        [sys.executable, TESTS / "harness/failing_calls.py", scenario],
        env={
            **os.environ,
            **settings[how],
            # Named without a path, because a path with a blank would be parsed as two libraries.
            "LD_PRELOAD": "libsiw-test-failing.so",
            "LD_LIBRARY_PATH": str(build_dir / "tests/c"),
            "PYTHONPATH": str(TESTS),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
