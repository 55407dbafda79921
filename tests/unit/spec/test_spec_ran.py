"""The clause checker: results of a run of tests, and the requirements of datagram-iWARP."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import clause_record
import pace
import pytest
from harness.siwarp_process import SiwarpProcess
from unit.spec.spec_harness import (
    ROOT,
    Captured,
    SpecTree,
    clause_id,
    make_clause_toml,
    make_requirement_line,
    requirement_id,
    run_checker,
)

from siwarp.cli import requirements


def test_without_a_recorded_run_no_clause_is_shown_and_the_error_names_the_remedy(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_test(clause_id(1))
    spec_tree.outcomes = None
    status, last, err = run_checker(spec_tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 5")
    assert err == "no run of the suite is recorded here: make test, then make spec\n"


@pytest.mark.parametrize("where", ["code", "test_file"])
def test_a_recorded_run_of_other_sources_is_ignored(
    spec_tree: SpecTree, capsys: Captured, where: str
) -> None:
    spec_tree.write_test(clause_id(1))
    spec_tree.record_run()
    spec_tree.outcomes = None
    if where == "code":
        spec_tree.write_c_file("int changed;")
    else:
        spec_tree.write_test(clause_id(1), marks="# changed\n")
    status, last, err = run_checker(spec_tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 5")
    assert err == "the sources have changed since the suite ran: make test, then make spec\n"


def test_a_changed_summary_of_a_clause_needs_no_new_run(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_test(clause_id(1))
    spec_tree.record_run()
    spec_tree.outcomes = None
    spec_tree.write_section("1", make_clause_toml(1, summary="It is just so."))
    assert run_checker(spec_tree, capsys) == (0, "shown 1, reasoned 0, open 0", "")


def test_a_skipped_test_shows_no_clause(spec_tree: SpecTree, capsys: Captured) -> None:
    spec_tree.write_section("1", make_clause_toml(1, level="MUST NOT"))
    spec_tree.write_test(clause_id(1))
    assert spec_tree.outcomes is not None
    spec_tree.outcomes["tests/unit/test_x.py::test_it"] = "skipped"
    status, last, err = run_checker(spec_tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 1")
    assert err == (
        f"{clause_id(1)}: open MUST NOT: {clause_id(1)}: tests/unit/test_x.py::test_it: skipped\n"
    )


def test_a_recorded_run_of_a_part_of_the_suite_is_an_error_with_a_remedy(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    names = "ab"
    spec_tree.write_section("1", *(make_clause_toml(n, level="MUST") for n in (1, 2)))
    spec_tree.write_test_file(
        "".join(
            f"@pytest.mark.clause('{clause_id(n)}')\ndef test_{name}():\n    assert True\n"
            for n, name in enumerate(names, 1)
        )
    )
    assert spec_tree.outcomes is not None
    spec_tree.outcomes["tests/unit/test_x.py::test_b"] = "not run"
    status, last, err = run_checker(spec_tree, capsys)
    assert (status, last) == (1, "shown 1, reasoned 0, open 1")
    assert err == (
        "1 of 2 tests that cite clauses did not run, tests/unit/test_x.py::test_b among them: "
        "make test (without ARGS), then make spec\n"
    )


def test_a_clause_with_a_failed_test_and_a_passed_test_is_not_shown(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_test_file(
        "".join(
            f"@pytest.mark.clause('{clause_id(1)}')\ndef test_{n}():\n    assert True\n"
            for n in "ab"
        )
    )
    assert spec_tree.outcomes is not None
    spec_tree.outcomes["tests/unit/test_x.py::test_b"] = "failed"
    status, last, err = run_checker(spec_tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 5")
    assert err == f"{clause_id(1)}: tests/unit/test_x.py::test_b failed\n"


@pytest.mark.parametrize("level", ["MUST", "MUST NOT"])
def test_an_open_duty_is_an_error(spec_tree: SpecTree, capsys: Captured, level: str) -> None:
    spec_tree.write_section("1", make_clause_toml(1, level=level), make_clause_toml(2, level="MAY"))
    status, last, err = run_checker(spec_tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 2")
    assert err == f"{clause_id(1)}: open {level}: {clause_id(1)}: no test cites it\n"


ITEMS = '["One.", "Two."]'


def test_a_clause_with_items_is_shown_when_each_item_is_shown(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_section("1", make_clause_toml(1, items=ITEMS))
    spec_tree.write_test(f"{clause_id(1)}#a")
    assert run_checker(spec_tree, capsys) == (0, "shown 0, reasoned 0, open 1", "")
    spec_tree.write_test(f"{clause_id(1)}#a", f"{clause_id(1)}#b")
    assert run_checker(spec_tree, capsys) == (0, "shown 1, reasoned 0, open 0", "")


def test_an_item_may_have_a_reason_if_another_item_is_shown_by_a_test(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_section(
        "1", make_clause_toml(1, items=ITEMS, exceptions='{ b = "None applies." }')
    )
    assert run_checker(spec_tree, capsys) == (0, "shown 0, reasoned 0, open 1", "")
    spec_tree.write_test(f"{clause_id(1)}#a")
    assert run_checker(spec_tree, capsys) == (0, "shown 1, reasoned 0, open 0", "")
    spec_tree.write_test(f"{clause_id(1)}#b")
    assert run_checker(spec_tree, capsys) == (0, "shown 0, reasoned 0, open 1", "")


def test_a_citation_of_a_clause_with_items_must_name_an_item(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_section("1", make_clause_toml(1, items=ITEMS))
    spec_tree.write_test(clause_id(1))
    status, last, err = run_checker(spec_tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 1")
    assert f"tests/unit/test_x.py::test_it: cites {clause_id(1)} without its item" in err


@pytest.mark.parametrize("name", [f"{clause_id(2)}#a", f"{clause_id(1)}#c"])
def test_a_citation_of_an_unknown_item_is_an_error(
    spec_tree: SpecTree, capsys: Captured, name: str
) -> None:
    spec_tree.write_section("1", make_clause_toml(1, items=ITEMS), make_clause_toml(2))
    spec_tree.write_test(name)
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert f"unknown clause {name}" in err


def test_citations_of_items_of_one_clause_count_as_one_citation(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_section(
        "1",
        *(make_clause_toml(n, items=ITEMS) for n in (1, 2)),
        *(make_clause_toml(n) for n in (3, 4)),
    )
    ids = [f"{clause_id(n)}#{letter}" for n in (1, 2) for letter in "ab"]
    spec_tree.write_test(*ids, clause_id(3))
    assert run_checker(spec_tree, capsys) == (0, "shown 3, reasoned 0, open 1", "")
    spec_tree.write_test(*ids, clause_id(3), clause_id(4))
    assert run_checker(spec_tree, capsys)[0] == 1


SUITE = """
import pytest
@pytest.mark.clause("X-1")
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.clause("X-2"))])
def test_passes(n):
    assert n
@pytest.mark.clause("X-3")
def test_fails():
    assert False
@pytest.mark.clause("X-4")
def test_skips():
    pytest.skip("not here")
@pytest.mark.clause("X-5")
@pytest.mark.xfail
def test_is_meant_to_fail():
    assert False
@pytest.fixture
def broken():
    yield
    assert False
@pytest.mark.clause("X-6")
def test_fails_at_its_end(broken):
    pass
def test_cites_nothing():
    pass
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_is_recorded_with_and_without_parallel_workers(tmp_path: Path, workers: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(SUITE)
    (tmp_path / "tests" / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from clause_record import Recorder\n"
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'clause(*ids): cites')\n"
        "    config.pluginmanager.register(Recorder(config, Path(__file__).parents[1]))\n"
    )
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {shlex.quote(str(ROOT / 'spec'))}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-p", "no:cacheprovider"]
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "LD_PRELOAD"))}
    outside["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
        # Plugins are not loaded automatically, because importing hypothesis takes longer than the
        # test.
        "1"
    )

    def run_pytest(*arguments: str) -> int:
        done = pace.run_command(
            [*command, *arguments, "tests"],
            cwd=tmp_path,
            env=outside,
            seconds=100,
            start=SiwarpProcess,
            imports=("pytest",),
        )
        return done.returncode

    run_pytest("-n", workers)
    record = clause_record.load_clause_record(tmp_path)
    assert record is not None
    assert record["tree"] == clause_record.source_fingerprint(tmp_path)
    assert record["tests"] == {
        f"tests/test_x.py::test_{name}": {"clauses": ids, "outcome": outcome}
        for name, ids, outcome in [
            ("fails", ["X-3"], "failed"),
            ("fails_at_its_end", ["X-6"], "failed"),
            ("is_meant_to_fail", ["X-5"], "skipped"),
            ("passes[1]", ["X-1"], "passed"),
            ("passes[2]", ["X-1", "X-2"], "passed"),
            ("skips", ["X-4"], "skipped"),
        ]
    }
    assert run_pytest("-k", "passes") == 0
    # The tree is unchanged, so a partial run adds to the record.
    assert clause_record.load_clause_record(tmp_path) == record


# ---- the requirements of datagram-iWARP


SHOWN_BY_TEST = "`tests/unit/test_x.py::test_it`"


def test_a_requirement_that_a_test_shows_passes(spec_tree: SpecTree, capsys: Captured) -> None:
    spec_tree.write_requirements(
        make_requirement_line(1), shown_by={requirement_id(1): SHOWN_BY_TEST}
    )
    spec_tree.write_test(requirement_id(1), clause_id(1))
    assert run_checker(spec_tree, capsys) == (0, "shown 1, reasoned 0, open 4", "")


@pytest.mark.parametrize(
    ("items", "shown", "problem"),
    [
        (
            [make_requirement_line(1), make_requirement_line(2)],
            (1,),
            f"{requirement_id(2)}: not shown: no test cites it",
        ),
        ([make_requirement_line(2)], (2,), f"{requirement_id(2)} follows {requirement_id(0)}"),
        (
            [make_requirement_line(1), make_requirement_line(1)],
            (1,),
            f"{requirement_id(1)} follows {requirement_id(1)}",
        ),
        ([make_requirement_line(1, "OUGHT")], (1,), f"{requirement_id(1)}: unknown level 'OUGHT'"),
        (
            [make_requirement_line(1, words=f"See {clause_id(66)}.")],
            (1,),
            f"unknown clause {clause_id(66)}",
        ),
    ],
    ids=["not shown", "a gap", "twice", "level", "an unknown clause"],
)
def test_an_error_in_a_requirement_is_reported(
    spec_tree: SpecTree, capsys: Captured, items: list[str], shown: tuple[int, ...], problem: str
) -> None:
    spec_tree.write_requirements(*items)
    spec_tree.write_test(*map(requirement_id, shown))
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert problem in err


def test_a_citation_of_an_unknown_requirement_is_an_error(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_c_file(f"/* {requirement_id(9)} */")
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert f"siwarp/ddp/ddp_rx.c:1: unknown clause {requirement_id(9)}" in err


def test_an_outdated_table_of_tests_is_an_error_and_can_be_rewritten(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_requirements(
        make_requirement_line(1),
        shown_by={requirement_id(1): "`tests/unit/test_x.py::test_that_went`"},
    )
    spec_tree.write_test(requirement_id(1))
    status, _, err = run_checker(spec_tree, capsys)
    assert (status, err) == (
        1,
        "datagram-iwarp.md: the table of tests is out of date: run spec/check.py --write\n",
    )
    assert run_checker(spec_tree, capsys, "--write")[0] == 0
    assert run_checker(spec_tree, capsys)[0] == 0
    (found,) = requirements.parse_requirements(
        (spec_tree.root / "spec" / "datagram-iwarp.md").read_text()
    )
    assert found == requirements.Requirement(
        requirement_id(1), "SHOULD", "3. UD", "It is so.", ("tests/unit/test_x.py::test_it",)
    )


def test_each_specification_has_requirements_and_a_table_of_its_own(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    theirs = requirement_id(1).replace("DGRAM", "ADTS")
    spec_tree.write_requirements(make_requirement_line(1))
    spec_tree.write_requirements(make_requirement_line(1).replace("DGRAM", "ADTS"), file="adts.md")
    spec_tree.write_test(requirement_id(1))
    status, _, err = run_checker(spec_tree, capsys, "--write")
    assert (status, err) == (1, f"{theirs}: not shown: no test cites it\n")
    spec_tree.write_test(requirement_id(1), theirs)
    assert run_checker(spec_tree, capsys, "--write")[0] == 0
    for name, file in ((requirement_id(1), "datagram-iwarp.md"), (theirs, "adts.md")):
        text = (spec_tree.root / "spec" / file).read_text()
        assert [(r.id, r.tests) for r in requirements.parse_requirements(text)] == [
            (name, ("tests/unit/test_x.py::test_it",))
        ]


def test_a_requirement_ends_at_the_next_item_or_empty_line() -> None:
    text = "\n".join(
        [
            make_requirement_line(1, "MUST", "One"),
            "  more.",
            make_requirement_line(2, "SHOULD", "Two."),
            "",
            "  Not of it.",
        ]
    )
    assert [(r.level, r.text) for r in requirements.parse_requirements(text)] == [
        ("MUST", "One more."),
        ("SHOULD", "Two."),
    ]


def test_a_requirement_with_cases_is_shown_when_each_case_is_shown(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    listing = make_requirement_line(1, words="It is so with (a) one and with (b) two.")
    spec_tree.write_requirements(listing, shown_by={requirement_id(1): SHOWN_BY_TEST})
    spec_tree.write_test(f"{requirement_id(1)}#a", f"{requirement_id(1)}#b")
    assert run_checker(spec_tree, capsys)[0] == 0
    spec_tree.write_test(f"{requirement_id(1)}#a")
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert err == f"{requirement_id(1)}#b: not shown: no test cites it\n"
    spec_tree.write_test(requirement_id(1))
    assert "without its item" in run_checker(spec_tree, capsys)[2]


def test_a_requirement_whose_test_was_skipped_is_not_shown(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_requirements(
        make_requirement_line(1), shown_by={requirement_id(1): SHOWN_BY_TEST}
    )
    spec_tree.write_test(requirement_id(1))
    assert spec_tree.outcomes is not None
    spec_tree.outcomes["tests/unit/test_x.py::test_it"] = "skipped"
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert err == f"{requirement_id(1)}: not shown: tests/unit/test_x.py::test_it: skipped\n"


def test_a_record_of_the_same_tree_is_merged_and_of_another_tree_replaces_the_record(
    tmp_path: Path,
) -> None:
    one = {"tests/a.py::a": {"clauses": ["X"], "outcome": "passed"}}
    two = {"tests/sim/b.py::b": {"clauses": ["Y"], "outcome": "passed"}}
    clone = tmp_path / "clone"
    clause_record.write_clause_record(tmp_path, "tree", one)
    clause_record.write_clause_record(clone, "tree", two)
    clause_record.add_clause_record(tmp_path, clause_record.clause_record_path(clone))
    assert clause_record.load_clause_record(tmp_path) == {"tree": "tree", "tests": one | two}
    clause_record.write_clause_record(clone, "another", one)
    clause_record.add_clause_record(tmp_path, clause_record.clause_record_path(clone))
    assert clause_record.load_clause_record(tmp_path) == {"tree": "another", "tests": one}
    with pytest.raises(ValueError, match="is not a clause record"):
        clause_record.add_clause_record(tmp_path, tmp_path / "none")
