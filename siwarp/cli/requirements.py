# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The requirements of siwarp's own specifications, parsed from their texts.

A requirement is a list item that starts with its id and its level::

    - **DGRAM-UD-1** (MUST) A message is one datagram.

The item extends to the next item or empty line. A requirement for several cases numbers them in its
text, ``(a)``, ``(b)`` and so on; tests then cite each case as the id followed by ``#a``. The table
between the two marks below lists the tests of each requirement; ``spec/check.py --write`` writes
that table.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "BEGIN",
    "END",
    "REQUIREMENT_ID",
    "SPECIFICATIONS",
    "Requirement",
    "Specification",
    "parse_requirements",
    "specification_text",
]

REQUIREMENT_ID = re.compile(r"(?:DGRAM|ADTS)-[A-Z]+-\d+")
BEGIN, END = "<!-- shown by: begin -->", "<!-- shown by: end -->"

_ITEM = re.compile(rf"- \*\*({REQUIREMENT_ID.pattern})\*\* \(([A-Z ]+)\) (.*)")
_ROW = re.compile(rf"\| ({REQUIREMENT_ID.pattern}) \| (.*) \|")


@dataclass(frozen=True)
class Specification:
    """A specification with requirements: the text's file in spec/, and the protocol's name."""

    file: str
    name: str


#: The specifications. The keys are the names that `siwarp spec` accepts.
SPECIFICATIONS = {
    "dgram": Specification("datagram-iwarp.md", "datagram-iWARP"),
    "adts": Specification("adts.md", "ADTS"),
}


@dataclass(frozen=True)
class Requirement:
    """One numbered requirement. `tests`: pytest ids of the tests that verify it."""

    id: str
    level: str
    section: str
    text: str
    tests: tuple[str, ...]

    @property
    def case_count(self) -> int:
        """Number of cases in the text, numbered (a), (b), ... in this order; 0 for none."""
        count = 0
        for letter in re.findall(r"\(([a-z])\)", self.text):
            count += letter == chr(ord("a") + count)
        return count if count > 1 else 0


def specification_text(specification: Specification) -> str:
    """Return a specification's text, from the installed package or from the source tree."""
    spec = importlib.util.find_spec("siwarp")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    installed = package / "cli" / specification.file
    source = package.parent / "spec" / specification.file
    return (installed if installed.is_file() else source).read_text(encoding="utf-8")


def parse_requirements(markdown: str) -> list[Requirement]:
    """Return all requirements, in the text's order."""
    body, _, table = markdown.partition(BEGIN)
    tests = {row[1]: row[2] for row in map(_ROW.fullmatch, table.splitlines()) if row}
    return [
        Requirement(
            name,
            level,
            section,
            words,
            tuple(re.findall(r"`([^`]+)`", tests.get(name, ""))),
        )
        for name, level, section, words in _parse_requirement_items(body)
    ]


def _parse_requirement_items(body: str) -> Iterator[tuple[str, str, str, str]]:
    section = ""
    item: list[str] = []
    for line in [*body.splitlines(), ""]:
        start = _ITEM.fullmatch(line)
        if item and (start or not line.startswith("  ")):
            yield item[0], item[1], item[2], " ".join(item[3:])
            item = []
        if start:
            item = [start[1], start[2], section, start[3]]
        elif item:
            item.append(line.strip())
        elif line.startswith("## "):
            section = line[3:].strip()
