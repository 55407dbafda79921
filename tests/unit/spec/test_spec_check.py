"""The checker of clauses, on small trees of its own and on this one.

The made-up ids are put together at run time: written out, the checker would find them here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import clause_record
import pytest

from siwarp.cli import requirements

ROOT = Path(__file__).resolve().parents[3]


def load_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("siwarp_spec_check", ROOT / "spec" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check = load_check()


def cid(number: int, section: str = "1") -> str:
    return f"RFC{9999}-{section}-{number:02}"


def rid(number: int, topic: str = "XX") -> str:
    return f"DGRAM-{topic}-{number}"


def item(number: int, level: str = "SHOULD", words: str = "It is so.", topic: str = "XX") -> str:
    return f"- **{rid(number, topic)}** ({level}) {words}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def clause(number: int, section: str = "1", **fields: str) -> str:
    entry = {
        "id": cid(number, section),
        "level": "SHOULD",
        "hash": digest(f"{section} {number}"),
        "summary": "It is so.",
        **fields,
    }
    lines = [
        f"{name} = {value if value.startswith(('[', '{')) else json.dumps(value)}"
        for name, value in entry.items()
    ]
    return "\n".join(["[[clause]]", *lines, ""])


def extracted(*numbers: int) -> list[dict[str, str | int]]:
    return [
        {"id": cid(n), "rfc": 9999, "section": "1", "level": "SHOULD", "hash": digest(f"1 {n}")}
        for n in numbers
    ]


class Tree:
    """A tree with five clauses, a C file and a test file, each replaceable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "spec").mkdir()
        self.section("1", *(clause(n) for n in range(1, 6)))
        self.code("/* nothing cited */")
        self.dgram()
        #: How tests ended that did not pass, by name; None where no run was recorded.
        self.outcomes: dict[str, str] | None = {}

    def dgram(self, *items: str, shown_by: dict[str, str] | None = None) -> None:
        """The specification: these requirements, and a table of the tests that show them."""
        rows = [f"| {name} | {tests} |" for name, tests in (shown_by or {}).items()]
        table = "\n".join(["| requirement | shown by |", "|---|---|", *rows])
        body = "\n".join(["# T", "", "## 3. UD", "", *items, ""])
        path = self.root / "spec" / "datagram-iwarp.md"
        path.write_text(f"{body}\n{requirements.BEGIN}\n{table}\n{requirements.END}\n")

    def section(self, section: str, *clauses: str, name: str | None = None) -> None:
        path = self.root / "spec" / "rfc9999" / f"{name or 's' + section}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = f'rfc = 9999\nsection = "{section}"\ntitle = "T"\n\n'
        path.write_text(head + "\n".join(clauses))

    def code(self, text: str) -> None:
        path = self.root / "siwarp" / "ddp" / "ddp_rx.c"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test(self, *ids: str, marks: str = "", name: str = "test_it") -> None:
        listed = ", ".join(f'"{i}"' for i in ids)
        text = f"@pytest.mark.clause({listed})\n{marks}def {name}():\n    assert True\n"
        self.test_file(text)

    def test_file(self, text: str) -> None:
        path = self.root / "tests" / "unit" / "test_x.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import pytest\n{text}")

    def record(self) -> None:
        """Write down a run of all tests that are here."""
        if self.outcomes is None:
            return
        clauses, _ = check.load_clauses(self.root / "spec")
        wanted = requirements.parse(check.specification(self.root))
        cited = check.scan(self.root, check.citable(clauses, wanted)).tests
        tests: dict[str, dict[str, object]] = {}
        for clause_id, names in cited.items():
            for name in names:
                outcome = self.outcomes.get(name, "passed")
                entry = {"clauses": [], "outcome": outcome}
                if outcome != "not run":
                    tests.setdefault(name, entry)["clauses"].append(clause_id)  # type: ignore[attr-defined]
        clause_record.write(self.root, clause_record.fingerprint(self.root), tests)

    def clauses_json(self, entries: list[dict[str, str | int]]) -> str:
        path = self.root / "clauses.json"
        path.write_text(json.dumps(entries))
        return str(path)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


Captured = pytest.CaptureFixture[str]


def run(tree: Tree, capsys: Captured, *args: str) -> tuple[int, str, str]:
    """(exit status, last line of stdout, stderr), after a run of the tests."""
    tree.record()
    status = check.main(["--root", str(tree.root), *args])
    out, err = capsys.readouterr()
    return status, out.splitlines()[-1], err


def test_a_sound_tree_passes_and_counts_shown_reasoned_and_open(
    tree: Tree, capsys: Captured
) -> None:
    tree.section("1", clause(1), clause(2, reason="None applies."), clause(3))
    tree.test(cid(1))
    assert run(tree, capsys) == (0, "shown 1, reasoned 1, open 1", "")


def test_a_test_outweighs_a_reason(tree: Tree, capsys: Captured) -> None:
    tree.section("1", clause(1, reason="Said too early."))
    tree.test(cid(1))
    assert run(tree, capsys) == (0, "shown 1, reasoned 0, open 0", "")


def test_a_citation_in_code_alone_shows_nothing(tree: Tree, capsys: Captured) -> None:
    tree.code(f"/* {cid(1)}: kept here */")
    assert run(tree, capsys) == (0, "shown 0, reasoned 0, open 5", "")


def test_an_unknown_id_in_a_c_comment_fails_with_its_line(tree: Tree, capsys: Captured) -> None:
    tree.code(f"int x;\n/* {cid(77)} */\n")
    status, _, err = run(tree, capsys)
    assert status == 1
    assert err == f"siwarp/ddp/ddp_rx.c:2: no such clause as {cid(77)}\n"


def test_an_unknown_id_in_a_test_fails(tree: Tree, capsys: Captured) -> None:
    tree.test(cid(78))
    status, _, err = run(tree, capsys)
    assert status == 1
    assert f"tests/unit/test_x.py:2: no such clause as {cid(78)}" in err


def test_three_ids_on_a_test_pass_and_four_fail(tree: Tree, capsys: Captured) -> None:
    tree.test(*(cid(n) for n in (1, 2, 3)))
    assert run(tree, capsys)[0] == 0
    tree.test(*(cid(n) for n in (1, 2, 3, 4)))
    status, _, err = run(tree, capsys)
    assert status == 1
    assert err == "tests/unit/test_x.py::test_it: cites 4 clauses, at most 3\n"


def test_four_ids_spread_over_two_markers_fail_too(tree: Tree, capsys: Captured) -> None:
    tree.test(cid(1), cid(2), marks=f'@pytest.mark.clause("{cid(3)}", "{cid(4)}")\n')
    assert run(tree, capsys)[0] == 1


def test_each_parameter_may_cite_its_own_clauses(tree: Tree, capsys: Captured) -> None:
    params = ", ".join(
        f'pytest.param({n}, marks=pytest.mark.clause("{cid(n)}"))' for n in range(1, 6)
    )
    tree.test_file(f'@pytest.mark.parametrize("n", [{params}])\ndef test_it(n):\n    assert n\n')
    assert run(tree, capsys) == (0, "shown 5, reasoned 0, open 0", "")


def test_parameter_and_function_together_cite_three_at_most(tree: Tree, capsys: Captured) -> None:
    param = f'pytest.param(1, marks=pytest.mark.clause("{cid(4)}"))'
    tree.test(*(cid(n) for n in (1, 2, 3)), marks=f'@pytest.mark.parametrize("n", [{param}])\n')
    assert run(tree, capsys)[0] == 1


@pytest.mark.parametrize("mark", ["skip", "skipif(True)", "xfail"])
def test_a_test_that_does_not_run_or_is_meant_to_fail_shows_nothing(
    tree: Tree, capsys: Captured, mark: str
) -> None:
    tree.test(cid(1), marks=f"@pytest.mark.{mark}\n")
    assert run(tree, capsys)[1] == "shown 0, reasoned 0, open 5"


@pytest.mark.parametrize(
    "text",
    [
        "pytestmark = pytest.mark.clause('{}')\n",
        "@pytest.mark.clause('{}')\nclass TestIt:\n    pass\n",
        "@pytest.mark.clause('{}')\ndef helper():\n    pass\n",
    ],
)
def test_a_marker_that_is_not_on_a_test_function_fails(
    tree: Tree, capsys: Captured, text: str
) -> None:
    tree.test_file(text.format(cid(1)))
    status, last, err = run(tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 5")
    assert "a clause marker on no test function" in err


def test_an_id_that_is_not_a_literal_fails(tree: Tree, capsys: Captured) -> None:
    tree.test_file("@pytest.mark.clause(SOME_ID)\ndef test_it():\n    assert True\n")
    status, _, err = run(tree, capsys)
    assert status == 1
    assert "takes literal clause ids" in err


def test_methods_of_test_classes_may_cite(tree: Tree, capsys: Captured) -> None:
    tree.test_file(
        f"class TestIt:\n    @pytest.mark.clause('{cid(2)}')\n"
        "    def test_it(self):\n        assert True\n"
    )
    assert run(tree, capsys) == (0, "shown 1, reasoned 0, open 4", "")


def test_a_clause_that_stands_twice_fails(tree: Tree, capsys: Captured) -> None:
    tree.section("1", clause(1), clause(1))
    status, _, err = run(tree, capsys)
    assert status == 1
    assert f"rfc9999/s1.toml: {cid(1)} stands twice" in err


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"level": "WILL"}, "no such level"),
        ({"hash": "12"}, "not 10 hexadecimal digits"),
        ({"summary": " "}, "an empty summary or reason"),
        ({"reason": ""}, "an empty summary or reason"),
        ({"resaon": "misspelt"}, "unknown ['resaon']"),
    ],
)
def test_a_malformed_clause_fails(
    tree: Tree, capsys: Captured, entry: dict[str, str], words: str
) -> None:
    tree.section("1", clause(1, **entry))
    status, _, err = run(tree, capsys)
    assert status == 1
    assert words in err


def test_a_clause_in_the_file_of_another_section_fails(tree: Tree, capsys: Captured) -> None:
    tree.section("1", clause(1, section="2"))
    status, _, err = run(tree, capsys)
    assert status == 1
    assert "does not belong into this file" in err


def test_ids_and_hashes_equal_to_the_extracted_ones_pass(tree: Tree, capsys: Captured) -> None:
    path = tree.clauses_json(extracted(1, 2, 3, 4, 5))
    assert run(tree, capsys, "--clauses", path)[0] == 0


def test_a_hash_that_differs_from_the_extracted_one_fails(tree: Tree, capsys: Captured) -> None:
    entries = extracted(1, 2, 3, 4, 5)
    entries[2]["hash"] = "0123456789"
    status, _, err = run(tree, capsys, "--clauses", tree.clauses_json(entries))
    assert status == 1
    assert err == f"{cid(3)}: hash is {digest('1 3')}, the RFC's is 0123456789\n"


def test_a_level_that_differs_from_the_extracted_one_fails(tree: Tree, capsys: Captured) -> None:
    entries = extracted(1, 2, 3, 4, 5)
    entries[0]["level"] = "MAY"
    status, _, err = run(tree, capsys, "--clauses", tree.clauses_json(entries))
    assert status == 1
    assert err == f"{cid(1)}: level is SHOULD, the RFC's is MAY\n"


def test_a_clause_missing_on_either_side_fails(tree: Tree, capsys: Captured) -> None:
    status, _, err = run(tree, capsys, "--clauses", tree.clauses_json(extracted(1, 2, 3, 4, 6)))
    assert status == 1
    assert f"{cid(6)}: in the RFC, not in spec/" in err
    assert f"{cid(5)}: in spec/, not in the RFC" in err


def test_clauses_of_rfcs_that_spec_does_not_treat_are_not_missed(
    tree: Tree, capsys: Captured
) -> None:
    other: dict[str, str | int] = {"id": "other", "rfc": 7306}
    entries = [*extracted(1, 2, 3, 4, 5), other]
    assert run(tree, capsys, "--clauses", tree.clauses_json(entries))[0] == 0


def test_without_extracted_clauses_the_output_says_that_nothing_was_compared(
    tree: Tree, capsys: Captured
) -> None:
    tree.record()
    assert check.main(["--root", str(tree.root)]) == 0
    assert "hashes not compared" in capsys.readouterr().out


def test_a_clauses_file_that_was_named_but_is_not_there_is_an_error(tree: Tree) -> None:
    with pytest.raises(FileNotFoundError):
        check.main(["--root", str(tree.root), "--clauses", str(tree.root / "no.json")])


def test_a_tree_without_clauses_fails(tmp_path: Path, capsys: Captured) -> None:
    assert check.main(["--root", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "shown 0, reasoned 0, open 0"


def test_open_clauses_are_listed_with_their_summary_when_asked_for(
    tree: Tree, capsys: Captured
) -> None:
    tree.section("1", clause(1), clause(2, reason="None applies."))
    tree.record()
    assert check.main(["--root", str(tree.root), "--open"]) == 0
    line = f"{cid(1)} SHOULD: It is so. ({cid(1)}: no test cites it)"
    assert line in capsys.readouterr().out.splitlines()


def test_sections_are_listed_in_the_order_of_their_numbers(tree: Tree, capsys: Captured) -> None:
    for section in ("10", "9.1", "9"):
        tree.section(section, clause(1, section=section))
    check.main(["--root", str(tree.root)])
    rows = [line.split()[2] for line in capsys.readouterr().out.splitlines() if "RFC" in line]
    assert rows == ["1", "9", "9.1", "10"]


def test_this_tree_has_the_clauses_of_all_four_rfcs_and_only_sound_citations() -> None:
    clauses, problems = check.load_clauses(ROOT / "spec")
    wanted = requirements.parse(check.specification(ROOT))
    listing = [c.id for c in clauses.values() if c.items] + [r.id for r in wanted if r.items]
    problems += check.scan(ROOT, check.citable(clauses, wanted), listing).problems
    assert problems == []
    counts = {rfc: sum(c.rfc == rfc for c in clauses.values()) for rfc in (5040, 5041, 5044, 6581)}
    assert counts == {5040: 165, 5041: 129, 5044: 123, 6581: 53}


def test_every_duty_of_the_rfcs_is_cited_by_a_test_or_excepted_with_a_reason() -> None:
    """Whether these tests passed is what `make spec` asks, after the run."""
    clauses, _ = check.load_clauses(ROOT / "spec")
    found = check.scan(ROOT, check.citable(clauses, []))
    open_duties = [
        name
        for clause in clauses.values()
        if clause.level in check.DUTIES and not clause.reason
        for name in clause.items or (clause.id,)
        if name not in found.tests and name not in clause.exceptions
    ]
    assert open_duties == []


# ---- what ran


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
    assert err == (
        f"{cid(1)}: an open MUST NOT: {cid(1)}: tests/unit/test_x.py::test_it: skipped\n"
    )


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
    assert err == f"{cid(1)}: an open {level}: {cid(1)}: no test cites it\n"


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
    assert f"no such clause as {name}" in err


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
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider"]
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "LD_PRELOAD"))}
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
    assert clause_record.load(tmp_path) == record  # the same tree: a part of a run adds to it


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
        ([item(1, "OUGHT")], (1,), f"{rid(1)}: no such level as 'OUGHT'"),
        ([item(1, words=f"See {cid(66)}.")], (1,), f"no such clause as {cid(66)}"),
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
    assert f"siwarp/ddp/ddp_rx.c:1: no such clause as {rid(9)}" in err


def test_an_old_table_fails_and_is_written_anew(tree: Tree, capsys: Captured) -> None:
    tree.dgram(item(1), shown_by={rid(1): "`tests/unit/test_x.py::test_that_went`"})
    tree.test(rid(1))
    status, _, err = run(tree, capsys)
    assert (status, err) == (
        1,
        "datagram-iwarp.md: its table of tests is old: spec/check.py --write\n",
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
