"""The walks of a message in ARCHITECTURE.md, in which each function must call the next function."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import NamedTuple

from lint.layers import MAY_USE
from table import check_each_row

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- walks: begin -->", "<!-- walks: end -->"
HOP = re.compile(r"  +(\w+) +(\w+/[\w./]+)(?: +via (\w+))?(?: +.*)?")


class Hop(NamedTuple):
    """A line of a walk: a function, its file below siwarp/, and how the previous hop calls it."""

    function: str
    file: str
    #: The member of a table of functions through which the function is called; "" if called by
    #: name.
    via: str


def tables_of_walks() -> list[str]:
    """Return the tables of hops in ARCHITECTURE.md, each between a begin and an end marker."""
    text = PAGE.read_text("utf-8")
    found = re.findall(f"{BEGIN}\n(.*?){END}", text, re.DOTALL)
    assert len(found) == text.count(BEGIN) == text.count(END)
    return found


def walks_by_title() -> dict[str, list[Hop]]:
    """Return the hops of each walk in ARCHITECTURE.md by the title of the walk."""
    found: dict[str, list[Hop]] = {}
    for table in tables_of_walks():
        title = None
        for line in table.splitlines():
            if begin := re.fullmatch(r"(\S.*):", line):
                title = begin[1]
                assert title not in found, f"two walks have the title {title}"
                found[title] = []
            elif hop := HOP.fullmatch(line):
                assert title is not None, f"a hop without a title: {line}"
                found[title].append(Hop(hop[1], hop[2], hop[3] or ""))
            else:
                assert line.strip() in {"", "```"}, f"neither a title nor a hop: {line}"
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


def hop_calls_next_hop(before: Hop, hop: Hop) -> bool:
    """Return whether the hop ``before`` calls the hop ``hop``."""
    if not hop.via:
        return (
            re.search(rf"\b{hop.function}\(", function_body(before.function, before.file))
            is not None
        )
    called = re.search(rf"(->|\.){hop.via}\(", function_body(before.function, before.file))
    filled = re.search(
        rf"\.{hop.via}\s*=\s*{hop.function}\b|{hop.via} = {hop.function};", c_code_of_siwarp()
    )
    return called is not None and filled is not None


@check_each_row("title", walks_by_title())
def test_each_hop_of_a_walk_calls_the_next_hop(title: str) -> None:
    hops = walks_by_title()[title]
    assert len(hops) > 2
    for before, hop in itertools.pairwise(hops):
        assert hop_calls_next_hop(before, hop), f"{before.function} does not call {hop.function}"


def test_each_queue_pair_type_has_walks_for_sending_and_receiving() -> None:
    kinds = ("RC", "UD", "UC", "RD")
    stages = ("send", "complete a send", "receive", "place", "complete a receive")
    each_way = {f"{stage}, {kind}" for stage in stages for kind in kinds}
    of_rc = {"flush", "connect", "listen", "start-up frames", "report a frame", "accept"}
    of_rd = {"post", "flush", "HELLO", "CHALLENGE", "check", "acknowledgement"}
    others = {f"{stage}, RC" for stage in of_rc | {"connect by QPN"}}
    others |= {f"{stage}, RD" for stage in of_rd} | {"send a batch, UD"}
    assert set(walks_by_title()) == each_way | others


def test_every_hop_in_the_architecture_page_is_in_a_checked_table() -> None:
    text = PAGE.read_text("utf-8")
    for table in tables_of_walks():
        text = text.replace(table, "")
    assert not [line for line in text.splitlines() if HOP.fullmatch(line)]


def test_the_permitted_calls_in_the_architecture_page_equal_those_of_the_lint() -> None:
    text = PAGE.read_text("utf-8").split("## Permitted calls")[1]
    page = {}
    for names, uses in re.findall(r"^\| ([a-z, ]+) \| (.+) \|$", text, re.MULTILINE):
        words = set() if uses in {"-", "the public headers only"} else set(uses.split(", "))
        page |= dict.fromkeys(names.split(", "), words)
    del page["folder"]
    assert page == {name: uses - {"base"} for name, uses in MAY_USE.items() if name != "base"}


def test_a_hop_that_does_not_call_the_next_hop_is_detected() -> None:
    hops = walks_by_title()["send, RC"]
    assert not hop_calls_next_hop(hops[0], hops[-1])
