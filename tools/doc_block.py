"""Prints a code block of a documentation page: python tools/doc_block.py PAGE NAME.

Without arguments, prints how many code blocks the pages of docs/ have, and how many tests run.

The line before a fenced block contains the name of the block: ``<!-- tried: NAME -->``. Scripts
that run the commands of a page read the blocks by name, so that the scripts run exactly what the
page shows.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_NAMED = re.compile(r"<!-- tried: ([\w-]+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)

FENCE = re.compile(r"^```(\w*)\n.*?^```$", re.DOTALL | re.MULTILINE)
_ROOT = Path(__file__).resolve().parent.parent


def read_code_blocks(page: Path) -> dict[str, str]:
    """Return the text of each named code block of a page, by name."""
    found = _NAMED.findall(page.read_text("utf-8"))
    named: dict[str, str] = dict(found)
    if len(named) != len(found):
        raise ValueError(f"{page} has two blocks with the same name")
    return named


def read_code_block(page: Path, name: str) -> str:
    """Return the text of the code block of a page with the given name."""
    named = read_code_blocks(page)
    if name not in named:
        raise ValueError(f"{page} has no block {name}, but {', '.join(named) or 'none'}")
    return named[name]


def describe_code_blocks() -> str:
    """Return the number of code blocks of the pages in docs/, and how many of them tests run."""
    pages = list((_ROOT / "docs").rglob("*.md"))
    total = sum(len(FENCE.findall(page.read_text("utf-8"))) for page in pages)
    run = sum(len(read_code_blocks(page)) for page in pages)
    return f"docs/ has {total} code blocks: tests run {run}, {total - run} are marked as untried"


def main() -> int:
    """Print the named code block; if it does not exist, print the reason and return 1."""
    if len(sys.argv) == 1:
        print(describe_code_blocks())
        return 0
    try:
        sys.stdout.write(read_code_block(Path(sys.argv[1]), sys.argv[2]))
    except (OSError, ValueError) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
