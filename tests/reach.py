"""Selects the sanitized tests that a change affects: ``.ci/sanitized asan|tsan`` prints them.

``GATE`` lists all tests that the gate may run with a sanitizer within an hour; `make ci-full` runs
the complete suites. ``.ci/full-green`` names the last commit at which `make ci-full` passed. If the
changes since this commit are known, the gate runs the tests of ``GATE`` that belong to a changed
layer or to a layer that depends on a changed layer, and changed tests. Otherwise the gate runs all
tests of ``GATE``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from lint.layers import MAY_USE
from mutants.data import read_mutation_layers

ROOT = Path(__file__).resolve().parents[1]
RECORD = ".ci/full-green"

#: AddressSanitizer runs the tests that drive the parsers and the layers directly, and those with
#: hostile peers or with descriptors that an event loop watches. ThreadSanitizer runs the tests with
#: threads.
GATE = {
    "asan": [
        "tests/unit/base",
        "tests/unit/mem",
        "tests/unit/mpa",
        "tests/unit/ddp",
        "tests/unit/rdmap",
        "tests/unit/llp",
        "tests/unit/rd",
        "tests/conformance",
        "tests/hostile",
        "tests/unit/sim",
        "tests/unit/aio",
        "tests/unit/device/test_device_loop.py",
    ],
    "tsan": [
        "tests/unit/aio",
        "tests/unit/mem",
        "tests/unit/device/test_device_threads.py",
        "tests/unit/device/test_device_async.py",
        "tests/unit/device/test_device_cancel.py",
        "tests/unit/device/test_device_cq_wait.py",
        "tests/unit/device/test_device_forced.py",
        "tests/unit/device/test_device_mw_races.py",
        "tests/unit/device/test_device_objects.py",
        "tests/unit/device/test_device_waiting.py",
        "tests/unit/device/test_device_lanes.py",
        "tests/unit/connect/test_connect_lanes.py",
        "tests/unit/cm/test_cm_lanes.py",
        "tests/unit/qp/rc/test_qp_rc.py",
        "tests/unit/qp/rd/test_qp_rd.py",
    ],
}
#: Tests that always run: the tests of hostile peers use every layer, and a sanitized build must
#: work.
ALWAYS = {
    "asan": ["tests/hostile"],
    "tsan": ["tests/unit/mem", "tests/unit/device/test_device_threads.py"],
}
#: The C layers that each Python layer uses.
PYTHON = {
    "aio": {"cm"},
    "pyverbs": {"cm"},
    "testing": {"cm"},
    "ulp": {"aio", "cm"},
    "cli": {"cm", "ulp"},
    "bench": {"cm"},
}
#: Layers on which every layer depends, so that a change of such a layer affects all tests.
LOWEST = {"base", "llp"}
#: No sanitized test depends on files under these paths, or with these suffixes.
APART = (
    "docs/",
    "examples/",
    "packaging/",
    "spec/",
    "LICENSES/",
    "tests/interop/",
    "tests/tshark/",
)
APART_ENDS = (".md", ".rst")


def dependent_layers(layer: str) -> set[str]:
    """Return a layer and all layers that use the layer directly or indirectly."""
    found = {layer}
    while True:
        more = {
            upper
            for upper, lower in MAY_USE.items()
            if upper not in found and (lower | PYTHON.get(upper, set())) & found
        }
        if not more:
            return found
        found |= more


def is_path_inside(path: str, folder: str) -> bool:
    """Return whether a path is equal to `folder` or inside `folder`."""
    return path == folder or path.startswith(folder + "/")


def tests_affected_by(path: str) -> list[str] | None:
    """Return the test files and folders that a changed file affects, or None for all."""
    if path.endswith(APART_ENDS) or path.startswith(APART) or path == RECORD:
        return []
    part = path.split("/")
    if part[0] == "tests" and part[-1].startswith("test_"):
        return [path]
    if part[0] != "siwarp" or len(part) < 3 or part[1] not in MAY_USE or part[1] in LOWEST:
        return None
    known = read_mutation_layers(ROOT / "tests" / "mutants")
    found = []
    for layer in dependent_layers(part[1]):
        found.append(f"tests/unit/{layer}")
        found += known[layer].tests if layer in known else []
    return found


def select_tests(kind: str, changed: Iterable[str] | None) -> list[str]:
    """Return the tests that the gate runs with a sanitizer (asan or tsan).

    `changed`: the files that have changed since the last complete passing run, or None if unknown.
    """
    wanted = list(ALWAYS[kind])
    for path in changed if changed is not None else ["?"]:
        found = tests_affected_by(path)
        if found is None:
            return list(GATE[kind])
        wanted += found
    both = {
        a if is_path_inside(a, b) else b
        for a in wanted
        for b in GATE[kind]
        if is_path_inside(a, b) or is_path_inside(b, a)
    }
    there = {path for path in both if (ROOT / path).exists()}
    return sorted(a for a in there if not any(a != b and is_path_inside(a, b) for b in there))


def files_changed_since_green(root: Path) -> list[str] | None:
    """Return the files that differ from the commit named in ``.ci/full-green``.

    Return None if the file does not exist or this clone does not have the commit.
    """

    def run_git(*words: str) -> str | None:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else None

    try:
        commit = (root / RECORD).read_text("ascii").split()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return None
    if run_git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    differ = run_git("diff", "--name-only", "--no-renames", "-z", commit, "--")
    new = run_git("ls-files", "--others", "--exclude-standard", "-z")
    if differ is None or new is None:
        return None
    return [name for name in (differ + new).split("\0") if name]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in GATE:
        sys.exit("usage: .ci/sanitized asan|tsan")
    print(*select_tests(sys.argv[1], files_changed_since_green(ROOT)))
