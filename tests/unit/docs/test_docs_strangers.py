"""The page of faults found by external programs, which must name existing tests."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = "docs/background/strangers.md"


def test_each_test_that_the_page_of_external_programs_names_exists(root: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (root / PAGE).read_text("utf-8"))
    assert named
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (root / file).is_file()
        or not re.search(rf"^def {name}\(", (root / file).read_text("utf-8"), re.MULTILINE)
    ]
    assert not missing, f"{PAGE} names tests that are gone: name those that took their place"
