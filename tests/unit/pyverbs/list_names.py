"""Print the public names of the modules of pyverbs: list_names.py PACKAGE.

A line consists of a module and one of its names: ``Class.name`` for members of a class, ``name =
number`` for integers. names.txt is the output for pyverbs of rdma-core.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Iterator

#: All modules of pyverbs except the modules for devices of particular vendors.
MODULES = [
    "addr", "base", "cm_enums", "cmid", "cq", "device", "dma_util", "dmabuf", "enums", "flow",
    "fork", "mem_alloc", "mr", "pd", "pyverbs_error", "qp", "spec", "srq", "utils", "wq", "wr",
    "xrcd",
]  # fmt: skip
#: Names that Python or the compiler of pyverbs adds.
FOREIGN_NAMES = {"LOG_FORMAT", "LOG_LEVEL", "HUGE_PAGE_SIZE", "U32_MASK", "IntEnum", "IntFlag"}


def public_names_in_class(name: str, kind: type) -> Iterator[str]:
    """Yield the name of a class, and the names of its own and inherited members."""
    yield name
    for member in sorted(dir(kind)):
        if not member.startswith("_") and not hasattr(Exception, member):
            yield f"{name}.{member}"


def public_names_in_module(module: types.ModuleType) -> Iterator[str]:
    """Yield the public names of a module, with members of classes and values of integers."""
    for name, value in sorted(vars(module).items()):
        hidden = name.startswith("_") and not name.startswith("_IBV_")
        if hidden or name in FOREIGN_NAMES or isinstance(value, types.ModuleType):
            continue
        if isinstance(value, int):
            yield f"{name} = {int(value)}"
        elif inspect.isclass(value) and module.__name__.rsplit(".", 1)[1].endswith("enums"):
            yield name
        elif inspect.isclass(value):
            yield from public_names_in_class(name, value)
        elif callable(value):
            yield name


def list_public_names(package: str) -> list[str]:
    """Return all lines of the output for a package."""
    found = ((name, importlib.import_module(f"{package}.{name}")) for name in MODULES)
    return [f"{name} {line}" for name, module in found for line in public_names_in_module(module)]


if __name__ == "__main__":
    print("\n".join(list_public_names(sys.argv[1])))
