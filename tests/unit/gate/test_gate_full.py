"""The command tools/ci-full: the reports of its steps, and the steps that ``--resume`` skips."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: A replacement of the project's Makefile, in which each target writes its name into `ran`. The
#: target in FAIL fails, the target in HANG holds a pipe open until it is killed, and the target in
#: CHANGE changes a file tracked by git.
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
def ci_full_repository(tmp_path: Path) -> Path:
    """A git tree of one commit with tools/ci-full and stubs of the programs that it runs."""
    for name in ("tools/ci-full", "tools/lib.sh", "tools/versions"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text("echo gate >>ran\n")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / ".gitignore").write_text("build/\nran\nopen\n")
    (tmp_path / "tracked").write_text("as committed\n")
    commit_all_files(tmp_path)
    return tmp_path


def commit_all_files(tree: Path) -> None:
    """Commit all files of the tree, after git init if necessary."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    subprocess.run(["git", *who, "commit", "-q", "--allow-empty", "-m", "a"], cwd=tree, check=True)


@pytest.fixture
def run_ci_full(ci_full_repository: Path) -> Run:
    """Return a function that runs tools/ci-full; keyword arguments are environment variables."""

    def run_ci_full_in_repository(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "tools/ci-full", *words],
            cwd=ci_full_repository,
            env={**os.environ, "MAKEFLAGS": "", "LIBRARY": "one", **env},
            capture_output=True,
            text=True,
            check=False,
        )

    return run_ci_full_in_repository


def pop_executed_make_targets(tree: Path) -> list[str]:
    """Return the targets that were made since the last call, and clear the list."""
    path = tree / "ran"
    names = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def test_a_successful_full_run_is_recorded_with_its_commit(
    ci_full_repository: Path, run_ci_full: Run
) -> None:
    done = run_ci_full()
    assert done.returncode == 0, done.stdout + done.stderr
    names = pop_executed_make_targets(ci_full_repository)
    assert {"site", "asan", "tsan", "strict", "fuzz", "interop", "tshark", "abi-all"} < set(names)
    assert {"mutate", "stress", "coverage", "dist", "abi-container", "docs", "gate"} < set(names)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ci_full_repository, capture_output=True, text=True
    )
    assert (
        (ci_full_repository / ".ci" / "full-green")
        .read_text()
        .startswith(head.stdout.strip() + " ")
    )


def test_a_failed_step_stops_no_other_step_and_is_the_only_one_that_resume_runs(
    ci_full_repository: Path, run_ci_full: Run
) -> None:
    done = run_ci_full(FAIL="site")
    assert done.returncode != 0
    assert "gate" in pop_executed_make_targets(ci_full_repository)
    end = done.stdout[done.stdout.index("===== what failed") :]
    assert "site:\n    FAILED tests/test_a.py::test_b - assert 1 == 2\n" in end
    assert re.search(r"^site +FAILED \(2\) ", end, re.MULTILINE)
    assert (
        (ci_full_repository / "build" / "ci-full" / "site.result").read_text().startswith("failed ")
    )
    assert not (ci_full_repository / ".ci" / "full-green").exists()

    done = run_ci_full("--resume")
    assert done.returncode == 0, done.stdout
    assert pop_executed_make_targets(ci_full_repository) == ["site"]
    assert (ci_full_repository / ".ci" / "full-green").exists()


@pytest.mark.parametrize("other", ["commit", "build", "changes"])
def test_resume_ignores_results_of_another_commit_build_or_change(
    ci_full_repository: Path, run_ci_full: Run, other: str
) -> None:
    assert run_ci_full("site").returncode == 0
    pop_executed_make_targets(ci_full_repository)
    if other == "commit":
        commit_all_files(ci_full_repository)
    if other == "changes":
        (ci_full_repository / "tracked").write_text("other\n")
    assert (
        run_ci_full("--resume", "site", LIBRARY="two" if other == "build" else "one").returncode
        == 0
    )
    assert pop_executed_make_targets(ci_full_repository) == ["site"]


def test_a_step_that_changed_the_tree_does_not_count_as_passed(
    ci_full_repository: Path, run_ci_full: Run
) -> None:
    done = run_ci_full(CHANGE="docs")
    assert done.returncode == 0
    assert not (ci_full_repository / ".ci" / "full-green").exists()
    assert "not every step has passed" in done.stderr


def test_a_signal_ends_the_running_step_without_a_result(ci_full_repository: Path) -> None:
    os.mkfifo(ci_full_repository / "open")
    with subprocess.Popen(
        ["bash", "tools/ci-full"], cwd=ci_full_repository, env={**os.environ, "HANG": "asan"}
    ) as full:
        with (ci_full_repository / "open").open() as pipe:
            assert pipe.readline() == "hangs\n"
            full.terminate()
            assert pipe.read() == ""  # end of file, so no process holds the pipe open any more
        assert full.wait() == 130
    assert not (ci_full_repository / "build" / "ci-full" / "asan.result").exists()


def test_a_run_of_named_steps_does_not_count_as_a_full_run(
    ci_full_repository: Path, run_ci_full: Run
) -> None:
    assert run_ci_full("dist", "site").returncode == 0
    assert pop_executed_make_targets(ci_full_repository) == ["site", "dist"]
    assert not (ci_full_repository / ".ci" / "full-green").exists()


def test_an_unknown_step_is_refused(ci_full_repository: Path, run_ci_full: Run) -> None:
    done = run_ci_full("sight")
    assert done.returncode != 0
    assert "no step sight: type one of site " in done.stderr
    assert pop_executed_make_targets(ci_full_repository) == []
