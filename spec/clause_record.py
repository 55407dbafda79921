# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The record of a run of the test suite: the tests that cite clauses, and their outcomes.

`Recorder` is a pytest plugin (tests/conftest.py registers it). At the end of a run it writes
build/clauses-ran.json, which `make spec` evaluates. Runs of the same tree, for example of
`make test`, of `make sim` or of a few tests, add to one record. A changed tree starts a new record.

Run as a program, `clause_record.py FILE` adds a record that was written in a clone of this tree.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "Recorder",
    "clause_record_path",
    "load_clause_record",
    "source_fingerprint",
    "write_clause_record",
]

#: Folders whose files affect test outcomes. spec/ is left out: a reworded summary needs no new run.
_FOLDERS = ("siwarp", "tests", "examples", "tools")
_FILES = ("pyproject.toml", "meson.build", "meson_options.txt")
_SKIPPED = {"__pycache__", "cache"}  # bytecode, and the kernel of a virtual machine
_SUFFIXES = {".c", ".h", ".py", ".build", ".lua", ".map", ".toml", ""}


def clause_record_path(root: Path) -> Path:
    """Return the path of the record of the source tree at `root`."""
    return root / "build" / "clauses-ran.json"


def source_fingerprint(root: Path) -> str:
    """Return a digest of the names and contents of all sources of siwarp and its tests."""
    digest = hashlib.sha256()
    files = [root / name for name in _FILES]
    for folder in _FOLDERS:
        files += sorted(p for p in (root / folder).rglob("*") if p.suffix in _SUFFIXES)
    for path in files:
        if path.is_file() and not _SKIPPED & set(path.relative_to(root).parts):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def load_clause_record(root: Path) -> dict[str, Any] | None:
    """Return the record of a tree (fingerprint, and clauses and outcome of each test) or None."""
    return _read_clause_record(clause_record_path(root))


def _read_clause_record(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) and {"tree", "tests"} <= content.keys() else None


def write_clause_record(root: Path, tree: str, tests: dict[str, dict[str, Any]]) -> None:
    """Write outcomes of tests as the record, or add them to a record of the same tree."""
    path = clause_record_path(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:  # concurrent runs write one after the other
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = load_clause_record(root)
        if before and before["tree"] == tree:
            tests = {**before["tests"], **tests}
        fresh = path.with_suffix(".new")
        fresh.write_text(
            json.dumps({"tree": tree, "tests": dict(sorted(tests.items()))}, indent=0) + "\n",
            encoding="utf-8",
        )
        fresh.replace(path)


def add_clause_record(root: Path, other: Path) -> None:
    """Add the record in the file `other`; a record of a different tree replaces the present one.

    Raises:
        ValueError: `other` is not a record.

    """
    content = _read_clause_record(other)
    if content is None:
        raise ValueError(f"{other} is not a clause record")
    write_clause_record(root, content["tree"], content["tests"])


class Recorder:
    """A pytest plugin that collects the clause markers and the outcomes of tests.

    Workers of pytest-xdist pass the markers to the controller process as properties of their
    reports; the controller writes the record.
    """

    def __init__(self, config: pytest.Config, root: Path) -> None:
        self._root = root
        self._writes = not hasattr(config, "workerinput") and not config.option.collectonly
        self._tree = source_fingerprint(root) if self._writes else ""
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Add the clauses that a test cites to every report of the test."""
        for item in items:
            ids = sorted({i for mark in item.iter_markers("clause") for i in mark.args})
            if ids:
                item.user_properties.append(("clauses", ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a phase; a test passed if its call passed and no phase failed."""
        ids = dict(report.user_properties).get("clauses")
        if not ids:
            return
        test = self._tests.setdefault(report.nodeid, {"clauses": ids, "outcome": "not run"})
        if report.failed:
            test["outcome"] = "failed"
        elif test["outcome"] != "failed":
            if report.skipped or hasattr(report, "wasxfail"):
                test["outcome"] = "skipped"
            elif report.when == "call":
                test["outcome"] = "passed"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the record, unless this process is a worker of pytest-xdist."""
        if self._writes and self._tests:
            write_clause_record(self._root, self._tree, self._tests)


if __name__ == "__main__":
    add_clause_record(Path(__file__).resolve().parent.parent, Path(sys.argv[1]))
