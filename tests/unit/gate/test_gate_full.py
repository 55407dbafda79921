"""``tools/ci-full``: what it reports of its steps, and which of them ``--resume`` skips."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Replaces the project's Makefile: each target writes its name into `ran`. The target in FAIL
#: fails, the one in HANG holds a pipe open until it is killed, the one in CHANGE changes a file
#: tracked by git.
MAKEFILE = """.PHONY: build
build:
\t@mkdir -p build/main && echo "$(LIBRARY)" >build/main/libsiwarp.so
%:
\t@echo "$@" >>ran
\t@if [ "$(FAIL)" = "$@" ]; then echo "FAILED tests/test_a.py::test_b - assert 1 == 2"; exit 1; fi
\t@if [ "$(HANG)" = "$@" ]; then exec 3>open; echo hangs >&3; sleep 600; fi
\t@if [ "$(CHANGE)" = "$@" ]; then echo changed >tracked; fi
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of one commit with the tool, and stubs of the programs that it runs."""
    for name in ("tools/ci-full", "tools/lib.sh", "tools/versions"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text("echo gate >>ran\n")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / ".gitignore").write_text("build/\nran\nopen\n")
    (tmp_path / "tracked").write_text("as committed\n")
    commit(tmp_path)
    return tmp_path


def commit(tree: Path) -> None:
    """Commit all files."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    subprocess.run(["git", *who, "commit", "-q", "--allow-empty", "-m", "a"], cwd=tree, check=True)


@pytest.fixture
def run(tree: Path) -> Run:
    """Run the tool in the tree; keyword arguments are environment variables."""

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "tools/ci-full", *words],
            cwd=tree,
            env={**os.environ, "MAKEFLAGS": "", "LIBRARY": "one", **env},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def ran(tree: Path) -> list[str]:
    """Return which targets were made since the last call."""
    path = tree / "ran"
    names = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def test_a_green_run_is_recorded_with_its_commit(tree: Path, run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    names = ran(tree)
    assert {"site", "asan", "tsan", "strict", "fuzz", "interop", "tshark", "abi-all"} < set(names)
    assert {"mutate", "stress", "coverage", "dist", "abi-container", "docs", "gate"} < set(names)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True)
    assert (tree / ".ci" / "full-green").read_text().startswith(head.stdout.strip() + " ")


def test_a_failed_step_stops_no_other_and_its_tests_are_named(tree: Path, run: Run) -> None:
    done = run(FAIL="site")
    assert done.returncode != 0
    assert "gate" in ran(tree)
    end = done.stdout[done.stdout.index("===== what failed") :]
    assert "site:\n    FAILED tests/test_a.py::test_b - assert 1 == 2\n" in end
    assert re.search(r"^site +FAILED \(2\) ", end, re.MULTILINE)
    assert (tree / "build" / "ci-full" / "site.result").read_text().startswith("failed ")
    assert not (tree / ".ci" / "full-green").exists()


def test_resume_runs_what_has_not_passed_on_this_commit(tree: Path, run: Run) -> None:
    assert run(FAIL="strict").returncode != 0
    ran(tree)
    done = run("--resume")
    assert done.returncode == 0, done.stdout
    assert ran(tree) == ["strict"]
    assert (tree / ".ci" / "full-green").exists()


@pytest.mark.parametrize("other", ["commit", "build", "changes"])
def test_resume_takes_nothing_from_another_tree(tree: Path, run: Run, other: str) -> None:
    assert run("site").returncode == 0
    ran(tree)
    if other == "commit":
        commit(tree)
    if other == "changes":
        (tree / "tracked").write_text("other\n")
    assert run("--resume", "site", LIBRARY="two" if other == "build" else "one").returncode == 0
    assert ran(tree) == ["site"]


def test_a_step_that_ran_on_a_changed_tree_does_not_count(tree: Path, run: Run) -> None:
    done = run(CHANGE="docs")
    assert done.returncode == 0
    assert not (tree / ".ci" / "full-green").exists()
    assert "not every step has passed" in done.stderr


def test_a_signal_ends_what_runs_and_the_step_has_no_result(tree: Path) -> None:
    os.mkfifo(tree / "open")
    with subprocess.Popen(
        ["bash", "tools/ci-full"], cwd=tree, env={**os.environ, "HANG": "asan"}
    ) as full:
        with (tree / "open").open() as pipe:
            assert pipe.readline() == "hangs\n"
            full.terminate()
            assert pipe.read() == ""  # end of file, so no process holds the pipe open any more
        assert full.wait() == 130
    assert not (tree / "build" / "ci-full" / "asan.result").exists()


def test_steps_that_are_named_run_alone_and_do_not_make_it_green(tree: Path, run: Run) -> None:
    assert run("dist", "site").returncode == 0
    assert ran(tree) == ["site", "dist"]
    assert not (tree / ".ci" / "full-green").exists()


def test_a_step_that_does_not_exist_is_refused(tree: Path, run: Run) -> None:
    done = run("sight")
    assert done.returncode != 0
    assert "no step sight: type one of site " in done.stderr
    assert ran(tree) == []
