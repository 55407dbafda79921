"""No cyclic calls among the C files of device, of qp and of connect: each folder has a call order.

Reads, with nm, the archives of the layers in meson's build folder (the argument). A lower file
calls a higher file through a const table of functions (struct siw_qp_class), which is not counted.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from c_symbols import symbols_of_archive

FOLDERS = ("device", "qp", "connect")
# Tables of functions of the queue pair types; a reference to such a table is not a call.
TABLES = tuple(f"siw_qp_{kind}_class" for kind in ("rc", "ud", "uc", "rd"))


def build_call_graph_of_files(archive: Path, folder: str) -> dict[str, dict[str, str]]:
    """Return, for each file of an archive, the files that it calls, each with a called symbol."""
    home: dict[str, str] = {}
    wanted: list[tuple[str, str]] = []
    for source, kind, symbol in symbols_of_archive(archive):
        name = source.removeprefix(f"siwarp_{folder}_")
        if kind in "TDBRVWCi":
            home[symbol] = name
        elif kind == "U" and symbol not in TABLES:
            wanted.append((name, symbol))
    graph: dict[str, dict[str, str]] = {name: {} for name in home.values()}
    for name, symbol in wanted:
        if symbol in home and home[symbol] != name:
            graph.setdefault(name, {})[home[symbol]] = symbol
    return graph


def find_cycle(graph: dict[str, dict[str, str]]) -> list[str]:
    """Return the files of a call cycle, with the first file repeated at the end, or []."""
    done: set[str] = set()

    def cycle_reached_from(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name not in done:
            for callee in sorted(graph.get(name, {})):
                if found := cycle_reached_from(callee, [*way, name]):
                    return found
            done.add(name)
        return []

    for name in sorted(graph):
        if found := cycle_reached_from(name, []):
            return found
    return []


def main() -> int:
    """Print a call cycle of each folder that has a cycle; return 1 if there is any."""
    bad = files = 0
    for folder in FOLDERS:
        graph = build_call_graph_of_files(Path(sys.argv[1]) / f"libsiw_{folder}.a", folder)
        files += len(graph)
        way = find_cycle(graph)
        for caller, callee in itertools.pairwise(way):
            print(f"{folder}/{caller} calls {graph[caller][callee]} of {callee}")
        bad += bool(way)
    print(f"{files} files, {bad} folders with a cycle")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
