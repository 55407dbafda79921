"""Compares the names and versions that libibverbs.so.1 and librdmacm.so.1 export with symbols.txt.

``python tests/abi/symbols.py`` prints the differences (``make abi-symbols``); with ``--write`` it
rewrites the list. The names of rdma-core 44 are part of the interface: lines may be added to the
list, but never removed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).parent / "symbols.txt"
#: A line of readelf --dyn-syms: value, size, type, binding, visibility, section, name@version.
LINE = re.compile(r"\s(?:FUNC|OBJECT)\s+GLOBAL\s+DEFAULT\s+(\d+)\s+(\w+@{1,2}\w[\w.]*)$")


def exported_symbols(library: Path) -> set[str]:
    """Return each ``name@NODE`` that a library defines, ``name@@NODE`` for default versions."""
    out = subprocess.run(
        ["readelf", "-W", "--dyn-syms", str(library)], check=True, capture_output=True, text=True
    ).stdout
    return {found[2] for line in out.splitlines() if (found := LINE.search(line))}


def main() -> int:
    """Print the missing and superfluous names of both libraries; return 1 if there are any."""
    from siwarp import _paths

    folder = _paths.rdma_core_abi_dir()
    have = exported_symbols(folder / _paths.VERBS) | exported_symbols(folder / _paths.RDMACM)
    if "--write" in sys.argv[1:]:
        LIST.write_text("".join(f"{name}\n" for name in sorted(have)), "utf-8")
    wanted = set(LIST.read_text("utf-8").split())
    for name in sorted(wanted - have):
        print(f"missing: {name}")
    for name in sorted(have - wanted):
        print(f"not in {LIST.name}: {name}")
    print(f"{len(have)} names of {len({n.split('@')[-1] for n in have})} versions")
    return int(have != wanted or not have)


if __name__ == "__main__":
    sys.exit(main())
