"""Functions that run the code blocks of documentation pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pace
from harness.siwarp_process import folder_of_fork_server_clients

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doc_block  # noqa: E402


def read_doc_block(page: str, name: str) -> str:
    """Return the text of the block that ``<!-- tried: NAME -->`` names on a page of this tree."""
    return doc_block.read_code_block(ROOT / page, name)


def run_in_namespace(script: str, folder: Path, first: Path | None = None) -> str:
    """Run a script in a folder and in a new network namespace; return all of its output.

    In a shared namespace, another test might use the ports of the script. Programs are searched in
    the folder ``first``, then among those that are forked, then in the folder of this Python.
    """
    places = [
        first,
        folder_of_fork_server_clients(),
        Path(sys.executable).parent,
        os.environ["PATH"],
        "/usr/sbin",
        "/sbin",
    ]
    done = pace.run_command(
        ["unshare", "-rn", "bash", "-ec", f"ip link set lo up\n{script}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        seconds=90,
        cwd=folder,
        env={**os.environ, "PATH": ":".join(str(place) for place in places if place)},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
