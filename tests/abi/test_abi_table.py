"""The runner of make abi: a missing program is reported, and does not prevent other rows."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from abi import table
from abi.rows import HERE, Row

ROWS = [
    Row("of a wheel", "RC", "none", places=(HERE,), short=(HERE,), wheel="peercache==0.8.4"),
    Row("of the machine", "RC", "true", places=(HERE,), short=(HERE,)),
]


class MachineWithoutNamespaces(table.Machine):
    """A Machine of table.py that creates no network namespaces, but real virtual environments."""

    def __init__(self, _: Any, work: Path) -> None:
        self.work = work
        self._environments = {}


@contextlib.contextmanager
def yield_without_new_namespace() -> Iterator[None]:
    yield


def return_result_without_running_row(_: Any, row: Row, place: str, stamp: str) -> table.Result:
    return table.Result(row.name, place, row.transport, [0], row.data, 0.1, "", stamp)


def test_only_the_rows_of_a_wheel_that_cannot_be_installed_are_reported_as_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name, value in (
        ("all_test_rows", lambda: ROWS),
        ("create_cabled_namespaces", yield_without_new_namespace),
        ("Machine", MachineWithoutNamespaces),
        ("prepare_work_folder", lambda _: None),
        ("compile_library_programs", lambda _: None),
        ("run_test_row", return_result_without_running_row),
        ("OUT", tmp_path),
        ("PYTHON", sys.executable),
    ):
        monkeypatch.setattr(table, name, value)
    monkeypatch.setattr(sys, "argv", ["table.py"])
    assert table.main() == 0
    told = capsys.readouterr().out
    assert "1 runs, 0 failed, 0 did as is known, 1 skipped" in told
    assert "SKIPPED of a wheel (here): ERROR: No matching distribution found for peercache" in told
    assert "of the machine" in told and "SKIPPED of the machine" not in told


def test_each_row_of_the_gate_is_in_the_table_and_runs_in_that_place() -> None:
    there = {
        (row.name, place) for row in table.all_test_rows() for place in row.places if not row.known
    }
    assert there >= table.GATE
    assert all(
        not row.wheel for row in table.all_test_rows() if table.places_where_gate_runs_row(row)
    )
