"""Runs of a program in a simulated world that its seed determines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def check_that_a_seed_determines_the_run(program: str, directory: Path) -> None:
    """Assert that the program prints the same in each process that gets the same seed."""
    path = directory / "program.py"
    path.write_text(program)

    def run_program_with_seed(seed: int, hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, str(path), str(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    runs = {run_program_with_seed(7, hash_seed) for hash_seed in ("0", "1", "4711")}
    assert len(runs) == 1
    assert run_program_with_seed(8, "0") not in runs
