"""Fixtures that compile the programs of tests/abi/programs on demand."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from abi.abi_harness import CC, PROGRAMS
from abi.symbols import exported_symbols
from cli.cli_harness import environment_without_sanitizer

from siwarp import _paths


class Programs(dict[str, Path]):
    """The C programs of tests/abi/programs; each is compiled when a test first needs it.

    A program is kept in the build directory until its sources, the headers, the symbols of the
    libraries or the command change, so that neither the next run nor another pytest process
    compiles it again.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        folder.mkdir(exist_ok=True)
        folders = _paths.rdma_core_abi_dir(), _paths.library_path().parent
        libraries = [str(folders[0] / lib) for lib in (_paths.RDMACM, _paths.VERBS)]
        self._link = ["-Wl,--as-needed", *libraries, f"-Wl,-rpath-link,{folders[1]}"]
        headers = [*PROGRAMS.glob("*.h"), *_paths.include_dir().rglob("*.h")]
        self._inputs = hashlib.sha256(repr([*CC, *self._link]).encode())
        for file in sorted(headers):
            self._inputs.update(file.read_bytes())
        for library in libraries:
            self._inputs.update(repr(sorted(exported_symbols(Path(library)))).encode())

    def __missing__(self, name: str) -> Path:
        """Compile a program and link it with --as-needed, as distributions link programs."""
        source, inputs = PROGRAMS / f"{name}.c", self._inputs.copy()
        inputs.update(source.read_bytes())
        program = self._folder / f"{name}-{inputs.hexdigest()[:16]}" / name
        if not program.exists():
            for old in {*self._folder.glob(f"{name}-*")} - {program.parent}:
                shutil.rmtree(old, ignore_errors=True)
            program.parent.mkdir(exist_ok=True)
            made = program.with_name(f"{name}.{os.getpid()}")
            subprocess.run(
                [*CC, str(source), "-o", str(made), *self._link],
                check=True,
                env=environment_without_sanitizer(),
            )
            made.replace(program)
        self[name] = program
        return program


@pytest.fixture(scope="session")
def compiled_programs(build_dir: Path) -> dict[str, Path]:
    """Return the paths of the compiled C programs of tests/abi/programs, by name."""
    return Programs(build_dir / "tests/abi")
