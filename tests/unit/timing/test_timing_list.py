"""The list of tests that race the clock: each entry must exist, and none may be added."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from history import FirstVersion
from table import run_test_for_each_row
from timing import (
    LIST,
    list_entry_covering_test,
    listed_timing_tests,
    reasons_for_real_time_by_test,
)


def defined_functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


@run_test_for_each_row("name", listed_timing_tests())
def test_each_entry_of_the_timing_list_is_an_existing_test(root: Path, name: str) -> None:
    file, _, function = name.partition("::")
    assert (root / file).is_file()
    assert not function or function in defined_functions(root / file)


def test_each_entry_of_the_timing_list_has_a_reason() -> None:
    assert [
        name for name, why in reasons_for_real_time_by_test().items() if len(why.split()) < 2
    ] == []


def test_no_test_is_in_the_timing_list_twice() -> None:
    names = listed_timing_tests()
    assert len(names) == len(set(names))
    files = {name for name in names if "::" not in name}
    assert not [name for name in names if "::" in name and name.partition("::")[0] in files]


def test_no_test_was_added_to_the_timing_list(root: Path) -> None:
    """A test may be renamed, so a file may have as many entries as in the first version."""
    first = FirstVersion(root, LIST.relative_to(root).as_posix())
    entries = [line.split("#", 1)[0].strip() for line in first.text.splitlines()]
    whole_files = {entry for entry in entries if "::" not in entry}
    at_first = Counter(entry.partition("::")[0] for entry in entries)
    now = Counter(name.partition("::")[0] for name in listed_timing_tests())
    for file, count in now.items():
        then = first.original_file_name(file)
        # An entry for a file may be replaced by entries for some of its functions.
        assert then in whole_files or count <= at_first[then], (
            f"{file}: a test that races the clock belongs into the simulator; none is added"
        )


def test_an_entry_of_the_timing_list_covers_a_file_or_all_cases_of_a_function() -> None:
    names = frozenset({"tests/a/test_a.py", "tests/b/test_b.py::test_one"})
    assert (
        list_entry_covering_test("tests/a/test_a.py::test_any[x::y]", names) == "tests/a/test_a.py"
    )
    assert (
        list_entry_covering_test("tests/b/test_b.py::test_one[1]", names)
        == "tests/b/test_b.py::test_one"
    )
    assert list_entry_covering_test("tests/b/test_b.py::test_one_more", names) is None


def test_a_run_with_another_marker_excludes_the_timing_tests(root: Path) -> None:
    file = "tests/namespaces/test_path_rd.py"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:xdist", file, "-m"]

    def count_collected_tests(marker: str) -> int:
        done = subprocess.run(
            [*command, marker], cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 5), done.stderr
        return done.stdout.count("::")

    assert count_collected_tests("root") == 0
    assert count_collected_tests("root or timing") > 0 or os.geteuid() != 0
