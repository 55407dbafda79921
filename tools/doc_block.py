"""Prints a code block of a documentation page: python tools/doc_block.py PAGE NAME.

The line before a fenced block contains the name of the block: ``<!-- tried: NAME -->``. Scripts
that run the commands of a page read the blocks by name, so that the scripts run exactly what the
page shows.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_NAMED = re.compile(r"<!-- tried: ([\w-]+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


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


def main() -> int:
    """Print the named code block; if it does not exist, print the reason and return 1."""
    try:
        sys.stdout.write(read_code_block(Path(sys.argv[1]), sys.argv[2]))
    except (OSError, ValueError) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
