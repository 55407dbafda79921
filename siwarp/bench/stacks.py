# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Other stacks over the kernel's TCP, which ``siwarp bench all`` measures where they are installed.

libfabric and UCX are measured with their own programs, an MPI with a program that its compiler
compiles (mpi/mpi_pingpong.c). None of them uses siwarp.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from siwarp.bench.programs import (
    Pair,
    extract_figure_from_output,
    measure_program_pair,
    wait_and_return_output,
)
from siwarp.bench.runner import BenchError

__all__ = [
    "LATENCY_SIZE",
    "STACKS",
    "STREAM_SIZE",
    "Stack",
    "make_libfabric_program_pair",
    "make_ucx_program_pair",
]

#: Octets of the messages with which latency and bandwidth are measured.
LATENCY_SIZE, STREAM_SIZE = 64, 1 << 20
#: Number of messages of a run, which takes about as long as a run of siwarp.
_COUNTS = {"lat": 10_000, "bw": 500}

#: The environment of an MPI on loopback: Open MPI's own TCP, or MPICH's UCX or libfabric over TCP
#: instead of shared memory. The other variables make Open MPI run as root, and with more ranks
#: than cores.
_MPI_ENVIRONMENT = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "lo",
}


@dataclass(frozen=True)
class Stack:
    """Another stack.

    Attributes:
        name: the name in the report.
        programs: the programs that it needs.
        install: how to install them.
        measure: measures ``lat`` (us one way) or ``bw`` (GB/s) once; the folder, the same in each
            call, is for files that it creates.
        bandwidth: what ``bw`` measures.
    """

    name: str
    programs: tuple[str, ...]
    install: str
    measure: Callable[[str, Path], float]
    bandwidth: str

    def is_installed(self) -> bool:
        """Whether all programs are installed."""
        return all(shutil.which(program) for program in self.programs)


def make_libfabric_program_pair(kind: str) -> Pair:
    """Return the programs that measure libfabric: ``lat`` or ``bw``."""
    size = LATENCY_SIZE if kind == "lat" else STREAM_SIZE
    words = ("-p", "tcp", "-e", "msg", "-I", str(_COUNTS[kind]), "-S", str(size))
    # Columns of fi_pingpong's output: bytes (1m: 1 MiB), #sent, #ack, total, time, MB/sec,
    # usec/xfer.
    skipped = 5 if kind == "lat" else 4
    return Pair(
        "fi_pingpong",
        words,
        rf"(?m)^(?:{LATENCY_SIZE}|1m)\s+(?:\S+\s+){{{skipped}}}(\S+)",
        1 if kind == "lat" else 1e-3,
        siwarp=None,
        ports=("-B", "-P"),
    )


def make_ucx_program_pair(kind: str) -> Pair:
    """Return the programs that measure UCX: ``lat`` or ``bw``."""
    n = _COUNTS[kind]
    size = LATENCY_SIZE if kind == "lat" else STREAM_SIZE
    words = ("-t", f"tag_{kind}", "-s", str(size), "-n", str(n), "-w", str(n // 10), "-f", "-v")
    # Columns of ucx_perftest's output: iterations, median latency (us), three that are not used,
    # overall bandwidth (MiB/s).
    column = "" if kind == "lat" else r"(?:[^,]*,){4}"
    return Pair(
        "ucx_perftest",
        words,
        rf"(?m)^ *{n},{column}([^,]+),",
        1 if kind == "lat" else (1 << 20) / 1e9,
        {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"},
        siwarp=None,
    )


def _measure_mpi(kind: str, folder: Path) -> float:
    program = folder / "mpi_pingpong"
    if not program.exists():
        source = Path(__file__).with_name("mpi") / "mpi_pingpong.c"
        built = subprocess.run(
            ["mpicc", "-O2", "-o", str(program), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise BenchError(f"mpicc failed: {built.stderr.strip()[-300:]}")
    size = LATENCY_SIZE if kind == "lat" else STREAM_SIZE
    with subprocess.Popen(
        ["mpirun", "-np", "2", str(program), kind, str(size), str(_COUNTS[kind])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **_MPI_ENVIRONMENT},
    ) as process:
        try:
            said = wait_and_return_output(process, "mpirun")
        finally:
            process.kill()
    return extract_figure_from_output("mpirun", r"(?m)^figure (\S+)$", said)


STACKS = (
    Stack(
        "libfabric tcp",
        ("fi_pingpong", "taskset"),
        "sudo apt install libfabric-bin",
        lambda kind, _: measure_program_pair(make_libfabric_program_pair(kind)),
        "fi_pingpong, one message at a time",
    ),
    Stack(
        "UCX tcp",
        ("ucx_perftest", "taskset"),
        "sudo apt install ucx-utils",
        lambda kind, _: measure_program_pair(make_ucx_program_pair(kind)),
        "ucx_perftest, tag_bw",
    ),
    Stack(
        "MPI over TCP",
        ("mpicc", "mpirun"),
        "sudo apt install libopenmpi-dev openmpi-bin",
        _measure_mpi,
        "16 messages outstanding",
    ),
)
