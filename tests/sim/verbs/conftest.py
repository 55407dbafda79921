"""Verbs in a simulated network, with the harnesses of tests/unit."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.rc_harness import Wire
from harness.verbs_harness import MCAST_PORT, Pair, Rig, temporary_settings

import siwarp.sim


@pytest.fixture(autouse=True)
def _in_world(world: siwarp.sim.World) -> Iterator[None]:
    with net.use_world(world), temporary_settings(mcast_port=MCAST_PORT):
        yield


@pytest.fixture
def rig(_in_world: None) -> Iterator[Rig]:
    """Create a device with a PD."""
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def pair(rig: Rig) -> Pair:
    """Create two UD queue pairs on one host."""
    return Pair(rig)


@pytest.fixture
def wire(rig: Rig) -> Wire:
    """Create a listener, and a helper to connect to it."""
    return Wire(rig)


@pytest.fixture
def two(_in_world: None) -> Iterator[Wire]:
    """Create a listener on one device, and a helper to connect from another one."""
    a, b = Rig(), Rig()
    yield Wire(a, b)
    a.close()
    b.close()
