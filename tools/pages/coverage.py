# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The pages on the clauses of the RFCs and of datagram-iWARP that tests verify, as in
``make spec``.
"""

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

__all__ = ["pages"]

_DGRAM = "datagram-iWARP"


@dataclass(frozen=True)
class Row:
    """A clause or requirement: ``cited`` are its items, or the clause itself if it has none."""

    id: str
    group: str
    section: str
    level: str
    summary: str
    state: str
    reason: str
    cited: tuple[str, ...]


def pages(root: Path) -> dict[str, str]:
    """Return the page of each specification, and an overview with a line for each."""
    clauses, problems = check.load_clauses(root / "spec")
    if problems:
        raise ValueError(f"spec/ is wrong: {problems[0]}")
    wanted = requirements.parse(check.specification(root))
    listing = [c.id for c in clauses.values() if c.items] + [r.id for r in wanted if r.items]
    found = check.scan(root, check.citable(clauses, wanted), listing)
    ran = check.Ran(clause_record.load(root), clause_record.fingerprint(root))
    groups: dict[str, list[Row]] = {}
    for row in [*_clauses(clauses, ran), *_requirements(wanted, ran)]:
        groups.setdefault(row.group, []).append(row)
    made = {f"background/coverage/{_name(g)}.md": _page(g, groups[g], found, ran) for g in groups}
    return made | {"background/coverage.md": _overview(groups, ran)}


def _clauses(clauses: dict[str, check.Clause], ran: check.Ran) -> Iterator[Row]:
    for c in clauses.values():
        state = "not run here" if ran.problem else check.state(c, ran)
        cited = c.items or (c.id,)
        yield Row(c.id, f"RFC {c.rfc}", c.section, c.level, c.summary, state, c.reason or "", cited)


def _requirements(wanted: list[requirements.Requirement], ran: check.Ran) -> Iterator[Row]:
    for r in wanted:
        cited = check.requirement_ids(r)
        state = "shown" if all(map(ran.shows, cited)) else "open"
        state = "not run here" if ran.problem else state
        yield Row(r.id, _DGRAM, r.section, r.level, r.text, state, "", cited)


def _name(group: str) -> str:
    return group.lower().replace(" ", "")


def _overview(groups: dict[str, list[Row]], ran: check.Ran) -> str:
    """Return the page with a line for each specification."""
    lines = [
        "# Coverage of the RFCs",
        "",
        "Each normative sentence of the five RFCs, and each requirement of datagram-iWARP, has an",
        "id that tests cite. It is *shown* if a test that cites it passed and none failed,",
        "*reasoned* if there is a reason why no test can show it, otherwise *open*.",
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
        link = f"[{group}](coverage/{_name(group)}.md)"
        lines.append(f"| {link} | {len(rows)} | {' | '.join(counts)} |")
    names = "\n".join(f"coverage/{_name(group)}" for group in groups)
    return "\n".join([*lines, "", ":::{toctree}", ":hidden:", "", names, ":::", ""])


def _page(group: str, rows: list[Row], found: check.Citations, ran: check.Ran) -> str:
    """Return the page of one specification: a table whose rows can be filtered."""
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
        why = f" *{_cell(row.reason)}*" if row.reason else ""
        tests = _tests(row, found, ran)
        lines.append(f"| {anchor} | {row.level} | {_cell(row.summary)}{why}{tests} | {row.state} |")
    return "\n".join([*lines, "", ":::", ""])


def _tests(row: Row, found: check.Citations, ran: check.Ran) -> str:
    """Return the tests that cite a clause, folded, each with its result."""
    lines = []
    for cited in row.cited:
        outcomes = ran.outcomes(cited)
        for test in found.tests.get(cited, []):
            file, _, name = test.partition("::")
            ended = {o for t, o in outcomes.items() if _same(t, test)}
            words = name.removeprefix("test_").replace("_", " ")
            result = ", ".join(sorted(ended)) or "not run here"
            item = f"({cited[-1]}) " if "#" in cited else ""
            lines.append(f"{item}[{_cell(words)}](../../../{file}): {result}")
    if not lines:
        return ""
    count = f"{len(lines)} test{'s' if len(lines) > 1 else ''}"
    return f"<details><summary>{count}</summary>{'<br>'.join(lines)}</details>"


def _same(ran: str, test: str) -> bool:
    """Whether an executed test, with class and parameters, is the test with this name."""
    parts = ran.partition("[")[0].split("::")
    return f"{parts[0]}::{parts[-1]}" == test


def _cell(text: str) -> str:
    escaped = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{c}" if c in "|*_[]`" else c for c in escaped)
