"""Fixtures of tests in a simulated network, which `make sim` runs as a separate pytest run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

import siwarp.sim
from siwarp.verbs import CQ, MR, PD, QP, AccessFlag, CompChannel, Context, QPInitAttr, QPType

ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)

#: Q_Key of all UD and RD queue pairs of the tests, because each device has a different default.
QKEY = 0x5EED


@dataclass
class End:
    """A queue pair, its device, and the completion queue and memory region that it uses."""

    device: Context
    pd: PD
    cq: CQ
    qp: QP
    mr: MR


@pytest.fixture(name="world")
def simulated_world() -> Iterator[siwarp.sim.World]:
    with siwarp.sim.World(seed=7) as world:
        yield world


@pytest.fixture
def create_rdma_endpoint(world: siwarp.sim.World) -> Callable[[Context, QPType], End]:
    """Return a function that creates a queue pair; closing the world closes its objects."""

    def create_queue_pair(device: Context, kind: QPType) -> End:
        pd = PD(device)
        cq = CQ(device, 256, channel=CompChannel(device))
        mr = MR(pd, 65536, ACCESS)
        where = (device.device.addresses[0], 0)
        qkey = None if kind == QPType.UC else QKEY
        init = QPInitAttr(kind, scq=cq, rcq=cq, addr=where, qkey=qkey)
        return End(device, pd, cq, QP(pd, init), mr)

    return create_queue_pair
