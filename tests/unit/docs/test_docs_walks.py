"""ARCHITECTURE.md's walks of a message are what the code does: each hop calls the next one."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "ARCHITECTURE.md"


class Hop(NamedTuple):
    """A line of a walk: a function, its file below siwarp/, and how the hop before reaches it."""

    function: str
    file: str
    #: The member of a table of functions through which it is called; "" when by its name.
    via: str


def walks() -> dict[str, list[Hop]]:
    """Return each walk of the page, by its title."""
    text = PAGE.read_text("utf-8").split("<!-- walks: begin -->")[1].split("<!-- walks: end -->")[0]
    found: dict[str, list[Hop]] = {}
    for line in text.splitlines():
        if title := re.fullmatch(r"(\S.*):", line):
            found[title[1]] = []
        elif hop := re.fullmatch(r"  +(\w+) +(\w+/[\w./]+)(?: +via (\w+))?(?: +.*)?", line):
            found[list(found)[-1]].append(Hop(hop[1], hop[2], hop[3] or ""))
        else:
            assert line.strip() in {"", "```"}, f"neither a title nor a hop: {line}"
    return found


def body(function: str, file: str) -> str:
    """Return the text of a function's definition."""
    text = (ROOT / "siwarp" / file).read_text("utf-8")
    found = re.search(
        rf"^[a-z][^;{{}}]*?\b{function}\([^;{{}}]*\)\n\{{\n(.*?)^\}}", text, re.M | re.S
    )
    assert found, f"{file} does not define {function}"
    return found[1]


def follows(before: Hop, hop: Hop) -> bool:
    """Whether the hop before calls this one."""
    if not hop.via:
        return re.search(rf"\b{hop.function}\(", body(before.function, before.file)) is not None
    called = re.search(rf"(->|\.){hop.via}\(", body(before.function, before.file))
    tables = "\n".join(p.read_text("utf-8") for p in (ROOT / "siwarp").rglob("*.[ch]"))
    filled = re.search(rf"\.{hop.via}\s*=\s*{hop.function}\b|{hop.via} = {hop.function};", tables)
    return called is not None and filled is not None


@pytest.mark.parametrize("title", walks())
def test_each_hop_of_a_walk_calls_the_next(title: str) -> None:
    hops = walks()[title]
    assert len(hops) > 2
    for before, hop in itertools.pairwise(hops):
        assert follows(before, hop), f"{before.function} does not call {hop.function}"


def test_there_is_a_walk_each_way_for_each_type_of_queue_pair() -> None:
    kinds = ("RC", "UD", "UC", "RD")
    each_way = {f"{what}, {kind}" for what in ("send", "receive") for kind in kinds}
    assert set(walks()) == each_way | {"flush, RC", "complete, every type"}


def test_a_hop_that_is_not_called_is_noticed() -> None:
    hops = walks()["send, RC"]
    assert not follows(hops[0], hops[-1])
