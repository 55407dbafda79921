"""``make check``: lints and tests for a change of a few files, in less than two minutes.

Usage: ``tools/check [--dry-run] [BASE]``. The change is what differs from the merge base with BASE
(default: origin/main, or main), committed or not, and files that git does not know yet.
``--dry-run`` prints what would run.

The check runs the fast lints, the checks of the pages, the unit tests of changed layers and of the
layers that depend on changed layers (tests/reach.py; for C code, only layers in C), changed tests,
and a few tests in simulated processes. The check needs no root. At the end the check prints what it
has left out; the gate, ``.ci/run``, runs the left-out checks before a merge.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/lint")]

import reach  # noqa: E402

BUILD = "build/main"

#: The tests of the documentation pages, which also check the walks of ARCHITECTURE.md.
PAGES = ["tests/unit/docs"]
#: Tests that represent all unit tests when a change may affect everything.
SMOKE = [
    "tests/unit/mem",
    "tests/unit/ddp",
    "tests/unit/rdmap",
    "tests/unit/cm",
    "tests/unit/qp/rd",
    "tests/unit/qp/uc",
    "tests/unit/qp/ud",
]
#: Tests in simulated processes that represent all others. Tests in tests/sim/rd need a separate
#: run, as in `make sim`.
SIM = [
    "tests/sim/test_sim_rc.py",
    "tests/sim/test_sim_types.py",
    "tests/sim/uc",
    "tests/sim/verbs/test_verbs_rc.py",
    "tests/sim/verbs/test_verbs_ud.py",
    "tests/sim/rd/test_rd_wire.py",
    "tests/sim/rd/test_verbs_rd.py",
]
#: The tests that a changed file of a tool or specification affects. The key is the beginning of the
#: file's path. Such a file affects no other tests.
TESTS_OF = {
    ".ci/": ["tests/unit/gate"],
    "packaging/": ["tests/unit/release"],
    "spec/": ["tests/unit/spec"],
    "tests/lint/": ["tests/unit/lint"],
    "tests/mutants/": ["tests/unit/mutants/test_mutants.py"],
    "tests/reach.py": ["tests/unit/gate"],
    "tests/timing/": ["tests/unit/timing"],
    "tools/check": ["tests/unit/gate"],
    "tools/ci-full": ["tests/unit/gate"],
    "tools/quick.py": ["tests/unit/gate"],
    "tools/release": ["tests/unit/release"],
    "tools/split_wheel.py": ["tests/unit/release"],
}
#: Folders in which a changed file selects the tests whose names share a word with its name:
#: ping_wire.py selects test_cli_ping.py. If no test does, the tests listed here are selected.
BY_NAME = {
    "cli": ["tests/cli/test_cli_commands.py"],
    "bench": ["tests/bench/test_bench_cli.py"],
}
#: Checks that `make check` never runs.
NEVER = [
    "cppcheck, the compiler's warnings and the aarch64 compile of `make lint`",
    "tests/conformance, hostile, namespaces, peer, docs, examples and others outside of tests/unit",
    "sanitizers, fuzzers, mutants, seeds of siwarp sim, tests that race the clock, make abi",
]


@dataclass
class TestSelection:
    """The tests to run for a change, and affected tests that `make check` leaves out."""

    real: set[str] = field(default_factory=set)
    simulated: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)


def is_simulated_test(test: str) -> bool:
    """Return whether a test needs a simulated process."""
    return reach.is_path_inside(test, "tests/sim")


def tests_sharing_a_word(layer: str, path: str) -> list[str]:
    """Return the test files of a layer whose names share a word with the name of a file."""
    words = set(Path(path).stem.split("_"))
    tests = sorted((ROOT / "tests" / layer).glob(f"test_{layer}_*.py"))
    found = [test for test in tests if words & set(test.stem.split("_")[2:])]
    return [str(test.relative_to(ROOT)) for test in found] or BY_NAME[layer]


def tests_of_tool(path: str) -> list[str]:
    """Return the tests of a file of a tool or specification, or []."""
    return [test for start, tests in TESTS_OF.items() if path.startswith(start) for test in tests]


def tests_of_layer_file(path: str) -> list[str]:
    """Return the tests that belong to a file of a layer, or to a file of unit tests."""
    part = path.split("/")
    if part[:2] == ["tests", "unit"] and len(part) > 3:
        return ["/".join(part[:-1])]
    if part[0] != "siwarp" or len(part) < 3:
        return []
    if part[1] in BY_NAME:
        return tests_sharing_a_word(part[1], path)
    # The tests of the Python objects of verbs are in tests/unit/python.
    python = ["tests/unit/python"] if part[1] == "verbs" else []
    return [f"tests/unit/{part[1]}", *python]


def is_compiled_or_simulator_source(path: str) -> bool:
    """Return whether a file is compiled, or is part of the simulator."""
    return path.endswith((".c", ".h", "meson.build")) or path.startswith("siwarp/sim/")


def choose_tests(changed: Iterable[str]) -> TestSelection:
    """Return the tests to run, and the tests to leave out, for the changed files."""
    choice = TestSelection()
    wanted = set(PAGES)
    for path in changed:
        affected = reach.tests_affected_by(path)
        if affected == [path] or tests_of_tool(path):
            wanted.update(tests_of_tool(path) or [path])
            continue
        wanted.update(tests_of_layer_file(path))
        if is_compiled_or_simulator_source(path):
            wanted.update(SIM)
        if affected is None:
            wanted.update(SMOKE)
            choice.left_out.add("tests/unit (the change may affect all of it)")
        elif affected:
            layers = reach.dependent_layers(path.split("/")[1])
            if is_compiled_or_simulator_source(
                path
            ):  # Python layers only use C code, which the tests of the C layers test
                layers -= set(reach.PYTHON)
            wanted.update(f"tests/unit/{layer}" for layer in layers)
            choice.left_out.update(affected)
    wanted = drop_missing_and_nested_paths(wanted)
    choice.simulated = {test for test in wanted if is_simulated_test(test)}
    choice.real = wanted - choice.simulated
    affected_only = {
        test
        for test in drop_missing_and_nested_paths(choice.left_out)
        if not any(reach.is_path_inside(test, other) for other in wanted)
    }
    choice.left_out = affected_only | {text for text in choice.left_out if " " in text}
    return choice


def drop_missing_and_nested_paths(tests: set[str]) -> set[str]:
    """Return the test paths that exist, without paths inside of other paths."""
    there = {test for test in tests if (ROOT / test).exists()}
    return {a for a in there if not any(a != b and reach.is_path_inside(a, b) for b in there)}


def run_git(*words: str) -> str | None:
    """Return the output of a git command, or None if the command fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def find_merge_base(wanted: str | None) -> tuple[str, str]:
    """Return the ref with which the work tree is compared, and the merge base with the ref."""
    for ref in [wanted] if wanted else ["origin/main", "main"]:
        commit = run_git("merge-base", "HEAD", ref)
        if commit:
            return ref, commit
    sys.exit(f"tools/check: no merge base with {wanted or 'origin/main or main'}: name a commit")


def files_changed_since(commit: str) -> list[str]:
    """Return the files that differ from a commit, and the files that git does not track yet."""
    differ = run_git("diff", "--name-only", "--no-renames", "-z", commit, "--") or ""
    new = run_git("ls-files", "--others", "--exclude-standard", "-z") or ""
    return sorted({name for name in (differ + "\0" + new).split("\0") if name})


def lint_commands(changed: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the commands of the lints by name, and a description of lints left out."""
    there = [path for path in changed if (ROOT / path).is_file()]
    python = [path for path in there if path.endswith((".py", ".pyi"))]
    c = [path for path in there if path.endswith((".c", ".h"))]
    bin_, py = ".venv/bin", sys.executable
    steps = {"ruff": [f"{bin_}/ruff", "check", "--quiet", "."]}
    out = []
    if python:
        steps["format"] = [f"{bin_}/ruff", "format", "--check", "--quiet", *python]
        steps["imports"] = [f"{bin_}/lint-imports", "--no-logo", "--config", "pyproject.toml"]
        steps["py_system"] = [py, "tests/lint/py_system.py"]
    if any(path.startswith(("siwarp/", "lab/")) for path in python):
        steps["mypy"] = [f"{bin_}/mypy", "--strict", "--no-error-summary"]
    else:
        out.append("mypy (no Python file of siwarp or lab changed)")
    if c and shutil.which("clang-format"):
        steps["clang_format"] = ["clang-format", "--dry-run", "-Werror", *c]
    elif c:
        out.append("clang-format (it is not installed)")
    for name in ("c_includes", "c_atomics", "tolls", "real_time"):
        steps[name] = [py, f"tests/lint/{name}.py"]
    for name in ("c_symbols", "cycles", "sources"):
        steps[name] = [py, f"tests/lint/{name}.py", BUILD]
    return steps, out


def pytest_commands(choice: TestSelection) -> dict[str, list[str]]:
    """Return the pytest commands for the chosen tests, by name."""
    steps = {}
    of_rd = {test for test in choice.simulated if reach.is_path_inside(test, "tests/sim/rd")}
    for name, tests in {
        "tests": choice.real,
        "simulated": choice.simulated - of_rd,
        "simulated rd": of_rd,
    }.items():
        shared = ["-n", "auto", "--maxprocesses", "8", "--dist", "loadfile"]
        if tests:
            steps[name] = [sys.executable, "-m", "pytest", "-q", *shared, *sorted(tests)]
    return steps


def run_step_command(name: str, command: list[str]) -> str:
    """Run the command of a step; return "ok" or a description of the failure."""
    print(f"--- {name}", flush=True)
    env = {**os.environ, "SIWARP_SIM": "1"} if name.startswith("simulated") else None
    code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    if code == 5 and "pytest" in command:
        return "ok: the tests belong to another run, such as make timing"
    return "ok" if code == 0 else f"FAILED ({code})"


def main() -> int:
    """Run the lints and tests for the current change; return 1 if a step failed."""
    parser = argparse.ArgumentParser(prog="tools/check", description="Check a small change.")
    parser.add_argument("--dry-run", action="store_true", help="print what would run")
    parser.add_argument("base", nargs="?", help="a branch or commit; default: origin/main or main")
    options = parser.parse_args()
    ref, commit = find_merge_base(options.base)
    changed = files_changed_since(commit)
    choice = choose_tests(changed)
    steps, out = lint_commands(changed)
    steps |= pytest_commands(choice)
    print(f"changed since {commit[:10]}, the merge base with {ref}: {len(changed)} files")
    print(*(f"  {path}" for path in changed[:20]), sep="\n")
    results = []
    for name, command in steps.items():
        if options.dry_run:
            print(f"--- {name}: {' '.join(command)}")
            continue
        begin = time.monotonic()
        result = run_step_command(name, command)
        results.append(f"{name:14} {time.monotonic() - begin:6.1f} s  {result}")
    print("\nleft out:")
    print(*(f"  {what}" for what in [*NEVER, *out, *sorted(choice.left_out)]), sep="\n")
    if not choice.simulated:
        print("  tests/sim (no C code changed)")
    print("before a merge: bash .ci/run\n")
    print(*results, sep="\n")
    return 1 if any("FAILED" in result for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
