"""The commands for verbs programs in docs/programs.md work as described."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from docs.docs_harness import ROOT, read_doc_block, run_in_namespace


def skip_unless_installed(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"no {program} on this machine: make abi installs it")


@pytest.mark.programs
def test_the_documented_commands_for_ci_run(tmp_path: Path) -> None:
    skip_unless_installed("ib_write_bw")
    install, *lines = read_doc_block("docs/programs.md", "ci").splitlines()
    assert install.startswith("apt-get install -y ") and "perftest" in install
    said = run_in_namespace("\n".join(lines), tmp_path)
    assert len(re.findall(r"(?m)^\s*65536\s+100\s", said)) == 2


@pytest.mark.programs
def test_the_documented_commands_for_programs_run(tmp_path: Path) -> None:
    skip_unless_installed(
        "ibv_devinfo", "ibv_rc_pingpong", "rping", "ib_send_lat", "mpirun.mpich", "mpicc.mpich"
    )
    source = ROOT / "tests" / "abi" / "mpi" / "mpi_exchange.c"
    subprocess.run(["mpicc.mpich", source, "-o", tmp_path / "exchange"], check=True)
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nexec "${0%/*}/exchange" ring 1000\n')
    program.chmod(0o755)
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / "mpirun"
    launcher.write_text('#!/bin/sh\nexec mpirun.mpich "$@"\n')
    launcher.chmod(0o755)
    said = run_in_namespace(
        read_doc_block("docs/programs.md", "programs"), tmp_path, tmp_path / "bin"
    )
    for shown in (
        r"hca_id:\s+siw_lo",
        r"(?s)1000 iters in.*1000 iters in",
        r"ping data: rdma-ping-9",
        r"(?s)^ 2 +1000 .*^ 2 +1000 ",
        r"ring of 4 ranks: data correct",
        r"node GUID\n.*\n\s+siw_lo\s+[0-9a-f]{16}\n",
    ):
        assert re.search(shown, said, re.MULTILINE), f"{shown} is not in\n{said}"
