"""siwarp bench mpi with PyPI's MPICH: a short run of each part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from abi.table import environment
from cli.cli_harness import siwarp

pytestmark = [pytest.mark.programs, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def mpich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install PyPI's MPICH into an environment of its own."""
    folder = tmp_path_factory.mktemp("mpich")
    why = environment(folder, "mpich")
    assert not why, why
    return folder


def test_every_transport_moves_checked_data_of_every_size(mpich: Path, tmp_path: Path) -> None:
    done = siwarp(
        *("bench", "mpi", "--json", "--part", "wire", "--mpich", mpich, "--rounds", 1),
        *("--sizes", "64,8192,1048576", "-o", tmp_path / "found.json"),
        timeout=200,
    )
    found = json.loads(done.stdout)
    part = found["wire"]
    assert not found["errors"] and not part["errors"], done.stdout
    assert len(part["transports"]) == 5
    for figures in part["transports"].values():
        assert list(figures) == ["64", "8192", "1048576"]
        for point in figures.values():
            assert all(point[metric]["median"] > 0 for metric in ("lat", "bw", "bibw"))
    assert done.returncode == (0 if all(must["kept"] for must in part["musts"]) else 1)
