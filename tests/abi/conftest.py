"""Fixtures that compile the programs of tests/abi/programs on demand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from abi.abi_harness import CC, PROGRAMS
from cli.cli_harness import environment_without_sanitizer

from siwarp import _paths


class Programs(dict[str, Path]):
    """The C programs of tests/abi/programs; each is compiled when a test first needs it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Path:
        """Compile a program and link it with --as-needed, as distributions link programs."""
        libraries = [str(_paths.rdma_core_abi_dir() / lib) for lib in (_paths.RDMACM, _paths.VERBS)]
        rpath = f"-Wl,-rpath-link,{_paths.library_path().parent}"
        source, program = PROGRAMS / f"{name}.c", self._folder / name
        subprocess.run(
            [*CC, str(source), "-o", str(program), "-Wl,--as-needed", *libraries, rpath],
            check=True,
            env=environment_without_sanitizer(),
        )
        self[name] = program
        return program


@pytest.fixture(scope="session")
def compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the paths of the compiled C programs of tests/abi/programs, by name."""
    return Programs(tmp_path_factory.mktemp("abi"))
