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
        # The directory's own descriptor is in the list, and closed by now.
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.append(fd)
    return found


def count_open_descriptors() -> int:
    """Return the number of open file descriptors without those that garbage holds.

    Otherwise a count could include descriptors that objects of earlier tests hold, which are closed
    before the next count.
    """
    gc.collect()
    return len(list_open_descriptors())
