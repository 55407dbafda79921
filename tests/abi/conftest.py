"""The programs of tests/abi/programs, compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from abi.abi_harness import CC, PROGRAMS
from cli.cli_harness import unsanitized

from siwarp import _paths


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return each program of the folder, linked as a distribution links its own."""
    folder = tmp_path_factory.mktemp("abi")
    folder_of_ours = _paths.abi_dir()
    libraries = [str(folder_of_ours / name) for name in (_paths.RDMACM, _paths.VERBS)]
    sources = sorted(PROGRAMS.glob("*.c"))
    assert sources
    for source in sources:
        rpath = f"-Wl,-rpath-link,{_paths.library().parent}"
        subprocess.run(
            [
                *CC,
                str(source),
                "-o",
                str(folder / source.stem),
                "-Wl,--as-needed",
                *libraries,
                rpath,
            ],
            check=True,
            env=unsanitized(),
        )
    return {source.stem: folder / source.stem for source in sources}
