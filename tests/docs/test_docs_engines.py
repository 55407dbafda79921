"""The commands of docs/mooncake-ucx.md, in a network namespace that has only loopback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.docs_harness import read_doc_block, run_in_namespace
from pace import scale_limit


@pytest.fixture(scope="module")
def mooncake_virtual_env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a virtual environment with Mooncake, installed as the page describes."""
    folder = tmp_path_factory.mktemp("mooncake")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run(
        ["bash", "-ec", read_doc_block("docs/mooncake-ucx.md", "mooncake-install")],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"},
    )
    if done.returncode != 0:
        pytest.skip(f"no wheel of Mooncake to be had: {done.stderr.splitlines()[-1]}")
    return folder


@pytest.mark.programs
@pytest.mark.timeout(300)
def test_the_documented_benchmark_of_mooncake_runs(
    mooncake_virtual_env: Path, tmp_path: Path
) -> None:
    said = run_in_namespace(
        read_doc_block("docs/mooncake-ucx.md", "mooncake-bench"),
        tmp_path,
        mooncake_virtual_env / "bin",
    )
    moved = re.search(r"Test completed: .*batch count (\d+)", said)
    assert moved is not None and int(moved[1]) > 0, said


@pytest.mark.programs
@pytest.mark.timeout(scale_limit(60))
def test_the_documented_python_code_starts_mooncakes_engine(
    mooncake_virtual_env: Path, tmp_path: Path
) -> None:
    said = run_in_namespace(
        read_doc_block("docs/mooncake-ucx.md", "mooncake-python"),
        tmp_path,
        mooncake_virtual_env / "bin",
    )
    assert re.search(r"its peers know it as 127\.0\.0\.1:\d+", said), said


@pytest.mark.programs
def test_the_documented_ucx_commands_use_rc_verbs_and_ud_verbs(tmp_path: Path) -> None:
    if not shutil.which("ucx_perftest"):
        pytest.skip("no ucx_perftest on this machine: make abi installs it")
    said = run_in_namespace(read_doc_block("docs/mooncake-ucx.md", "ucx"), tmp_path)
    assert "Transport: rc_verbs" in said and "Transport: ud_verbs" in said
    assert re.search(r"Final:\s+1000", said), said
