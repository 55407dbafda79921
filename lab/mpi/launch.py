# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Finds MPICH, compiles the MPI programs of this folder, and runs the programs over a transport."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siwarp.bench.runner import BenchError

__all__ = [
    "HOW_TO_INSTALL",
    "TRANSPORTS",
    "Mpich",
    "Transport",
    "find_first_non_loopback_interface",
    "find_mpich",
    "wait_for_json",
]

#: Advice if no MPICH is installed; the wheel mpich includes mpicc, UCX and libfabric.
HOW_TO_INSTALL = (
    "run 'pip install mpich' for the Python that runs siwarp, or name its folder with --mpich"
)
_SOURCES = Path(__file__).resolve().parent
#: The folder relative to which headers are included.
_PACKAGE = _SOURCES.parents[1]
_COMPILE_S = 60
#: Harmless lines that UCX prints as errors if the kernel has no RDMA devices.
_NOISE = re.compile(r"(sock|netlink)\.c:\d+ +UCX +ERROR")
#: The programs that an MPICH must have.
_TOOLS = ("mpicc", "mpiexec", "mpichversion")


@dataclass(frozen=True)
class Transport:
    """A transport of MPI's messages: the name in tables, and the environment for MPICH.

    In the values of ``env``, ``{netif}`` stands for the interface. ``beside`` names the transport
    of the same library over the kernel's TCP.
    """

    name: str
    env: dict[str, str]
    beside: str
    siwarp: bool = True


_UCX, _OFI = {"MPIR_CVAR_CH4_NETMOD": "ucx"}, {"MPIR_CVAR_CH4_NETMOD": "ofi"}
_SIW = {"UCX_NET_DEVICES": "siw_{netif}:1"}
TRANSPORTS = {
    "ud": Transport("UCX ud_verbs", {**_UCX, **_SIW, "UCX_TLS": "ud_v"}, "tcp"),
    "rc": Transport("UCX rc_verbs", {**_UCX, **_SIW, "UCX_TLS": "rc_v,ud_v"}, "tcp"),
    "rxm": Transport(
        "libfabric verbs;ofi_rxm",
        {**_OFI, "FI_PROVIDER": "verbs;ofi_rxm", "FI_VERBS_IFACE": "{netif}"},
        "ofi_tcp",
    ),
    "tcp": Transport(
        "UCX tcp",
        {**_UCX, "UCX_NET_DEVICES": "{netif}", "UCX_TLS": "tcp"},
        "tcp",
        siwarp=False,
    ),
    "ofi_tcp": Transport(
        "libfabric tcp",
        {**_OFI, "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "{netif}"},
        "ofi_tcp",
        siwarp=False,
    ),
}


def find_first_non_loopback_interface() -> str:
    """Return the interface of the first device that is up and is not the loopback device.

    Raises:
        BenchError: only the loopback interface has an address; MPICH does not use loopback.

    """
    from siwarp.verbs import get_device_list

    for device in get_device_list():
        if device.netdev != "lo" and device.up:
            return device.netdev
    raise BenchError(
        "no interface except lo has an address, but MPICH needs another interface: in a network "
        "namespace create a pair with 'ip link add mpi0 type veth peer name mpi1', give mpi0 an "
        "address and set both up"
    )


@dataclass
class Mpich:
    """An installation of MPICH, and the folder for programs that are compiled with its mpicc."""

    prefix: Path
    work: Path
    version: str
    netmods: tuple[str, ...]
    compiled: set[str] = field(default_factory=set)

    def tool_path(self, name: str) -> str:
        """Return the path of a program of MPICH, such as mpicc."""
        return str(self.prefix / name)

    def compile_program(self, program: str, *more: str, shared: bool = False) -> Path:
        """Compile a program from C files of lab/mpi, unless the program is compiled already.

        Raises:
            BenchError: the compilation failed.

        """
        path = self.work / program
        if program in self.compiled:
            return path
        flags = ["-shared", "-fPIC", "-ldl"] if shared else ["-lm"]
        sources = [str(_SOURCES / f"{name}.c") for name in (program, *more)]
        command = [self.tool_path("mpicc"), "-O2", "-std=gnu11", "-D_GNU_SOURCE", f"-I{_PACKAGE}"]
        done = subprocess.run(
            [*command, "-o", str(path), *sources, *flags],
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
        )
        if done.returncode != 0:
            said = done.stderr.strip() or "no C compiler? install gcc"
            raise BenchError(f"mpicc does not compile {program}: {said}")
        self.compiled.add(program)
        return path

    def run_program(
        self,
        transport: Transport,
        netif: str,
        ranks: int,
        command: list[str],
        *,
        limit: float,
        env: dict[str, str] | None = None,
        bind: bool = False,
    ) -> Any:
        """Run a compiled program as an MPI job; return the JSON that the program printed.

        limit: seconds until the job is killed. bind: each rank has a separate CPU, if enough CPUs
        exist.

        Raises:
            BenchError: the job failed, exceeded the limit, or this MPICH has no such transport.

        """
        netmod = transport.env["MPIR_CVAR_CH4_NETMOD"]
        if netmod not in self.netmods:
            raise BenchError(f"this MPICH {self.version} has no {netmod}: PyPI's has it")
        words = [self.tool_path("mpiexec"), "-n", str(ranks)]
        cpus = sorted(os.sched_getaffinity(0))
        if bind and len(cpus) >= ranks:
            words += ["-bind-to", "user:" + ",".join(map(str, cpus[:ranks]))]
        if transport.siwarp:
            words = [sys.executable, "-m", "siwarp.cli", "run", "--", *words]
        told = {name: value.format(netif=netif) for name, value in transport.env.items()}
        process = subprocess.Popen(
            [*words, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Disable shared memory, which would bypass the transport to be measured.
            env={
                **os.environ,
                "UCX_LOG_LEVEL": "error",
                "UCX_LOG_FILE": "stderr",
                **told,
                "MPIR_CVAR_NOLOCAL": "1",
                "HYDRA_LAUNCHER": "fork",
                **(env or {}),
            },
            start_new_session=True,
        )
        return wait_for_json(process, f"{Path(command[0]).name} over {transport.name}", limit)


def wait_for_json(process: subprocess.Popen[str], what: str, limit: float) -> Any:
    """Wait for a process, which is a session leader; return the JSON that the process printed.

    limit: seconds until all processes of the session are killed. what: names the process in errors.

    Raises:
        BenchError: the process failed, exceeded the limit, or printed no JSON.

    """
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{what} did not finish within {limit:.0f} s") from None
    finally:
        # Kill the ranks also after an interrupt; they would otherwise keep running.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        lines = (line for line in err.splitlines() if line.strip() and not _NOISE.search(line))
        said = next(lines, out.strip())
        raise BenchError(f"{what} failed: exit status {process.returncode}: {said}")
    try:
        return json.loads(out)
    except ValueError:
        raise BenchError(f"{what} printed no results: {out.strip()[:200]!r}") from None


def find_mpich(folder: Path | None, work: Path) -> Mpich:
    """Return the MPICH in a folder, or the MPICH in the environment of this Python.

    PATH is not searched: systems have several MPIs, and Debian's mpicc may be any of them.

    folder: contains bin/mpicc. work: the folder for compiled programs.

    Raises:
        BenchError: no MPICH is there; the text says how to install MPICH.

    """
    place = folder / "bin" if folder else Path(sys.executable).parent
    for name in _TOOLS:
        if not os.access(place / name, os.X_OK):
            raise BenchError(f"no {name} in {place}: {HOW_TO_INSTALL}")
    said = subprocess.run(
        [place / "mpichversion"], capture_output=True, text=True, timeout=_COMPILE_S
    ).stdout
    version = re.search(r"Version:\s+(\S+)", said)
    device = re.search(r"Device:\s+ch4:(.+)", said)
    netmods = tuple(re.split(r"[\s,]+", device[1].strip())) if device else ()
    return Mpich(place, work, version[1] if version else "?", netmods)
