"""Print what the sanitizers reported during a run; 1 if anything of it counts.

Every report counts but one kind. LeakSanitizer does not look into the stacks on which CPython keeps
its frames, so that objects which only a running frame holds look lost. A lost allocation counts
if code of siwarp stands anywhere in the calls that made it; without that it is the interpreter's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LEAK = re.compile(r"^(?:Direct|Indirect) leak of .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"/siwarp/[\w/]+\.[ch]:|libsiwarp\.so|_siwarp(?:_layers)?\.abi3\.so|/tests/c/")
SHOWN = 20  # reports
LINES = 100  # of each
FRAMES = 12  # of each stack
#: Written by tests/conftest.py: during which test a report grew, and from where on.
TESTS = "tests"


def what_counts(text: str) -> str:
    """Return the part of a report that is about siwarp, empty if none is."""
    if "ERROR: LeakSanitizer" not in text:
        return text
    head, _, leaks = text.partition("ERROR: LeakSanitizer")
    ours = [leak for leak in LEAK.findall(leaks) if OURS.search(leak)]
    # What stands before the leaks in the same file is another report: an error, which counts.
    before = head if "ERROR: " in head or "runtime error: " in head else ""
    return before + "\n\n".join(ours)


def shown(text: str) -> str:
    """Return the head of a report, and of each stack in it.

    A fault that the guard of memory ends leaves its frames on ThreadSanitizer's stack, so that
    they stand at the far end of every later one.
    """
    frame = re.compile(r"    #(\d+) ")
    lines = [
        line for line in text.splitlines() if not (m := frame.match(line)) or int(m[1]) < FRAMES
    ]
    return "\n".join(lines[:LINES])


def main() -> int:
    """Print the reports in the folder given."""
    folder = Path(sys.argv[1])
    files = sorted(f for f in folder.iterdir() if f.name != TESTS)
    counted = [(f, text) for f in files if (text := what_counts(f.read_text(errors="replace")))]
    for file, text in counted[:SHOWN]:
        print(f"===== {file.name}")
        print(shown(text))
    if counted and (folder / TESTS).exists():
        print((folder / TESTS).read_text(), end="")
    if counted:
        print(f"{len(counted)} processes with reports, in {sys.argv[1]}")
    return 1 if counted else 0


if __name__ == "__main__":
    sys.exit(main())
