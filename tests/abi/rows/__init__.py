"""What ``make abi`` runs: a program, on which transport, and what shows that it worked.

A file for each family of programs; each function yields rows.
"""

from __future__ import annotations

from . import (
    bad_days,
    ibverbs,
    killed,
    libfabric,
    libs,
    mpi,
    perftest,
    rdmacm,
    ucx,
    watched,
    wheels,
)
from .ibverbs import SCRIPTS
from .row import BOTH, CABLE, HERE, NOBODY, PINGPONG, PLACES, Row

__all__ = ["BOTH", "CABLE", "HERE", "NOBODY", "PINGPONG", "PLACES", "SCRIPTS", "Row", "rows"]

#: In the order in which they run.
GROUPS = (
    ibverbs.alone,
    ibverbs.pingpongs,
    perftest.perftest,
    ucx.ucx,
    ucx.ucx_ipv6,
    ucx.ucx_rdmacm,
    libfabric.fi_pingpong,
    libfabric.killed,
    mpi.mpi,
    mpi.across,
    mpi.mpi4py,
    mpi.troubled,
    ibverbs.pyverbs,
    ibverbs.rdma_core,
    wheels.wheels,
    wheels.killed,
    libs.gloo,
    libs.rpma,
    libs.dapl,
    libs.dapl_more,
    libs.qperf,
    libs.fio,
    libs.mooncake,
    watched.watched,
    rdmacm.rdma_cm,
    rdmacm.perftest,
    rdmacm.rdma_cm_ud,
    rdmacm.rsockets,
    bad_days.bad_days,
    killed.killed,
    killed.connected,
    mpi.many_ranks,
)


def rows() -> list[Row]:
    """Return the whole table."""
    return [row for group in GROUPS for row in group()]
