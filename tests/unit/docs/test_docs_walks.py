"""The tables of calls in ARCHITECTURE.md, in which each function must call the next function."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import NamedTuple

from lint.layers import MAY_USE
from table import run_test_for_each_row

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- walks: begin -->", "<!-- walks: end -->"
STEP = re.compile(r"  +(\w+) +(\w+/[\w./]+)(?: +via (\w+))?(?: +.*)?")


class Step(NamedTuple):
    """A line of a table: a function, its file below siwarp/, and how the previous step calls it."""

    function: str
    file: str
    #: The member of a table of functions through which the function is called; "" if called by
    #: name.
    via: str


def find_tables_of_calls() -> list[str]:
    """Return the tables of calls in ARCHITECTURE.md, each between a begin and an end marker."""
    text = PAGE.read_text("utf-8")
    found = re.findall(f"{BEGIN}\n(.*?){END}", text, re.DOTALL)
    assert len(found) == text.count(BEGIN) == text.count(END)
    return found


def parse_documented_call_paths() -> dict[str, list[Step]]:
    """Return the steps of each call path in ARCHITECTURE.md by the title of the path."""
    found: dict[str, list[Step]] = {}
    for table in find_tables_of_calls():
        title = None
        for line in table.splitlines():
            if begin := re.fullmatch(r"(\S.*):", line):
                title = begin[1]
                assert title not in found, f"two call paths have the title {title}"
                found[title] = []
            elif step := STEP.fullmatch(line):
                assert title is not None, f"a step without a title: {line}"
                found[title].append(Step(step[1], step[2], step[3] or ""))
            else:
                assert line.strip() in {"", "```"}, f"neither a title nor a step: {line}"
    return found


def function_body(function: str, file: str) -> str:
    """Return the text of the definition of a C function."""
    text = (ROOT / "siwarp" / file).read_text("utf-8")
    found = re.search(
        rf"^[a-z][^;{{}}]*?\b{function}\([^;{{}}]*\)\n\{{\n(.*?)^\}}", text, re.M | re.S
    )
    assert found, f"{file} does not define {function}"
    return found[1]


@functools.cache
def c_code_of_siwarp() -> str:
    return "\n".join(p.read_text("utf-8") for p in (ROOT / "siwarp").rglob("*.[ch]"))


def step_calls_next_step(before: Step, step: Step) -> bool:
    """Return whether the step ``before`` calls the step ``step``."""
    if not step.via:
        return (
            re.search(rf"\b{step.function}\(", function_body(before.function, before.file))
            is not None
        )
    called = re.search(rf"(->|\.){step.via}\(", function_body(before.function, before.file))
    filled = re.search(
        rf"\.{step.via}\s*=\s*{step.function}\b|{step.via} = {step.function};", c_code_of_siwarp()
    )
    return called is not None and filled is not None


@run_test_for_each_row("title", parse_documented_call_paths())
def test_each_step_of_a_call_path_calls_the_next_step(title: str) -> None:
    steps = parse_documented_call_paths()[title]
    assert len(steps) > 2
    for before, step in itertools.pairwise(steps):
        assert step_calls_next_step(before, step), (
            f"{before.function} does not call {step.function}"
        )


def test_each_queue_pair_type_has_call_paths_for_sending_and_receiving() -> None:
    kinds = ("RC", "UD", "UC", "RD")
    stages = ("send", "complete a send", "receive", "place", "complete a receive")
    each_way = {f"{stage}, {kind}" for stage in stages for kind in kinds}
    of_rc = {"flush", "connect", "listen", "start-up frames", "report a frame", "accept"}
    of_rd = {"post", "flush", "HELLO", "CHALLENGE", "check", "acknowledgement"}
    others = {f"{stage}, RC" for stage in of_rc | {"connect by QPN"}}
    others |= {f"{stage}, RD" for stage in of_rd} | {"send a batch, UD"}
    assert set(parse_documented_call_paths()) == each_way | others


def test_every_step_in_the_architecture_page_is_in_a_checked_table() -> None:
    text = PAGE.read_text("utf-8")
    for table in find_tables_of_calls():
        text = text.replace(table, "")
    assert not [line for line in text.splitlines() if STEP.fullmatch(line)]


def test_the_permitted_calls_in_the_architecture_page_equal_those_of_the_lint() -> None:
    text = PAGE.read_text("utf-8").split("## Permitted calls")[1]
    page = {}
    for names, uses in re.findall(r"^\| ([a-z, ]+) \| (.+) \|$", text, re.MULTILINE):
        words = set() if uses in {"-", "the public headers only"} else set(uses.split(", "))
        page |= dict.fromkeys(names.split(", "), words)
    del page["folder"]
    assert page == {name: uses - {"base"} for name, uses in MAY_USE.items() if name != "base"}


def test_a_step_that_does_not_call_the_next_step_is_detected() -> None:
    steps = parse_documented_call_paths()["send, RC"]
    assert not step_calls_next_step(steps[0], steps[-1])
