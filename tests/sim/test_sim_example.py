"""The example program examples/python/simulated.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_simulation_example_prints_the_same_text_in_each_run(root: Path) -> None:
    def run_example(*seed: str) -> str:
        done = subprocess.run(
            [sys.executable, str(root / "examples/python/simulated.py"), *seed],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run_example()
    assert "received 'message 150'" in first
    assert "all 200 arrived, in order" in first
    assert run_example("7") == first
    assert run_example("8") != first
