# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The environment in which a program finds our ``libibverbs.so.1`` before any other.

``LD_LIBRARY_PATH`` is for what is linked to that name. Wheels carry copies under names of their own
(``libibverbs-1de1263b.so.1``), which no search path replaces; what is preloaded comes first when
symbols are looked up, so their calls land in ours, too. ``LD_PRELOAD`` may name paths without
blanks and colons only: elsewhere the name alone stands there, which the search path leads to us.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from siwarp import _paths

__all__ = ["preloaded"]

PATH, PRELOAD = "LD_LIBRARY_PATH", "LD_PRELOAD"


def _libraries(folder: Path) -> list[Path]:
    found = sorted(folder.glob("lib*.so.1"))
    if not found:
        raise FileNotFoundError(f"no libibverbs.so.1 in {folder}: install siwarp again")
    return found


def _preloadable(library: Path) -> str:
    return library.name if re.search(r"[\s:]", str(library)) else str(library)


def preloaded(environment: Mapping[str, str], folder: Path | None = None) -> dict[str, str]:
    """Return the two variables for a program that runs in this environment.

    Its own values stay: its libraries are preloaded before ours, as a sanitizer's must be, and its
    search path is behind ours. ``folder`` is where our libraries lie.

    Raises:
        FileNotFoundError: the installation has no such libraries.
        ValueError: the loader takes no folder of that name.

    """
    folder = folder or _paths.abi_dir()
    if re.search(r"[:;]", str(folder)):
        raise ValueError(
            f"{folder}: LD_LIBRARY_PATH takes no path with : or ; in it: move siwarp elsewhere"
        )
    ours = [_preloadable(library) for library in _libraries(folder)]
    theirs = [name for name in re.split(r"[\s:]+", environment.get(PRELOAD, "")) if name]
    # An empty entry of the search path is the current folder, as it was before.
    places = environment[PATH].split(":") if environment.get(PATH) else []
    return {
        PATH: ":".join([str(folder), *(place for place in places if place != str(folder))]),
        PRELOAD: ":".join([*(name for name in theirs if name not in ours), *ours]),
    }
