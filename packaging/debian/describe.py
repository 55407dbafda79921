#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Writes the metadata of the Python package and its command: describe.py MODULES COMMANDS.

The arguments are folders. Everything is read from pyproject.toml, the version from meson.build;
the package in Debian 12 that is older than pip's is named here.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Requirements of pyproject.toml, and those that Debian 12 meets (siwarp/cli/old_typer.py).
IN_DEBIAN = {"typer>=0.20,<0.29": "typer>=0.7,<0.8"}
COMMAND = """\
#!/usr/bin/python3
import sys

from {module} import {function}

sys.exit({function}())
"""


def format_metadata(project: dict[str, Any], version: str) -> str:
    """Return the text of the file METADATA."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {need}" for need in project["dependencies"]),
    ]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [
            f'Requires-Dist: {IN_DEBIAN.get(need, need)} ; extra == "{extra}"' for need in needs
        ]
    return "\n".join(lines) + "\n"


def format_entry_points(project: dict[str, Any]) -> str:
    """Return the text of the file entry_points.txt."""
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {what}\n" for name, what in entries.items())
        for group, entries in groups.items()
    )


def write_dist_info_and_commands(modules: Path, commands: Path) -> None:
    """Write the .dist-info folder and the commands of the package in the current folder."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    found = re.search(r"^  version: '(.*)',$", Path("meson.build").read_text("utf-8"), re.MULTILINE)
    assert found, "meson.build names no version"
    info = modules / f"{project['name']}-{found[1]}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(format_metadata(project, found[1]), "utf-8")
    (info / "entry_points.txt").write_text(format_entry_points(project), "utf-8")
    (info / "INSTALLER").write_text("debian\n", "utf-8")
    commands.mkdir()
    for name, what in project["scripts"].items():
        module, _, function = what.partition(":")
        (commands / name).write_text(COMMAND.format(module=module, function=function), "utf-8")
        (commands / name).chmod(0o755)


if __name__ == "__main__":
    write_dist_info_and_commands(*map(Path, sys.argv[1:]))
