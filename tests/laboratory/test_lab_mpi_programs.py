"""python -m lab.mpi with PyPI's MPICH: a short run of each part."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from abi.table import create_virtual_env
from laboratory.lab_harness import run_lab_study

from lab.mpi import kernels, launch
from siwarp.bench.runner import BenchError

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(name="mpich", scope="module")
def install_mpich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install PyPI's MPICH into a new virtual environment."""
    folder = tmp_path_factory.mktemp("mpich")
    why = create_virtual_env(folder, "mpich")
    assert not why, why
    return folder


def test_every_transport_transfers_checked_messages_of_every_size(
    mpich: Path, tmp_path: Path
) -> None:
    done = run_lab_study(
        *("mpi", "--json", "--part", "wire", "--mpich", mpich, "--rounds", 1),
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


def test_memory_and_kernels_are_measured_over_ud_and_rc(mpich: Path) -> None:
    words = ("--part", "memory,kernels", "--ranks", "2,4", "--rounds", 1, "--mpich", mpich)
    done = run_lab_study("mpi", "--json", *words, timeout=250)
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    two, four = found["memory"]["points"]
    for point in (two, four):
        assert point["ud"]["siwarp"] > 0 and point["rc"]["siwarp"] > 0 == point["tcp"]["siwarp"]
        assert point["ud"]["sockets"]["udp"] >= 1
        assert point["saving"]["whole"] > 0
    # Each further peer costs a connection with RC, and no socket with UD.
    assert four["rc"]["sockets"]["tcp"] > two["rc"]["sockets"]["tcp"]
    assert four["ud"]["sockets"] == two["ud"]["sockets"]
    rows = found["kernels"]["rows"]
    assert [(row["kernel"], row["ranks"]) for row in rows] == [
        (kernel, ranks) for kernel in ("cg", "mg", "lu") for ranks in (2, 4)
    ]
    for row in rows:
        for name in ("ud", "rc", "tcp"):
            assert 0 < row[name]["communication"]["median"] <= row[name]["seconds"]["median"]
            assert row[name]["residual"] < 1e-6
            assert row[name]["calls"] > 0


def test_a_kernel_with_a_large_residual_fails(mpich: Path, tmp_path: Path) -> None:
    sources = Path(kernels.__file__).parent
    wrong = (sources / "mpi_cg.c").read_text().replace("#define STEPS\t50", "#define STEPS\t2")
    (tmp_path / "mpi_cg.c").write_text(wrong)
    files = [tmp_path / "mpi_cg.c"]
    files += [sources / f"mpi_{name}.c" for name in ("kernels", "mg", "lu", "time")]
    program = tmp_path / "kernels"
    compiler = [str(mpich / "bin" / "mpicc"), "-D_GNU_SOURCE", f"-I{sources.parents[1]}"]
    subprocess.run([*compiler, *map(str, files), "-o", str(program), "-lm"], check=True)
    found = launch.find_mpich(mpich, tmp_path)
    command = [str(program), "cg", "1024"]
    with pytest.raises(BenchError, match=r"the residual is .*, more than 1e-09"):
        found.run_program(
            launch.TRANSPORTS["tcp"],
            launch.find_first_non_loopback_interface(),
            2,
            command,
            limit=60,
        )
