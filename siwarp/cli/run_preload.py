# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The environment in which a program loads siwarp's ``libibverbs.so.1`` before any other.

``LD_LIBRARY_PATH`` serves programs that are linked to that name. Wheels contain copies with other
names (``libibverbs-1de1263b.so.1``), which no search path replaces; preloaded libraries come first
in symbol look-up, so that calls of such programs also reach siwarp's library. ``LD_PRELOAD`` cannot
hold paths with blanks or colons; for such a folder it holds only the file name, which is found by
the search path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from siwarp import _paths

__all__ = ["ld_preload_environment"]

PATH, PRELOAD = "LD_LIBRARY_PATH", "LD_PRELOAD"


def _rdma_core_abi_libraries(folder: Path) -> list[Path]:
    found = sorted(folder.glob("lib*.so.1"))
    if not found:
        raise FileNotFoundError(
            f"no libibverbs.so.1 in {folder}: siwarp's wheels for musl (Alpine Linux) do not have "
            "it; on other systems, install siwarp again"
        )
    return found


def _ld_preload_entry(library: Path) -> str:
    return library.name if re.search(r"[\s:]", str(library)) else str(library)


def ld_preload_environment(
    environment: Mapping[str, str], folder: Path | None = None
) -> dict[str, str]:
    """Return LD_LIBRARY_PATH and LD_PRELOAD for a program that runs in this environment.

    Existing values are kept: the program's preloaded libraries stay before siwarp's, as sanitizers
    require, and its search path follows siwarp's folder. ``folder`` holds siwarp's libraries.

    Raises:
        FileNotFoundError: the installation has no such libraries.
        ValueError: the loader does not accept a folder with this name.

    """
    folder = folder or _paths.rdma_core_abi_dir()
    if re.search(r"[:;]", str(folder)):
        raise ValueError(
            f"{folder}: LD_LIBRARY_PATH accepts no path that contains : or ;: install siwarp in "
            "another folder"
        )
    ours = [_ld_preload_entry(library) for library in _rdma_core_abi_libraries(folder)]
    theirs = [name for name in re.split(r"[\s:]+", environment.get(PRELOAD, "")) if name]
    # An empty entry of the search path means the current folder and is kept.
    places = environment[PATH].split(":") if environment.get(PATH) else []
    return {
        PATH: ":".join([str(folder), *(place for place in places if place != str(folder))]),
        PRELOAD: ":".join([*(name for name in theirs if name not in ours), *ours]),
    }
