"""The studies of lab/ as commands, and a fake MPICH that prints given output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pace

ROOT = Path(__file__).resolve().parents[2]

VERSION = "MPICH Version:      9.9\nMPICH Device:       ch4:ucx ofi\n"


def _write_script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def create_fake_mpich(
    folder: Path, says: dict[str, Any], compiler: str = "", status: int = 0
) -> Path:
    """Create a fake MPICH in a folder; each MPI program prints the value of its name in ``says``.

    compiler: the shell command that mpicc runs; status: the exit status of mpiexec.
    """
    tools = folder / "bin"
    tools.mkdir(parents=True)
    _write_script(tools / "mpichversion", f"printf '%b' {json.dumps(VERSION)}")
    _write_script(tools / "mpicc", compiler or ":")
    lines = ['for word in "$@"; do case "$word" in']
    for program, value in says.items():
        (folder / program).write_text(json.dumps(value))
        lines.append(f"*/{program}) cat {folder / program};;")
    lines.append(f"esac; done; echo it is raining >&2; exit {status}")
    _write_script(tools / "mpiexec", *lines)
    return folder


def run_lab_study(
    study: str, *arguments: object, env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m lab.STUDY`` in the root of the tree; return the completed process."""
    return pace.run_command(
        build_lab_command_line(study, *arguments),
        capture_output=True,
        text=True,
        seconds=timeout,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        check=False,
    )


def build_lab_command_line(study: str, *arguments: object) -> list[str]:
    """Return the command line that runs a study of lab/."""
    return [sys.executable, "-m", f"lab.{study}", *map(str, arguments)]
