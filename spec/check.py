#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Check the clauses that code and tests cite against spec/, and count what is shown.

Clauses are the RFCs', and the requirements of datagram-iwarp.md. spec/README.md says how the
files are laid out and how a test cites a clause. Exit status 1 when anything is wrong, each problem
a line on stderr; the last line on stdout is `shown N, reasoned N, open N`, of the RFCs' clauses.
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

from siwarp.cli import requirements
from siwarp.cli.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Any clause id, known or not: the RFC, the section or appendix, a number of its own.
CLAUSE_ID = re.compile(r"RFC\d{4}-(?:\d+|App[A-Z]|[A-Z])(?:\.\d+)*-\d+")
CITED = re.compile(f"{CLAUSE_ID.pattern}|{requirements.REQUIREMENT_ID.pattern}")
MAX_IDS_PER_TEST = 3
LEVELS = {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"}
FIELDS = {"id", "level", "hash", "summary"}
DGRAM = Path("spec") / "datagram-iwarp.md"
HASH = re.compile(r"[0-9a-f]{10}")
CODE_SUFFIXES = {".c", ".h", ".py"}


@dataclass(frozen=True)
class Clause:
    """One normative sentence: `summary` is ours, `hash` stands for the RFC's words."""

    id: str
    rfc: int
    section: str
    level: str
    hash: str
    summary: str
    reason: str | None


@dataclass
class Citations:
    """Who cites what: `tests` from tests that run, `code` from the stack's sources."""

    tests: dict[str, list[str]] = field(default_factory=dict)
    code: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def load_clauses(spec: Path) -> tuple[dict[str, Clause], list[str]]:
    """All clauses under spec/rfc*/ by id in the files' order, and what is wrong with them."""
    clauses: dict[str, Clause] = {}
    problems: list[str] = []
    for path in sorted(spec.glob("rfc*/s*.toml"), key=_natural):
        with path.open("rb") as file:
            content = tomllib.load(file)
        for entry in content.get("clause", []):
            where = f"{path.parent.name}/{path.name}"
            wrong = list(_entry_problems(entry, path))
            if entry.get("id") in clauses:
                wrong.append(f"{entry['id']} stands twice")
            problems += [f"{where}: {text}" for text in wrong]
            if not wrong:
                clauses[entry["id"]] = Clause(
                    rfc=content["rfc"],
                    section=content["section"],
                    reason=entry.get("reason"),
                    **{name: entry[name] for name in FIELDS},
                )
    return clauses, problems


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts section 10 behind section 9."""
    parts = re.split(r"(\d+)", f"{path.parent.name}/{path.stem}")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _entry_problems(entry: dict[str, Any], path: Path) -> Iterator[str]:
    name = entry.get("id", "a clause without an id")
    missing = sorted(FIELDS - entry.keys())
    unknown = sorted(entry.keys() - FIELDS - {"reason"})
    if missing or unknown:
        yield f"{name}: missing {missing}, unknown {unknown}"
        return
    place = f"RFC{path.parent.name[3:]}-{path.stem[1:]}-"
    if not CLAUSE_ID.fullmatch(name) or not name.startswith(place):
        yield f"{name} does not belong into this file ({place}NN)"
    if entry["level"] not in LEVELS:
        yield f"{name}: no such level as {entry['level']!r}"
    if not HASH.fullmatch(entry["hash"]):
        yield f"{name}: the hash is not 10 hexadecimal digits"
    if not entry["summary"].strip() or not entry.get("reason", "-").strip():
        yield f"{name}: an empty summary or reason"


def scan(root: Path, known: Iterable[str]) -> Citations:
    """Citations in siwarp/ and tests/ below `root`, with unknown ids among the problems."""
    found = Citations()
    known = set(known)
    for path in _sources(root):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(text.splitlines(), 1):
            for clause_id in CITED.findall(line):
                if clause_id not in known:
                    found.problems.append(f"{name}:{number}: no such clause as {clause_id}")
                elif not name.startswith("tests/"):
                    found.code.setdefault(clause_id, []).append(f"{name}:{number}")
        if name.startswith("tests/") and path.suffix == ".py":
            _scan_tests(ast.parse(text, filename=name), name, found)
    return found


def _sources(root: Path) -> list[Path]:
    return sorted(
        path
        for folder in ("siwarp", "tests")
        for path in (root / folder).rglob("*")
        if path.suffix in CODE_SUFFIXES and path.is_file()
    )


def _scan_tests(tree: ast.Module, name: str, found: Citations) -> None:
    """Collect the clause markers of a file's test functions; elsewhere they are a problem."""
    on_tests: set[ast.Call] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith(
            "test"
        ):
            on_tests.update(_scan_test(node, f"{name}::{node.name}", found))
    for mark in _clause_marks(tree):
        if mark not in on_tests:
            found.problems.append(f"{name}:{mark.lineno}: a clause marker on no test function")


def _scan_test(
    test: ast.FunctionDef | ast.AsyncFunctionDef, where: str, found: Citations
) -> list[ast.Call]:
    """Record what one test cites: its own markers, and those of each of its parameters."""
    own_marks = [mark for deco in test.decorator_list if (mark := _clause_mark(deco))]
    marks = [mark for deco in test.decorator_list for mark in _clause_marks(deco)]
    own = [i for mark in own_marks for i in _ids(mark, where, found)]
    by_param = [own + _ids(mark, where, found) for mark in marks if mark not in own_marks]
    for ids in [own, *by_param]:
        if len(set(ids)) > MAX_IDS_PER_TEST:
            found.problems.append(
                f"{where}: cites {len(set(ids))} clauses, at most {MAX_IDS_PER_TEST}"
            )
    if not _never_shows(test):
        for clause_id in sorted({i for ids in [own, *by_param] for i in ids}):
            found.tests.setdefault(clause_id, []).append(where)
    return marks


def _never_shows(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the test is marked as one that does not run, or is meant to fail."""
    decorators = (d.func if isinstance(d, ast.Call) else d for d in test.decorator_list)
    return any(_is_mark(decorator, {"skip", "skipif", "xfail"}) for decorator in decorators)


def _clause_marks(node: ast.AST) -> Iterator[ast.Call]:
    return (mark for child in ast.walk(node) if (mark := _clause_mark(child)))


def _clause_mark(node: ast.AST) -> ast.Call | None:
    if isinstance(node, ast.Call) and _is_mark(node.func, {"clause"}):
        return node
    return None


def _is_mark(node: ast.AST, names: set[str]) -> bool:
    """Whether this is `pytest.mark.<one of names>`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "mark"
    )


def _ids(mark: ast.Call, where: str, found: Citations) -> list[str]:
    ids = []
    for arg in mark.args:
        value = arg.value if isinstance(arg, ast.Constant) else None
        if isinstance(value, str) and CITED.fullmatch(value):
            ids.append(value)
        else:
            found.problems.append(f"{where}: a clause marker takes literal clause ids")
    if not mark.args:
        found.problems.append(f"{where}: a clause marker without an id")
    return ids


def compare(clauses: dict[str, Clause], extracted: list[dict[str, Any]]) -> list[str]:
    """Differences to the ids, levels and hashes that were extracted from the RFCs' texts."""
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


def state(clause: Clause, found: Citations) -> str:
    """`shown` by a test, else `reasoned`, else `open`."""
    if clause.id in found.tests:
        return "shown"
    return "reasoned" if clause.reason else "open"


def table(clauses: dict[str, Clause], found: Citations) -> str:
    """A line per section: clauses, how many are shown, reasoned, open, and cited by code."""
    rows: dict[tuple[int, str], Counter[str]] = {}
    for clause in clauses.values():
        row = rows.setdefault((clause.rfc, clause.section), Counter())
        row.update(["clauses", state(clause, found)])
        row["in code"] += clause.id in found.code
    columns = ["clauses", "shown", "reasoned", "open", "in code"]
    lines = [f"{'section':<20}" + "".join(f"{column:>10}" for column in columns)]
    for (rfc, section), row in rows.items():
        label = f"RFC {rfc} {section}"
        lines.append(f"{label:<20}" + "".join(f"{row[column]:>10}" for column in columns))
    return "\n".join(lines)


def specification(root: Path) -> str:
    """The text of datagram-iWARP; nothing where there is none."""
    path = root / DGRAM
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def judge(
    wanted: list[Requirement], markdown: str, known: Iterable[str], found: Citations
) -> list[str]:
    """What is wrong with the requirements of datagram-iWARP: each is shown by a test."""
    problems = []
    last: dict[str, int] = {}
    for requirement in wanted:
        topic, _, number = requirement.id.rpartition("-")
        if int(number) != last.get(topic, 0) + 1:
            problems.append(f"{requirement.id} follows {topic}-{last.get(topic, 0)}")
        last[topic] = int(number)
        if requirement.level not in LEVELS:
            problems.append(f"{requirement.id}: no such level as {requirement.level!r}")
        if requirement.id not in found.tests:
            problems.append(f"{requirement.id}: no test shows it")
    unknown = sorted(set(CLAUSE_ID.findall(markdown)) - set(known))
    return problems + [f"{DGRAM.name}: no such clause as {clause_id}" for clause_id in unknown]


def shown_by(wanted: list[Requirement], found: Citations) -> str:
    """The table at the end of the specification."""
    lines = ["| requirement | shown by |", "|---|---|"]
    for requirement in wanted:
        tests = ", ".join(f"`{test}`" for test in found.tests.get(requirement.id, []))
        lines.append(f"| {requirement.id} | {tests} |")
    return "\n".join(lines)


def with_table(markdown: str, table_text: str) -> str:
    """The specification with this table in the place of its own."""
    head, _, rest = markdown.partition(requirements.BEGIN)
    _, _, tail = rest.partition(requirements.END)
    return f"{head}{requirements.BEGIN}\n{table_text}\n{requirements.END}{tail}"


def main(argv: list[str] | None = None) -> int:
    """Run the checks; 0 when nothing is wrong."""
    here = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="check the RFC clauses that are cited")
    parser.add_argument("--root", type=Path, default=here, help="the tree to check")
    parser.add_argument(
        "--clauses", type=Path, help="clauses.json (default: ../shared/rfc/ beside the tree)"
    )
    parser.add_argument("--open", action="store_true", help="list the open clauses too")
    parser.add_argument(
        "--write", action="store_true", help=f"write the table of tests into {DGRAM.name}"
    )
    args = parser.parse_args(argv)

    clauses, problems = load_clauses(args.root / "spec")
    markdown = specification(args.root)
    wanted = requirements.parse(markdown)
    found = scan(args.root, [*clauses, *(requirement.id for requirement in wanted)])
    problems += found.problems + judge(wanted, markdown, clauses, found)
    fresh = with_table(markdown, shown_by(wanted, found))
    if args.write:
        (args.root / DGRAM).write_text(fresh, encoding="utf-8")
    elif wanted and fresh != markdown:
        problems.append(f"{DGRAM.name}: its table of tests is old: spec/check.py --write")
    extracted = args.clauses or args.root.parent / "shared" / "rfc" / "clauses.json"
    if args.clauses or extracted.is_file():
        problems += compare(clauses, json.loads(extracted.read_text(encoding="utf-8")))
        note = f"ids, levels and hashes compared with {extracted}"
    else:
        note = "no clauses.json beside the tree: hashes not compared"

    states = {clause.id: state(clause, found) for clause in clauses.values()}
    if args.open:
        for clause in clauses.values():
            if states[clause.id] == "open":
                print(f"{clause.id} {clause.level}: {clause.summary}")
    print(table(clauses, found))
    shown = sum(requirement.id in found.tests for requirement in wanted)
    print(f"datagram-iWARP: {len(wanted)} requirements, {shown} shown by a test")
    print(note)
    for problem in problems:
        print(problem, file=sys.stderr)
    counts = Counter(states.values())
    sys.stderr.flush()
    print(", ".join(f"{name} {counts[name]}" for name in ("shown", "reasoned", "open")))
    return 1 if problems or not clauses else 0


if __name__ == "__main__":
    sys.exit(main())
