"""The open file descriptors of this process."""

from __future__ import annotations

import contextlib
import gc
import os


def list_open_descriptors() -> list[int]:
    """Return the open file descriptors, in ascending order."""
    with os.scandir("/proc/self/fd") as entries:
        listed = [int(entry.name) for entry in entries]
    found = []
    for fd in sorted(listed):
        # The descriptor through which the directory was read is in the list, but closed by now.
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.append(fd)
    return found


def count_open_descriptors() -> int:
    """Collect garbage, and return the number of open file descriptors.

    Without the collection, a count could include descriptors of unreachable objects of earlier
    tests, which are closed before the next count.
    """
    gc.collect()
    return len(list_open_descriptors())
