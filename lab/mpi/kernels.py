# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The time that small solvers spend in communication over UD, RC and TCP, by MPI profiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lab.mpi.launch import TRANSPORTS, Mpich
from lab.mpi.wire import median_and_range
from siwarp.bench.runner import BenchError, Progress

__all__ = ["KERNELS", "RANKS", "measure_mpi_kernels"]

#: The size of the problem that each kernel solves; mpi_kernels.h describes the sizes.
KERNELS = {"cg": 57344, "mg": 64, "lu": 48}
RANKS = (2, 4)
_TRANSPORTS = ("ud", "rc", "tcp")
LIMIT_S = 60
_SOURCES = ("mpi_kernels", "mpi_cg", "mpi_mg", "mpi_lu", "mpi_time")


def _run_mpi_kernel(mpich: Mpich, name: str, netif: str, ranks: int, kernel: str) -> dict[str, Any]:
    program = mpich.compile_program(*_SOURCES)
    command = [str(program), kernel, str(KERNELS[kernel])]
    found = mpich.run_program(TRANSPORTS[name], netif, ranks, command, limit=LIMIT_S, bind=True)
    return dict(found)


def _summarize_mpi_kernel(
    kernel: str, ranks: int, rounds: Sequence[dict[str, dict[str, Any]]]
) -> dict[str, Any]:
    """Return the summary of the rounds in which every transport was measured."""
    row: dict[str, Any] = {"kernel": kernel, "size": KERNELS[kernel], "ranks": ranks}
    whole = [each for each in rounds if len(each) == len(_TRANSPORTS)]
    for name in _TRANSPORTS if whole else ():
        row[name] = {
            "seconds": median_and_range(each[name]["seconds"] for each in whole),
            "communication": median_and_range(each[name]["communication"] for each in whole),
            "calls": whole[0][name]["calls"],
            "residual": max(each[name]["residual"] for each in whole),
        }
    for name in ("rc", "tcp") if whole else ():
        row[f"ud_to_{name}"] = median_and_range(
            each["ud"]["communication"] / each[name]["communication"] for each in whole
        )
    return row


def measure_mpi_kernels(
    mpich: Mpich,
    netif: str,
    rounds: int,
    ranks: Sequence[int] = RANKS,
    progress: Progress | None = None,
    run: Callable[..., dict[str, Any]] = _run_mpi_kernel,
) -> dict[str, Any]:
    """Measure every kernel over each transport once a round, in a different order each time.

    A row has, for each transport, seconds of the complete solver (of the slowest rank) and of its
    communication (the mean of the ranks), and the ratio of UD's communication time to that of the
    others.
    """
    rows: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    steps = len(KERNELS) * len(ranks) * rounds
    for kernel in KERNELS:
        for n in ranks:
            seen: list[dict[str, dict[str, Any]]] = []
            for turn in range(rounds):
                shift = turn % len(_TRANSPORTS)
                values = {}
                for name in [*_TRANSPORTS[shift:], *_TRANSPORTS[:shift]]:
                    try:
                        values[name] = run(mpich, name, netif, n, kernel)
                    except BenchError as e:
                        errors[f"{kernel}, {n} ranks, {name}"] = str(e)
                seen.append(values)
                if progress:
                    progress((len(rows) * rounds) + turn + 1, steps)
            rows.append(_summarize_mpi_kernel(kernel, n, seen))
    return {"transports": list(_TRANSPORTS), "rows": rows, "errors": errors}
