"""The siwarp package as installed, in a folder that every user may read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from siwarp import _paths


def install_package(folder: Path) -> Path:
    """Install the package below a folder, without its metadata; return the value for PYTHONPATH.

    The layout is that of a wheel: C module, library and ``lib/abi`` are inside the package. All
    files are readable by all users.
    """
    if {"SANITIZER", "COVERAGE"} & os.environ.keys():
        pytest.skip("an instrumented tree is not installed")
    library = _paths.library_path()
    site = folder / "site"
    if library.parent.name == "lib":
        shutil.copytree(library.parent.parent, site / "siwarp")
    else:
        subprocess.run(
            ["meson", "install", "-C", library.parent, "--no-rebuild", "--destdir", site],
            check=True,
            capture_output=True,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        found = [path.parent for path in site.rglob("siwarp/cli/run.py")]
        assert len(found) == 1, found
        site = found[0].parent.parent
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and str(parent) != "/tmp":
            parent.chmod(parent.stat().st_mode | 0o755)
        if parent.parent == Path("/tmp"):
            break
    return site


def find_python_for_user(user: list[str]) -> str:
    """Return a Python interpreter that may be run after a command prefix which changes the user.

    The interpreter may differ from that of the tests: ``siwarp run`` needs 3.10 or newer.
    """
    for python in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run(
            [*user, python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"],
            capture_output=True,
            cwd="/",
        )
        if done.returncode == 0:
            return python
    pytest.skip(f"no Python that {' '.join(user) or 'this user'} may run")
