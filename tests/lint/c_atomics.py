"""Atomics are those of C11: no C file uses the __atomic_ or __sync_ built-ins of the compiler."""

from __future__ import annotations

import re
import sys

from layers import PACKAGE

BUILTIN = re.compile(r"\b__(?:atomic|sync)_\w+|\b__ATOMIC_\w+")


def find_atomic_builtins(text: str) -> list[tuple[int, str]]:
    """Return line and name of each atomic built-in of the compiler that a C file uses."""
    lines = enumerate(text.splitlines(), 1)
    return [(number, name) for number, line in lines for name in BUILTIN.findall(line)]


def main() -> int:
    """Print each use of an atomic built-in; return 1 if there is any."""
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
