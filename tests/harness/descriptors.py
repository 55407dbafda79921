"""The open file descriptors of this process."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path


def list_open_descriptors() -> list[int]:
    """Return the open file descriptors, in ascending order."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        # The descriptor through which the directory was read is in the list, but closed by now.
        with contextlib.suppress(OSError):
            os.fstat(int(entry.name))
            found.append(int(entry.name))
    return sorted(found)


def count_open_descriptors() -> int:
    """Collect garbage, and return the number of open file descriptors.

    Without the collection, a count could include descriptors of unreachable objects of earlier
    tests, which are closed before the next count.
    """
    gc.collect()
    return len(list_open_descriptors())
