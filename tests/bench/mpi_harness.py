"""An MPICH that only says what it is told, and the genuine one of PyPI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VERSION = "MPICH Version:      9.9\nMPICH Device:       ch4:ucx ofi\n"


def _script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def pretended(folder: Path, says: dict[str, Any], compiler: str = "", status: int = 0) -> Path:
    """Make a folder with an MPICH whose programs print what ``says`` has for their name.

    compiler: a line of mpicc's; status: how mpiexec ends.
    """
    tools = folder / "bin"
    tools.mkdir(parents=True)
    _script(tools / "mpichversion", f"printf '%b' {json.dumps(VERSION)}")
    _script(tools / "mpicc", compiler or ":")
    lines = ['for word in "$@"; do case "$word" in']
    for program, value in says.items():
        (folder / program).write_text(json.dumps(value))
        lines.append(f"*/{program}) cat {folder / program};;")
    lines.append(f"esac; done; echo it is raining >&2; exit {status}")
    _script(tools / "mpiexec", *lines)
    return folder
