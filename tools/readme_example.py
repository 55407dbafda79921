"""Prints the first Python example of a Markdown file: the first block fenced as ```python."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main() -> int:
    """Print the first Python example of a file; without an example, print an error and return 1."""
    path = Path(sys.argv[1])
    found = re.search(r"^```python\n(.*?)^```$", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    if found is None:
        print(f"{path} has no block fenced as ```python", file=sys.stderr)
        return 1
    sys.stdout.write(found.group(1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
