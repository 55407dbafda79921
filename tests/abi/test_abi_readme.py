"""README's commands for programs of verbs do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.docs_harness import ROOT, block
from pace import scaled

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"


def said_in_a_namespace(script: str, folder: Path | None = None) -> str:
    """What a script prints in a network namespace of its own: elsewhere its ports may be taken."""
    done = subprocess.run(
        ["unshare", "-rn", "bash", "-c", f"set -e; ip link set lo up\n{script}"],
        capture_output=True,
        text=True,
        timeout=scaled(90),
        cwd=folder,
        env={**os.environ, "PATH": PATH},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needs(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program, path=PATH):
            pytest.skip(f"no {program} on this machine: make abi installs it")


@pytest.mark.programs
def test_the_lines_for_ci_run() -> None:
    needs("ib_write_bw")
    install, *lines = block("README.md", "ci").splitlines()
    assert install.startswith("apt-get install -y ") and "perftest" in install
    said = said_in_a_namespace("\n".join(lines))
    assert len(re.findall(r"(?m)^\s*65536\s+100\s", said)) == 2


@pytest.mark.programs
def test_the_lines_for_programs_run(tmp_path: Path) -> None:
    needs("ibv_devinfo", "ibv_rc_pingpong", "rping", "ib_send_lat", "mpirun.mpich", "mpicc.mpich")
    source = ROOT / "tests" / "abi" / "mpi" / "mpi_exchange.c"
    subprocess.run(["mpicc.mpich", source, "-o", tmp_path / "exchange"], check=True)
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nexec "${0%/*}/exchange" ring 1000\n')
    program.chmod(0o755)
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / "mpirun"
    launcher.write_text('#!/bin/sh\nexec mpirun.mpich "$@"\n')
    launcher.chmod(0o755)
    said = said_in_a_namespace(
        f"PATH={tmp_path}/bin:$PATH\n" + block("README.md", "programs"), tmp_path
    )
    for shown in (
        r"hca_id:\s+siw_lo",
        r"(?s)1000 iters in.*1000 iters in",
        r"ping data: rdma-ping-9",
        r"(?s)^ 2 +1000 .*^ 2 +1000 ",
        r"ring of 4 ranks: data correct",
        r"node GUID\n.*\n\s+siw_lo\s+[0-9a-f]{16}\n\Z",
    ):
        assert re.search(shown, said, re.MULTILINE), f"{shown} is not in\n{said}"
