"""User pages: each command is run by a test or marked as untried, and each link leads to a file."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import pytest
from table import run_test_for_each_row

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools/pages")]

import stage  # noqa: E402
from doc_block import FENCE, read_code_block, read_code_blocks  # noqa: E402

PAGES = sorted((ROOT / "docs").rglob("*.md"))
WITH_BLOCKS = [ROOT / "README.md", *PAGES]
WITH_LINKS = [*ROOT.glob("*.md"), *PAGES, *(ROOT / "spec").glob("*.md")]
#: Files that run code blocks of documentation pages. A Python file states the page and the block by
#: read_doc_block("PAGE", "NAME"), a shell script by doc_block.py PAGE NAME.
RUNNERS = [
    p
    for folder in ("tests", "tools")
    for p in (ROOT / folder).rglob("*")
    if p.suffix in (".py", "") and p.is_file()
]


@functools.cache
def paths_of_generated_pages() -> set[Path]:
    """Return the pages of docs that `make site` generates from the code; links may lead to them."""
    return {(ROOT / "docs" / name).resolve() for name in stage.generated_doc_pages()}


def path_from_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


def doc_blocks_run_by_tests() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for runner in RUNNERS:
        text = runner.read_text("utf-8", errors="replace")
        found |= set(re.findall(r'\bread_doc_block\(\s*"([\w./-]+\.md)",\s*"([\w-]+)"', text))
        found |= set(re.findall(r"doc_block\.py ([\w./-]+\.md) ([\w-]+)", text))
    return found


@run_test_for_each_row("page", PAGES, ids=path_from_root)
def test_each_code_block_of_a_page_is_run_by_a_test_or_marked_as_untried(page: Path) -> None:
    text = page.read_text("utf-8")
    for fence in FENCE.finditer(text):
        before = text[: fence.start()].rstrip("\n").split("\n\n")[-1]
        marked = re.search(r"<!-- tried: [\w-]+ -->$", before) is not None
        assert marked or before.startswith("Untried"), (
            f"{path_from_root(page)}: this block has no <!-- tried: NAME --> before it, and the "
            f"paragraph before it does not begin with Untried:\n{fence[0]}"
        )


def test_each_code_block_with_a_name_is_run_by_a_test() -> None:
    there = {
        (path_from_root(page), name) for page in WITH_BLOCKS for name in read_code_blocks(page)
    }
    assert there, "no page has a code block that a test runs"
    assert there == doc_blocks_run_by_tests()


@run_test_for_each_row("page", WITH_LINKS, ids=path_from_root)
def test_each_link_of_a_page_to_a_file_leads_to_an_existing_file(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text("utf-8")))
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    may_be_made = paths_of_generated_pages() if page.is_relative_to(ROOT / "docs") else set()
    there = [(page.parent / link).resolve() for link in links]
    missing = [str(path) for path in there if not path.exists() and path not in may_be_made]
    assert not missing, f"{path_from_root(page)} has links that lead nowhere: {missing}"


def test_an_unknown_block_name_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- tried: here -->\n```sh\ntrue\n```\n")
    assert read_code_block(page, "here") == "true\n"
    with pytest.raises(ValueError, match="no block there"):
        read_code_block(page, "there")


def test_the_glossary_is_in_alphabetical_order() -> None:
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    terms = re.findall(r"^- \*\*(.+?)\*\*: ", text, re.MULTILINE)
    assert len(terms) > 40
    assert len(terms) == len(re.findall(r"^- ", text, re.MULTILINE))
    assert terms == sorted(terms, key=lambda term: re.sub(r"[^\w ]", "", term).lower())
