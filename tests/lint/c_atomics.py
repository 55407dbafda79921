"""Atomics are those of C11: no file of siwarp uses the compiler's __atomic_ or __sync_
built-ins.
"""

from __future__ import annotations

import re
import sys

from layers import PACKAGE

BUILTIN = re.compile(r"\b__(?:atomic|sync)_\w+|\b__ATOMIC_\w+")


def find_atomic_builtins(text: str) -> list[tuple[int, str]]:
    """Return line and name of each use of such a built-in in a C file."""
    lines = enumerate(text.splitlines(), 1)
    return [(number, name) for number, line in lines for name in BUILTIN.findall(line)]


def main() -> int:
    """Print each use; return 1 if there is any."""
    bad = checked = 0
    for path in sorted(PACKAGE.rglob("*.[ch]")):
        checked += 1
        for number, name in find_atomic_builtins(path.read_text("utf-8")):
            print(f"{path.relative_to(PACKAGE.parent)}:{number}: {name}: use <stdatomic.h>")
            bad += 1
    print(f"{checked} C files, {bad} atomics that are not C11's")
    return 1 if bad or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
