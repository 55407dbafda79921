# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory of MPI ranks after each rank has exchanged messages with all others: UD compared with RC.

The result has, for each number of ranks and each transport: the memory of a rank's process (with
its share of memory common to processes), the part of this memory that siwarp's libraries have
allocated, and the memory of the kernel for the sockets of the rank and for their buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lab.mpi.launch import TRANSPORTS, Mpich
from siwarp.bench.memory import estimate_kernel_memory_of_sockets
from siwarp.bench.runner import BenchError, Progress

__all__ = ["RANKS", "SIZE", "measure_memory", "memory_of_one_rank"]

RANKS = (2, 4, 8, 16, 32, 64)
#: The transports to compare: UD, RC, and MPICH's own TCP.
_TRANSPORTS = ("ud", "rc", "tcp")
#: Length of each message in octets.
SIZE = 8192
LIMIT_S = 120


def _run_mpi_peers(mpich: Mpich, name: str, netif: str, ranks: int) -> dict[str, int]:
    program = mpich.compile_program("mpi_peers", "mpi_held", "mpi_process")
    # Without this setting UCX would patch malloc() and free(), which the program itself replaces in
    # order to count the allocated memory.
    env = {"UCX_MEM_MALLOC_HOOKS": "n"}
    command = [str(program), str(SIZE)]
    return dict(mpich.run_program(TRANSPORTS[name], netif, ranks, command, limit=LIMIT_S, env=env))


def memory_of_one_rank(sums: dict[str, int]) -> dict[str, Any]:
    """Return the memory of one rank, given the sums over all ranks."""
    ranks = sums["ranks"]
    objects = estimate_kernel_memory_of_sockets(sums["udp"], sums["tcp"])
    kernel = sums["kernel"] + (objects or 0)
    return {
        "process": sums["pss"] // ranks,
        "siwarp": sums["held"] // ranks,
        "sockets": {"udp": sums["udp"] / ranks, "tcp": sums["tcp"] / ranks},
        "kernel_buffers": sums["kernel"] // ranks,
        "kernel_objects": None if objects is None else objects // ranks,
        "whole": (sums["pss"] + kernel) // ranks,
        "siwarp_and_kernel": (sums["held"] + kernel) // ranks,
        "seconds": round(sums["us"] / ranks / 1e6, 3),
    }


def measure_memory(
    mpich: Mpich,
    netif: str,
    ranks: Sequence[int] = RANKS,
    progress: Progress | None = None,
    run: Callable[..., dict[str, int]] = _run_mpi_peers,
) -> dict[str, Any]:
    """Measure the memory of a rank, with each number of ranks over each transport.

    A point has ``ranks``, for each transport its octets per rank, and ``saving``: how much less
    memory UD needs than RC, as a fraction of RC's. A transport that fails is not tried with more
    ranks.
    """
    points: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    for i, n in enumerate(sorted(ranks)):
        point: dict[str, Any] = {"ranks": n}
        for k, name in enumerate(_TRANSPORTS):
            if name not in errors:
                try:
                    point[name] = memory_of_one_rank(run(mpich, name, netif, n))
                except BenchError as e:
                    errors[name] = f"{n} ranks: {e}"
            if progress:
                progress(i * len(_TRANSPORTS) + k + 1, len(ranks) * len(_TRANSPORTS))
        if "ud" in point and "rc" in point:
            point["saving"] = {
                of: 1 - point["ud"][of] / point["rc"][of] for of in ("whole", "siwarp_and_kernel")
            }
        points.append(point)
    return {"size": SIZE, "transports": list(_TRANSPORTS), "points": points, "errors": errors}
