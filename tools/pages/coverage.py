# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Generates pages that show which tests cover the clauses of the RFCs and of siwarp's protocols."""

from __future__ import annotations

import html
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "spec"))

import check  # noqa: E402
import clause_record  # noqa: E402

from siwarp.cli import requirements  # noqa: E402

__all__ = ["coverage_doc_pages"]


@dataclass(frozen=True)
class Row:
    """A clause or requirement; ``cited`` are the ids that tests cite: its items, or its own id."""

    id: str
    group: str
    section: str
    level: str
    summary: str
    state: str
    reason: str
    cited: tuple[str, ...]


def coverage_doc_pages(root: Path) -> dict[str, str]:
    """Return the page of each specification, and an overview page, by file name."""
    clauses, problems = check.load_clauses(root / "spec")
    if problems:
        raise ValueError(f"spec/ is wrong: {problems[0]}")
    wanted = check.read_requirements(root)
    listing = [c.id for c in clauses.values() if c.items] + [r.id for r in wanted if r.case_count]
    found = check.scan_citations(root, check.citable_ids(clauses, wanted), listing)
    ran = check.RecordedRun(
        clause_record.load_clause_record(root), clause_record.source_fingerprint(root)
    )
    groups: dict[str, list[Row]] = {}
    for row in [*_clause_rows(clauses, ran), *_requirement_rows(root, ran)]:
        groups.setdefault(row.group, []).append(row)
    made = {
        f"background/coverage/{_page_name_of_group(g)}.md": _specification_page(
            g, groups[g], found, ran
        )
        for g in groups
    }
    return made | {"background/coverage.md": _overview_page(groups, ran)}


def _clause_rows(clauses: dict[str, check.Clause], ran: check.RecordedRun) -> Iterator[Row]:
    for c in clauses.values():
        state = "not run here" if ran.problem else check.clause_state(c, ran)
        cited = c.items or (c.id,)
        yield Row(c.id, f"RFC {c.rfc}", c.section, c.level, c.summary, state, c.reason or "", cited)


def _requirement_rows(root: Path, ran: check.RecordedRun) -> Iterator[Row]:
    for specification, markdown in check.read_specifications(root).items():
        for r in requirements.parse_requirements(markdown):
            cited = check.requirement_ids(r)
            state = "shown" if all(map(ran.is_clause_shown_by_tests, cited)) else "open"
            state = "not run here" if ran.problem else state
            yield Row(r.id, specification.name, r.section, r.level, r.text, state, "", cited)


def _page_name_of_group(group: str) -> str:
    return group.lower().replace(" ", "")


def _overview_page(groups: dict[str, list[Row]], ran: check.RecordedRun) -> str:
    """Return the overview page, which has a line for each specification."""
    lines = [
        "# Coverage of the RFCs",
        "",
        "Each normative sentence of the five RFCs, and each requirement of datagram-iWARP and",
        "ADTS, has an id that tests cite. It is *shown* if a test that cites it passed and none",
        "failed, *reasoned* if there is a reason why no test can show it, otherwise *open*.",
        "[The clauses](../../spec/README.md) describes how this is counted; the pages below list",
        "every clause with its tests, and the result of each when the suite last ran here.",
        "",
        f"About this build: {ran.problem or 'the results are those of the suite on this tree'}.",
        "",
        "| specification | clauses | shown | reasoned | open |",
        "|---|---|---|---|---|",
    ]
    for group, rows in groups.items():
        n = Counter(row.state for row in rows)
        counts = ["-"] * 3 if ran.problem else [str(n[s]) for s in ("shown", "reasoned", "open")]
        link = f"[{group}](coverage/{_page_name_of_group(group)}.md)"
        lines.append(f"| {link} | {len(rows)} | {' | '.join(counts)} |")
    names = "\n".join(f"coverage/{_page_name_of_group(group)}" for group in groups)
    return "\n".join([*lines, "", ":::{toctree}", ":hidden:", "", names, ":::", ""])


def _specification_page(
    group: str, rows: list[Row], found: check.Citations, ran: check.RecordedRun
) -> str:
    """Return the page of one specification, with a table whose rows the reader can filter."""
    lines = [
        f"# {group}",
        "",
        "The field above the table filters the rows by the words that you type, for example",
        "`MUST open` or `stag`. A click on the number of tests lists them, with a link to each",
        "one's file.",
        "",
        ":::{container} filtered",
        "",
        "| clause | level | text | state |",
        "|---|---|---|---|",
    ]
    for row in rows:
        anchor = f'<span id="{row.id.lower()}"></span>{row.id}'
        why = f" *{_format_table_cell(row.reason)}*" if row.reason else ""
        tests = _folded_test_list_html(row, found, ran)
        lines.append(
            f"| {anchor} | {row.level} | {_format_table_cell(row.summary)}{why}{tests} "
            f"| {row.state} |"
        )
    return "\n".join([*lines, "", ":::", ""])


def _folded_test_list_html(row: Row, found: check.Citations, ran: check.RecordedRun) -> str:
    """Return HTML that lists the tests citing a clause, each with its result, when unfolded."""
    lines = []
    for cited in row.cited:
        outcomes = ran.outcomes_of_clause(cited)
        for test in found.tests.get(cited, []):
            file, _, name = test.partition("::")
            ended = {o for t, o in outcomes.items() if _is_same_test(t, test)}
            words = name.removeprefix("test_").replace("_", " ")
            result = ", ".join(sorted(ended)) or "not run here"
            item = f"({cited[-1]}) " if "#" in cited else ""
            lines.append(f"{item}[{_format_table_cell(words)}](../../../{file}): {result}")
    if not lines:
        return ""
    count = f"{len(lines)} test{'s' if len(lines) > 1 else ''}"
    return f"<details><summary>{count}</summary>{'<br>'.join(lines)}</details>"


def _is_same_test(ran: str, test: str) -> bool:
    """Return whether the id of an executed test (class, parameters) belongs to a test name."""
    parts = ran.partition("[")[0].split("::")
    return f"{parts[0]}::{parts[-1]}" == test


def _format_table_cell(text: str) -> str:
    escaped = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{c}" if c in "|*_[]`" else c for c in escaped)
