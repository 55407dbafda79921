"""Editable installs (tools/editable.py), which rebuild the library when the package is imported."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT = 60.0

MESON = """
project('mini', 'c')
add_project_link_arguments('-B{beside}', language: 'c')
shared_library('mini', 'mini.c', install: true)
import('python').find_installation().install_sources('__init__.py', subdir: 'mini')
"""

#: A linker that removes the old output, waits until a file named go exists, and then runs ld.
SLOW_LD = """#!/bin/sh
out=
for word; do
	[ "$out" = -o ] && out=$word && break
	[ "$word" = -o ] && out=-o
done
echo begun >>{folder}/links
rm -f "$out"
until [ -e {folder}/go ]; do sleep 0.02; done
exec ld "$@"
"""


class EditablePackage:
    """A package with one library that has the loader and the build tools of siwarp."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.source, self.build, self.slow = folder / "source", folder / "build", folder / "slow"
        self.source.mkdir()
        self.slow.mkdir()
        beside = root / "siwarp/_build/beside"
        (self.source / "meson.build").write_text(MESON.format(beside=beside))
        (self.source / "__init__.py").write_text(
            f"import ctypes\nvalue = ctypes.CDLL('{self.library_path}').value()\n"
        )
        self.write_source_returning(1)
        ld = self.slow / "ld"
        ld.write_text(SLOW_LD.format(folder=shlex.quote(str(self.slow))))
        ld.chmod(0o755)
        self.scripts = Path(sysconfig.get_path("scripts"))
        self.env = {n: v for n, v in os.environ.items() if n != "EDITABLE_NO_REBUILD"}
        self.env["PATH"] = f"{self.scripts}:{os.environ['PATH']}"
        setup = ["meson", "setup", str(self.build), str(self.source)]
        subprocess.run(setup, check=True, capture_output=True, timeout=LIMIT, env=self.env)

    @property
    def library_path(self) -> Path:
        return self.build / "libmini.so"

    def write_source_returning(self, value: int) -> None:
        (self.source / "mini.c").write_text(f"int value(void) {{ return {value}; }}\n")

    def start_importing_process(
        self, *, slow: bool = False, rebuild: bool = True
    ) -> subprocess.Popen[str]:
        """Import the package in a new process; if `slow` is set, the linker of a rebuild blocks."""
        code = (
            "import sys, _siwarp_editable_loader as loader\n"
            f"ninja = {str(self.scripts / 'siwarp-ninja')!r}\n"
            f"place = {str(self.source)!r}, {str(self.build)!r}, ninja\n"
            "sys.meta_path.insert(0, loader.Finder('mini', *place))\n"
            "import mini; print(mini.value)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **self.env,
                **({"COMPILER_PATH": str(self.slow)} if slow else {}),
                **({} if rebuild else {"EDITABLE_NO_REBUILD": "1"}),
            },
            start_new_session=True,
        )

    def import_and_get_value(self) -> str:
        out, err = self.start_importing_process().communicate(timeout=LIMIT)
        return out.strip() or err

    def slow_linker_start_count(self) -> int:
        """Return how many times the slow linker has started."""
        log = self.slow / "links"
        return log.read_text().count("begun") if log.exists() else 0

    def has_blocked_build(self) -> bool:
        """Return whether a build waits for another build to end."""
        lock = self.build / ".ninja-runs"
        if not lock.exists():
            return False
        number = f":{lock.stat().st_ino} "
        return any("->" in line and number in line for line in Path("/proc/locks").open())


def kill_session_of(process: subprocess.Popen[str]) -> None:
    """Kill all processes in the session of ``process``; ninja gives each child a process group."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            if session == process.pid:
                os.kill(int(stat.parent.name), signal.SIGKILL)
    process.communicate(timeout=LIMIT)


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def package_of_all_tests(tmp_path_factory: pytest.TempPathFactory, root: Path) -> EditablePackage:
    return EditablePackage(tmp_path_factory.mktemp("editable"), root)


@pytest.fixture
def editable_package(package_of_all_tests: EditablePackage) -> EditablePackage:
    """Return a package whose library returns 1, and whose changed source returns 2."""
    package = package_of_all_tests
    for name in ("links", "go"):
        (package.slow / name).unlink(missing_ok=True)
    package.write_source_returning(1)
    assert package.import_and_get_value() == "1"
    package.write_source_returning(2)
    return package


def test_a_rebuild_that_is_killed_midway_does_not_remove_the_old_library(
    editable_package: EditablePackage,
) -> None:
    killed = editable_package.start_importing_process(slow=True)
    wait_until(lambda: editable_package.slow_linker_start_count() == 1)
    kill_session_of(killed)

    load = f"import ctypes; print(ctypes.CDLL('{editable_package.library_path}').value())"
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr
    assert editable_package.import_and_get_value() == "2"


def test_an_import_waits_for_the_running_rebuild_of_a_killed_import(
    editable_package: EditablePackage,
) -> None:
    killed = editable_package.start_importing_process(slow=True)
    wait_until(lambda: editable_package.slow_linker_start_count() == 1)
    killed.kill()
    next_one = editable_package.start_importing_process(slow=True)
    # Without the wait, the second import would link as well, and both would write the same files.
    wait_until(
        lambda: (
            editable_package.has_blocked_build() or editable_package.slow_linker_start_count() == 2
        )
    )
    (editable_package.slow / "go").touch()
    out, err = next_one.communicate(timeout=LIMIT)
    assert out == "2\n", err
    assert editable_package.slow_linker_start_count() == 1
    killed.communicate(timeout=LIMIT)


def test_a_failed_link_does_not_remove_the_old_library(
    editable_package: EditablePackage,
) -> None:
    (editable_package.source / "mini.c").write_text(
        "int none(void);\nint value(void) { return none(); }\n"
    )
    assert "rebuilding" in editable_package.import_and_get_value()
    assert sorted(p.name for p in editable_package.build.glob("libmini.so*") if p.is_file()) == [
        "libmini.so"
    ]
    editable_package.write_source_returning(3)
    assert editable_package.import_and_get_value() == "3"


def test_the_installed_siwarp_uses_the_loader_and_linker_wrapper_of_this_tree(
    build_dir: Path, root: Path
) -> None:
    finders = [f for f in sys.meta_path if getattr(f, "name", None) == "siwarp"]
    assert finders
    for finder in finders:
        ninja = Path(finder.ninja)  # type: ignore[attr-defined]
        assert ninja.read_text() == (root / "tools/ninja").read_text()
    words = (
        (build_dir / "build.ninja").read_text().split("build libsiwarp.so.0: ")[1].split("\n\n")[0]
    )
    assert f"-B{root}/siwarp/_build/beside" in words.replace("$ ", " ")


def test_tools_ninja_refuses_to_run_outside_of_a_venv_instead_of_calling_itself(root: Path) -> None:
    done = subprocess.run(
        [root / "tools/ninja", "-C", "build"], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 2
    assert "in a venv alone, as siwarp-ninja: make build" in done.stderr


def test_the_editable_install_adds_no_imports_to_processes_that_do_not_use_siwarp() -> None:
    code = "import sys; print({'ast', 'inspect', 'json', 'subprocess'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_import_with_editable_no_rebuild_set_does_not_rebuild(
    editable_package: EditablePackage,
) -> None:
    with editable_package.start_importing_process(rebuild=False) as stale:
        assert stale.communicate(timeout=LIMIT)[0] == "1\n"
    assert editable_package.import_and_get_value() == "2"
