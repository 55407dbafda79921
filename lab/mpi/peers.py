# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory of MPI ranks that have all exchanged messages, by the number of ranks: UD compared with
RC.

A rank's memory is its own (including its share of memory common to processes), the part of it that
siwarp's libraries hold, and the kernel's: buffers of its sockets, and the sockets themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lab.mpi.launch import TRANSPORTS, Mpich
from siwarp.bench.memory import kernel_octets
from siwarp.bench.runner import BenchError, Progress

__all__ = ["RANKS", "SIZE", "measure", "of_rank"]

RANKS = (2, 4, 8, 16, 32, 64)
#: Transports in a figure of a paper, and MPICH's own.
_TRANSPORTS = ("ud", "rc", "tcp")
#: Length of each message in octets.
SIZE = 8192
LIMIT_S = 120


def _run(mpich: Mpich, name: str, netif: str, ranks: int) -> dict[str, int]:
    program = mpich.compile("mpi_peers", "mpi_held", "mpi_process")
    # UCX would patch the memory functions that the program defines for counting.
    env = {"UCX_MEM_MALLOC_HOOKS": "n"}
    command = [str(program), str(SIZE)]
    return dict(mpich.run(TRANSPORTS[name], netif, ranks, command, limit=LIMIT_S, env=env))


def of_rank(sums: dict[str, int]) -> dict[str, Any]:
    """Return the memory of one rank, given the sums over all ranks."""
    ranks = sums["ranks"]
    objects = kernel_octets(sums["udp"], sums["tcp"])
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


def measure(
    mpich: Mpich,
    netif: str,
    ranks: Sequence[int] = RANKS,
    progress: Progress | None = None,
    run: Callable[..., dict[str, int]] = _run,
) -> dict[str, Any]:
    """Measure each number of ranks over each transport.

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
                    point[name] = of_rank(run(mpich, name, netif, n))
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
