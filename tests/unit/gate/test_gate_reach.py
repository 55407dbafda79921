"""The sanitized tests that the gate selects for a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import reach
from lint.layers import MAY_USE
from table import run_test_for_each_row

KINDS = ("asan", "tsan")


@pytest.mark.parametrize("kind", KINDS)
def test_each_sanitized_test_of_the_gate_exists(root: Path, kind: str) -> None:
    assert [path for path in reach.GATE[kind] if not (root / path).exists()] == []
    for path in reach.ALWAYS[kind]:
        assert path in reach.GATE[kind]


@run_test_for_each_row("kind", KINDS)
@run_test_for_each_row(
    "path",
    [
        "siwarp/base/lock.h",
        "siwarp/llp/llp_udp.c",
        "siwarp/include/siwarp/siw.h",
        "siwarp/_build/emit.py",
        "meson.build",
        "tools/sanitize",
        ".ci/run",
        "tests/conftest.py",
        "tests/unit/rd/rd_kit.py",
        "tests/lint/layers.py",
        "tests/mutants/layers.toml",
    ],
)
def test_a_change_of_base_llp_or_shared_files_selects_all_sanitized_tests(
    kind: str, path: str
) -> None:
    assert reach.select_tests(kind, ["docs/index.md", path]) == reach.GATE[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_change_selects_all_sanitized_tests(kind: str) -> None:
    assert reach.select_tests(kind, None) == reach.GATE[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_pages_selects_only_the_fixed_sanitized_tests(kind: str) -> None:
    pages = ["docs/index.md", "spec/rfc5040/s5.1.toml", "README.md", reach.RECORD]
    assert reach.select_tests(kind, pages) == sorted(reach.ALWAYS[kind])
    assert reach.select_tests(kind, []) == sorted(reach.ALWAYS[kind])


def test_a_change_of_a_layer_selects_the_tests_of_dependent_layers() -> None:
    assert reach.dependent_layers("rdmap") >= {"rdmap", "qp", "cm", "aio"}
    assert reach.dependent_layers("cm").isdisjoint({"base", "mem", "rd", "ddp", "verbs", "qp"})
    assert reach.dependent_layers("base") >= {"mem", "rd", "ddp", "qp", "cm", "sim", "wan"}

    chosen = reach.select_tests("asan", ["siwarp/rd/rd_timer.c"])
    assert {"tests/unit/rd", "tests/unit/ddp", "tests/unit/rdmap", "tests/hostile"} <= set(chosen)
    assert "tests/unit/mem" not in chosen and "tests/unit/base" not in chosen
    chosen = reach.select_tests("tsan", ["siwarp/qp/rc/qp_rc.c"])
    assert {"tests/unit/qp/rc/test_qp_rc.py", "tests/unit/aio"} <= set(chosen)


def test_a_changed_test_is_selected_alone_if_the_gate_contains_it() -> None:
    file = "tests/unit/mpa/test_mpa_startup.py"
    assert reach.select_tests("asan", [file]) == ["tests/hostile", file]
    assert reach.select_tests("asan", ["tests/cli/test_cli_ping.py"]) == ["tests/hostile"]
    assert reach.select_tests("asan", ["tests/unit/mpa/test_that_was_removed.py"]) == [
        "tests/hostile"
    ]


@run_test_for_each_row("kind", KINDS)
@run_test_for_each_row("layer", sorted(MAY_USE))
def test_selected_sanitized_tests_are_in_the_gate_and_none_is_selected_twice(
    kind: str, layer: str
) -> None:
    chosen = reach.select_tests(kind, [f"siwarp/{layer}/{layer}.c"])
    assert all(
        any(reach.is_path_inside(path, whole) for whole in reach.GATE[kind]) for path in chosen
    )
    assert all(not reach.is_path_inside(a, b) for a in chosen for b in chosen if a != b)
    assert all(any(reach.is_path_inside(a, b) for b in chosen) for a in reach.ALWAYS[kind])


def test_files_changed_since_the_last_successful_commit_are_found(tmp_path: Path) -> None:
    def run_git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    record = tmp_path / reach.RECORD
    run_git("init", "-q")
    (tmp_path / "old").write_text("1")
    (tmp_path / "kept").write_text("1")
    run_git("add", ".")
    run_git("commit", "-qm", "one")
    green = run_git("rev-parse", "HEAD")
    assert (
        reach.files_changed_since_green(tmp_path) is None
    )  # the file .ci/full-green does not exist

    record.parent.mkdir()
    record.write_text(f"{green} 2026-01-01\n")
    run_git("add", ".")
    run_git("mv", "old", "new name")
    run_git("commit", "-qm", "two")
    (tmp_path / "kept").write_text("2")
    (tmp_path / "untracked").write_text("2")
    assert reach.files_changed_since_green(tmp_path) == [
        reach.RECORD, "kept", "new name", "old", "untracked",
    ]  # fmt: skip

    record.write_text("0" * 40 + " 2026-01-01\n")
    # The commit in .ci/full-green is not in this history.
    assert reach.files_changed_since_green(tmp_path) is None
    record.write_text("")
    assert reach.files_changed_since_green(tmp_path) is None
