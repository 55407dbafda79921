# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Creates a folder with the input of Sphinx: ``python tools/pages/stage.py DIR``.

DIR has the structure of the source tree, so that links between pages work. DIR contains folders and
files of the tree as symbolic links, and the pages that are generated from the code.
"""

from __future__ import annotations

import functools
import importlib
import shutil
import sys
from itertools import groupby
from pathlib import Path
from types import FunctionType, GenericAlias, ModuleType

import commands
import coverage
import headers
import tables

ROOT = Path(__file__).resolve().parents[2]
#: Folders and files that are linked unchanged; docs has generated pages as well.
LINKED = ("examples", "siwarp", "spec", "tests", "tools", "Makefile", "pyproject.toml", ".ci")
PACKAGES = (
    "siwarp",
    "siwarp.verbs",
    "siwarp.verbs.arrays",
    "siwarp.cm",
    "siwarp.aio",
    "siwarp.ulp.adts",
    "siwarp.ulp.ftp",
    "siwarp.testing",
    "siwarp.inspect",
)
HEADERS = ("types.h", "siw.h", "siw_ext.h", "cm.h", "ibv_ext.h")


def main() -> int:
    """Create the folder anew, with the input of Sphinx; return 0."""
    stage = Path(sys.argv[1])
    shutil.rmtree(stage, ignore_errors=True)
    (stage / "docs").mkdir(parents=True)
    for path in [*ROOT.glob("*.md"), *ROOT.glob("LICENSE*"), *(ROOT / name for name in LINKED)]:
        (stage / path.name).symlink_to(path)
    for path in (ROOT / "docs").rglob("*"):
        target = stage / path.relative_to(ROOT)
        if path.is_file():
            target.parent.mkdir(exist_ok=True)
            target.symlink_to(path)
    for name, text in generated_doc_pages().items():
        target = stage / "docs" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, "utf-8")
    return 0


@functools.cache
def generated_doc_pages() -> dict[str, str]:
    """Return the text of each generated page, by file name in docs."""
    troubleshooting = (ROOT / "TROUBLESHOOTING.md").read_text("utf-8")
    made = {
        "reference/settings.md": tables.settings_doc_page(),
        "reference/counters.md": tables.counters_doc_page(troubleshooting),
        "reference/exceptions.md": tables.exceptions_doc_page(ROOT / "siwarp/base/reason.h"),
    }
    groups = groupby(commands.list_commands(), lambda command: command.path[:2])
    for path, group in groups:
        made[f"reference/command/{'-'.join(path)}.md"] = commands.command_doc_page(list(group))
    parsed = [headers.parse_header(ROOT / "siwarp/include/siwarp" / name) for name in HEADERS]
    kinds: dict[str, str] = {}
    for found in (d for header in parsed for d in header.declarations):
        kinds.setdefault(found.name, found.kind)
    for header in parsed:
        made[f"reference/c/{header.name.replace('.', '_')}.md"] = headers.header_doc_page(
            header, kinds
        )
    made |= {f"reference/python/{name}.md": python_doc_page(name) for name in PACKAGES}
    return made | coverage.coverage_doc_pages(ROOT)


def python_doc_page(package: str) -> str:
    """Return the page of a Python package: the names in ``__all__``, by defining module."""
    module = importlib.import_module(package)
    lines = [f"# `{package}`", "", "```{eval-rst}", f".. automodule:: {package}", "```", ""]
    elsewhere: list[str] = []
    by_module: dict[str, list[str]] = {}
    for name in module.__all__:
        found = getattr(module, name)
        where = getattr(found, "__module__", package)
        if name in tables.EXCEPTIONS:
            elsewhere.append(f"[`{name}`](#exception-{name.lower()})")
        elif package == "siwarp":
            elsewhere.append(_package_or_name_link(name, found))
        else:
            by_module.setdefault(where, []).append(name)
    lines += [f"Described elsewhere: {', '.join(elsewhere)}.", ""] if elsewhere else []
    for where, names in sorted(by_module.items()):
        ours = importlib.import_module(where) if where.startswith("siwarp.") else None
        title = ((ours and ours.__doc__) or "Values").strip().split("\n")[0].rstrip(".")
        lines += [f"## {title}", ""]
        for name in names:
            lines += [
                "```{eval-rst}",
                *_make_autodoc_directive(package, name, getattr(module, name)),
                "```",
                "",
            ]
    return "\n".join(lines)


def _package_or_name_link(name: str, found: object) -> str:
    """Return a link to a package, or to a name that ``siwarp`` re-exports."""
    if isinstance(found, ModuleType):
        return f"[`{name}`](siwarp.{name}.md)"
    package = ".".join(str(getattr(found, "__module__", "")).split(".")[:2])
    kind = "class" if isinstance(found, type) else "func"
    return f"{{py:{kind}}}`{name} <{package}.{name}>`" if callable(found) else f"`{name}`"


def _make_autodoc_directive(package: str, name: str, found: object) -> list[str]:
    what = f"{package}.{name}"
    if isinstance(found, type) and not isinstance(found, GenericAlias):
        return [f".. autoclass:: {what}", "   :members:"]
    if isinstance(found, FunctionType):
        return [f".. autofunction:: {what}"]
    return [f".. autodata:: {what}"]


if __name__ == "__main__":
    sys.exit(main())
