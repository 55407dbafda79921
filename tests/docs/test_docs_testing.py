"""The code blocks of docs/guides/testing.md, and the example project that it names."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from docs.docs_harness import ROOT, read_doc_block, run_in_namespace


def run_python_in_namespace(code: str, folder: Path) -> str:
    (folder / "program.py").write_text(code)
    return run_in_namespace("python program.py", folder)


def test_the_documented_pair_of_queue_pairs_exchanges_messages(tmp_path: Path) -> None:
    said = run_python_in_namespace(read_doc_block("docs/guides/testing.md", "pair"), tmp_path)
    assert said == "b'hello'\nb'registered'\n"


def test_the_documented_pair_for_asyncio_exchanges_a_message(tmp_path: Path) -> None:
    assert (
        run_python_in_namespace(read_doc_block("docs/guides/testing.md", "aio"), tmp_path)
        == "b'hello'\n"
    )


def run_pytest_in_namespace(script: str, folder: Path) -> str:
    """Run a script that runs pytest in a new network namespace; return the output.

    pytest names its temporary folder after the user, which is root in the namespace, and the real
    root may have created that folder before.
    """
    (folder / "tmp").mkdir()
    return run_in_namespace(f'export TMPDIR="$PWD/tmp"\n{script}', folder)


def test_the_capture_of_a_failing_test_is_dissected(tmp_path: Path) -> None:
    (tmp_path / "test_line.py").write_text(read_doc_block("docs/guides/testing.md", "fixtures"))
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    said = run_pytest_in_namespace(read_doc_block("docs/guides/testing.md", "failing"), tmp_path)
    assert "1 failed, 2 passed" in said
    assert len(list((tmp_path / "siwarp-captures").iterdir())) == 1
    assert "ud SEND" in said


def test_the_tests_of_the_example_project_pass(tmp_path: Path) -> None:
    project = shutil.copytree(ROOT / "examples/testing-project", tmp_path / "project")
    said = run_pytest_in_namespace(read_doc_block("docs/guides/testing.md", "project"), project)
    assert "8 passed" in said
    assert "8 passed" in said.partition("8 passed")[2], said
    assert not (project / "captures").exists()


def test_the_documented_simulated_pair_exchanges_a_message_in_virtual_time(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(read_doc_block("docs/guides/testing.md", "simulated"))
    said = run_in_namespace(f'"{sys.executable}" program.py', tmp_path)
    assert re.fullmatch(r"b'hello' after \d\.\d+ s\n", said)


def test_the_tests_of_the_example_program_in_c_pass(tmp_path: Path) -> None:
    project = shutil.copytree(ROOT / "examples/testing-c-program", tmp_path / "project")
    said = run_pytest_in_namespace(read_doc_block("docs/guides/testing.md", "program"), project)
    assert "3 passed" in said
