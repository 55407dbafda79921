"""real_time.py [--write]: tests wait in virtual time, except those listed with a reason.

In real time, a test that sleeps is slow, a test that waits to verify that nothing happens passes
wrongly on a slow machine, and a test that reads the clock fails on a slow machine. Calls that
sleep, wait or read the clock are allowed only in tests/sim, which uses simulated time, in the tests
listed in tests/timing/tests.txt, and in the files listed in real_time.txt, with the listed number
of calls. The list real_time.txt may only shrink: a file with fewer calls than listed is an error,
too. --write lowers the listed numbers to the current numbers.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".txt")
TIMING = ROOT / "tests" / "timing" / "tests.txt"
#: Functions of the module time that read a clock or sleep.
CLOCKS = {
    f"{name}{unit}" for name in ("monotonic", "time", "perf_counter") for unit in ("", "_ns")
} | {"sleep"}
#: Functions of the test harnesses that wait to verify that nothing happens.
ABSENCE = {"assert_no_completion", "receives_segment_within", "is_silent"}
#: A pattern of files that may use real time; other files are not parsed.
PERHAPS = re.compile(
    rf"\b(import .*time|from time import|({'|'.join(sorted(ABSENCE))})\()|is None|== \[\]"
)
#: Folders with tests in virtual time, and with tests that are not part of the suite.
ELSEWHERE = ("tests/sim/", "tests/timing/", "tests/interop/guest/", "tests/laboratory/")


@dataclass(frozen=True)
class Entry:
    """A line of real_time.txt: the number of allowed calls in a file, and the reason."""

    count: int
    reason: str


def parse_allowed_uses(text: str) -> dict[str, Entry]:
    """Return the entries of real_time.txt by file.

    Raises:
        ValueError: a line is not FILE COUNT REASON.
    """
    found: dict[str, Entry] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        words = line.split(maxsplit=2)
        if len(words) < 3 or not words[1].isdecimal() or words[0] in found:
            raise ValueError(f"not FILE COUNT REASON, or a second line of its file: {line!r}")
        found[words[0]] = Entry(int(words[1]), words[2])
    return found


def _clock_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the names by which a file uses the module time and its clock functions."""
    modules: set[str] = set()
    functions: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name for a in node.names if a.name == "time"}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            functions |= {a.asname or a.name for a in node.names if a.name in CLOCKS}
    return modules, functions


def _has_seconds_argument(call: ast.Call) -> bool:
    """Return whether an argument of a call is a number with a decimal point, as seconds have."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    constants = (value.value for value in values if isinstance(value, ast.Constant))
    return any(isinstance(constant, float) and constant > 0 for constant in constants)


def name_of_call_expecting_nothing(node: ast.AST) -> str:
    """Return the name of the call in an assertion that nothing arrives within a time, or "".

    Examples are ``assert channel.get_event(0.05) is None`` and ``assert cq.wait(0.5) == []``.
    """
    match node:
        case ast.Assert(ast.Compare(ast.Call() as call, [ast.Is()], [ast.Constant(None)])):
            pass
        case ast.Assert(ast.Compare(ast.Call() as call, [ast.Eq()], [ast.List([])])):
            pass
        case _:
            return ""
    return (
        getattr(call.func, "attr", getattr(call.func, "id", ""))
        if _has_seconds_argument(call)
        else ""
    )


def real_time_uses(source: str, exempt: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Yield line and name of each use of a clock, a sleep, or a wait that nothing happens.

    exempt: functions whose uses are ignored.
    """
    tree = ast.parse(source)
    modules, functions = _clock_names(tree)

    def real_time_uses_in_subtree(node: ast.AST) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in exempt:
            return
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in modules and node.attr in CLOCKS:
                yield node.lineno, f"time.{node.attr}"
        elif isinstance(node, ast.Name) and node.id in functions:
            yield node.lineno, node.id
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ABSENCE:
                yield node.lineno, name
        elif name := name_of_call_expecting_nothing(node):
            yield node.lineno, name
        for child in ast.iter_child_nodes(node):
            yield from real_time_uses_in_subtree(child)

    return real_time_uses_in_subtree(tree)


def parse_real_time_test_list(text: str) -> dict[str, set[str]]:
    """Return, for each listed file, the tests that depend on real time; an empty set means all."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        name = line.split("#", 1)[0].strip()
        if name:
            file, _, function = name.partition("::")
            found.setdefault(file, set()).update({function} if function else set())
    return found


def find_real_time_uses(root: Path = ROOT) -> dict[str, list[tuple[int, str]]]:
    """Return the uses of real time in each file below tests/ that is not exempt."""
    racing = parse_real_time_test_list((root / TIMING.relative_to(ROOT)).read_text("utf-8"))
    found: dict[str, list[tuple[int, str]]] = {}
    for path in sorted((root / "tests").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(ELSEWHERE) or racing.get(name) == set():
            continue
        text = path.read_text("utf-8")
        if PERHAPS.search(text) is None:
            continue
        if here := sorted(real_time_uses(text, frozenset(racing.get(name, ())))):
            found[name] = here
    return found


def problems_with_allowed_uses(
    found: dict[str, list[tuple[int, str]]], listing: dict[str, Entry]
) -> Iterator[str]:
    """Yield an error message for each file whose number of uses of real time differs from the
    list."""
    for name, here in found.items():
        most = listing[name].count if name in listing else 0
        if len(here) > most:
            where = ", ".join(f"{what} in line {line}" for line, what in here)
            yield (
                f"{name}: {len(here)} uses of real time, and real_time.txt has {most}: "
                f"move the test to tests/sim, or wait for an event ({where})"
            )
    for name, entry in listing.items():
        if len(found.get(name, [])) < entry.count:
            yield (
                f"{name}: {len(found.get(name, []))} uses of real time, and real_time.txt has "
                f"{entry.count}: run tests/lint/real_time.py --write"
            )


def lower_allowed_counts(found: dict[str, list[tuple[int, str]]], text: str) -> str:
    """Return the text of the list with each number lowered to the current number of uses."""
    lines = []
    for line in text.splitlines():
        words = line.split(maxsplit=2)
        if words and not line.startswith("#"):
            now = min(int(words[1]), len(found.get(words[0], [])))
            line = f"{words[0]} {now} {words[2]}"
            if not now:
                continue
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print each file with more or fewer uses of real time than listed; return 1 if any."""
    found = find_real_time_uses()
    text = LIST.read_text("utf-8")
    if sys.argv[1:] == ["--write"]:
        LIST.write_text(lower_allowed_counts(found, text), "utf-8")
        return 0
    wrong = list(problems_with_allowed_uses(found, parse_allowed_uses(text)))
    print("".join(f"{line}\n" for line in wrong), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
