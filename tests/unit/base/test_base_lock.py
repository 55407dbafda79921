"""Threads that wait for a lock of siwarp (base/lock.h)."""

from __future__ import annotations

import subprocess
from pathlib import Path


def test_after_a_yield_of_milliseconds_the_next_waits_for_a_lock_sleep_instead(
    build_dir: Path,
) -> None:
    program = build_dir / "tests/c/siw-test-lock-yields"
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
