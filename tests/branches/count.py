#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""count.py BUILD [--missing LAYER]: branches of the C code that the tests have taken, by layer.

Reads, with gcov, the branch counts of a build with --coverage. It is an error if less than 90% of
the branches of a layer were taken. Branches that no test can take are listed in unreachable.toml,
with the reason, and are not counted; an entry whose branch was taken or no longer exists is an
error, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
UNREACHABLE = Path(__file__).parent / "unreachable.toml"
WANTED = 90.0
#: The layers of the library, in C, each after the layers that it depends on.
LAYERS = (
    "base",
    "llp",
    "mem",
    "mpa",
    "rd",
    "ddp",
    "rdmap",
    "device",
    "qp",
    "connect",
    "verbs",
    "cm",
)


@dataclass(frozen=True)
class SourceLine:
    """A source line with branches; `taken` has the count of each branch, over all processes."""

    file: str
    number: int
    function: str
    text: str
    taken: tuple[int, ...]

    @property
    def layer(self) -> str:
        """The name of the layer: the folder of the file below siwarp/."""
        return self.file.split("/")[1]

    @property
    def missed_branch_count(self) -> int:
        """The number of branches of the line that were never taken."""
        return self.taken.count(0)


@dataclass
class Entry:
    """An entry of unreachable.toml: `line` is text that the line contains, or `match` a pattern.

    `on_some_processors`: some processors can take all of its branches.
    """

    reason: str
    on_some_processors: bool = False
    line: str = ""
    match: str = ""
    function: str = ""
    file: str = ""
    lines: list[SourceLine] = field(default_factory=list)

    def __str__(self) -> str:
        where = " ".join(part for part in (self.file, self.function) if part)
        return f"{where}: {self.line or self.match}" if where else self.line or self.match

    def refers_to_source_line(self, line: SourceLine) -> bool:
        """Return whether the entry of unreachable.toml refers to a source line."""
        if self.file and not line.file.endswith(self.file):
            return False
        if self.function and line.function != self.function:
            return False
        if self.match:
            return re.search(self.match, line.text) is not None
        return collapse_blanks(self.line) in line.text


def collapse_blanks(text: str) -> str:
    """Return the text with each run of blanks replaced by one blank."""
    return " ".join(text.split())


def _run_gcov(notes: Path) -> list[dict[str, Any]]:
    """Return the branch counts of one object file, for each source file, in gcov's JSON format."""
    command = ["gcov", "--stdout", "--json-format", "--branch-probabilities", str(notes)]
    out = subprocess.run(command, capture_output=True, check=True, cwd=notes.parent).stdout
    return [
        f for line in out.splitlines() if line.startswith(b"{") for f in json.loads(line)["files"]
    ]


def _layer_source_path(name: str, build: Path) -> str | None:
    """Return the path of a layer's source relative to the root, or None for any other file."""
    path = Path(os.path.normpath(build / name))
    if not path.is_relative_to(ROOT / "siwarp"):
        return None
    relative = path.relative_to(ROOT).as_posix()
    return relative if relative.split("/")[1] in LAYERS else None


def sum_branch_counts(copies: list[list[int]]) -> tuple[int, ...]:
    """Return the sum of the counts of all copies of a line, branch by branch.

    A function with forced inlining has a copy at each call, and gcov lists the copies within one
    file in sequence, as branches of one line. The number of branches of one copy divides each of
    these numbers.
    """
    n = math.gcd(*map(len, copies))
    if n == 1:  # A line with branches has at least two.
        raise ValueError(f"one line has {sorted(set(map(len, copies)))} branches")
    return tuple(sum(count for copy in copies for count in copy[at::n]) for at in range(n))


def read_branch_counts(build: Path) -> list[SourceLine]:
    """Return all lines with branches; counts of a header are summed over all object files."""
    counts: dict[tuple[str, int, str], list[list[int]]] = defaultdict(list)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = pool.map(_run_gcov, sorted(build.glob("libsiw_*.a.p/*.gcno")))
        for found in (f for files in objects for f in files):
            name = _layer_source_path(found["file"], build)
            for line in found["lines"] if name else ():
                if line["branches"] and name:
                    key = (name, line["line_number"], line.get("function_name", ""))
                    counts[key].append([branch["count"] for branch in line["branches"]])
    texts: dict[str, list[str]] = {}
    lines = []
    for (name, number, function), copies in sorted(counts.items()):
        if name not in texts:
            texts[name] = (ROOT / name).read_text(encoding="utf-8").splitlines()
        text = texts[name][number - 1] if number <= len(texts[name]) else ""
        lines.append(
            SourceLine(name, number, function, collapse_blanks(text), sum_branch_counts(copies))
        )
    return lines


def load_excepted_branches() -> list[Entry]:
    """Return the entries of unreachable.toml."""
    with UNREACHABLE.open("rb") as file:
        return [Entry(**entry) for entry in tomllib.load(file).get("unreachable", [])]


def summarize_by_layer(
    lines: Iterable[SourceLine], excepted: list[Entry]
) -> tuple[dict[str, list[int]], list[str]]:
    """Return the numbers of taken, counted and excepted branches by layer, and invalid entries."""
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for line in lines:
        entries = [entry for entry in excepted if entry.refers_to_source_line(line)]
        for entry in entries:
            entry.lines.append(line)
        row = rows[line.layer]
        row[0] += len(line.taken) - line.missed_branch_count
        row[1] += len(line.taken) - (line.missed_branch_count if entries else 0)
        row[2] += line.missed_branch_count if entries else 0
    problems = []
    for entry in excepted:
        if not entry.lines:
            problems.append(f"unreachable.toml: there is no such line any more: {entry}")
        elif not entry.on_some_processors and not any(
            line.missed_branch_count for line in entry.lines
        ):
            problems.append(f"unreachable.toml: a test takes it, so it goes: {entry}")
    return rows, problems


def percentage_of_branches_taken(row: list[int]) -> float:
    """Return the percentage of the counted branches that were taken."""
    return 100 * row[0] / row[1] if row[1] else 100.0


def low_coverage_messages(rows: dict[str, list[int]]) -> list[str]:
    """Return a message for each layer below the required percentage."""
    taken = {layer: percentage_of_branches_taken(row) for layer, row in rows.items()}
    return [
        f"{layer}: {percent:.1f}% of its branches taken, less than {WANTED:.0f}%"
        for layer, percent in taken.items()
        if percent < WANTED
    ]


def main() -> int:
    """Print the percentage of taken branches of each layer; return 0 if there is no problem."""
    parser = argparse.ArgumentParser(description="branches that the tests took, by layer")
    parser.add_argument("build", type=Path)
    parser.add_argument("--missing", metavar="LAYER", help="list the branches of a layer not taken")
    args = parser.parse_args()
    excepted = load_excepted_branches()
    lines = read_branch_counts(args.build.resolve())
    if args.missing:
        for line in lines:
            if (
                line.layer == args.missing
                and line.missed_branch_count
                and not any(e.refers_to_source_line(line) for e in excepted)
            ):
                missed = f"{line.missed_branch_count} of {len(line.taken)}"
                print(f"{line.file}:{line.number}: {missed}: {line.text}")
        return 0
    rows, problems = summarize_by_layer(lines, excepted)
    print(f"{'layer':<8}{'branches':>10}{'taken':>8}{'':>9}{'excepted':>10}")
    for layer in filter(rows.__contains__, LAYERS):
        taken, counted, left_out = rows[layer]
        print(
            f"{layer:<8}{counted:>10}{taken:>8}{percentage_of_branches_taken(rows[layer]):>8.1f}%{left_out:>10}"
        )
    problems += low_coverage_messages(rows)
    if problems:
        script = Path(__file__).relative_to(ROOT)
        problems.append(f"what is missing in a layer: {script} {args.build} --missing LAYER")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
