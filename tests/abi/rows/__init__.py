"""The rows of ``make abi``: a program, its transport, and the output that proves success.

Each file has one family of programs; each function yields rows.
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

__all__ = [
    "BOTH",
    "CABLE",
    "GATE",
    "HERE",
    "NOBODY",
    "PINGPONG",
    "PLACES",
    "SCRIPTS",
    "Row",
    "all_test_rows",
]

#: The rows that the gate (.ci/run) runs: only programs from Debian packages, at least one of each
#: family and transport, on one host or between two network namespaces. `make abi` runs all rows.
GATE = frozenset(
    [(name, HERE) for name in (
        "ibv_devices",
        "ibv_devinfo -v",
        "ibv_asyncwatch",
        "ibv_rc_pingpong -g 0",
        "ibv_rc_pingpong -g 0 -e",
        "ibv_uc_pingpong -g 0",
        "ibv_ud_pingpong -g 0",
        "ibv_srq_pingpong -g 0 -e",
        "ib_send_lat -c RC",
        "ib_send_lat -c UD",
        "ib_send_bw -c RC -q 4",
        "ib_send_bw -c UC",
        "ib_write_bw -c RC",
        "ib_read_bw -c RC",
        "ib_atomic_bw -c RC",
        "ib_send_lat -R",
        "ib_write_bw -R",
        "ib_send_lat -R -c UD",
        "ucx_perftest tag_lat 64 ud_v",
        "ucx_perftest tag_bw 65536 rc_v",
        "UCX rdmacm am rc_v",
        "fi_pingpong verbs msg",
        "fi_pingpong verbs;ofi_rxm rdm",
        "fi_pingpong verbs;ofi_rxd rdm",
        "mpich -n 2 ring ud_v",
        "mpich -n 2 ring rc_v,ud_v",
        "pyverbs rc",
        "pyverbs ud",
        "pyverbs srq",
        "rping",
        "ucmatose",
        "rdma_server",
        "udaddy",
        "mckey -m",
        "rstream",
        "ib_send_bw -b, server killed",
        "rping, client killed",
    )]
    + [(name, CABLE) for name in (
        "ibv_rc_pingpong -g 0",
        "ibv_ud_pingpong -g 0",
        "rping",
        "udaddy",
    )]
)  # fmt: skip

#: The functions that yield rows, in the order in which the rows run.
GROUPS = (
    ibverbs.single_program_test_rows,
    ibverbs.pingpong_test_rows,
    perftest.perftest_test_rows,
    ucx.ucx_test_rows,
    ucx.ucx_ipv6_test_rows,
    ucx.ucx_rdmacm_test_rows,
    libfabric.fi_pingpong_test_rows,
    libfabric.killed_libfabric_test_rows,
    mpi.mpi_test_definitions,
    mpi.two_namespace_mpi_test_rows,
    mpi.mpi4py_scripts_to_run,
    mpi.mpi_fault_test_rows,
    ibverbs.pyverbs_test_rows,
    ibverbs.rdma_core_test_rows,
    wheels.wheel_test_rows,
    wheels.wheel_rows_with_killed_end,
    libs.gloo_test_rows,
    libs.rpma_test_definitions,
    libs.dapl_test_rows,
    libs.dapl_srq_and_thread_test_rows,
    libs.qperf_test_rows,
    libs.fio_test_cases,
    libs.mooncake_test_rows,
    watched.debugging_tool_test_rows,
    rdmacm.rdma_cm_test_rows,
    rdmacm.perftest_rdma_cm_test_rows,
    rdmacm.rdma_cm_ud_test_rows,
    rdmacm.rsocket_test_rows,
    bad_days.fault_test_rows,
    killed.killed_endpoint_test_rows,
    killed.killed_during_connect_test_cases,
    mpi.many_rank_mpi_test_rows,
)


def all_test_rows() -> list[Row]:
    """Return all rows of the table."""
    return [row for group in GROUPS for row in group()]
