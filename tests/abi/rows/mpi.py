"""MPIs over UCX."""

from __future__ import annotations

from collections.abc import Iterator

from .row import CABLE, HERE, NOBODY, Row

LAUNCHERS = {
    "mpich": "mpirun.mpich -n {n} {{work}}/mpi-mpich",
    "openmpi": "mpirun.openmpi --allow-run-as-root --oversubscribe --mca pml ucx "
    "--mca btl ^openib -n {n} {{work}}/mpi-openmpi",
}


def mpi() -> Iterator[Row]:
    """Two MPIs over UCX, all ranks in one namespace."""
    for name, launcher in LAUNCHERS.items():
        for transport in ("ud_v", "rc_v,ud_v"):
            for ranks in (2, 4, 8):
                for what in ("hello", "ring 200000", "alltoall 20000"):
                    short = ranks == 2 or (ranks == 4 and what == "hello" and transport == "ud_v")
                    places = (HERE, NOBODY) if what == "ring 200000" else (HERE,)
                    yield Row(
                        f"{name} -n {ranks} {what.split()[0]} {transport}",
                        "RC, UD" if "rc" in transport else "UD",
                        f"{launcher.format(n=ranks)} {what}",
                        shows=rf"{what.split()[0]} of {ranks} ranks: data correct",
                        data="program",
                        places=(HERE, NOBODY),
                        short=places if short else (),
                        env={"UCX_TLS": transport, "UCX_NET_DEVICES": "{dev}:1"},
                        seconds=120,
                    )


def mpi_across() -> Iterator[Row]:
    """MPICH with a rank in each of two namespaces; Open MPI's want a remote shell for that."""
    rank = "-n 1 -env UCX_NET_DEVICES {{{dev}}}:1 {over} {{work}}/mpi-mpich {what}"
    for transport in ("ud_v", "rc_v,ud_v"):
        for what in ("hello", "ring 200000", "alltoall 20000"):
            ranks = [
                rank.format(dev="dev", over="", what=what),
                rank.format(dev="over_dev", over="{over}", what=what),
            ]
            yield Row(
                f"mpich across {what.split()[0]} {transport}",
                "RC, UD" if "rc" in transport else "UD",
                f"mpirun.mpich {' : '.join(ranks)}",
                shows=rf"{what.split()[0]} of 2 ranks: data correct",
                data="program",
                places=(CABLE,),
                short=(CABLE,) if what == "ring 200000" else (),
                env={"UCX_TLS": transport},
                seconds=120,
            )
