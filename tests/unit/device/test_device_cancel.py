"""Threads that the program cancels (``pthread_cancel``) inside calls of siwarp."""

from __future__ import annotations

import os
from pathlib import Path

import pace
import pytest


@pytest.mark.parametrize("recording", [False, True], ids=["plain", "with log and capture"])
def test_a_thread_cancelled_inside_a_call_leaves_no_lock_and_no_leak(
    build_dir: Path, tmp_path: Path, recording: bool
) -> None:
    """With a log and a capture, the cancelled calls write files as well."""
    record = {"SIWARP_LOG": "debug", "SIWARP_CAPTURE": str(tmp_path / "%p.pcapng")}
    done = pace.run_command(
        [build_dir / "tests/c/siw-test-cancel", "20" if recording else "200"],
        env={**os.environ, **(record if recording else {})},
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
    )
    errors = [line for line in done.stderr.splitlines() if not line.startswith("siwarp[")]
    assert (done.returncode, done.stdout, errors) == (0, "", [])
    assert any(tmp_path.iterdir()) == recording
