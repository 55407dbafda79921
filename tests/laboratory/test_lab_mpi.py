"""python -m lab.mpi: missing programs are named, and results are compared with promised limits.

The tests that run a real MPICH are in test_lab_mpi_programs.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from laboratory.lab_harness import create_fake_mpich, run_lab_study

from lab.mpi import kernels, launch, peers, wire
from siwarp.bench.runner import BenchError

POINT = {"lat": 4.0, "bw": 1.0, "bibw": 1.5}


def _make_simulated_run(scale: dict[str, float]) -> Any:
    """Return a simulated run: the figures of a transport are those of POINT times its scale."""

    def return_simulated_figures(
        _: Any, name: str, netif: str, sizes: list[int]
    ) -> dict[int, dict[str, float]]:
        factor = scale.get(name, 1.0)
        assert netif == "eth7"
        return {size: {metric: value * factor for metric, value in POINT.items()} for size in sizes}

    return return_simulated_figures


MPICH = launch.Mpich(Path("/none"), Path("/none"), "9.9", ("ucx", "ofi"))


def _measure_simulated_transports(return_simulated_figures: Any, rounds: int = 3) -> dict[str, Any]:
    return wire.measure_transports(MPICH, "eth7", rounds, run=return_simulated_figures)


def test_the_error_for_a_missing_mpich_says_how_to_install_it(tmp_path: Path) -> None:
    done = run_lab_study("mpi", "--json", "--part", "wire", "--mpich", tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"lab mpi: no mpicc in {tmp_path}/bin: {launch.HOW_TO_INSTALL}\n"
    found = json.loads(done.stdout)
    assert found["wire"] is None and found["mpi"] is None
    assert found["errors"]["wire"].startswith("left out: no mpicc in ")
    shown = run_lab_study("mpi", "--part", "wire", "--mpich", tmp_path)
    assert shown.returncode == 1
    assert "wire: NOT SHOWN: left out: no mpicc" in shown.stdout
    assert "pip install mpich" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--part", "weather"), "'weather' is not one of wire"),
        (("--part", ""), "'' is not one of wire"),
        (("--sizes", "64,big"), "octets from 8 to 2**30, separated by commas"),
        (("--sizes", "7"), "octets from 8 to 2**30, separated by commas"),
        (("--ranks", "1"), "ranks from 2 to 256, separated by commas"),
        (("--ranks", "2,,4"), "ranks from 2 to 256, separated by commas"),
        (("--rounds", "0"), "0 is not in the range x>=1"),
        (("--mpi", "x"), "No such option: --mpi"),
    ],
)
def test_invalid_arguments_of_lab_mpi_are_refused(arguments: tuple[str, ...], why: str) -> None:
    done = run_lab_study("mpi", *arguments, env={"COLUMNS": "200"})
    assert done.returncode == 2
    assert why in done.stderr and not done.stdout


def test_the_json_has_the_spread_of_each_figure_and_every_round(tmp_path: Path) -> None:
    sizes = [64, 1 << 20]
    mpich = create_fake_mpich(tmp_path, {"mpi_wire": [{"size": size, **POINT} for size in sizes]})
    done = run_lab_study(
        *("mpi", "--json", "--part", "wire", "--mpich", mpich, "--netif", "eth7"),
        *("--rounds", 2, "--sizes", "64,1048576", "-o", tmp_path / "kept.json"),
    )
    found = json.loads(done.stdout)
    # All transports have the same figures here, so no promised limit is missed.
    assert (done.returncode, found["errors"], done.stderr) == (0, {}, "")
    assert found == json.loads((tmp_path / "kept.json").read_text())
    assert found["schema"] == "siwarp-bench-mpi/1"
    assert found["mpi"] == {"version": "9.9", "netmods": ["ucx", "ofi"]}
    assert found["netif"] == "eth7"
    part = found["wire"]
    assert part["sizes"] == sizes and part["errors"] == {}
    assert list(part["transports"]) == list(launch.TRANSPORTS)
    assert [list(each) for each in part["rounds"]] == [list(launch.TRANSPORTS)] * 2
    same = {"median": 4.0, "min": 4.0, "max": 4.0}
    one = {"median": 1.0, "min": 1.0, "max": 1.0}
    figures = part["transports"]["ud"]["64"]
    assert figures["lat"] == same and figures["lat_ratio"] == one
    assert "lat_ratio" not in part["transports"]["tcp"]["64"]
    assert [must["kept"] for must in part["musts"]] == [True] * 3


@pytest.mark.parametrize(
    ("says", "compiler", "status", "why"),
    [
        ({}, "echo no.c:1: error >&2; exit 1", 0, "mpicc does not compile mpi_wire: no.c:1: error"),
        ({}, "", 3, "mpi_wire over UCX tcp failed: exit status 3: it is raining"),
        ({}, "", 0, "mpi_wire over UCX tcp printed no results: ''"),
    ],
)
def test_a_failed_transport_has_the_reason_and_the_exit_status_is_1(
    tmp_path: Path, says: dict[str, Any], compiler: str, status: int, why: str
) -> None:
    mpich = create_fake_mpich(tmp_path, says, compiler, status)
    words = ("--part", "wire", "--mpich", mpich, "--netif", "eth7", "--rounds", 1)
    done = run_lab_study("mpi", "--json", *words)
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["wire"]["errors"]["tcp"] == why
    assert not found["wire"]["transports"]
    assert not any(must["kept"] for must in found["wire"]["musts"])


def test_a_transport_whose_netmod_mpich_lacks_is_refused() -> None:
    mpich = launch.Mpich(Path("/none"), Path("/none"), "4.0", ("ucx",))
    with pytest.raises(BenchError, match=r"this MPICH 4\.0 has no ofi: PyPI.s has it"):
        mpich.run_program(launch.TRANSPORTS["rxm"], "eth7", 2, ["x"], limit=1)


def test_all_processes_of_a_job_that_exceeds_its_limit_are_killed(tmp_path: Path) -> None:
    tools = create_fake_mpich(tmp_path, {}) / "bin"
    (tools / "mpiexec").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 1000\n")
    mpich = launch.Mpich(tools, tmp_path, "9.9", ("ucx",))
    with pytest.raises(BenchError, match=r"x over UCX tcp did not finish within 1 s"):
        mpich.run_program(launch.TRANSPORTS["tcp"], "eth7", 2, ["x"], limit=1)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_promises_are_judged_by_the_median_of_the_rounds_ratios() -> None:
    found = _measure_simulated_transports(_make_simulated_run({"ud": 1.0, "rc": 1.01}))
    ud, rc, bandwidth = wire.judge_performance_promises(found)
    assert ud["name"] == "UCX ud_verbs, 64 B: latency, one way no more than UCX tcp's"
    assert ud["kept"] and ud["ratio"]["median"] == 1
    assert not rc["kept"] and rc["ratio"]["median"] == pytest.approx(1.01)
    assert bandwidth["name"].startswith("UCX rc_verbs, 1 MiB: bandwidth, one way no less than")
    assert bandwidth["kept"]
    *_, slower = wire.judge_performance_promises(
        _measure_simulated_transports(_make_simulated_run({"rc": 0.99}))
    )
    assert not slower["kept"]


def test_rounds_begin_with_different_transports_and_skip_a_failed_transport() -> None:
    order: list[str] = []
    pretend = _make_simulated_run({})

    def return_simulated_figures(mpich: Any, name: str, *more: Any) -> dict[int, dict[str, float]]:
        order.append(name)
        if name == "rxm":
            raise BenchError("no rain")
        return dict(pretend(mpich, name, *more))

    found = _measure_simulated_transports(return_simulated_figures, rounds=2)
    names = list(launch.TRANSPORTS)
    assert order == [*names, *[name for name in names[1:] + names[:1] if name != "rxm"]]
    assert found["errors"] == {"rxm": "no rain"}
    assert "rxm" not in found["transports"] and all("rxm" not in each for each in found["rounds"])


def test_the_memory_of_a_rank_is_the_mean_and_the_saving_is_relative_to_rc() -> None:
    def return_simulated_figures(_: Any, name: str, netif: str, ranks: int) -> dict[str, int]:
        if (name, ranks) == ("tcp", 4):
            raise BenchError("no rain")
        assert not (name == "tcp" and ranks > 4), "a failed transport was measured again"
        a_rank = {"ud": 1000, "rc": 4000}.get(name, 500)
        figures = {"pss": a_rank, "held": a_rank // 10, "udp": 0, "tcp": 0, "kernel": 0, "us": 5}
        return {"ranks": ranks, **{of: value * ranks for of, value in figures.items()}}

    steps: list[tuple[int, int]] = []
    found = peers.measure_memory(
        MPICH, "eth7", (8, 2, 4), lambda *step: steps.append(step), run=return_simulated_figures
    )
    assert [point["ranks"] for point in found["points"]] == [2, 4, 8]
    assert found["errors"] == {"tcp": "4 ranks: no rain"}
    assert ["tcp" in point for point in found["points"]] == [True, False, False]
    assert steps[-1] == (9, 9)
    for point in found["points"]:
        assert (point["ud"]["process"], point["ud"]["siwarp"]) == (1000, 100)
        assert point["saving"]["whole"] == point["saving"]["siwarp_and_kernel"] == 0.75


def test_a_row_of_a_kernel_has_both_times_and_ratios_only_of_complete_rounds() -> None:
    turns: list[str] = []

    def return_simulated_figures(
        _: Any, name: str, netif: str, ranks: int, kernel: str
    ) -> dict[str, Any]:
        turns.append(name)
        if kernel == "lu" and name == "rc":
            raise BenchError("no rain")
        part = {"ud": 1.0, "rc": 2.0, "tcp": 4.0}[name]
        return {"seconds": 5.0, "communication": part, "calls": 7, "residual": 1e-10}

    found = kernels.measure_mpi_kernels(MPICH, "eth7", 2, (2,), run=return_simulated_figures)
    cg, _, lu = found["rows"]
    assert turns[:6] == ["ud", "rc", "tcp", "rc", "tcp", "ud"]
    assert (cg["kernel"], cg["ranks"], cg["ud"]["calls"]) == ("cg", 2, 7)
    assert cg["rc"]["communication"]["median"] == 2.0 and cg["rc"]["seconds"]["median"] == 5.0
    assert (cg["ud_to_rc"]["median"], cg["ud_to_tcp"]["median"]) == (0.5, 0.25)
    assert "ud" not in lu and "ud_to_rc" not in lu
    assert found["errors"] == {"lu, 2 ranks, rc": "no rain"}
