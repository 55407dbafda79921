"""Prints the reports of sanitizers in a run; the exit status is 1 if any report was printed.

Two kinds of reports are not printed:

- LeakSanitizer does not scan the stacks on which CPython keeps its frames, so objects that are
  referenced only by a running frame are reported as leaked. A leak is printed only if code of
  siwarp is in the call stack of its allocation.
- ThreadSanitizer does not see how glibc synchronizes the end of a thread with the reuse of its
  stack by a new thread. ThreadSanitizer reports a race when the creator of the new thread frees the
  thread-local storage of the old thread (_dl_deallocate_tls).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LEAK = re.compile(r"^(?:Direct|Indirect) leak of .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"/siwarp/[\w/]+\.[ch]:|libsiwarp\.so|_siwarp(?:_layers)?\.abi3\.so|/tests/c/")
#: The beginning of a ThreadSanitizer report whose first access is glibc freeing the thread-local
#: storage of an ended thread.
THREAD_ENDED = re.compile(
    r"\A\s*WARNING: ThreadSanitizer: data race.*\n"
    r"  Write of size \d+ .*\n(?:    #\d+ free .*\n)+    #\d+ (?:__GI_)?_dl_deallocate_tls "
)
SEPARATOR = "==================\n"
SHOWN = 20  # maximum number of reports printed
LINES = 100  # maximum lines per report
FRAMES = 12  # maximum frames per stack
#: The file in which tests/conftest.py records the test during which a report was written.
TESTS = "tests"


def extract_report_part_about_siwarp(text: str) -> str:
    """Return the part of a sanitizer report that is about siwarp, or ""."""
    if "WARNING: ThreadSanitizer" in text:
        races = (part for part in text.split(SEPARATOR) if part.strip())
        kept = [part for part in races if not THREAD_ENDED.match(part)]
        # The last lines of the file only contain the number of reports.
        return SEPARATOR.join(kept) if any("WARNING: " in part for part in kept) else ""
    if "ERROR: LeakSanitizer" not in text:
        return text
    head, _, leaks = text.partition("ERROR: LeakSanitizer")
    ours = [leak for leak in LEAK.findall(leaks) if OURS.search(leak)]
    # Text before the leaks in the same file may be the report of an error, which is printed.
    before = head if "ERROR: " in head or "runtime error: " in head else ""
    return before + "\n\n".join(ours)


def shorten_report(text: str) -> str:
    """Return the first lines of a report, with only the first frames of each stack.

    A fault that is handled by the memory guard leaves its frames on ThreadSanitizer's stack, so
    that the frames appear at the end of every later stack.
    """
    frame = re.compile(r"    #(\d+) ")
    lines = [
        line for line in text.splitlines() if not (m := frame.match(line)) or int(m[1]) < FRAMES
    ]
    return "\n".join(lines[:LINES])


def main() -> int:
    """Print the relevant reports in a folder; return 1 if there are any."""
    folder = Path(sys.argv[1])
    files = sorted(f for f in folder.iterdir() if f.name != TESTS)
    counted = [
        (f, text)
        for f in files
        if (text := extract_report_part_about_siwarp(f.read_text(errors="replace")))
    ]
    for file, text in counted[:SHOWN]:
        print(f"===== {file.name}")
        print(shorten_report(text))
    if counted and (folder / TESTS).exists():
        print((folder / TESTS).read_text(), end="")
    if counted:
        print(f"{len(counted)} processes with reports, in {sys.argv[1]}")
    return 1 if counted else 0


if __name__ == "__main__":
    sys.exit(main())
