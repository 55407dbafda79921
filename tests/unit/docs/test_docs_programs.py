"""Programs of the table in docs/programs.md and of the rows of `make abi`, which must agree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from abi.rows import CABLE, HERE, NOBODY, all_test_rows

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/programs.md"
VERDICT = re.compile(r"works|works with `.+|does not|does not yet|untried")


@dataclass(frozen=True)
class ProgramEntry:
    names: tuple[str, ...]
    verdict: str
    how: str


def parse_table_of_programs() -> list[ProgramEntry]:
    text = PAGE.read_text("utf-8")
    table = text.partition("<!-- programs: begin -->\n")[2].partition("<!-- programs: end -->")[0]
    found = []
    for line in table.splitlines()[2:]:
        names, verdict, how = (cell.strip() for cell in line.strip("|").split(" | "))
        found.append(ProgramEntry(tuple(re.findall(r"`([^`]+)`", names)), verdict, how.strip(" |")))
    return found


def row_starts_with_name(row: str, name: str) -> bool:
    return re.match(rf"{re.escape(name)}(?![\w-])", row) is not None


def find_program_entry_for_table_row(row: str) -> ProgramEntry | None:
    """Return the entry whose program name is the longest prefix of the row's name."""
    fitting = [
        (len(n), e)
        for e in parse_table_of_programs()
        for n in e.names
        if row_starts_with_name(row, n)
    ]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def test_each_program_entry_has_a_verdict_and_a_reason_if_the_program_fails() -> None:
    assert len(parse_table_of_programs()) > 10
    for entry in parse_table_of_programs():
        assert VERDICT.fullmatch(entry.verdict), entry
        assert entry.how or entry.verdict.startswith("works"), f"the third column is empty: {entry}"


def test_no_program_is_in_the_table_twice() -> None:
    names = [name for entry in parse_table_of_programs() for name in entry.names]
    assert len(names) == len(set(names))


def test_each_abi_row_is_about_a_program_whose_entry_says_that_it_works() -> None:
    wrong = {
        row.name
        for row in all_test_rows()
        if (entry := find_program_entry_for_table_row(row.name)) is None
        or not entry.verdict.startswith("works")
    }
    assert not wrong, (
        "docs/programs.md has no entry whose `name` is a prefix of these rows of make abi, or its "
        f"entry does not say that the program works: {sorted(wrong)}"
    )


def test_each_working_program_of_the_table_is_run_by_an_abi_row() -> None:
    names = [
        n
        for entry in parse_table_of_programs()
        if entry.verdict.startswith("works")
        for n in entry.names
    ]
    unrun = [
        name
        for name in names
        if not any(row_starts_with_name(row.name, name) for row in all_test_rows())
    ]
    assert not unrun, f"docs/programs.md says these work, no row of make abi runs them: {unrun}"


def test_each_option_in_a_program_entry_is_used_by_an_abi_row() -> None:
    for entry in parse_table_of_programs():
        for option in re.findall(r"`([^`]+)`", entry.verdict):
            commands = [
                " ".join((*(f"{k}={v}" for k, v in row.env.items()), row.options, row.server))
                for row in all_test_rows()
                if any(row_starts_with_name(row.name, name) for name in entry.names)
            ]
            assert any(option in command for command in commands), f"{option} of {entry}"


def test_the_short_form_of_make_abi_runs_each_working_program() -> None:
    short = [row.name for row in all_test_rows() if HERE in row.short and not row.known]
    names = [
        n
        for entry in parse_table_of_programs()
        if entry.verdict.startswith("works")
        for n in entry.names
    ]
    assert not [name for name in names if not any(row_starts_with_name(row, name) for row in short)]


def test_the_long_form_of_make_abi_runs_each_working_program_as_the_page_says() -> None:
    said = re.search(r"all except (.+?), which are one process", PAGE.read_text("utf-8"), re.DOTALL)
    assert said
    alone = set(re.findall(r"`([^`]+)`", said[1]))
    names = {
        n
        for entry in parse_table_of_programs()
        if entry.verdict.startswith("works")
        for n in entry.names
    }
    for place, without in ((NOBODY, set()), (CABLE, alone)):
        there = [row.name for row in all_test_rows() if place in row.places and not row.known]
        missing = {
            name for name in names if not any(row_starts_with_name(row, name) for row in there)
        }
        assert missing == without, f"docs/programs.md says what make abi-all runs in {place}"
