"""The tests and checks that `make check` selects for a changed file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import quick

PAGES = set(quick.PAGES)


def unit_test_folders(*layers: str) -> set[str]:
    return {f"tests/unit/{layer}" for layer in layers}


@pytest.mark.parametrize("tests", [quick.PAGES, quick.SMOKE, quick.SIM, *quick.BY_NAME.values()])
def test_each_test_named_in_a_quick_selection_exists(root: Path, tests: list[str]) -> None:
    assert [test for test in tests if not (root / test).exists()] == []


def test_each_path_with_assigned_tests_exists_and_so_do_the_tests(root: Path) -> None:
    assert [start for start in quick.TESTS_OF if not (root / start).exists()] == []
    named = {test for tests in quick.TESTS_OF.values() for test in tests}
    assert [test for test in named if not (root / test).exists()] == []


def test_a_c_file_selects_its_layer_dependent_layers_and_the_simulated_tests() -> None:
    choice = quick.choose_tests(["siwarp/rd/rd_tx.c"])
    assert choice.real >= PAGES | unit_test_folders("rd", "ddp", "rdmap", "qp", "connect", "cm")
    assert choice.real.isdisjoint(unit_test_folders("mem", "mpa", "llp", "base", "device", "aio"))
    assert choice.simulated == set(quick.SIM)
    assert {"tests/conformance/rfc5041", "tests/unit/device", "tests/unit/aio"} <= choice.left_out


def test_a_python_file_of_a_command_selects_the_tests_of_the_command() -> None:
    choice = quick.choose_tests(["siwarp/cli/ping_server.py"])
    assert choice.real == PAGES | {"tests/cli/test_cli_ping.py"}
    assert not choice.simulated
    assert quick.choose_tests(["siwarp/cli/group.py"]).real == PAGES | set(quick.BY_NAME["cli"])


def test_a_documentation_page_selects_only_the_tests_of_the_pages() -> None:
    choice = quick.choose_tests(["docs/mpi.md", "ARCHITECTURE.md"])
    assert choice.real == PAGES
    assert not choice.simulated and not choice.left_out


def test_a_tool_with_tests_selects_its_tests() -> None:
    assert quick.choose_tests([".ci/run", "tests/reach.py"]).real == PAGES | unit_test_folders(
        "gate"
    )


@pytest.mark.parametrize("path", ["siwarp/base/lock.h", "siwarp/include/siwarp/siw.h"])
def test_a_change_that_may_affect_everything_selects_the_small_set_and_reports_the_rest(
    path: str,
) -> None:
    choice = quick.choose_tests([path])
    assert choice.real >= PAGES | set(quick.SMOKE)
    assert choice.simulated == set(quick.SIM)
    assert choice.left_out == {"tests/unit (the change may affect all of it)"}


def test_a_changed_test_selects_itself_and_a_changed_helper_selects_its_folder() -> None:
    real, simulated = "tests/hostile/test_hostile_fields.py", "tests/sim/uc/test_uc_loss.py"
    choice = quick.choose_tests([real, simulated, "tests/unit/mpa/test_that_was_removed.py"])
    assert choice.real == PAGES | {real}
    assert choice.simulated == {simulated}
    helper = quick.choose_tests(["tests/unit/rd/rd_kit.py"])
    assert helper.real == PAGES | set(quick.SMOKE) | unit_test_folders("rd")


def test_no_test_is_selected_twice() -> None:
    choice = quick.choose_tests(["siwarp/qp/rd/qp_rd.c", "siwarp/base/lock.h"])
    assert "tests/unit/qp" in choice.real and "tests/unit/qp/rd" not in choice.real


def test_only_changed_files_are_format_checked_and_mypy_runs_for_python_files() -> None:
    steps, out = quick.lint_commands(
        ["siwarp/cli/ping.py", "siwarp/that_was_removed.py", "docs/mpi.md"]
    )
    assert steps["format"][-1:] == ["siwarp/cli/ping.py"]
    assert "mypy" in steps and not out
    steps, out = quick.lint_commands(["docs/mpi.md"])
    assert "format" not in steps and "mypy" not in steps
    assert {"ruff", "c_includes", "c_symbols"} <= set(steps)
    assert any("mypy" in what for what in out)


def test_simulated_tests_of_rd_run_in_a_pytest_process_of_their_own() -> None:
    steps = quick.pytest_commands(quick.choose_tests(["siwarp/rd/rd_tx.c"]))
    assert list(steps) == ["tests", "simulated", "simulated rd"]
    assert all("tests/sim/rd" in test for test in steps["simulated rd"] if test.endswith(".py"))
    assert not any("tests/sim/rd" in test for test in steps["simulated"])


def test_files_changed_since_the_merge_base_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, check=True)

    monkeypatch.setattr(quick, "ROOT", tmp_path)
    run_git("init", "-q", "-b", "main")
    for name in ("kept", "changed", "removed"):
        (tmp_path / name).write_text("1")
    run_git("add", ".")
    run_git("commit", "-qm", "one")
    run_git("checkout", "-qb", "work")
    (tmp_path / "committed").write_text("1")
    run_git("add", ".")
    run_git("commit", "-qm", "two")
    (tmp_path / "changed").write_text("2")
    (tmp_path / "new file").write_text("1")
    (tmp_path / "removed").unlink()
    ref, commit = quick.find_merge_base(None)
    assert ref == "main"
    assert quick.files_changed_since(commit) == ["changed", "committed", "new file", "removed"]
    with pytest.raises(SystemExit, match="no merge base with nowhere"):
        quick.find_merge_base("nowhere")
