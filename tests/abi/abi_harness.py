"""Compiles and runs the C programs of tests/abi/programs."""

from __future__ import annotations

import os
from pathlib import Path

import pace

from siwarp import _paths

PROGRAMS = Path(__file__).parent / "programs"
CC = ["cc", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]
CC.append(f"-I{_paths.include_dir()}")


def run_program(program: Path, *args: str, **env: str) -> str:
    """Run a program with siwarp's libibverbs.so.1; return its output. The program must succeed."""
    done = pace.run_command(
        [program, *args],
        env=os.environ | {"LD_LIBRARY_PATH": str(_paths.rdma_core_abi_dir())} | env,
        capture_output=True,
        text=True,
        seconds=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
