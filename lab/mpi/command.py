# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m lab.mpi``: run the requested parts and print tables and JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from lab.command import output_results
from lab.mpi import hybrid, kernels, launch, peers, table, wire
from siwarp.bench.runner import BenchError, Progress

__all__ = ["PARTS", "Options", "run_study_parts"]

#: Version of the format that --json prints. The version changes if readers of the old format would
#: fail.
SCHEMA = "siwarp-bench-mpi/1"


@dataclass(frozen=True)
class Options:
    """The options of the command line of ``python -m lab.mpi``."""

    parts: tuple[str, ...]
    rounds: int
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    netif: str
    mpich: str
    limit: int = hybrid.LIMIT
    progress: Progress | None = None


def _measure_transports(options: Options, mpich: launch.Mpich, netif: str) -> dict[str, Any]:
    found = wire.measure_transports(
        mpich, netif, options.rounds, options.sizes or wire.SIZES, progress=options.progress
    )
    return {**found, "musts": wire.judge_performance_promises(found)}


def _measure_memory(options: Options, mpich: launch.Mpich, netif: str) -> dict[str, Any]:
    return peers.measure_memory(mpich, netif, options.ranks or peers.RANKS, options.progress)


def _measure_mpi_kernels(options: Options, mpich: launch.Mpich, netif: str) -> dict[str, Any]:
    ranks = options.ranks or kernels.RANKS
    return kernels.measure_mpi_kernels(
        mpich, netif, min(options.rounds, 3), ranks, options.progress
    )


#: The parts of the study that run MPI programs.
_BY_MPI: dict[str, Callable[[Options, launch.Mpich, str], dict[str, Any]]] = {
    "wire": _measure_transports,
    "memory": _measure_memory,
    "kernels": _measure_mpi_kernels,
}


def _measure_hybrid_channel(options: Options) -> dict[str, Any]:
    return hybrid.measure_message_channels(
        options.ranks or hybrid.RANKS,
        options.sizes or (hybrid.SIZE,),
        min(options.rounds, 3),
        options.limit,
        options.progress,
    )


#: The parts of the study that need no MPI.
_BY_ITSELF: dict[str, Callable[[Options], dict[str, Any]]] = {"hybrid": _measure_hybrid_channel}
PARTS = (*_BY_MPI, *_BY_ITSELF)


def _measure_study_parts(options: Options, work: Path) -> dict[str, Any]:
    """Return the result of each part; a part that could not be measured is None, with a reason."""
    found: dict[str, Any] = {"schema": SCHEMA, "mpi": None, "netif": None}
    errors: dict[str, str] = {}
    mpich, netif, why = None, "", ""
    if any(part in _BY_MPI for part in options.parts):
        try:
            mpich = launch.find_mpich(Path(options.mpich) if options.mpich else None, work)
            netif = options.netif or launch.find_first_non_loopback_interface()
            found["mpi"] = {"version": mpich.version, "netmods": list(mpich.netmods)}
            found["netif"] = netif
        except BenchError as e:
            why = str(e)
            typer.echo(f"lab mpi: {why}", err=True)
    for part in options.parts:
        found[part] = None
        try:
            if part in _BY_ITSELF:
                found[part] = _BY_ITSELF[part](options)
                continue
            if mpich is None or not netif:
                raise BenchError(f"left out: {why}")
            found[part] = _BY_MPI[part](options, mpich, netif)
        except BenchError as e:
            errors[part] = str(e)
    return {**found, "errors": errors}


def all_performance_promises_kept(found: dict[str, Any]) -> bool:
    """Return whether every part was measured completely, and every promise is kept."""
    parts = [found[part] for part in PARTS if found.get(part)]
    whole = not found["errors"] and not any(part["errors"] for part in parts)
    return whole and all(must["kept"] for part in parts for must in part.get("musts", ()))


def run_study_parts(options: Options, *, as_json: bool, output: str) -> int:
    """Measure and print the parts; return 1 if a promise is not kept or not measured, else 0."""
    with tempfile.TemporaryDirectory(prefix="siwarp-lab-mpi-") as work:
        found = _measure_study_parts(options, Path(work))
    output_results(found, table.print_tables, as_json=as_json, output=output)
    return 0 if all_performance_promises_kept(found) else 1
