"""The clause checker: results of a run, and the requirements of datagram-iWARP."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import clause_record
import pytest
from unit.spec.spec_harness import (
    ROOT,
    Captured,
    Tree,
    cid,
    clause,
    item,
    rid,
    run,
)

from siwarp.cli import requirements


def test_without_a_run_nothing_is_shown_and_the_error_says_what_to_do(
    tree: Tree, capsys: Captured
) -> None:
    tree.test(cid(1))
    tree.outcomes = None
    status, last, err = run(tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 5")
    assert err == "no run of the suite is recorded here: make test, then make spec\n"


@pytest.mark.parametrize("where", ["code", "test_file"])
def test_a_run_of_other_sources_counts_for_nothing(
    tree: Tree, capsys: Captured, where: str
) -> None:
    tree.test(cid(1))
    tree.record()
    tree.outcomes = None
    if where == "code":
        tree.code("int changed;")
    else:
        tree.test(cid(1), marks="# changed\n")
    status, last, err = run(tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 5")
    assert err == "the sources have changed since the suite ran: make test, then make spec\n"


def test_a_change_of_what_spec_says_needs_no_new_run(tree: Tree, capsys: Captured) -> None:
    tree.test(cid(1))
    tree.record()
    tree.outcomes = None
    tree.section("1", clause(1, summary="It is just so."))
    assert run(tree, capsys) == (0, "shown 1, reasoned 0, open 0", "")


def test_a_test_that_was_skipped_shows_nothing(tree: Tree, capsys: Captured) -> None:
    tree.section("1", clause(1, level="MUST NOT"))
    tree.test(cid(1))
    assert tree.outcomes is not None
    tree.outcomes["tests/unit/test_x.py::test_it"] = "skipped"
    status, last, err = run(tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 1")
    assert err == (f"{cid(1)}: open MUST NOT: {cid(1)}: tests/unit/test_x.py::test_it: skipped\n")


def test_a_run_of_a_part_of_the_suite_fails_and_says_what_to_do(
    tree: Tree, capsys: Captured
) -> None:
    names = "ab"
    tree.section("1", *(clause(n, level="MUST") for n in (1, 2)))
    tree.test_file(
        "".join(
            f"@pytest.mark.clause('{cid(n)}')\ndef test_{name}():\n    assert True\n"
            for n, name in enumerate(names, 1)
        )
    )
    assert tree.outcomes is not None
    tree.outcomes["tests/unit/test_x.py::test_b"] = "not run"
    status, last, err = run(tree, capsys)
    assert (status, last) == (1, "shown 1, reasoned 0, open 1")
    assert err == (
        "1 of 2 tests that cite clauses did not run, tests/unit/test_x.py::test_b among them: "
        "make test (without ARGS), then make spec\n"
    )


def test_one_failed_test_outweighs_those_that_passed(tree: Tree, capsys: Captured) -> None:
    tree.test_file(
        "".join(
            f"@pytest.mark.clause('{cid(1)}')\ndef test_{n}():\n    assert True\n" for n in "ab"
        )
    )
    assert tree.outcomes is not None
    tree.outcomes["tests/unit/test_x.py::test_b"] = "failed"
    status, last, err = run(tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 5")
    assert err == f"{cid(1)}: tests/unit/test_x.py::test_b failed\n"


@pytest.mark.parametrize("level", ["MUST", "MUST NOT"])
def test_an_open_duty_fails(tree: Tree, capsys: Captured, level: str) -> None:
    tree.section("1", clause(1, level=level), clause(2, level="MAY"))
    status, last, err = run(tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 2")
    assert err == f"{cid(1)}: open {level}: {cid(1)}: no test cites it\n"


ITEMS = '["One.", "Two."]'


def test_a_clause_that_lists_items_is_shown_when_each_was(tree: Tree, capsys: Captured) -> None:
    tree.section("1", clause(1, items=ITEMS))
    tree.test(f"{cid(1)}#a")
    assert run(tree, capsys) == (0, "shown 0, reasoned 0, open 1", "")
    tree.test(f"{cid(1)}#a", f"{cid(1)}#b")
    assert run(tree, capsys) == (0, "shown 1, reasoned 0, open 0", "")


def test_an_item_may_have_a_reason_but_not_all_of_a_shown_clause(
    tree: Tree, capsys: Captured
) -> None:
    tree.section("1", clause(1, items=ITEMS, exceptions='{ b = "None applies." }'))
    assert run(tree, capsys) == (0, "shown 0, reasoned 0, open 1", "")
    tree.test(f"{cid(1)}#a")
    assert run(tree, capsys) == (0, "shown 1, reasoned 0, open 0", "")
    tree.test(f"{cid(1)}#b")
    assert run(tree, capsys) == (0, "shown 0, reasoned 0, open 1", "")


def test_a_test_of_a_clause_with_items_says_which(tree: Tree, capsys: Captured) -> None:
    tree.section("1", clause(1, items=ITEMS))
    tree.test(cid(1))
    status, last, err = run(tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 1")
    assert f"tests/unit/test_x.py::test_it: cites {cid(1)} without its item" in err


@pytest.mark.parametrize("name", [f"{cid(2)}#a", f"{cid(1)}#c"])
def test_an_item_that_there_is_not_is_unknown(tree: Tree, capsys: Captured, name: str) -> None:
    tree.section("1", clause(1, items=ITEMS), clause(2))
    tree.test(name)
    status, _, err = run(tree, capsys)
    assert status == 1
    assert f"unknown clause {name}" in err


def test_items_of_one_clause_count_as_one_citation(tree: Tree, capsys: Captured) -> None:
    tree.section("1", *(clause(n, items=ITEMS) for n in (1, 2)), *(clause(n) for n in (3, 4)))
    ids = [f"{cid(n)}#{letter}" for n in (1, 2) for letter in "ab"]
    tree.test(*ids, cid(3))
    assert run(tree, capsys) == (0, "shown 3, reasoned 0, open 1", "")
    tree.test(*ids, cid(3), cid(4))
    assert run(tree, capsys)[0] == 1


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
def test_a_run_is_recorded_by_whoever_has_its_reports(tmp_path: Path, workers: str) -> None:
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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-n", workers]
    command += ["-p", "no:cacheprovider"]
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "LD_PRELOAD"))}
    outside["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
        # one Hypothesis example, because importing hypothesis takes longer than running the test
        "1"
    )
    subprocess.run([*command, "tests"], cwd=tmp_path, env=outside, timeout=100, check=False)
    record = clause_record.load(tmp_path)
    assert record is not None
    assert record["tree"] == clause_record.fingerprint(tmp_path)
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
    subprocess.run(
        [*command, "tests", "-k", "passes"], cwd=tmp_path, env=outside, timeout=100, check=True
    )
    # the tree is unchanged, so a partial run adds to the record
    assert clause_record.load(tmp_path) == record


# ---- the requirements of datagram-iWARP


SHOWN = "`tests/unit/test_x.py::test_it`"


def test_a_requirement_that_a_test_shows_passes(tree: Tree, capsys: Captured) -> None:
    tree.dgram(item(1), shown_by={rid(1): SHOWN})
    tree.test(rid(1), cid(1))
    assert run(tree, capsys) == (0, "shown 1, reasoned 0, open 4", "")


@pytest.mark.parametrize(
    ("items", "shown", "problem"),
    [
        ([item(1), item(2)], (1,), f"{rid(2)}: not shown: no test cites it"),
        ([item(2)], (2,), f"{rid(2)} follows {rid(0)}"),
        ([item(1), item(1)], (1,), f"{rid(1)} follows {rid(1)}"),
        ([item(1, "OUGHT")], (1,), f"{rid(1)}: unknown level 'OUGHT'"),
        ([item(1, words=f"See {cid(66)}.")], (1,), f"unknown clause {cid(66)}"),
    ],
    ids=["not shown", "a gap", "twice", "level", "an unknown clause"],
)
def test_what_is_wrong_with_a_requirement_is_told(
    tree: Tree, capsys: Captured, items: list[str], shown: tuple[int, ...], problem: str
) -> None:
    tree.dgram(*items)
    tree.test(*map(rid, shown))
    status, _, err = run(tree, capsys)
    assert status == 1
    assert problem in err


def test_a_requirement_that_is_none_fails_where_it_is_cited(tree: Tree, capsys: Captured) -> None:
    tree.code(f"/* {rid(9)} */")
    status, _, err = run(tree, capsys)
    assert status == 1
    assert f"siwarp/ddp/ddp_rx.c:1: unknown clause {rid(9)}" in err


def test_an_old_table_fails_and_is_written_anew(tree: Tree, capsys: Captured) -> None:
    tree.dgram(item(1), shown_by={rid(1): "`tests/unit/test_x.py::test_that_went`"})
    tree.test(rid(1))
    status, _, err = run(tree, capsys)
    assert (status, err) == (
        1,
        "datagram-iwarp.md: the table of tests is out of date: run spec/check.py --write\n",
    )
    assert run(tree, capsys, "--write")[0] == 0
    assert run(tree, capsys)[0] == 0
    (found,) = requirements.parse((tree.root / "spec" / "datagram-iwarp.md").read_text())
    assert found == requirements.Requirement(
        rid(1), "SHOULD", "3. UD", "It is so.", ("tests/unit/test_x.py::test_it",)
    )


def test_a_requirement_goes_on_over_lines_to_the_next_item_or_empty_line() -> None:
    text = "\n".join(
        [item(1, "MUST", "One"), "  more.", item(2, "SHOULD", "Two."), "", "  Not of it."]
    )
    assert [(r.level, r.text) for r in requirements.parse(text)] == [
        ("MUST", "One more."),
        ("SHOULD", "Two."),
    ]


def test_a_requirement_that_lists_cases_is_shown_when_each_was(
    tree: Tree, capsys: Captured
) -> None:
    listing = item(1, words="It is so with (a) one and with (b) two.")
    tree.dgram(listing, shown_by={rid(1): SHOWN})
    tree.test(f"{rid(1)}#a", f"{rid(1)}#b")
    assert run(tree, capsys)[0] == 0
    tree.test(f"{rid(1)}#a")
    status, _, err = run(tree, capsys)
    assert status == 1
    assert err == f"{rid(1)}#b: not shown: no test cites it\n"
    tree.test(rid(1))
    assert "without its item" in run(tree, capsys)[2]


def test_a_requirement_whose_test_was_skipped_is_not_shown(tree: Tree, capsys: Captured) -> None:
    tree.dgram(item(1), shown_by={rid(1): SHOWN})
    tree.test(rid(1))
    assert tree.outcomes is not None
    tree.outcomes["tests/unit/test_x.py::test_it"] = "skipped"
    status, _, err = run(tree, capsys)
    assert status == 1
    assert err == f"{rid(1)}: not shown: tests/unit/test_x.py::test_it: skipped\n"


def test_a_clones_record_of_the_same_tree_is_added_and_one_of_another_takes_its_place(
    tmp_path: Path,
) -> None:
    one = {"tests/a.py::a": {"clauses": ["X"], "outcome": "passed"}}
    two = {"tests/sim/b.py::b": {"clauses": ["Y"], "outcome": "passed"}}
    clone = tmp_path / "clone"
    clause_record.write(tmp_path, "tree", one)
    clause_record.write(clone, "tree", two)
    clause_record.add(tmp_path, clause_record.record_path(clone))
    assert clause_record.load(tmp_path) == {"tree": "tree", "tests": one | two}
    clause_record.write(clone, "another", one)
    clause_record.add(tmp_path, clause_record.record_path(clone))
    assert clause_record.load(tmp_path) == {"tree": "another", "tests": one}
    with pytest.raises(ValueError, match="is not a clause record"):
        clause_record.add(tmp_path, tmp_path / "none")
