"""Tests in a simulated process: `make sim`, a separate pytest run."""

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

#: Q_Key of UD and RD queue pairs, because each device has a different default.
QKEY = 0x5EED


@dataclass
class End:
    """A queue pair and the objects it needs."""

    device: Context
    pd: PD
    cq: CQ
    qp: QP
    mr: MR


@pytest.fixture
def world() -> Iterator[siwarp.sim.World]:
    with siwarp.sim.World(seed=7) as world:
        yield world


@pytest.fixture
def end(world: siwarp.sim.World) -> Callable[[Context, QPType], End]:
    """Create a queue pair on a device; closing the world closes all of its objects."""

    def make(device: Context, kind: QPType) -> End:
        pd = PD(device)
        cq = CQ(device, 256, channel=CompChannel(device))
        mr = MR(pd, 65536, ACCESS)
        where = (device.device.addresses[0], 0)
        qkey = None if kind == QPType.UC else QKEY
        init = QPInitAttr(kind, scq=cq, rcq=cq, addr=where, qkey=qkey)
        return End(device, pd, cq, QP(pd, init), mr)

    return make
