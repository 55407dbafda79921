"""Verbs in a world: the harnesses of tests/unit, on its network and its clock."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from unit.verbs.rc_harness import Wire
from unit.verbs.verbs_harness import MCAST_PORT, Pair, Rig, settings

import siwarp.sim


@pytest.fixture(autouse=True)
def _in_world(world: siwarp.sim.World) -> Iterator[None]:
    with net.in_world(world), settings(mcast_port=MCAST_PORT):
        yield


@pytest.fixture
def rig(_in_world: None) -> Iterator[Rig]:
    """Make a device with a PD."""
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def pair(rig: Rig) -> Pair:
    """Make two UD queue pairs on one host."""
    return Pair(rig)


@pytest.fixture
def wire(rig: Rig) -> Wire:
    """Make a listener and a way to connect to it."""
    return Wire(rig)


@pytest.fixture
def two(_in_world: None) -> Iterator[Wire]:
    """Make the same between two open devices."""
    a, b = Rig(), Rig()
    yield Wire(a, b)
    a.close()
    b.close()
