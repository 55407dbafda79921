"""The commands of docs/mpi.md run and have the documented results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pace
import pytest
from docs.docs_harness import read_doc_block


def run_shell_block(
    work: Path, script: str, seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a code block in a shell whose PATH begins with the siwarp of this Python."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = {"PATH": path, "UCX_LOG_FILE": "stderr"}
    return pace.run_command(
        ["sh", "-ec", script],
        cwd=work,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        seconds=seconds,
    )


@pytest.fixture(scope="module")
def folder_with_mpich_and_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which MPICH is installed and the program of the page is compiled."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "ring.c").write_text(read_doc_block("docs/mpi.md", "program"))
    for script in (
        read_doc_block("docs/mpi.md", "install"),
        read_doc_block("docs/mpi.md", "compile"),
    ):
        done = run_shell_block(folder, script, 300)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.programs
@pytest.mark.timeout(400)
def test_the_documented_mpi_program_runs_over_each_transport(
    folder_with_mpich_and_example: Path,
) -> None:
    done = run_shell_block(folder_with_mpich_and_example, read_doc_block("docs/mpi.md", "run"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["2 ranks, sum 1"] * 3


@pytest.mark.programs
@pytest.mark.timeout(400)
def test_the_documented_capture_has_the_messages_of_each_rank(
    folder_with_mpich_and_example: Path,
) -> None:
    done = run_shell_block(folder_with_mpich_and_example, read_doc_block("docs/mpi.md", "capture"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(folder_with_mpich_and_example.glob("ring*.pcapng"))) == 2
    assert done.stdout.count(" messages") >= 2, done.stdout
