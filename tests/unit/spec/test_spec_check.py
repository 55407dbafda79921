"""The clause checker on small source trees and on the tree of siwarp."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from unit.spec.spec_harness import (
    ROOT,
    Captured,
    SpecTree,
    check,
    clause_id,
    make_clause_toml,
    make_extracted_clause_entries,
    run_checker,
    short_digest,
)


def test_a_valid_tree_passes_with_counts_of_shown_reasoned_and_open_clauses(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_section(
        "1", make_clause_toml(1), make_clause_toml(2, reason="None applies."), make_clause_toml(3)
    )
    spec_tree.write_test(clause_id(1))
    assert run_checker(spec_tree, capsys) == (0, "shown 1, reasoned 1, open 1", "")


def test_a_clause_with_a_test_and_a_reason_counts_as_shown(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_section("1", make_clause_toml(1, reason="Said too early."))
    spec_tree.write_test(clause_id(1))
    assert run_checker(spec_tree, capsys) == (0, "shown 1, reasoned 0, open 0", "")


def test_a_citation_in_code_alone_does_not_show_a_clause(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_c_file(f"/* {clause_id(1)}: kept here */")
    assert run_checker(spec_tree, capsys) == (0, "shown 0, reasoned 0, open 5", "")


def test_an_unknown_clause_id_in_a_c_comment_is_an_error_with_its_line(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_c_file(f"int x;\n/* {clause_id(77)} */\n")
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert err == f"siwarp/ddp/ddp_rx.c:2: unknown clause {clause_id(77)}\n"


def test_an_unknown_clause_id_in_a_test_is_an_error(spec_tree: SpecTree, capsys: Captured) -> None:
    spec_tree.write_test(clause_id(78))
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert f"tests/unit/test_x.py:2: unknown clause {clause_id(78)}" in err


def test_a_test_may_cite_three_clauses_but_not_four(spec_tree: SpecTree, capsys: Captured) -> None:
    spec_tree.write_test(*(clause_id(n) for n in (1, 2, 3)))
    assert run_checker(spec_tree, capsys)[0] == 0
    spec_tree.write_test(*(clause_id(n) for n in (1, 2, 3, 4)))
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert err == "tests/unit/test_x.py::test_it: cites 4 clauses, at most 3\n"


def test_four_clause_ids_in_two_markers_of_a_test_are_an_error(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_test(
        clause_id(1),
        clause_id(2),
        marks=f'@pytest.mark.clause("{clause_id(3)}", "{clause_id(4)}")\n',
    )
    assert run_checker(spec_tree, capsys)[0] == 1


def test_each_parameter_of_a_test_may_cite_its_own_clauses(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    params = ", ".join(
        f'pytest.param({n}, marks=pytest.mark.clause("{clause_id(n)}"))' for n in range(1, 6)
    )
    spec_tree.write_test_file(
        f'@pytest.mark.parametrize("n", [{params}])\ndef test_it(n):\n    assert n\n'
    )
    assert run_checker(spec_tree, capsys) == (0, "shown 5, reasoned 0, open 0", "")


def test_a_parameter_and_its_test_together_may_cite_three_clauses(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    param = f'pytest.param(1, marks=pytest.mark.clause("{clause_id(4)}"))'
    spec_tree.write_test(
        *(clause_id(n) for n in (1, 2, 3)), marks=f'@pytest.mark.parametrize("n", [{param}])\n'
    )
    assert run_checker(spec_tree, capsys)[0] == 1


@pytest.mark.parametrize("mark", ["skip", "skipif(True)", "xfail"])
def test_a_test_that_is_skipped_or_expected_to_fail_shows_no_clause(
    spec_tree: SpecTree, capsys: Captured, mark: str
) -> None:
    spec_tree.write_test(clause_id(1), marks=f"@pytest.mark.{mark}\n")
    assert run_checker(spec_tree, capsys)[1] == "shown 0, reasoned 0, open 5"


@pytest.mark.parametrize(
    "text",
    [
        "pytestmark = pytest.mark.clause('{}')\n",
        "@pytest.mark.clause('{}')\nclass TestIt:\n    pass\n",
        "@pytest.mark.clause('{}')\ndef helper():\n    pass\n",
    ],
)
def test_a_clause_marker_that_is_not_on_a_test_function_is_an_error(
    spec_tree: SpecTree, capsys: Captured, text: str
) -> None:
    spec_tree.write_test_file(text.format(clause_id(1)))
    status, last, err = run_checker(spec_tree, capsys)
    assert (status, last) == (1, "shown 0, reasoned 0, open 5")
    assert "clause marker outside a test function" in err


def test_a_clause_id_that_is_not_a_literal_is_an_error(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_test_file("@pytest.mark.clause(SOME_ID)\ndef test_it():\n    assert True\n")
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert "must be literal clause ids" in err


def test_methods_of_test_classes_may_cite_clauses(spec_tree: SpecTree, capsys: Captured) -> None:
    spec_tree.write_test_file(
        f"class TestIt:\n    @pytest.mark.clause('{clause_id(2)}')\n"
        "    def test_it(self):\n        assert True\n"
    )
    assert run_checker(spec_tree, capsys) == (0, "shown 1, reasoned 0, open 4", "")


def test_a_clause_that_is_defined_twice_is_an_error(spec_tree: SpecTree, capsys: Captured) -> None:
    spec_tree.write_section("1", make_clause_toml(1), make_clause_toml(1))
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert f"rfc9999/s1.toml: {clause_id(1)} is defined twice" in err


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"level": "WILL"}, "unknown level"),
        ({"hash": "12"}, "not 10 hexadecimal digits"),
        ({"summary": " "}, "an empty summary or reason"),
        ({"reason": ""}, "an empty summary or reason"),
        ({"resaon": "misspelt"}, "unknown ['resaon']"),
    ],
)
def test_a_malformed_clause_is_an_error(
    spec_tree: SpecTree, capsys: Captured, entry: dict[str, str], words: str
) -> None:
    spec_tree.write_section("1", make_clause_toml(1, **entry))
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert words in err


def test_a_clause_in_the_file_of_another_section_is_an_error(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_section("1", make_clause_toml(1, section="2"))
    status, _, err = run_checker(spec_tree, capsys)
    assert status == 1
    assert "does not belong in this file" in err


def test_clauses_equal_to_the_extracted_clauses_pass(spec_tree: SpecTree, capsys: Captured) -> None:
    path = spec_tree.write_clauses_json(make_extracted_clause_entries(1, 2, 3, 4, 5))
    assert run_checker(spec_tree, capsys, "--clauses", path)[0] == 0


def test_a_hash_that_differs_from_the_extracted_hash_is_an_error(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    entries = make_extracted_clause_entries(1, 2, 3, 4, 5)
    entries[2]["hash"] = "0123456789"
    status, _, err = run_checker(
        spec_tree, capsys, "--clauses", spec_tree.write_clauses_json(entries)
    )
    assert status == 1
    assert err == f"{clause_id(3)}: hash is {short_digest('1 3')}, the RFC's is 0123456789\n"


def test_a_level_that_differs_from_the_extracted_level_is_an_error(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    entries = make_extracted_clause_entries(1, 2, 3, 4, 5)
    entries[0]["level"] = "MAY"
    status, _, err = run_checker(
        spec_tree, capsys, "--clauses", spec_tree.write_clauses_json(entries)
    )
    assert status == 1
    assert err == f"{clause_id(1)}: level is SHOULD, the RFC's is MAY\n"


def test_a_clause_missing_in_the_rfc_or_in_the_tree_is_an_error(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    status, _, err = run_checker(
        spec_tree,
        capsys,
        "--clauses",
        spec_tree.write_clauses_json(make_extracted_clause_entries(1, 2, 3, 4, 6)),
    )
    assert status == 1
    assert f"{clause_id(6)}: in the RFC, not in spec/" in err
    assert f"{clause_id(5)}: in spec/, not in the RFC" in err


def test_clauses_of_rfcs_without_a_folder_are_not_reported_as_missing(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    other: dict[str, str | int] = {"id": "other", "rfc": 7306}
    entries = [*make_extracted_clause_entries(1, 2, 3, 4, 5), other]
    assert (
        run_checker(spec_tree, capsys, "--clauses", spec_tree.write_clauses_json(entries))[0] == 0
    )


def test_the_checker_reports_that_hashes_were_not_compared(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.record_run()
    assert check.main(["--root", str(spec_tree.root)]) == 0
    assert "hashes not compared" in capsys.readouterr().out


def test_a_missing_clauses_file_is_an_error(spec_tree: SpecTree) -> None:
    with pytest.raises(FileNotFoundError):
        check.main(["--root", str(spec_tree.root), "--clauses", str(spec_tree.root / "no.json")])


def test_a_tree_without_clauses_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    assert check.main(["--root", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "shown 0, reasoned 0, open 0"


def test_open_clauses_are_listed_with_their_summary_on_request(
    spec_tree: SpecTree, capsys: Captured
) -> None:
    spec_tree.write_section("1", make_clause_toml(1), make_clause_toml(2, reason="None applies."))
    spec_tree.record_run()
    assert check.main(["--root", str(spec_tree.root), "--open"]) == 0
    line = f"{clause_id(1)} SHOULD: It is so. ({clause_id(1)}: no test cites it)"
    assert line in capsys.readouterr().out.splitlines()


def test_sections_are_listed_in_numerical_order(spec_tree: SpecTree, capsys: Captured) -> None:
    for section in ("10", "9.1", "9"):
        spec_tree.write_section(section, make_clause_toml(1, section=section))
    check.main(["--root", str(spec_tree.root)])
    rows = [line.split()[2] for line in capsys.readouterr().out.splitlines() if "RFC" in line]
    assert rows == ["1", "9", "9.1", "10"]


@functools.cache
def scan_siwarp_tree() -> tuple[dict[str, check.Clause], check.Citations]:
    """Return the clauses of this source tree, and the citations with the problems of both."""
    clauses, problems = check.load_clauses(ROOT / "spec")
    wanted = check.read_requirements(ROOT)
    listing = [c.id for c in clauses.values() if c.items] + [r.id for r in wanted if r.case_count]
    found = check.scan_citations(ROOT, check.citable_ids(clauses, wanted), listing)
    found.problems += problems
    return clauses, found


def test_the_siwarp_tree_has_all_clauses_of_four_rfcs_and_only_valid_citations() -> None:
    clauses, found = scan_siwarp_tree()
    assert found.problems == []
    counts = {rfc: sum(c.rfc == rfc for c in clauses.values()) for rfc in (5040, 5041, 5044, 6581)}
    assert counts == {5040: 165, 5041: 129, 5044: 123, 6581: 53}


def test_every_duty_of_the_rfcs_is_cited_by_a_test_or_has_a_reason() -> None:
    """Check the citations only; `make spec` checks after the run whether the tests passed."""
    clauses, found = scan_siwarp_tree()
    open_duties = [
        name
        for clause in clauses.values()
        if clause.level in check.DUTIES and not clause.reason
        for name in clause.items or (clause.id,)
        if name not in found.tests and name not in clause.exceptions
    ]
    assert open_duties == []
