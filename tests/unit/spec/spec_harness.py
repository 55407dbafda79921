"""Small source trees for the tests of the clause checker.

The invented clause ids are assembled at run time, because the checker would find literal ids in
this file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import clause_record
import pytest

from siwarp.cli import requirements

ROOT = Path(__file__).resolve().parents[3]


def load_checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("siwarp_spec_check", ROOT / "spec" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check = load_checker()


def clause_id(number: int, section: str = "1") -> str:
    return f"RFC{9999}-{section}-{number:02}"


def requirement_id(number: int, topic: str = "XX") -> str:
    return f"DGRAM-{topic}-{number}"


def make_requirement_line(
    number: int, level: str = "SHOULD", words: str = "It is so.", topic: str = "XX"
) -> str:
    return f"- **{requirement_id(number, topic)}** ({level}) {words}"


def short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def make_clause_toml(number: int, section: str = "1", **fields: str) -> str:
    entry = {
        "id": clause_id(number, section),
        "level": "SHOULD",
        "hash": short_digest(f"{section} {number}"),
        "summary": "It is so.",
        **fields,
    }
    lines = [
        f"{name} = {value if value.startswith(('[', '{')) else json.dumps(value)}"
        for name, value in entry.items()
    ]
    return "\n".join(["[[clause]]", *lines, ""])


def make_extracted_clause_entries(*numbers: int) -> list[dict[str, str | int]]:
    return [
        {
            "id": clause_id(n),
            "rfc": 9999,
            "section": "1",
            "level": "SHOULD",
            "hash": short_digest(f"1 {n}"),
        }
        for n in numbers
    ]


class SpecTree:
    """A tree with five clauses, a C file and a test file, each replaceable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "spec").mkdir()
        self.write_section("1", *(make_clause_toml(n) for n in range(1, 6)))
        self.write_c_file("/* nothing cited */")
        self.write_requirements()
        #: Outcomes of the tests that did not pass, by name; None if no run was recorded.
        self.outcomes: dict[str, str] | None = {}

    def write_requirements(
        self,
        *items: str,
        shown_by: dict[str, str] | None = None,
        file: str = "datagram-iwarp.md",
    ) -> None:
        """Write a specification with the given requirements and a table of tests that show them."""
        rows = [f"| {name} | {tests} |" for name, tests in (shown_by or {}).items()]
        table = "\n".join(["| requirement | shown by |", "|---|---|", *rows])
        body = "\n".join(["# T", "", "## 3. UD", "", *items, ""])
        path = self.root / "spec" / file
        path.write_text(f"{body}\n{requirements.BEGIN}\n{table}\n{requirements.END}\n")

    def write_section(self, section: str, *clauses: str, name: str | None = None) -> None:
        path = self.root / "spec" / "rfc9999" / f"{name or 's' + section}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = f'rfc = 9999\nsection = "{section}"\ntitle = "T"\n\n'
        path.write_text(head + "\n".join(clauses))

    def write_c_file(self, text: str) -> None:
        path = self.root / "siwarp" / "ddp" / "ddp_rx.c"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_test(self, *ids: str, marks: str = "", name: str = "test_it") -> None:
        listed = ", ".join(f'"{i}"' for i in ids)
        text = f"@pytest.mark.clause({listed})\n{marks}def {name}():\n    assert True\n"
        self.write_test_file(text)

    def write_test_file(self, text: str) -> None:
        path = self.root / "tests" / "unit" / "test_x.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import pytest\n{text}")

    def record_run(self) -> None:
        """Record a run of all tests in the tree."""
        if self.outcomes is None:
            return
        clauses, _ = check.load_clauses(self.root / "spec")
        wanted = check.read_requirements(self.root)
        cited = check.scan_citations(self.root, check.citable_ids(clauses, wanted)).tests
        tests: dict[str, dict[str, object]] = {}
        for clause_id, names in cited.items():
            for name in names:
                outcome = self.outcomes.get(name, "passed")
                entry = {"clauses": [], "outcome": outcome}
                if outcome != "not run":
                    tests.setdefault(name, entry)["clauses"].append(clause_id)  # type: ignore[attr-defined]
        clause_record.write_clause_record(
            self.root, clause_record.source_fingerprint(self.root), tests
        )

    def write_clauses_json(self, entries: list[dict[str, str | int]]) -> str:
        path = self.root / "clauses.json"
        path.write_text(json.dumps(entries))
        return str(path)


Captured = pytest.CaptureFixture[str]


def run_checker(tree: SpecTree, capsys: Captured, *args: str) -> tuple[int, str, str]:
    """Record a run of the tests, run the checker, and return (exit status, last line, stderr)."""
    tree.record_run()
    status = check.main(["--root", str(tree.root), *args])
    out, err = capsys.readouterr()
    return status, out.splitlines()[-1], err
