#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks the clauses that code and tests cite against spec/, and counts the shown clauses.

Clauses are normative sentences of the RFCs and requirements of siwarp's own specifications.
spec/README.md describes the file format, how a test cites a clause, and when a clause counts as
shown. The exit status is 1 if there is any problem; each problem is a line on stderr. The last line
on stdout, `shown N, reasoned N, open N`, has the numbers of clauses of the RFCs.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clause_record

from siwarp.cli import requirements
from siwarp.cli.requirements import Requirement, Specification

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Any clause id, known or not: the RFC, the section or appendix, and the clause's number.
CLAUSE_ID = re.compile(r"RFC\d{4}-(?:\d+|App[A-Z]|[A-Z])(?:\.\d+)*-\d+")
CITED = re.compile(f"(?:{CLAUSE_ID.pattern}|{requirements.REQUIREMENT_ID.pattern})(?:#[a-z])?")
MAX_IDS_PER_TEST = 3
LEVELS = {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"}
#: The levels at which each clause must be shown by tests or have a reason.
DUTIES = {"MUST", "MUST NOT"}
FIELDS = {"id", "level", "hash", "summary"}
OPTIONAL = {"reason", "items", "exceptions"}
HASH = re.compile(r"[0-9a-f]{10}")
CODE_SUFFIXES = {".c", ".h", ".py"}


@dataclass(frozen=True)
class Clause:
    """A normative sentence of an RFC: siwarp's wording (`summary`), and the hash of the RFC's text.

    `items` are the ids of the cases that the clause lists; a test must provoke each of them.
    `exceptions` are the ids of items that no test provokes.
    """

    id: str
    rfc: int
    section: str
    level: str
    hash: str
    summary: str
    reason: str | None = None
    items: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()


@dataclass
class Citations:
    """Citations by clause id: `tests` has the citing test functions, `code` the source lines."""

    tests: dict[str, list[str]] = field(default_factory=dict)
    code: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def load_clauses(spec: Path) -> tuple[dict[str, Clause], list[str]]:
    """Return all clauses under spec/rfc*/ by id, in file order, and invalid entries."""
    clauses: dict[str, Clause] = {}
    problems: list[str] = []
    for path in sorted(spec.glob("rfc*/s*.toml"), key=_natural_sort_key):
        with path.open("rb") as file:
            content = tomllib.load(file)
        for entry in content.get("clause", []):
            where = f"{path.parent.name}/{path.name}"
            wrong = list(_clause_entry_problems(entry, path))
            if entry.get("id") in clauses:
                wrong.append(f"{entry['id']} is defined twice")
            problems += [f"{where}: {text}" for text in wrong]
            if not wrong:
                listed = clause_item_ids(entry["id"], len(entry.get("items", [])))
                clauses[entry["id"]] = Clause(
                    rfc=content["rfc"],
                    section=content["section"],
                    reason=entry.get("reason"),
                    items=listed,
                    exceptions=tuple(f"{entry['id']}#{i}" for i in entry.get("exceptions", {})),
                    **{name: entry[name] for name in FIELDS},
                )
    return clauses, problems


def clause_item_ids(clause_id: str, count: int) -> tuple[str, ...]:
    """Return the ids of a clause's items: the clause's id followed by #a, #b, ..."""
    return tuple(f"{clause_id}#{chr(ord('a') + i)}" for i in range(count))


def _natural_sort_key(path: Path) -> list[tuple[int, str]]:
    """Return a sort key of a file that orders section 10 after section 9."""
    parts = re.split(r"(\d+)", f"{path.parent.name}/{path.stem}")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _clause_entry_problems(entry: dict[str, Any], path: Path) -> Iterator[str]:
    name = entry.get("id", "a clause without an id")
    missing = sorted(FIELDS - entry.keys())
    unknown = sorted(entry.keys() - FIELDS - OPTIONAL)
    if missing or unknown:
        yield f"{name}: missing {missing}, unknown {unknown}"
        return
    place = f"RFC{path.parent.name[3:]}-{path.stem[1:]}-"
    if not CLAUSE_ID.fullmatch(name) or not name.startswith(place):
        yield f"{name} does not belong in this file (ids here begin with {place})"
    if entry["level"] not in LEVELS:
        yield f"{name}: unknown level {entry['level']!r}"
    if not HASH.fullmatch(entry["hash"]):
        yield f"{name}: the hash is not 10 hexadecimal digits"
    if not entry["summary"].strip() or not entry.get("reason", "-").strip():
        yield f"{name}: an empty summary or reason"
    letters = {i[-1] for i in clause_item_ids(name, len(entry.get("items", [])))}
    exceptions = entry.get("exceptions", {})
    if "items" in entry and (len(letters) < 2 or not all(i.strip() for i in entry["items"])):
        yield f"{name}: items are two or more, none of them empty"
    if not exceptions.keys() <= letters or not all(r.strip() for r in exceptions.values()):
        yield f"{name}: each exception must give a reason for one of the items"


def scan_citations(root: Path, known: Iterable[str], listing: Iterable[str] = ()) -> Citations:
    """Return the citations in siwarp/ and tests/ below `root`; unknown ids are problems.

    `listing` are the clauses with items. A test that cites a clause with items must name the item.
    """
    found = Citations()
    known = set(known)
    for path in _source_files(root):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root).as_posix()
        is_test = name.startswith("tests/")
        for cited in CITED.finditer(text):
            if cited[0] in known and is_test:
                continue
            number = text.count("\n", 0, cited.start()) + 1
            if cited[0] not in known:
                found.problems.append(f"{name}:{number}: unknown clause {cited[0]}")
            else:
                found.code.setdefault(cited[0], []).append(f"{name}:{number}")
        if is_test and path.suffix == ".py" and ".mark.clause" in text:
            _collect_clause_markers_of_tests(text, name, found)
    for clause_id in sorted(set(listing) & found.tests.keys()):
        for test in found.tests.pop(clause_id):
            found.problems.append(f"{test}: cites {clause_id} without its item ({clause_id}#a)")
    return found


def _source_files(root: Path) -> list[Path]:
    return sorted(
        path
        for folder in ("siwarp", "tests")
        for path in (root / folder).rglob("*")
        if path.suffix in CODE_SUFFIXES and path.is_file()
    )


def _collect_clause_markers_of_tests(text: str, name: str, found: Citations) -> None:
    """Collect the clause markers of test functions; report a marker elsewhere as a problem."""
    tree = ast.parse(text, filename=name)
    on_tests: set[ast.Call] = set()
    for node in _walk_statements(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith(
            "test"
        ):
            on_tests.update(_scan_one_test(node, f"{name}::{node.name}", found))
    if len(on_tests) == text.count(".mark.clause("):
        return  # no marker is outside a test: the slow search below is not needed
    for mark in _pytest_clause_marks(tree):
        if mark not in on_tests:
            found.problems.append(f"{name}:{mark.lineno}: clause marker outside a test function")


def _walk_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements below a node, including those in other statements."""
    for statement in ast.iter_child_nodes(node):
        if isinstance(statement, ast.stmt):
            yield statement
            yield from _walk_statements(statement)


def _scan_one_test(
    test: ast.FunctionDef | ast.AsyncFunctionDef, where: str, found: Citations
) -> list[ast.Call]:
    """Record the clauses that a test cites in markers of the test and of its parameters."""
    own_marks = [mark for deco in test.decorator_list if (mark := _clause_mark_or_none(deco))]
    marks = [mark for deco in test.decorator_list for mark in _pytest_clause_marks(deco)]
    own = [i for mark in own_marks for i in _clause_ids_of_pytest_mark(mark, where, found)]
    by_param = [
        own + _clause_ids_of_pytest_mark(mark, where, found)
        for mark in marks
        if mark not in own_marks
    ]
    for ids in [own, *by_param]:
        cited = {i.partition("#")[0] for i in ids}
        if len(cited) > MAX_IDS_PER_TEST:
            found.problems.append(
                f"{where}: cites {len(cited)} clauses, at most {MAX_IDS_PER_TEST}"
            )
    if not _is_skip_or_xfail(test):
        for clause_id in sorted({i for ids in [own, *by_param] for i in ids}):
            found.tests.setdefault(clause_id, []).append(where)
    return marks


def _is_skip_or_xfail(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a test is marked with skip, skipif or xfail."""
    decorators = (d.func if isinstance(d, ast.Call) else d for d in test.decorator_list)
    return any(_is_pytest_mark(decorator, {"skip", "skipif", "xfail"}) for decorator in decorators)


def _pytest_clause_marks(node: ast.AST) -> Iterator[ast.Call]:
    return (mark for child in ast.walk(node) if (mark := _clause_mark_or_none(child)))


def _clause_mark_or_none(node: ast.AST) -> ast.Call | None:
    if isinstance(node, ast.Call) and _is_pytest_mark(node.func, {"clause"}):
        return node
    return None


def _is_pytest_mark(node: ast.AST, names: set[str]) -> bool:
    """Return whether a syntax tree node is `pytest.mark.NAME` with one of the names."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "mark"
    )


def _clause_ids_of_pytest_mark(mark: ast.Call, where: str, found: Citations) -> list[str]:
    ids = []
    for arg in mark.args:
        value = arg.value if isinstance(arg, ast.Constant) else None
        if isinstance(value, str) and CITED.fullmatch(value):
            ids.append(value)
        else:
            found.problems.append(
                f"{where}: the arguments of a clause marker must be literal clause ids"
            )
    if not mark.args:
        found.problems.append(f"{where}: a clause marker without an id")
    return ids


def compare_clauses_with_rfc_texts(
    clauses: dict[str, Clause], extracted: list[dict[str, Any]]
) -> list[str]:
    """Return the differences between the clauses and those extracted from the RFCs' texts."""
    rfcs = {clause.rfc for clause in clauses.values()}
    theirs = {entry["id"]: entry for entry in extracted if entry["rfc"] in rfcs}
    problems = [f"{i}: in the RFC, not in spec/" for i in theirs if i not in clauses]
    for clause in clauses.values():
        entry = theirs.get(clause.id)
        if entry is None:
            problems.append(f"{clause.id}: in spec/, not in the RFC")
            continue
        ours = {"hash": clause.hash, "level": clause.level, "section": clause.section}
        problems += [
            f"{clause.id}: {name} is {value}, the RFC's is {entry[name]}"
            for name, value in ours.items()
            if value != entry[name]
        ]
    return problems


class RecordedRun:
    """The outcomes of tests that cite clauses, from the record of the last run of the suite."""

    def __init__(self, record: dict[str, Any] | None, tree: str) -> None:
        self.problem = ""
        if record is None:
            self.problem = "no run of the suite is recorded here: make test, then make spec"
        elif record["tree"] != tree:
            self.problem = "the sources have changed since the suite ran: make test, then make spec"
        tests = {} if self.problem or record is None else record["tests"]
        ids = [name.partition("[")[0].split("::") for name in tests]
        self.tests = {f"{parts[0]}::{parts[-1]}" for parts in ids}
        self._outcomes: dict[str, dict[str, str]] = {}
        for name, test in tests.items():
            for clause_id in test["clauses"]:
                self._outcomes.setdefault(clause_id, {})[name] = test["outcome"]

    def advice_if_partial(self, found: Citations) -> str:
        """Return advice if not all tests that cite clauses ran, or an empty string."""
        citing = {test for tests in found.tests.values() for test in tests}
        missed = sorted(citing - self.tests)
        if self.problem or not missed:
            return self.problem
        return (
            f"{len(missed)} of {len(citing)} tests that cite clauses did not run, {missed[0]} "
            "among them: make test (without ARGS), then make spec"
        )

    def outcomes_of_clause(self, clause_id: str) -> dict[str, str]:
        """Return the outcome of each test that cites a clause, by test id with parameters."""
        return self._outcomes.get(clause_id, {})

    def is_clause_shown_by_tests(self, clause_id: str) -> bool:
        """Return whether a test that cites a clause passed, and no such test failed."""
        outcomes = self.outcomes_of_clause(clause_id).values()
        return "passed" in outcomes and "failed" not in outcomes

    def failed_tests_of_clause(self, clause_id: str) -> list[str]:
        """Return the failed tests that cite a clause."""
        outcomes = self.outcomes_of_clause(clause_id)
        return [name for name, outcome in outcomes.items() if outcome == "failed"]

    def reason_clause_not_shown_by_tests(self, clause_id: str, tests: list[str]) -> str:
        """Return why the tests that cite a clause have not shown that it is implemented."""
        if not tests:
            return "no test cites it"
        outcomes = self.outcomes_of_clause(clause_id)
        if not outcomes:
            return f"{tests[0]} did not run"
        name, outcome = min(outcomes.items(), key=lambda row: row[1])
        return f"{name}: {outcome}"


def clause_ids_not_shown_by_tests(clause: Clause, ran: RecordedRun) -> list[str]:
    """Return the ids of a clause's items that no test has shown to be implemented.

    For a clause without items, that is its own id, or nothing.
    """
    return [i for i in clause.items or (clause.id,) if not ran.is_clause_shown_by_tests(i)]


def clause_state(clause: Clause, ran: RecordedRun) -> str:
    """Return the state of a clause: `shown`, `reasoned` or `open`."""
    lacking = clause_ids_not_shown_by_tests(clause, ran)
    left = set(lacking) - set(clause.exceptions)
    if not left and len(lacking) < len(clause.items or (clause.id,)):
        return "shown"
    return "reasoned" if clause.reason or not left else "open"


def list_open_clauses(
    clauses: dict[str, Clause], found: Citations, ran: RecordedRun
) -> dict[str, str]:
    """Return the ids of open clauses, each with the reason why no test has shown it."""
    return {
        clause.id: "; ".join(
            f"{i}: {ran.reason_clause_not_shown_by_tests(i, found.tests.get(i, []))}"
            for i in clause_ids_not_shown_by_tests(clause, ran)
            if i not in clause.exceptions
        )
        for clause in clauses.values()
        if clause_state(clause, ran) == "open"
    }


def clause_count_table_by_section(
    clauses: dict[str, Clause], found: Citations, ran: RecordedRun
) -> str:
    """Return a table that counts clauses per section: in total, by state, and cited in code."""
    rows: dict[tuple[int, str], Counter[str]] = {}
    for clause in clauses.values():
        row = rows.setdefault((clause.rfc, clause.section), Counter())
        row.update(["clauses", clause_state(clause, ran)])
        row["in code"] += clause.id in found.code
    columns = ["clauses", "shown", "reasoned", "open", "in code"]
    lines = [f"{'section':<20}" + "".join(f"{column:>10}" for column in columns)]
    for (rfc, section), row in rows.items():
        label = f"RFC {rfc} {section}"
        lines.append(f"{label:<20}" + "".join(f"{row[column]:>10}" for column in columns))
    return "\n".join(lines)


def read_specifications(root: Path) -> dict[Specification, str]:
    """Return the texts of siwarp's own specifications that the tree has."""
    paths = {s: root / "spec" / s.file for s in requirements.SPECIFICATIONS.values()}
    return {s: path.read_text(encoding="utf-8") for s, path in paths.items() if path.is_file()}


def read_requirements(root: Path) -> list[Requirement]:
    """Return the requirements of all of siwarp's own specifications."""
    texts = read_specifications(root).values()
    return [r for text in texts for r in requirements.parse_requirements(text)]


def requirement_ids(requirement: Requirement) -> tuple[str, ...]:
    """Return the ids that tests must cite for a requirement: its items, or its own id."""
    return clause_item_ids(requirement.id, requirement.case_count) or (requirement.id,)


def requirement_problems(
    specification: Specification,
    markdown: str,
    known: Iterable[str],
    found: Citations,
    ran: RecordedRun,
) -> list[str]:
    """Return problems of the requirements of a specification, each of which must be shown."""
    problems = []
    partial = ran.advice_if_partial(found)
    last: dict[str, int] = {}
    for requirement in requirements.parse_requirements(markdown):
        topic, _, number = requirement.id.rpartition("-")
        if int(number) != last.get(topic, 0) + 1:
            problems.append(f"{requirement.id} follows {topic}-{last.get(topic, 0)}")
        last[topic] = int(number)
        if requirement.level not in LEVELS:
            problems.append(f"{requirement.id}: unknown level {requirement.level!r}")
        for cited in requirement_ids(requirement):
            tests = found.tests.get(cited, [])
            if not tests or not (partial or ran.is_clause_shown_by_tests(cited)):
                problems.append(
                    f"{cited}: not shown: {ran.reason_clause_not_shown_by_tests(cited, tests)}"
                )
    unknown = sorted(set(CLAUSE_ID.findall(markdown)) - set(known))
    return problems + [f"{specification.file}: unknown clause {i}" for i in unknown]


def citable_ids(clauses: dict[str, Clause], wanted: list[Requirement]) -> list[str]:
    """Return all ids that may be cited: clauses, requirements, and the items of both."""
    of_clauses = [i for clause in clauses.values() for i in (clause.id, *clause.items)]
    return of_clauses + [i for r in wanted for i in (r.id, *clause_item_ids(r.id, r.case_count))]


def requirements_table(wanted: list[Requirement], found: Citations) -> str:
    """Return the table of requirements and their tests for the end of the specification."""
    lines = ["| requirement | shown by |", "|---|---|"]
    for requirement in wanted:
        citing = [t for i in requirement_ids(requirement) for t in found.tests.get(i, [])]
        tests = ", ".join(f"`{test}`" for test in dict.fromkeys(citing))
        lines.append(f"| {requirement.id} | {tests} |")
    return "\n".join(lines)


def replace_table(markdown: str, table_text: str) -> str:
    """Return the specification with its table of tests replaced by `table_text`."""
    head, _, rest = markdown.partition(requirements.BEGIN)
    _, _, tail = rest.partition(requirements.END)
    return f"{head}{requirements.BEGIN}\n{table_text}\n{requirements.END}{tail}"


def main(argv: list[str] | None = None) -> int:
    """Check all citations and print a summary; return 0 if there is no problem, else 1."""
    here = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="check the RFC clauses that are cited")
    parser.add_argument("--root", type=Path, default=here, help="the tree to check")
    parser.add_argument(
        "--clauses", type=Path, help="clauses.json (default: ../shared/rfc/ beside the tree)"
    )
    parser.add_argument(
        "--open", action="store_true", help="list the open clauses of all levels, not only MUST"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the tables of tests into the specifications"
    )
    args = parser.parse_args(argv)

    clauses, problems = load_clauses(args.root / "spec")
    texts = read_specifications(args.root)
    wanted = read_requirements(args.root)
    itemised = [c.id for c in clauses.values() if c.items] + [r.id for r in wanted if r.case_count]
    found = scan_citations(args.root, citable_ids(clauses, wanted), itemised)
    ran = RecordedRun(
        clause_record.load_clause_record(args.root), clause_record.source_fingerprint(args.root)
    )
    partial = ran.advice_if_partial(found)
    problems += [partial] if partial else []
    problems += found.problems
    for specification, text in texts.items():
        problems += requirement_problems(specification, text, clauses, found, ran)
        fresh = replace_table(
            text, requirements_table(requirements.parse_requirements(text), found)
        )
        if args.write:
            (args.root / "spec" / specification.file).write_text(fresh, encoding="utf-8")
        elif fresh != text:
            problems.append(
                f"{specification.file}: the table of tests is out of date: run spec/check.py "
                "--write"
            )
    extracted = args.clauses or args.root.parent / "shared" / "rfc" / "clauses.json"
    if args.clauses or extracted.is_file():
        problems += compare_clauses_with_rfc_texts(
            clauses, json.loads(extracted.read_text(encoding="utf-8"))
        )
        note = f"ids, levels and hashes compared with {extracted}"
    else:
        note = "no clauses.json beside the tree: hashes not compared"

    opened = list_open_clauses(clauses, found, ran)
    for name, why in opened.items():
        if args.open:
            print(f"{name} {clauses[name].level}: {clauses[name].summary} ({why})")
        cited = all(i in found.tests for i in clause_ids_not_shown_by_tests(clauses[name], ran))
        if clauses[name].level in DUTIES and not (partial and cited):
            problems.append(f"{name}: open {clauses[name].level}: {why}")
    problems += [
        f"{i}: {test} failed" for i in sorted(found.tests) for test in ran.failed_tests_of_clause(i)
    ]
    print(clause_count_table_by_section(clauses, found, ran))
    for specification, text in texts.items():
        own = requirements.parse_requirements(text)
        shown = sum(all(map(ran.is_clause_shown_by_tests, requirement_ids(r))) for r in own)
        print(f"{specification.name}: {len(own)} requirements, {shown} shown by a test")
    print(note)
    for problem in problems:
        print(problem, file=sys.stderr)
    counts = Counter(clause_state(clause, ran) for clause in clauses.values())
    sys.stderr.flush()
    print(", ".join(f"{name} {counts[name]}" for name in ("shown", "reasoned", "open")))
    return 1 if problems or not clauses else 0


if __name__ == "__main__":
    sys.exit(main())
